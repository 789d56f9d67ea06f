// Norm, rotary, concatenation and transposition of the query, key and value of two streams (multimodal attention: an
// image stream, and a text stream called the encoder's): the forward, and the gradients of all six and of the norms'
// weights and biases. Each is a segment of norm_rope.h, which has the formulas.
//
//   query output = rotary(concat(norm(query), added norm(encoder query)))
//   key output   = rotary(concat(norm(key), added norm(encoder key)))
//   value output = concat(value, encoder value)
//
// each concatenated along the sequence and transposed: inputs [B, S, N, D], outputs [B, N, S + encoder's S, D]. Tables
// turn positions rope_start .. rope_start + L - 1 of the concatenated sequences of query and key; the others pass.
// Query and key may differ in their head counts.
#ifndef GYROGRAD_NORM_ROPE_CONCAT_H_
#define GYROGRAD_NORM_ROPE_CONCAT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gyrograd/norm_rope.h"

namespace gyrograd {

// Values are those of CANN's `concatOrder`.
enum class ConcatOrder : int {
  kStreamFirst = 0,   // query, then encoder query
  kEncoderFirst = 1,  // encoder query, then query
};

// "stream_first", "encoder_first"; "unknown" for any other value.
GYROGRAD_API const char* Name(ConcatOrder order);

struct NormRopeConcatOptions {
  NormType norm_type = NormType::kNone;        // of query and key
  NormType norm_added_type = NormType::kNone;  // of encoder query and encoder key
  // How the joint positions that the tables cover turn. Not set: nothing turns, and tables that are given are ignored.
  // CANN's ropeType 0 is this one not set, 1 is RotaryMode::kInterleave, 2 is RotaryMode::kHalf: its numbers are not
  // RotaryMode's.
  std::optional<RotaryOptions> rotary = {};
  ConcatOrder concat_order = ConcatOrder::kStreamFirst;
  std::int64_t rope_start = 0;  // the joint position of the tables' first row
};

// The saved statistics and parameters of one norm. weight, dweight, dbias [D]; mean, rstd [B, S, N, 1].
struct NormBackwardTensors {
  std::optional<ConstTensorView> weight = {};
  std::optional<ConstTensorView> mean = {};
  std::optional<ConstTensorView> rstd = {};
  std::optional<TensorView> dweight = {};
  std::optional<TensorView> dbias = {};
};

// Tables: [L, R], or rank 4 that broadcasts to [B, N, L, R]; rope_start >= 0, rope_start + L no more than the shorter
// of the two joint sequences. encoder_rope_cos and encoder_rope_sin, where given, are the encoder streams' own: then
// each pair of tables covers the positions rope_start .. rope_start + L - 1 of its own stream, and nothing of the
// other. An encoder stream that is absent has length 0. A gradient output needs no input where the norm is none. An
// output that is given is wanted. The gradients' lengths Sq + Seq and Sk + Sek are those of the joint views; where an
// input is not needed and not given, its length is that of its gradient, dquery and so on.
struct NormRopeConcatBackwardArgs {
  std::optional<ConstTensorView> grad_query_output = {};  // [B, N, Sq + Seq, D]
  std::optional<ConstTensorView> grad_key_output = {};    // [B, N, Sk + Sek, D]
  std::optional<ConstTensorView> grad_value_output = {};  // [B, N, Sk + Sek, D]
  std::optional<ConstTensorView> query = {};              // [B, Sq, N, D]
  std::optional<ConstTensorView> key = {};                // [B, Sk, N, D]
  std::optional<ConstTensorView> encoder_query = {};      // [B, Seq, N, D]
  std::optional<ConstTensorView> encoder_key = {};        // [B, Sek, N, D]
  // Tables turn nothing, and are not looked at, unless options.rotary is set.
  std::optional<ConstTensorView> rope_cos = {};
  std::optional<ConstTensorView> rope_sin = {};
  std::optional<ConstTensorView> encoder_rope_cos = {};
  std::optional<ConstTensorView> encoder_rope_sin = {};
  // What options.norm_type and norm_added_type do not use is ignored, too.
  NormBackwardTensors norm_query = {};
  NormBackwardTensors norm_key = {};
  NormBackwardTensors norm_added_query = {};
  NormBackwardTensors norm_added_key = {};
  std::optional<TensorView> dquery = {};
  std::optional<TensorView> dkey = {};
  std::optional<TensorView> dvalue = {};
  std::optional<TensorView> dencoder_query = {};
  std::optional<TensorView> dencoder_key = {};
  std::optional<TensorView> dencoder_value = {};
  NormRopeConcatOptions options = {};
  Execution execution = {};
};

// Parameters and results of one norm. weight, bias [D]; mean, rstd [B, S, N, 1], wanted where given.
struct NormTensors {
  std::optional<ConstTensorView> weight = {};
  std::optional<ConstTensorView> bias = {};
  std::optional<TensorView> mean = {};
  std::optional<TensorView> rstd = {};
};

struct NormRopeConcatArgs {
  std::optional<ConstTensorView> query = {};          // [B, Sq, N, D]
  std::optional<ConstTensorView> key = {};            // [B, Sk, N, D]
  std::optional<ConstTensorView> value = {};          // [B, Sk, N, D]
  std::optional<ConstTensorView> encoder_query = {};  // [B, Seq, N, D]
  std::optional<ConstTensorView> encoder_key = {};    // [B, Sek, N, D]
  std::optional<ConstTensorView> encoder_value = {};  // [B, Sek, N, D]
  // Tables turn nothing, and are not looked at, unless options.rotary is set.
  std::optional<ConstTensorView> rope_cos = {};
  std::optional<ConstTensorView> rope_sin = {};
  std::optional<ConstTensorView> encoder_rope_cos = {};
  std::optional<ConstTensorView> encoder_rope_sin = {};
  // What options.norm_type and norm_added_type do not use is ignored, too.
  NormTensors norm_query = {};
  NormTensors norm_key = {};
  NormTensors norm_added_query = {};
  NormTensors norm_added_key = {};
  double eps = 1e-5;
  std::optional<TensorView> query_output = {};  // [B, N, Sq + Seq, D]
  std::optional<TensorView> key_output = {};    // [B, N, Sk + Sek, D]
  std::optional<TensorView> value_output = {};  // [B, N, Sk + Sek, D]
  NormRopeConcatOptions options = {};
  Execution execution = {};
};

// Checks everything, computes nothing.
GYROGRAD_API Status ValidateNormRopeConcatBackward(const NormRopeConcatBackwardArgs& args);
GYROGRAD_API Status ValidateNormRopeConcat(const NormRopeConcatArgs& args);

// Validates, plans, brings a workspace, runs. Where the status is not ok, no output was touched.
GYROGRAD_API Status NormRopeConcatBackward(const NormRopeConcatBackwardArgs& args);
GYROGRAD_API Status NormRopeConcat(const NormRopeConcatArgs& args);

// What was decided for some views: immutable, cheap to copy, shared by any number of threads. Plans of the call are
// plans of its list of segments; the addresses of a run are read off views of the same shapes and strides.
class GYROGRAD_API NormRopeConcatBackwardPlan {
 public:
  // Checks all but the data (the addresses in `args` are ignored) and plans. On error *plan is left as it was.
  static Status Create(const NormRopeConcatBackwardArgs& args, NormRopeConcatBackwardPlan* plan);
  std::size_t workspace_size() const;
  // Only the data of the views of `args` is looked at; the same ones must be given as to Create.
  Status Run(const NormRopeConcatBackwardArgs& args, void* workspace, std::size_t workspace_size) const;
  std::string Describe() const;

 private:
  std::shared_ptr<const internal::NormRopePlanData> data_;
};

class GYROGRAD_API NormRopeConcatPlan {
 public:
  static Status Create(const NormRopeConcatArgs& args, NormRopeConcatPlan* plan);
  std::size_t workspace_size() const;
  Status Run(const NormRopeConcatArgs& args, void* workspace, std::size_t workspace_size) const;
  std::string Describe() const;

 private:
  std::shared_ptr<const internal::NormRopePlanData> data_;
};

}  // namespace gyrograd

#endif  // GYROGRAD_NORM_ROPE_CONCAT_H_
