// Elements of tensors as doubles: exact on load, one correct rounding on store. Independent of the library.
#ifndef GYROGRAD_REFERENCE_ELEMENTS_H_
#define GYROGRAD_REFERENCE_ELEMENTS_H_

#include <cstddef>

#include "gyrograd/tensor_view.h"

namespace gyrograd::reference {

std::size_t ElementSize(DType dtype);

// The value of the element at `address`, which need not be aligned.
double Load(const void* address, DType dtype);

// Rounds to nearest, ties to even, in one step from double; denormals stay, NaN becomes a quiet NaN.
void Store(double value, void* address, DType dtype);

// What Store then Load make of `value`.
double Round(double value, DType dtype);

// The largest finite value.
double Largest(DType dtype);

// The distance between neighbours of the type at `value`.
double Ulp(double value, DType dtype);

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_ELEMENTS_H_
