// Norm, then rotary position embedding, of the query and key rows of attention, as a list of segments: the forward, and
// the gradients of the rows and of the norms' weights and biases. norm_rope_concat.h makes such a list of the query,
// key and value of an image and a text stream; a segment alone is an LLM's QK-norm with its rotary embedding.
//
// A segment turns rows of x, [B, S, N, D], into rows of y, [B, N, S, D]. For every row, in f64 for f64 and in f32
// otherwise (statistics in f64):
//
//   mean   = sum(x) / D                                   layer norms
//   rstd   = 1 / sqrt(sum((x - mean)^2) / D + eps)        layer norms;  1 / sqrt(sum(x^2) / D + eps)  RMS norms
//   x_hat  = (x - mean) * rstd                            layer norms;  x * rstd  RMS norms;  x  without norm
//   z      = x_hat * weight + bias                        with weight (bias: layer norm alone)
//   y      = rotary(z)                                    at positions rope_first .. rope_first + L - 1;  z at others
//
// and backward, with g = rotary's backward of dy (rotary.h) and h = g * weight:
//
//   dx      = rstd * (h - mean_D(h) - x_hat * mean_D(h * x_hat))       RMS norms without mean_D(h); no norm: g
//   dweight = sum over B, S, N of g * x_hat
//   dbias   = sum over B, S, N of g
//
// from the saved mean and rstd (Ba et al., arXiv:1607.06450; Zhang and Sennrich, arXiv:1910.07467). Nothing is rounded
// to the activations' type between rotary and norm. The same inputs give the same bits for any number of threads, any
// strides, any subset of outputs, and on every CPU target. docs/norm_rope_concat.md has the bounds.
#ifndef GYROGRAD_NORM_ROPE_H_
#define GYROGRAD_NORM_ROPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "gyrograd/api.h"
#include "gyrograd/execution.h"
#include "gyrograd/rotary.h"
#include "gyrograd/status.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd {

// Values 0 to 2 are those of CANN's `normType`, 3 and 4 those of its forward.
enum class NormType : int {
  kNone = 0,
  kLayer = 1,        // LayerNorm, biased variance
  kLayerAffine = 2,  // LayerNorm with weight and bias
  kRms = 3,          // RMSNorm
  kRmsAffine = 4,    // RMSNorm with weight
};

// "none", "layer", "layer_affine", "rms", "rms_affine"; "unknown" for any other value.
GYROGRAD_API const char* Name(NormType type);

// The rotation of some positions of a segment. cos and sin, of one shape: [L, R], or rank 4, [B or 1, N or 1, L, R]
// (R/2 with options.per_pair_tables); of one type: the activations', or f32 beside f16 and bf16. Row l belongs to
// position first + l of the segment; first >= 0, first + L <= S; L may be 0.
struct NormRopeRotation {
  ConstTensorView cos;
  ConstTensorView sin;
  std::int64_t first = 0;
  RotaryOptions options = {};
};

// Shapes: dy [B, N, S, D]; x, dx [B, S, N, D]; weight, dweight, dbias [D]; mean, rstd [B, S, N, 1]. B, N, S, D are the
// segment's own. Types: dy, x, dx of all segments of one type, f64, f32, f16 or bf16; weights and their gradients of
// all segments of that type, or f32 beside f16 and bf16; means and rstds f32 (f64 beside f64). What the norm does not
// use is ignored. Needed: x and rstd where there is a norm; mean for layer norms; weight for the affine ones (dx; not
// for dweight or dbias alone). Outputs that are given are wanted, in any subset; asking for what the norm does not
// define (dweight but for the affine ones, dbias but for kLayerAffine) is refused. A segment without rows (B, S or N 0)
// needs nothing; its dweight and dbias are exactly 0. Memory that outputs may share: dx with x and with its own rows of
// dy; dweight with weight; the same element in the same place.
struct NormRopeBackwardSegment {
  ConstTensorView dy;
  std::optional<ConstTensorView> x = {};
  NormType norm_type = NormType::kNone;
  std::optional<ConstTensorView> weight = {};
  std::optional<ConstTensorView> mean = {};
  std::optional<ConstTensorView> rstd = {};
  std::optional<NormRopeRotation> rotation = {};
  std::optional<TensorView> dx = {};
  std::optional<TensorView> dweight = {};
  std::optional<TensorView> dbias = {};
};

struct NormRopeBackwardArgs {
  std::span<const NormRopeBackwardSegment> segments;
  Execution execution = {};
};

// Shapes, types and needs as above; bias [D], of the weights' type. eps >= 0. y is wanted always; mean and rstd where
// given. y may share memory with x, the same element in the same place.
struct NormRopeSegment {
  ConstTensorView x;
  NormType norm_type = NormType::kNone;
  double eps = 1e-5;
  std::optional<ConstTensorView> weight = {};
  std::optional<ConstTensorView> bias = {};
  std::optional<NormRopeRotation> rotation = {};
  TensorView y;
  std::optional<TensorView> mean = {};
  std::optional<TensorView> rstd = {};
};

struct NormRopeArgs {
  std::span<const NormRopeSegment> segments;
  Execution execution = {};
};

// Checks everything, computes nothing. Messages name the segment by its index: "norm_rope_backward: segments[1].x ...".
GYROGRAD_API Status ValidateNormRopeBackward(const NormRopeBackwardArgs& args);
GYROGRAD_API Status ValidateNormRope(const NormRopeArgs& args);

// Validates, plans, brings a workspace, runs. Where the status is not ok, no output was touched.
GYROGRAD_API Status NormRopeBackward(const NormRopeBackwardArgs& args);
GYROGRAD_API Status NormRope(const NormRopeArgs& args);

// The data of a run: one address for each view of a segment. Null for what the plan was not given.
struct NormRopeBackwardPointers {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* dx = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;
};

struct NormRopePointers {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* y = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
};

namespace internal {
struct NormRopePlanData;
}  // namespace internal

// What was decided for some views, without their data: immutable, cheap to copy, shared by any number of threads.
class GYROGRAD_API NormRopeBackwardPlan {
 public:
  // Checks all but the data (the addresses in `args` are ignored) and plans. On error *plan is left as it was.
  static Status Create(const NormRopeBackwardArgs& args, NormRopeBackwardPlan* plan);

  // Bytes that Run needs beside the tensors, at any address.
  std::size_t workspace_size() const;

  // Checks the addresses (null, alignment, sharing), then computes. One NormRopeBackwardPointers for each segment.
  // Allocates nothing.
  Status Run(std::span<const NormRopeBackwardPointers> pointers, void* workspace, std::size_t workspace_size) const;

  // The decisions in words, one a line. "out of memory" where there is none for them.
  std::string Describe() const;

 private:
  std::shared_ptr<const internal::NormRopePlanData> data_;
};

class GYROGRAD_API NormRopePlan {
 public:
  static Status Create(const NormRopeArgs& args, NormRopePlan* plan);
  std::size_t workspace_size() const;
  Status Run(std::span<const NormRopePointers> pointers, void* workspace, std::size_t workspace_size) const;
  std::string Describe() const;

 private:
  std::shared_ptr<const internal::NormRopePlanData> data_;
};

}  // namespace gyrograd

#endif  // GYROGRAD_NORM_ROPE_H_
