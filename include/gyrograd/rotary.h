// Rotary position embedding (Su et al., "RoFormer", arXiv:2104.09864): the forward, and the gradients of its input and
// of its cos and sin tables.
//
// A row is the last axis of x. A mode pairs its channels; every pair (x0, x1) turns by its own table values (c0, s0)
// and (c1, s1), the values that belong to the two members' channels and need not be equal:
//
//   forward   y0 = x0*c0 - x1*s0            y1 = x1*c1 + x0*s1
//   backward  dx0 = c0*dy0 + s1*dy1         dx1 = c1*dy1 - s0*dy0
//             dcos0 = sum dy0*x0            dcos1 = sum dy1*x1
//             dsin0 = sum dy0*-x1           dsin1 = sum dy1*x0
//
// with the sums over every axis along which the tables have extent 1 and x has more. Arithmetic is f64 for f64 and f32
// otherwise, each product and sum rounded on its own, one rounding to the result's type at the end. The same inputs
// give the same bits for any number of threads, any strides, any subset of outputs, and on every CPU target.
// docs/rotary.md has the formulas by mode, the layouts, and the bounds of the sums.
#ifndef GYROGRAD_ROTARY_H_
#define GYROGRAD_ROTARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gyrograd/api.h"
#include "gyrograd/execution.h"
#include "gyrograd/status.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd {

// Which channels of a row of R form pair p, first member and second. Values are those of CANN's `mode`.
enum class RotaryMode : int {
  kHalf = 0,            // p and p + R/2 (GPT-NeoX, Llama)
  kInterleave = 1,      // 2p and 2p + 1 (GPT-J)
  kQuarter = 2,         // half mode on the first two quarters, and on the last two
  kInterleaveHalf = 3,  // x: 2p and 2p + 1; y and the tables: p and p + R/2
};

// "half", "interleave", "quarter", "interleave-half"; "unknown" for any other value.
GYROGRAD_API const char* Name(RotaryMode mode);

struct RotaryOptions {
  RotaryMode mode = RotaryMode::kHalf;
  // Tables of width R/2: one value for both members of a pair, in pair order. dcos and dsin then sum over the members.
  bool per_pair_tables = false;
  // Only channels rotary_offset .. rotary_offset + R - 1 turn, as a row of R; the others pass. R is even (quarter: a
  // multiple of 4), at least 2 (0 where the row is empty). Not given: R is the whole row.
  std::optional<std::int64_t> rotary_dim = {};
  std::int64_t rotary_offset = 0;
};

// Shapes: dy any rank >= 1; x and dx as dy. cos, sin, dcos, dsin all of one shape, dy's rank, each extent dy's or 1,
// the last one R (R/2 with per_pair_tables). Types: dy, x, dx of one type, f64, f32, f16 or bf16; cos, sin, dcos, dsin
// of that type, or f32 beside f16 and bf16. Outputs that are given are wanted, in any subset (with none
// the call checks and computes nothing); dcos and dsin need x. Memory that outputs may share: dx with dy and / or x,
// dcos with cos, dsin with sin, the same element in the same place.
struct RotaryBackwardArgs {
  ConstTensorView dy;
  ConstTensorView cos;
  ConstTensorView sin;
  std::optional<ConstTensorView> x = {};
  std::optional<TensorView> dx = {};
  std::optional<TensorView> dcos = {};
  std::optional<TensorView> dsin = {};
  RotaryOptions options = {};
  Execution execution = {};
};

// x and y of one shape and type; cos and sin as in RotaryBackwardArgs. y may be x, the same element in the same place.
struct RotaryArgs {
  ConstTensorView x;
  ConstTensorView cos;
  ConstTensorView sin;
  TensorView y;
  RotaryOptions options = {};
  Execution execution = {};
};

// Checks everything, computes nothing.
GYROGRAD_API Status ValidateRotaryBackward(const RotaryBackwardArgs& args);
GYROGRAD_API Status ValidateRotary(const RotaryArgs& args);

// Validates, plans, brings a workspace, runs. Where the status is not ok, no output was touched.
GYROGRAD_API Status RotaryBackward(const RotaryBackwardArgs& args);
GYROGRAD_API Status Rotary(const RotaryArgs& args);

// The data of a run: one address for each view of the plan. Null for what the plan was not given.
struct RotaryBackwardPointers {
  const void* dy = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  const void* x = nullptr;
  void* dx = nullptr;
  void* dcos = nullptr;
  void* dsin = nullptr;
};

struct RotaryPointers {
  const void* x = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* y = nullptr;
};

namespace internal {
struct RotaryPlanData;
}  // namespace internal

// What was decided for some views, without their data: immutable, cheap to copy, shared by any number of threads.
class GYROGRAD_API RotaryBackwardPlan {
 public:
  // Checks all but the data (the addresses in `args` are ignored) and plans. On error *plan is left as it was.
  static Status Create(const RotaryBackwardArgs& args, RotaryBackwardPlan* plan);

  // Bytes that Run needs beside the tensors, at any address; 0 for most problems.
  std::size_t workspace_size() const;

  // Checks the addresses (null, alignment, sharing), then computes. Allocates nothing.
  Status Run(const RotaryBackwardPointers& pointers, void* workspace, std::size_t workspace_size) const;

  // The decisions in words, one a line: loops, tiles, the tree of the sums, the CPU target. "out of memory" where there
  // is none for them.
  std::string Describe() const;

 private:
  std::shared_ptr<const internal::RotaryPlanData> data_;
};

class GYROGRAD_API RotaryPlan {
 public:
  static Status Create(const RotaryArgs& args, RotaryPlan* plan);
  std::size_t workspace_size() const;
  Status Run(const RotaryPointers& pointers, void* workspace, std::size_t workspace_size) const;
  std::string Describe() const;

 private:
  std::shared_ptr<const internal::RotaryPlanData> data_;
};

}  // namespace gyrograd

#endif  // GYROGRAD_ROTARY_H_
