// A count of all allocations of a test program: linking allocations.cc replaces operator new.
#ifndef GYROGRAD_TESTS_SUPPORT_ALLOCATIONS_H_
#define GYROGRAD_TESTS_SUPPORT_ALLOCATIONS_H_

#include <cstdint>

namespace gyrograd::testing {

// So far, in all threads.
std::int64_t Allocations();

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_ALLOCATIONS_H_
