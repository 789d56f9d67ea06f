// A rotary problem for tests, its tensors, and the checks of the results against the two witnesses.
#ifndef GYROGRAD_TESTS_SUPPORT_PROBLEM_H_
#define GYROGRAD_TESTS_SUPPORT_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gyrograd/rotary.h"
#include "problems/rotary.h"
#include "tests/support/tensor.h"

namespace gyrograd::testing {

inline constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                        RotaryMode::kInterleaveHalf};

using problems::Types;

inline constexpr Types kAllTypes[] = {{DType::kF64, DType::kF64}, {DType::kF32, DType::kF32},
                                      {DType::kF16, DType::kF16}, {DType::kBF16, DType::kBF16},
                                      {DType::kF16, DType::kF32}, {DType::kBF16, DType::kF32}};

struct Problem : problems::RotaryProblem {
  Placement placement = Placement::kGuarded;
};

// The problem's line of text, and the placement where it is not kGuarded.
std::ostream& operator<<(std::ostream& out, const Problem& problem);

// The tables' shape is `tables_outer` and the last extent that dy and `per_pair` ask for.
Problem MakeProblem(RotaryMode mode, Types types, const Shape& dy, const Shape& tables_outer, bool per_pair = false);

// The tensors of the backward, filled with random values; outputs hold guard bytes.
struct BackwardTensors {
  explicit BackwardTensors(const Problem& problem);

  RotaryBackwardArgs Args() const;
  // With dx, dcos, dsin as asked for alone, and x only if `with_x`.
  RotaryBackwardArgs Args(bool dx_wanted, bool dcos_wanted, bool dsin_wanted, bool with_x = true) const;
  RotaryBackwardPointers Pointers() const;

  // After a run on Args(): what is wrong with the results, if anything.
  ::testing::AssertionResult Check() const;
  // The bits of dx, dcos and dsin one after the other.
  std::vector<std::uint64_t> ResultBits() const;

  Problem problem;
  Tensor dy, cos, sin, x, dx, dcos, dsin;
};

struct ForwardTensors {
  explicit ForwardTensors(const Problem& problem);

  RotaryArgs Args() const;
  ::testing::AssertionResult Check() const;

  Problem problem;
  Tensor x, cos, sin, y;
};

// Makes the tensors, calls the library and checks everything.
::testing::AssertionResult CheckBackward(const Problem& problem);
::testing::AssertionResult CheckForward(const Problem& problem);

// Success where the status has `code` and its message holds every one of `words`.
::testing::AssertionResult Refused(const Status& status, StatusCode code, const std::vector<std::string>& words);
::testing::AssertionResult Ok(const Status& status);

// The parameter of most suites: every mode with every legal pair of types.
struct ModeAndTypes {
  RotaryMode mode = RotaryMode::kHalf;
  Types types = {};
};

std::ostream& operator<<(std::ostream& out, const ModeAndTypes& parameter);
::testing::internal::ParamGenerator<ModeAndTypes> ModesAndTypes();
std::string ModeAndTypesName(const ::testing::TestParamInfo<ModeAndTypes>& info);

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_PROBLEM_H_
