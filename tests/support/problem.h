// A rotary problem for tests: everything that decides a call, printable as one line; its tensors; and the checks of the
// results against the two witnesses.
#ifndef GYROGRAD_TESTS_SUPPORT_PROBLEM_H_
#define GYROGRAD_TESTS_SUPPORT_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gyrograd/rotary.h"
#include "tests/support/tensor.h"

namespace gyrograd::testing {

inline constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                        RotaryMode::kInterleaveHalf};

// Types of activations and tables.
struct Types {
  DType activations = DType::kF32;
  DType tables = DType::kF32;
};

inline constexpr Types kAllTypes[] = {{DType::kF64, DType::kF64}, {DType::kF32, DType::kF32},
                                      {DType::kF16, DType::kF16}, {DType::kBF16, DType::kBF16},
                                      {DType::kF16, DType::kF32}, {DType::kBF16, DType::kF32}};

struct Problem {
  RotaryMode mode = RotaryMode::kHalf;
  Types types = {};
  Shape dy;
  Shape tables;  // the last extent included: R, or R / 2 per pair
  bool per_pair = false;
  std::optional<std::int64_t> rotary_dim = {};
  std::int64_t rotary_offset = 0;
  // Layouts: of dy (x in the forward), of x, of cos and sin, of dx (y), of dcos and dsin.
  Layout dy_layout = Layout::kContiguous;
  Layout x_layout = Layout::kContiguous;
  Layout tables_layout = Layout::kContiguous;
  Layout dx_layout = Layout::kContiguous;
  Layout table_grads_layout = Layout::kContiguous;
  Placement placement = Placement::kGuarded;
  std::uint64_t seed = 1;
  Execution execution = {};

  RotaryOptions Options() const { return {mode, per_pair, rotary_dim, rotary_offset}; }
};

// "mode=half,types=bf16/f32,dy=2x3x4x8,tables=1x3x1x8,per_pair=1,layouts=contiguous/..." with what differs from the
// default.
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
