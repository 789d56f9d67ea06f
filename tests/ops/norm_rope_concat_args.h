// Legal joint calls, of everything that one may have, for tests to change.
#ifndef GYROGRAD_TESTS_OPS_NORM_ROPE_CONCAT_ARGS_H_
#define GYROGRAD_TESTS_OPS_NORM_ROPE_CONCAT_ARGS_H_

#include <cstdint>

#include "gyrograd/norm_rope_concat.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {

inline constexpr DType kJointType = DType::kBF16;

// Lengths of a joint call.
struct JointSizes {
  std::int64_t b = 2, nq = 3, nk = 2, sq = 4, seq = 3, sk = 5, sek = 2, d = 8;
};

inline NormBackwardTensors NormOf(TensorStore& store, std::int64_t b, std::int64_t s, std::int64_t n, std::int64_t d,
                                  bool layer) {
  NormBackwardTensors norm;
  norm.weight = store.In(DType::kF32, {d});
  if (layer) norm.mean = store.In(DType::kF32, {b, s, n, 1});
  norm.rstd = store.In(DType::kF32, {b, s, n, 1});
  norm.dweight = store.Out(DType::kF32, {d});
  if (layer) norm.dbias = store.Out(DType::kF32, {d});
  return norm;
}

// Everything given: layer_affine, added rms_affine, half rotated from joint position 1 by tables of 6 rows, weights f32
// beside bf16.
inline NormRopeConcatBackwardArgs ExampleBackwardArgs(TensorStore& store) {
  const auto [b, nq, nk, sq, seq, sk, sek, d] = JointSizes();
  NormRopeConcatBackwardArgs args;
  args.grad_query_output = store.In(kJointType, {b, nq, sq + seq, d});
  args.grad_key_output = store.In(kJointType, {b, nk, sk + sek, d});
  args.grad_value_output = store.In(kJointType, {b, nk, sk + sek, d});
  args.query = store.In(kJointType, {b, sq, nq, d});
  args.key = store.In(kJointType, {b, sk, nk, d});
  args.encoder_query = store.In(kJointType, {b, seq, nq, d});
  args.encoder_key = store.In(kJointType, {b, sek, nk, d});
  args.rope_cos = store.In(kJointType, {6, d});
  args.rope_sin = store.In(kJointType, {6, d});
  args.norm_query = NormOf(store, b, sq, nq, d, true);
  args.norm_key = NormOf(store, b, sk, nk, d, true);
  args.norm_added_query = NormOf(store, b, seq, nq, d, false);
  args.norm_added_key = NormOf(store, b, sek, nk, d, false);
  args.dquery = store.Out(kJointType, {b, sq, nq, d});
  args.dkey = store.Out(kJointType, {b, sk, nk, d});
  args.dvalue = store.Out(kJointType, {b, sk, nk, d});
  args.dencoder_query = store.Out(kJointType, {b, seq, nq, d});
  args.dencoder_key = store.Out(kJointType, {b, sek, nk, d});
  args.dencoder_value = store.Out(kJointType, {b, sek, nk, d});
  args.options = {.norm_type = NormType::kLayerAffine,
                  .norm_added_type = NormType::kRmsAffine,
                  .rotary = RotaryOptions{},
                  .rope_start = 1};
  return args;
}

inline NormTensors ForwardNormOf(TensorStore& store, std::int64_t b, std::int64_t s, std::int64_t n, std::int64_t d) {
  NormTensors norm;
  norm.weight = store.In(DType::kF32, {d});
  norm.bias = store.In(DType::kF32, {d});
  norm.mean = store.Out(DType::kF32, {b, s, n, 1});
  norm.rstd = store.Out(DType::kF32, {b, s, n, 1});
  return norm;
}

// The forward with layer_affine everywhere.
inline NormRopeConcatArgs ExampleForwardArgs(TensorStore& store) {
  const auto [b, nq, nk, sq, seq, sk, sek, d] = JointSizes();
  NormRopeConcatArgs args;
  args.query = store.In(kJointType, {b, sq, nq, d});
  args.key = store.In(kJointType, {b, sk, nk, d});
  args.value = store.In(kJointType, {b, sk, nk, d});
  args.encoder_query = store.In(kJointType, {b, seq, nq, d});
  args.encoder_key = store.In(kJointType, {b, sek, nk, d});
  args.encoder_value = store.In(kJointType, {b, sek, nk, d});
  args.rope_cos = store.In(kJointType, {6, d});
  args.rope_sin = store.In(kJointType, {6, d});
  args.norm_query = ForwardNormOf(store, b, sq, nq, d);
  args.norm_key = ForwardNormOf(store, b, sk, nk, d);
  args.norm_added_query = ForwardNormOf(store, b, seq, nq, d);
  args.norm_added_key = ForwardNormOf(store, b, sek, nk, d);
  args.query_output = store.Out(kJointType, {b, nq, sq + seq, d});
  args.key_output = store.Out(kJointType, {b, nk, sk + sek, d});
  args.value_output = store.Out(kJointType, {b, nk, sk + sek, d});
  args.options = {.norm_type = NormType::kLayerAffine,
                  .norm_added_type = NormType::kLayerAffine,
                  .rotary = RotaryOptions{},
                  .rope_start = 1};
  return args;
}

// Nothing of the encoder's.
inline void DropEncoder(NormRopeConcatBackwardArgs& args) {
  args.encoder_query.reset(), args.encoder_key.reset();
  args.dencoder_query.reset(), args.dencoder_key.reset(), args.dencoder_value.reset();
  args.norm_added_query = args.norm_added_key = {};
}

inline void DropKey(NormRopeConcatBackwardArgs& args) {
  args.grad_key_output.reset(), args.key.reset(), args.encoder_key.reset();
  args.dkey.reset(), args.dencoder_key.reset();
  args.norm_key = args.norm_added_key = {};
}

inline void DropValue(NormRopeConcatBackwardArgs& args) {
  args.grad_value_output.reset(), args.dvalue.reset(), args.dencoder_value.reset();
}

// Tables of 1 row for the encoder streams and of 3 for the others, from position 1 of each.
inline void SeparateTables(Call<NormRopeConcatBackwardArgs>& c) {
  c.args.encoder_rope_cos = c.args.rope_cos, c.args.encoder_rope_sin = c.args.rope_sin;
  c.Reshape(*c.args.rope_cos, {3, 8}), c.Reshape(*c.args.rope_sin, {3, 8});
  c.Reshape(*c.args.encoder_rope_cos, {1, 8}), c.Reshape(*c.args.encoder_rope_sin, {1, 8});
}

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_OPS_NORM_ROPE_CONCAT_ARGS_H_
