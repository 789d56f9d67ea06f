// A problem of one norm and rotary segment for tests: everything that decides a call, printable as one line; its
// tensors; and the checks of the results against the two witnesses.
#ifndef GYROGRAD_TESTS_SUPPORT_NORM_ROPE_PROBLEM_H_
#define GYROGRAD_TESTS_SUPPORT_NORM_ROPE_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "gyrograd/norm_rope.h"
#include "problems/norm_rope_concat.h"
#include "reference/norm_rope.h"
#include "tests/support/tensor.h"

namespace gyrograd::testing {

inline constexpr NormType kNormTypes[] = {NormType::kNone, NormType::kLayer, NormType::kLayerAffine, NormType::kRms,
                                          NormType::kRmsAffine};

inline bool HasMean(NormType type) { return type == NormType::kLayer || type == NormType::kLayerAffine; }
inline bool HasWeight(NormType type) { return type == NormType::kLayerAffine || type == NormType::kRmsAffine; }
inline bool HasBias(NormType type) { return type == NormType::kLayerAffine; }

using problems::NormRopeTypes;

inline constexpr NormRopeTypes kAllNormRopeTypes[] = {
    {DType::kF64, DType::kF64, DType::kF64},    {DType::kF32, DType::kF32, DType::kF32},
    {DType::kF16, DType::kF16, DType::kF16},    {DType::kF16, DType::kF32, DType::kF16},
    {DType::kF16, DType::kF16, DType::kF32},    {DType::kF16, DType::kF32, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32, DType::kBF16},
    {DType::kBF16, DType::kBF16, DType::kF32},  {DType::kBF16, DType::kF32, DType::kF32}};

struct NormRopeProblem {
  NormType norm_type = NormType::kNone;
  NormRopeTypes types = {};
  std::int64_t batch = 1, sequence = 1, heads = 1, head_dim = 2;
  std::optional<RotaryOptions> rotary = {};  // none: nothing turns
  std::int64_t first = 0, length = 0;        // the positions that turn
  bool tables_per_batch = false;             // the tables' first two extents are B and N rather than 1
  bool tables_per_head = false;
  // Layouts: of dy (y in the forward), x, dx, cos and sin, mean and rstd, weight and bias, dweight and dbias.
  Layout dy_layout = Layout::kContiguous;
  Layout x_layout = Layout::kContiguous;
  Layout dx_layout = Layout::kContiguous;
  Layout tables_layout = Layout::kContiguous;
  Layout statistics_layout = Layout::kContiguous;
  Layout weights_layout = Layout::kContiguous;
  Layout weight_grads_layout = Layout::kContiguous;
  bool dx = true, dweight = true, dbias = true;  // wanted, where the norm defines them
  double eps = 1e-5;
  Placement placement = Placement::kGuarded;
  std::uint64_t seed = 1;
  Execution execution = {};

  Shape XShape() const { return {batch, sequence, heads, head_dim}; }
  Shape YShape() const { return {batch, heads, sequence, head_dim}; }
  Shape StatisticsShape() const { return {batch, sequence, heads, 1}; }
  Shape TablesShape() const;
  bool WantsDweight() const { return dweight && HasWeight(norm_type); }
  bool WantsDbias() const { return dbias && HasBias(norm_type); }
};

// A row of whole steps and a rest, heads that fill no visit, positions before, among and after those that turn.
NormRopeProblem Typical(const NormRopeTypes& types, NormType norm, RotaryMode mode, std::int64_t head_dim);

// "norm=layer_affine,types=bf16/f32/bf16,bsnd=2x5x3x8,rotary=half,per_pair=1,first=1,tables=1x3x4x4,dy_layout=...".
std::ostream& operator<<(std::ostream& out, const NormRopeProblem& problem);

// Any problem of moderate size: types, shapes, parts of sequence and row, layouts, wanted outputs.
NormRopeProblem RandomNormRopeProblem(std::uint64_t seed);

// The tensors of the backward, filled with random values, the statistics with those of x; outputs hold guard bytes.
struct NormRopeBackwardTensors {
  explicit NormRopeBackwardTensors(const NormRopeProblem& problem);

  NormRopeBackwardSegment Segment() const;
  NormRopeBackwardPointers Pointers() const;

  // What is wrong, after a run of Segment(), with the results, the guards and the inputs.
  ::testing::AssertionResult Check() const;
  // The bits of the wanted outputs one after the other.
  std::vector<std::uint64_t> ResultBits() const;

  NormRopeProblem problem;
  Tensor dy, x, weight, mean, rstd, cos, sin, dx, dweight, dbias;
};

struct NormRopeForwardTensors {
  explicit NormRopeForwardTensors(const NormRopeProblem& problem);

  NormRopeSegment Segment() const;
  NormRopePointers Pointers() const;
  ::testing::AssertionResult Check() const;
  std::vector<std::uint64_t> ResultBits() const;

  NormRopeProblem problem;
  Tensor x, weight, bias, cos, sin, y, mean, rstd;
};

// The wanted outputs of a segment against what they must be. `name` stands before an output's name.
::testing::AssertionResult CheckSegment(const std::string& name, const NormRopeBackwardSegment& segment,
                                        const reference::NormRopeGradients& want);
// y, mean and rstd of a segment, both statistics given where the norm has them.
::testing::AssertionResult CheckSegment(const std::string& name, const NormRopeSegment& segment);

// The statistics of x, as a forward saves them.
void FillStatistics(const Tensor& x, NormType type, double eps, Tensor* mean, Tensor* rstd);

// Calls the library on Segment().
Status Compute(const NormRopeBackwardTensors& tensors);
Status Compute(const NormRopeForwardTensors& tensors);

// Makes the tensors, calls the library and checks everything.
::testing::AssertionResult CheckBackward(const NormRopeProblem& problem);
::testing::AssertionResult CheckForward(const NormRopeProblem& problem);

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_NORM_ROPE_PROBLEM_H_
