// Refusals of the joint call: every rule with its code, the operator, the argument and the value in the message, and
// nothing written; random legal calls, whose segments must lie where the definition says.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/norm_rope_concat/validate.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

using internal::NormRopeCall;
using internal::NormRopeConcatCall;
using internal::SegmentCall;
using Operand = internal::NormRopeOperand;
using Backward = Call<NormRopeConcatBackwardArgs>;
using Forward = Call<NormRopeConcatArgs>;

constexpr DType kType = DType::kBF16;

// Lengths of a joint call.
struct Sizes {
  std::int64_t b = 2, nq = 3, nk = 2, sq = 4, seq = 3, sk = 5, sek = 2, d = 8;
};

NormBackwardTensors NormOf(TensorStore& store, std::int64_t b, std::int64_t s, std::int64_t n, std::int64_t d,
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
NormRopeConcatBackwardArgs BackwardArgs(TensorStore& store) {
  const auto [b, nq, nk, sq, seq, sk, sek, d] = Sizes();
  NormRopeConcatBackwardArgs args;
  args.grad_query_output = store.In(kType, {b, nq, sq + seq, d});
  args.grad_key_output = store.In(kType, {b, nk, sk + sek, d});
  args.grad_value_output = store.In(kType, {b, nk, sk + sek, d});
  args.query = store.In(kType, {b, sq, nq, d});
  args.key = store.In(kType, {b, sk, nk, d});
  args.encoder_query = store.In(kType, {b, seq, nq, d});
  args.encoder_key = store.In(kType, {b, sek, nk, d});
  args.rope_cos = store.In(kType, {6, d});
  args.rope_sin = store.In(kType, {6, d});
  args.norm_query = NormOf(store, b, sq, nq, d, true);
  args.norm_key = NormOf(store, b, sk, nk, d, true);
  args.norm_added_query = NormOf(store, b, seq, nq, d, false);
  args.norm_added_key = NormOf(store, b, sek, nk, d, false);
  args.dquery = store.Out(kType, {b, sq, nq, d});
  args.dkey = store.Out(kType, {b, sk, nk, d});
  args.dvalue = store.Out(kType, {b, sk, nk, d});
  args.dencoder_query = store.Out(kType, {b, seq, nq, d});
  args.dencoder_key = store.Out(kType, {b, sek, nk, d});
  args.dencoder_value = store.Out(kType, {b, sek, nk, d});
  args.options = {.norm_type = NormType::kLayerAffine,
                  .norm_added_type = NormType::kRmsAffine,
                  .rotary = RotaryOptions{},
                  .rope_start = 1};
  return args;
}

NormTensors ForwardNormOf(TensorStore& store, std::int64_t b, std::int64_t s, std::int64_t n, std::int64_t d) {
  NormTensors norm;
  norm.weight = store.In(DType::kF32, {d});
  norm.bias = store.In(DType::kF32, {d});
  norm.mean = store.Out(DType::kF32, {b, s, n, 1});
  norm.rstd = store.Out(DType::kF32, {b, s, n, 1});
  return norm;
}

// The forward with layer_affine everywhere.
NormRopeConcatArgs ForwardArgs(TensorStore& store) {
  const auto [b, nq, nk, sq, seq, sk, sek, d] = Sizes();
  NormRopeConcatArgs args;
  args.query = store.In(kType, {b, sq, nq, d});
  args.key = store.In(kType, {b, sk, nk, d});
  args.value = store.In(kType, {b, sk, nk, d});
  args.encoder_query = store.In(kType, {b, seq, nq, d});
  args.encoder_key = store.In(kType, {b, sek, nk, d});
  args.encoder_value = store.In(kType, {b, sek, nk, d});
  args.rope_cos = store.In(kType, {6, d});
  args.rope_sin = store.In(kType, {6, d});
  args.norm_query = ForwardNormOf(store, b, sq, nq, d);
  args.norm_key = ForwardNormOf(store, b, sk, nk, d);
  args.norm_added_query = ForwardNormOf(store, b, seq, nq, d);
  args.norm_added_key = ForwardNormOf(store, b, sek, nk, d);
  args.query_output = store.Out(kType, {b, nq, sq + seq, d});
  args.key_output = store.Out(kType, {b, nk, sk + sek, d});
  args.value_output = store.Out(kType, {b, nk, sk + sek, d});
  args.options = {.norm_type = NormType::kLayerAffine,
                  .norm_added_type = NormType::kLayerAffine,
                  .rotary = RotaryOptions{},
                  .rope_start = 1};
  return args;
}

// Nothing of the encoder's.
void DropEncoder(NormRopeConcatBackwardArgs& args) {
  args.encoder_query.reset(), args.encoder_key.reset();
  args.dencoder_query.reset(), args.dencoder_key.reset(), args.dencoder_value.reset();
  args.norm_added_query = args.norm_added_key = {};
}

void DropKey(NormRopeConcatBackwardArgs& args) {
  args.grad_key_output.reset(), args.key.reset(), args.encoder_key.reset();
  args.dkey.reset(), args.dencoder_key.reset();
  args.norm_key = args.norm_added_key = {};
}

void DropValue(NormRopeConcatBackwardArgs& args) {
  args.grad_value_output.reset(), args.dvalue.reset(), args.dencoder_value.reset();
}

// Tables of 1 row for the encoder streams and of 3 for the others, from position 1 of each.
void SeparateTables(Backward& c) {
  c.args.encoder_rope_cos = c.args.rope_cos, c.args.encoder_rope_sin = c.args.rope_sin;
  c.Reshape(*c.args.rope_cos, {3, 8}), c.Reshape(*c.args.rope_sin, {3, 8});
  c.Reshape(*c.args.encoder_rope_cos, {1, 8}), c.Reshape(*c.args.encoder_rope_sin, {1, 8});
}

// ---- Backward ---------------------------------------------------------------------------------------------------

const Refusal<NormRopeConcatBackwardArgs> kBackwardRefusals[] = {
    // null
    {"grad_is_null",
     [](Backward& c) { c.args.grad_value_output->data = nullptr; },
     StatusCode::kNullPointer,
     {"grad_value_output has no data"}},
    {"query_is_null",
     [](Backward& c) { c.args.query->data = nullptr; },
     StatusCode::kNullPointer,
     {"query has no data"}},
    {"mean_is_null",
     [](Backward& c) { c.args.norm_key.mean->data = nullptr; },
     StatusCode::kNullPointer,
     {"norm_key.mean has no data"}},
    {"dbias_is_null",
     [](Backward& c) { c.args.norm_query.dbias->data = nullptr; },
     StatusCode::kNullPointer,
     {"norm_query.dbias has no data"}},
    {"rope_sin_is_null",
     [](Backward& c) { c.args.rope_sin->data = nullptr; },
     StatusCode::kNullPointer,
     {"rope_sin has no data"}},
    {"dencoder_value_is_null",
     [](Backward& c) { c.args.dencoder_value->data = nullptr; },
     StatusCode::kNullPointer,
     {"dencoder_value has no data"}},
    // type
    {"grad_key_of_another_type",
     [](Backward& c) { c.args.grad_key_output->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"grad_key_output has type f16; it must be grad_query_output's, bf16"}},
    {"encoder_key_of_unknown_type",
     [](Backward& c) { c.args.encoder_key->dtype = static_cast<DType>(9); },
     StatusCode::kInvalidType,
     {"encoder_key has the unknown type 9"}},
    {"rope_cos_of_another_type",
     [](Backward& c) { c.args.rope_cos->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"rope_cos has type f16; it must be grad_query_output's, bf16, or f32"}},
    {"encoder_rope_sin_of_another_type",
     [](Backward& c) {
       SeparateTables(c);
       c.args.encoder_rope_sin->dtype = DType::kF32;
     },
     StatusCode::kInvalidType,
     {"encoder_rope_sin has type f32; it must be encoder_rope_cos's, bf16"}},
    {"tables_that_turn_nothing_have_a_type",
     [](Backward& c) {
       c.Reshape(*c.args.rope_cos, {0, 8});
       c.args.rope_cos->dtype = DType::kF64;
     },
     StatusCode::kInvalidType,
     {"rope_cos has type f64"}},
    {"added_weight_of_another_type",
     [](Backward& c) { c.args.norm_added_key.weight->dtype = kType; },
     StatusCode::kInvalidType,
     {"norm_added_key.weight has type bf16; it must be norm_query.weight's, f32"}},
    {"rstd_of_the_rows_type",
     [](Backward& c) { c.args.norm_added_query.rstd->dtype = kType; },
     StatusCode::kInvalidType,
     {"norm_added_query.rstd has type bf16; it must be f32, as grad_query_output is bf16"}},
    // attribute
    {"norm_type_5",
     [](Backward& c) { c.args.options.norm_type = static_cast<NormType>(5); },
     StatusCode::kInvalidAttribute,
     {"norm_rope_concat_backward: norm_type is 5"}},
    {"norm_added_type_of_no_encoder",
     [](Backward& c) {
       c.args.options.norm_added_type = static_cast<NormType>(-2);
       DropEncoder(c.args);
     },
     StatusCode::kInvalidAttribute,
     {"norm_added_type is -2"}},
    {"concat_order_2",
     [](Backward& c) { c.args.options.concat_order = static_cast<ConcatOrder>(2); },
     StatusCode::kInvalidAttribute,
     {"concat_order is 2"}},
    {"mode_4",
     [](Backward& c) { c.args.options.rotary->mode = static_cast<RotaryMode>(4); },
     StatusCode::kInvalidAttribute,
     {"norm_rope_concat_backward: rotary.mode is 4"}},
    {"rotary_dim_beyond_the_row",
     [](Backward& c) { c.args.options.rotary->rotary_dim = 10; },
     StatusCode::kInvalidAttribute,
     {"rotary.rotary_offset is 0 and rotary_dim is 10", "grad_query_output's last extent, 8"}},
    {"rope_start_negative",
     [](Backward& c) { c.args.options.rope_start = -1; },
     StatusCode::kInvalidAttribute,
     {"rope_start is -1"}},
    {"dbias_of_rms",
     [](Backward& c) { c.args.norm_added_key.dbias = c.args.norm_key.dbias; },
     StatusCode::kInvalidAttribute,
     {"norm_added_key.dbias is asked for; norm_added_type rms_affine has no bias"}},
    {"dweight_without_weight",
     [](Backward& c) { c.args.options.norm_type = NormType::kNone; },
     StatusCode::kInvalidAttribute,
     {"norm_query.dweight is asked for; norm_type none has no weight"}},
    {"threads_negative",
     [](Backward& c) { c.args.execution.num_threads = -3; },
     StatusCode::kInvalidAttribute,
     {"num_threads is -3"}},
    // missing
    {"grad_missing_for_dquery",
     [](Backward& c) { c.args.grad_query_output.reset(); },
     StatusCode::kMissingArgument,
     {"grad_query_output is missing; dquery needs it"}},
    {"grad_missing_for_dweight",
     [](Backward& c) {
       const auto dweight = c.args.norm_added_key.dweight;
       DropKey(c.args);
       c.args.norm_added_key.dweight = dweight;
     },
     StatusCode::kMissingArgument,
     {"grad_key_output is missing; norm_added_key.dweight needs it"}},
    {"grad_missing_for_dvalue",
     [](Backward& c) { c.args.grad_value_output.reset(); },
     StatusCode::kMissingArgument,
     {"grad_value_output is missing; dvalue needs it"}},
    {"query_missing",
     [](Backward& c) { c.args.query.reset(); },
     StatusCode::kMissingArgument,
     {"norm_rope_concat_backward: query is missing; norm_type layer_affine needs it"}},
    {"encoder_key_missing",
     [](Backward& c) { c.args.encoder_key.reset(); },
     StatusCode::kMissingArgument,
     {"encoder_key is missing; norm_added_type rms_affine needs it"}},
    {"mean_missing",
     [](Backward& c) { c.args.norm_key.mean.reset(); },
     StatusCode::kMissingArgument,
     {"norm_key.mean is missing; norm_type layer_affine needs it"}},
    {"rope_cos_missing",
     [](Backward& c) { c.args.rope_cos.reset(); },
     StatusCode::kMissingArgument,
     {"rope_cos is missing; rope_sin needs it"}},
    {"tables_missing",
     [](Backward& c) {
       c.args.rope_cos.reset();
       c.args.rope_sin.reset();
     },
     StatusCode::kMissingArgument,
     {"rope_cos is missing; rotary needs it"}},
    {"encoder_rope_sin_missing",
     [](Backward& c) {
       SeparateTables(c);
       c.args.encoder_rope_sin.reset();
     },
     StatusCode::kMissingArgument,
     {"encoder_rope_sin is missing; encoder_rope_cos needs it"}},
    // shape
    {"grad_of_rank_3",
     [](Backward& c) { c.Reshape(*c.args.grad_key_output, {2, 7, 8}); },
     StatusCode::kInvalidShape,
     {"grad_key_output has shape [2, 7, 8]; its rank must be 4"}},
    {"query_of_rank_5",
     [](Backward& c) { c.Reshape(*c.args.query, {2, 4, 3, 8, 1}); },
     StatusCode::kInvalidShape,
     {"query has shape [2, 4, 3, 8, 1]; its rank must be 4"}},
    {"grad_of_negative_extent",
     [](Backward& c) { c.Reshape(*c.args.grad_query_output, {2, 3, -7, 8}); },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 3, -7, 8]; no extent may be negative"}},
    {"another_batch",
     [](Backward& c) { c.Reshape(*c.args.grad_key_output, {3, 2, 7, 8}); },
     StatusCode::kInvalidShape,
     {"grad_key_output has shape [3, 2, 7, 8]; its batch must be grad_query_output's, 2"}},
    {"another_width",
     [](Backward& c) { c.Reshape(*c.args.grad_value_output, {2, 2, 7, 6}); },
     StatusCode::kInvalidShape,
     {"grad_value_output has shape [2, 2, 7, 6]; its last extent must be grad_query_output's, 8"}},
    {"value_longer_than_key",
     [](Backward& c) { c.Reshape(*c.args.grad_value_output, {2, 2, 8, 8}); },
     StatusCode::kInvalidShape,
     {"grad_value_output has shape [2, 2, 8, 8]; its sequence extent must be grad_key_output's, 7"}},
    {"streams_too_short",
     [](Backward& c) { c.Reshape(*c.args.encoder_query, {2, 2, 3, 8}); },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 3, 7, 8]; its sequence extent must be the sum of its streams', 4 (query) and 2 "
      "(encoder_query)"}},
    {"streams_too_long",
     [](Backward& c) { c.Reshape(*c.args.query, {2, 6, 3, 8}); },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 3, 7, 8]", "6 (query) and 3 (encoder_query)"}},
    {"empty_encoder_stream_of_other_heads",
     [](Backward& c) {
       DropEncoder(c.args);
       c.Reshape(*c.args.grad_query_output, {2, 3, 4, 8}), c.Reshape(*c.args.grad_key_output, {2, 2, 5, 8});
       c.Reshape(*c.args.grad_value_output, {2, 2, 5, 8});
       c.Reshape(*c.args.rope_cos, {3, 8}), c.Reshape(*c.args.rope_sin, {3, 8});
       c.args.encoder_query = c.args.query;
       c.Reshape(*c.args.encoder_query, {2, 0, 5, 8});
     },
     StatusCode::kInvalidShape,
     {"encoder_query has shape [2, 0, 5, 8]", "[2, 0, 3, 8]"}},
    {"encoder_stream_unheard_of",
     [](Backward& c) { DropEncoder(c.args); },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 3, 7, 8]", "4 (query) and 0 (encoder_query is absent)"}},
    {"encoder_stream_too_long",
     [](Backward& c) {
       c.Reshape(*c.args.encoder_query, {2, 8, 3, 8});
       c.args.query.reset(), c.args.dquery.reset();
       c.args.norm_query = {};
     },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 3, 7, 8]", "8 (encoder_query)"}},
    {"streams_whose_sum_overflows",
     [](Backward& c) {
       c.Reshape(*c.args.encoder_query, {0, INT64_MAX, 3, 8});
       c.Reshape(*c.args.query, {0, INT64_MAX, 3, 8});
     },
     StatusCode::kInvalidShape,
     {"grad_query_output", "9223372036854775807 (query)"}},
    {"dvalue_of_another_length",
     [](Backward& c) { c.Reshape(*c.args.dvalue, {2, 4, 2, 8}); },
     StatusCode::kInvalidShape,
     {"dvalue has shape [2, 4, 2, 8]; it must be [B, S, N, D] of grad_value_output, [2, 5, 2, 8]"}},
    {"query_of_other_heads",
     [](Backward& c) { c.Reshape(*c.args.query, {2, 4, 2, 8}); },
     StatusCode::kInvalidShape,
     {"query has shape [2, 4, 2, 8]; it must be [B, S, N, D] of grad_query_output, [2, 4, 3, 8]"}},
    {"an_unread_query_of_other_heads",
     [](Backward& c) {
       c.args.options.norm_type = NormType::kNone;
       c.args.norm_query = c.args.norm_key = {};
       c.Reshape(*c.args.query, {2, 4, 2, 8});
     },
     StatusCode::kInvalidShape,
     {"query has shape [2, 4, 2, 8]", "[2, 4, 3, 8]"}},
    {"mean_of_another_stream",
     [](Backward& c) { c.args.norm_query.mean = c.args.norm_key.mean; },
     StatusCode::kInvalidShape,
     {"norm_query.mean has shape [2, 5, 2, 1]; it must be [B, S, N, 1] of grad_query_output, [2, 4, 3, 1]"}},
    {"added_weight_of_another_width",
     [](Backward& c) { c.Reshape(*c.args.norm_added_query.weight, {4}); },
     StatusCode::kInvalidShape,
     {"norm_added_query.weight has shape [4]", "[8]"}},
    {"rope_cos_of_rank_3",
     [](Backward& c) { c.Reshape(*c.args.rope_cos, {1, 6, 8}); },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [1, 6, 8]; its rank must be 2 or 4"}},
    {"rope_cos_narrow",
     [](Backward& c) { c.Reshape(*c.args.rope_cos, {6, 4}); },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [6, 4]; its last extent must equal grad_query_output's, 8"}},
    {"rope_sin_of_another_shape",
     [](Backward& c) { c.Reshape(*c.args.rope_sin, {5, 8}); },
     StatusCode::kInvalidShape,
     {"rope_sin has shape [5, 8]; it must be rope_cos's, [6, 8]"}},
    {"tables_too_long",
     [](Backward& c) { c.args.options.rope_start = 2; },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [6, 8]; rope_start, 2, and its 6 rows must sum to at most the length of the shorter of the "
      "joint sequences', 7"}},
    {"rope_start_huge",
     [](Backward& c) { c.args.options.rope_start = INT64_MAX; },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [6, 8]; rope_start, 9223372036854775807", "7"}},
    {"tables_without_rows",
     [](Backward& c) {
       c.Reshape(*c.args.rope_cos, {0, 8});
       c.Reshape(*c.args.rope_sin, {0, 8});
     },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [0, 8]; it must have at least 1 row"}},
    {"tables_per_head_of_different_counts",
     [](Backward& c) {
       c.Reshape(*c.args.rope_cos, {1, 3, 6, 8});
       c.Reshape(*c.args.rope_sin, {1, 3, 6, 8});
     },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [1, 3, 6, 8]; its extent of axis 1 must be 1 or grad_key_output's, 2"}},
    {"encoder_tables_too_long",
     [](Backward& c) {
       SeparateTables(c);
       c.Reshape(*c.args.encoder_rope_cos, {2, 8});
     },
     StatusCode::kInvalidShape,
     {"encoder_rope_cos has shape [2, 8]; rope_start, 1, and its 2 rows", "encoder_query's and encoder_key's, 2"}},
    {"tables_longer_than_the_stream_beside_encoder_tables",
     [](Backward& c) {
       SeparateTables(c);
       c.Reshape(*c.args.rope_cos, {4, 8});
     },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [4, 8]; rope_start, 1, and its 4 rows", "query's and key's, 4"}},
    {"row_odd",
     [](Backward& c) {
       for (auto* view : {&c.args.grad_query_output, &c.args.grad_key_output, &c.args.grad_value_output}) {
         c.Reshape(**view, {2, (*view)->shape[1], 7, 7});
       }
     },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 3, 7, 7]; in mode half its last extent must be divisible by 2"}},
    {"grad_of_too_many_elements",
     [](Backward& c) { c.Reshape(*c.args.grad_key_output, {kHuge, 4, 4, 8}); },
     StatusCode::kInvalidShape,
     {"grad_key_output", "4611686018427387904", "64"}},
    {"rope_sin_whose_strides_overflow",
     [](Backward& c) { c.args.rope_sin->strides = c.Keep({kHuge, 1}); },
     StatusCode::kInvalidShape,
     {"rope_sin has shape [6, 8] and strides [4611686018427387904, 1]", "64"}},
    {"rope_cos_with_too_few_strides",
     [](Backward& c) { c.args.rope_cos->strides = c.Keep({8}); },
     StatusCode::kInvalidShape,
     {"rope_cos has 1 strides", "2"}},
    // alias
    {"grad_misaligned",
     [](Backward& c) { Misalign(*c.args.grad_value_output); },
     StatusCode::kInvalidAlias,
     {"grad_value_output has data at address", "2"}},
    {"dkey_of_stride_zero",
     [](Backward& c) { c.args.dkey->strides = c.Keep({80, 0, 8, 1}); },
     StatusCode::kInvalidAlias,
     {"dkey", "[80, 0, 8, 1]", "its elements share memory"}},
    {"dquery_on_the_encoders_rows",
     [](Backward& c) {
       auto& dquery = *c.args.dquery;
       dquery.data = static_cast<char*>(const_cast<void*>(c.args.grad_query_output->data)) + 2 * 3 * 8;
       dquery.strides = c.Keep({168, 8, 56, 1});
     },
     StatusCode::kInvalidAlias,
     {"dquery shares memory with grad_query_output"}},
    {"dvalue_on_dkey",
     [](Backward& c) { c.args.dvalue->data = c.args.dkey->data; },
     StatusCode::kInvalidAlias,
     {"dvalue shares memory with dkey; it may not"}},
    {"dencoder_value_on_rope_cos",
     [](Backward& c) { c.args.dencoder_value->data = const_cast<void*>(c.args.rope_cos->data); },
     StatusCode::kInvalidAlias,
     {"dencoder_value shares memory with rope_cos; it may not"}},
    {"dweight_on_another_norms_weight",
     [](Backward& c) { c.args.norm_key.dweight->data = const_cast<void*>(c.args.norm_query.weight->data); },
     StatusCode::kInvalidAlias,
     {"norm_key.dweight shares memory with norm_query.weight; it may not"}},
    // precedence: null, type, attribute, missing, shape, alias; of the joint call and its segments alike
    {"null_before_type",
     [](Backward& c) {
       c.args.norm_added_key.rstd->data = nullptr;
       c.args.rope_cos->dtype = DType::kF64;
     },
     StatusCode::kNullPointer,
     {"norm_added_key.rstd"}},
    {"null_tables_before_attribute",
     [](Backward& c) {
       c.args.rope_cos->data = nullptr;
       c.args.options.rope_start = -1;
     },
     StatusCode::kNullPointer,
     {"rope_cos has no data"}},
    {"type_before_attribute",
     [](Backward& c) {
       c.args.norm_added_key.rstd->dtype = kType;
       c.args.options.concat_order = static_cast<ConcatOrder>(2);
     },
     StatusCode::kInvalidType,
     {"norm_added_key.rstd"}},
    {"attribute_before_missing",
     [](Backward& c) {
       c.args.execution.num_threads = -1;
       c.args.rope_cos.reset();
     },
     StatusCode::kInvalidAttribute,
     {"num_threads"}},
    {"missing_before_shape",
     [](Backward& c) {
       c.args.norm_added_key.rstd.reset();
       c.Reshape(*c.args.grad_query_output, {2, 3, 9, 8});
     },
     StatusCode::kMissingArgument,
     {"norm_added_key.rstd is missing"}},
    {"shape_before_alias",
     [](Backward& c) {
       Misalign(*c.args.grad_query_output);
       c.Reshape(*c.args.norm_added_key.dweight, {4});
     },
     StatusCode::kInvalidShape,
     {"norm_added_key.dweight"}},
};

class NormRopeConcatBackwardRefusals : public ::testing::TestWithParam<Refusal<NormRopeConcatBackwardArgs>> {};

TEST_P(NormRopeConcatBackwardRefusals, SaysWhyAndWritesNothing) {
  TensorStore store;
  Backward call{BackwardArgs(store)};
  ASSERT_TRUE(Ok(ValidateNormRopeConcatBackward(call.args)));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope_concat_backward: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRopeConcatBackward(call.args), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatBackwardRefusals, ::testing::ValuesIn(kBackwardRefusals),
                         CaseName<Refusal<NormRopeConcatBackwardArgs>>);

// ---- Forward ----------------------------------------------------------------------------------------------------

const Refusal<NormRopeConcatArgs> kForwardRefusals[] = {
    {"query_output_is_null",
     [](Forward& c) { c.args.query_output->data = nullptr; },
     StatusCode::kNullPointer,
     {"query_output has no data"}},
    {"encoder_value_is_null",
     [](Forward& c) { c.args.encoder_value->data = nullptr; },
     StatusCode::kNullPointer,
     {"encoder_value has no data"}},
    {"value_of_another_type",
     [](Forward& c) { c.args.value->dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"value has type f32; it must be query's, bf16"}},
    {"bias_of_another_type",
     [](Forward& c) { c.args.norm_added_key.bias->dtype = kType; },
     StatusCode::kInvalidType,
     {"norm_added_key.bias has type bf16; it must be norm_query.weight's, f32"}},
    {"eps_negative",
     [](Forward& c) { c.args.eps = -1; },
     StatusCode::kInvalidAttribute,
     {"norm_rope_concat: eps is -1; it must be at least 0"}},
    {"mean_of_rms",
     [](Forward& c) { c.args.options.norm_added_type = NormType::kRms; },
     StatusCode::kInvalidAttribute,
     {"norm_added_query.mean is asked for; norm_added_type rms has no mean"}},
    {"query_missing",
     [](Forward& c) { c.args.query.reset(); },
     StatusCode::kMissingArgument,
     {"query is missing; query_output needs it"}},
    {"encoder_value_missing",
     [](Forward& c) { c.args.encoder_value.reset(); },
     StatusCode::kMissingArgument,
     {"encoder_value is missing; value_output needs it"}},
    {"encoder_key_missing",
     [](Forward& c) { c.args.encoder_key.reset(); },
     StatusCode::kMissingArgument,
     {"encoder_key is missing; key_output needs it"}},
    {"query_output_missing_for_mean",
     [](Forward& c) { c.args.query_output.reset(); },
     StatusCode::kMissingArgument,
     {"query_output is missing; norm_query.mean needs it"}},
    {"bias_missing",
     [](Forward& c) { c.args.norm_key.bias.reset(); },
     StatusCode::kMissingArgument,
     {"norm_key.bias is missing; norm_type layer_affine needs it"}},
    {"tables_missing",
     [](Forward& c) {
       c.args.rope_cos.reset();
       c.args.rope_sin.reset();
     },
     StatusCode::kMissingArgument,
     {"rope_cos is missing; rotary needs it"}},
    {"key_output_too_long",
     [](Forward& c) { c.Reshape(*c.args.key_output, {2, 2, 8, 8}); },
     StatusCode::kInvalidShape,
     {"value_output has shape [2, 2, 7, 8]; its sequence extent must be key_output's, 8"}},
    {"query_output_too_long",
     [](Forward& c) { c.Reshape(*c.args.query_output, {2, 3, 8, 8}); },
     StatusCode::kInvalidShape,
     {"query_output has shape [2, 3, 8, 8]; its sequence extent must be the sum of its streams', 4 (query) and 3 "
      "(encoder_query)"}},
    {"value_shorter_than_key",
     [](Forward& c) { c.Reshape(*c.args.value, {2, 4, 2, 8}); },
     StatusCode::kInvalidShape,
     {"value has shape [2, 4, 2, 8]; it must be [B, S, N, D] of value_output, [2, 5, 2, 8]"}},
    {"rstd_of_another_shape",
     [](Forward& c) { c.Reshape(*c.args.norm_query.rstd, {2, 3, 4, 1}); },
     StatusCode::kInvalidShape,
     {"norm_query.rstd has shape [2, 3, 4, 1]", "[2, 4, 3, 1]"}},
    {"query_output_whose_streams_meet",
     [](Forward& c) { c.args.query_output->strides = c.Keep({168, 56, 0, 1}); },
     StatusCode::kInvalidAlias,
     {"query_output has shape [2, 3, 7, 8] and strides [168, 56, 0, 1]; its elements share memory"}},
    {"query_output_whose_streams_are_one_row_each_and_meet",
     [](Forward& c) {
       c.Reshape(*c.args.query, {2, 1, 3, 8}), c.Reshape(*c.args.encoder_query, {2, 1, 3, 8});
       c.Reshape(*c.args.norm_query.mean, {2, 1, 3, 1}), c.Reshape(*c.args.norm_query.rstd, {2, 1, 3, 1});
       c.Reshape(*c.args.norm_added_query.mean, {2, 1, 3, 1}), c.Reshape(*c.args.norm_added_query.rstd, {2, 1, 3, 1});
       c.Reshape(*c.args.rope_cos, {1, 8}), c.Reshape(*c.args.rope_sin, {1, 8});
       c.Reshape(*c.args.query_output, {2, 3, 2, 8});
       c.args.query_output->strides = c.Keep({48, 16, 0, 1});
     },
     StatusCode::kInvalidAlias,
     {"query_output has shape [2, 3, 2, 8] and strides [48, 16, 0, 1]; its elements share memory"}},
    {"value_output_on_key_output",
     [](Forward& c) { c.args.value_output->data = c.args.key_output->data; },
     StatusCode::kInvalidAlias,
     {"value_output shares memory with key_output; it may not"}},
    {"rstd_on_bias",
     [](Forward& c) { c.args.norm_key.rstd->data = const_cast<void*>(c.args.norm_query.bias->data); },
     StatusCode::kInvalidAlias,
     {"norm_key.rstd shares memory with norm_query.bias; it may not"}},
};

class NormRopeConcatForwardRefusals : public ::testing::TestWithParam<Refusal<NormRopeConcatArgs>> {};

TEST_P(NormRopeConcatForwardRefusals, SaysWhyAndWritesNothing) {
  TensorStore store;
  Forward call{ForwardArgs(store)};
  ASSERT_TRUE(Ok(ValidateNormRopeConcat(call.args)));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope_concat: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRopeConcat(call.args), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatForwardRefusals, ::testing::ValuesIn(kForwardRefusals),
                         CaseName<Refusal<NormRopeConcatArgs>>);

// ---- What is legal ----------------------------------------------------------------------------------------------

TEST(NormRopeConcatValidate, NamesOfOrders) {
  EXPECT_STREQ(Name(ConcatOrder::kStreamFirst), "stream_first");
  EXPECT_STREQ(Name(ConcatOrder::kEncoderFirst), "encoder_first");
  EXPECT_STREQ(Name(static_cast<ConcatOrder>(2)), "unknown");
}

// What a legal call may go without.

// Joint views without the encoder's rows.
void ShortenToImage(Backward& c) {
  DropEncoder(c.args);
  c.Reshape(*c.args.grad_query_output, {2, 3, 4, 8});
  c.Reshape(*c.args.grad_key_output, {2, 2, 5, 8});
  c.Reshape(*c.args.grad_value_output, {2, 2, 5, 8});
  c.Reshape(*c.args.rope_cos, {3, 8});
  c.Reshape(*c.args.rope_sin, {3, 8});
}

const Freedom<NormRopeConcatBackwardArgs> kBackwardFreedoms[] = {
    {"nothing_at_all", [](Backward& c) { c.args = {}; }},
    {"query_alone",
     [](Backward& c) {
       DropKey(c.args);
       DropValue(c.args);
     }},
    {"no_value", [](Backward& c) { DropValue(c.args); }},
    {"value_alone",
     [](Backward& c) {
       NormRopeConcatBackwardArgs args;
       args.grad_value_output = c.args.grad_value_output;
       args.dvalue = c.args.dvalue;
       args.dencoder_value = c.args.dencoder_value;
       args.options = c.args.options;  // rotary without tables: nothing turns
       c.args = args;
     }},
    {"absent_encoder", [](Backward& c) { ShortenToImage(c); }},
    {"absent_encoder_with_wanted_sums",
     [](Backward& c) {
       const auto query = c.args.norm_added_query.dweight, key = c.args.norm_added_key.dweight;
       ShortenToImage(c);
       c.args.norm_added_query.dweight = query;
       c.args.norm_added_key.dweight = key;
     }},
    {"empty_encoder",
     [](Backward& c) {
       ShortenToImage(c);
       c.args.encoder_query = ConstTensorView{nullptr, kType, c.Keep({2, 0, 3, 8}), c.Keep({0, 0, 8, 1})};
       c.args.dencoder_query = TensorView{nullptr, kType, c.Keep({2, 0, 3, 8}), c.Keep({0, 0, 8, 1})};
       c.args.encoder_key = ConstTensorView{nullptr, kType, c.Keep({2, 0, 2, 8}), c.Keep({0, 0, 8, 1})};
     }},
    {"encoder_key_without_encoder_query",
     [](Backward& c) {
       c.args.encoder_query.reset(), c.args.dencoder_query.reset();
       c.args.norm_added_query = {};
       c.Reshape(*c.args.grad_query_output, {2, 3, 4, 8});
       c.Reshape(*c.args.rope_cos, {3, 8}), c.Reshape(*c.args.rope_sin, {3, 8});
     }},
    {"own_tables_of_an_encoder_key_without_encoder_query",
     [](Backward& c) {
       SeparateTables(c);
       c.args.encoder_query.reset(), c.args.dencoder_query.reset();
       c.args.norm_added_query = {};
       c.Reshape(*c.args.grad_query_output, {2, 3, 4, 8});
     }},
    {"lengths_of_gradients_where_nothing_is_normed",
     [](Backward& c) {
       c.args.options.norm_type = c.args.options.norm_added_type = NormType::kNone;
       c.args.norm_query = c.args.norm_key = c.args.norm_added_query = c.args.norm_added_key = {};
       c.args.query.reset(), c.args.key.reset(), c.args.encoder_query.reset(), c.args.encoder_key.reset();
     }},
    {"image_is_what_the_encoder_leaves",
     [](Backward& c) {
       c.args.query.reset(), c.args.dquery.reset();
       c.args.norm_query = {};
     }},
    {"streams_not_asked_for_need_no_norm",
     [](Backward& c) {
       c.args.norm_added_key = {};
       c.args.dencoder_key.reset();
       c.args.norm_query = {};
       c.args.dquery.reset();
     }},
    {"no_outputs_no_tables",
     [](Backward& c) {
       c.args.dquery.reset(), c.args.dkey.reset(), c.args.dencoder_query.reset(), c.args.dencoder_key.reset();
       c.args.norm_query = c.args.norm_key = c.args.norm_added_query = c.args.norm_added_key = {};
       c.args.rope_cos.reset(), c.args.rope_sin.reset();
     }},
    {"unread_inputs_tell_lengths_alone",
     [](Backward& c) {
       c.args.options.norm_type = NormType::kNone;
       c.args.norm_query = c.args.norm_key = {};
       c.args.query->data = nullptr;
       c.args.query->dtype = static_cast<DType>(9);
       c.args.query->strides = {};
     }},
    {"tables_ignored_without_rotary",
     [](Backward& c) {
       c.args.options.rotary.reset();
       c.args.options.rope_start = -5;
       c.args.rope_cos->dtype = static_cast<DType>(9);
       c.args.rope_sin->data = nullptr;
       c.args.encoder_rope_cos = c.args.rope_cos;
     }},
    {"tables_per_pair_of_rank_4",
     [](Backward& c) {
       c.args.options.rotary = RotaryOptions{.mode = RotaryMode::kInterleave, .per_pair_tables = true};
       c.Reshape(*c.args.rope_cos, {2, 1, 6, 4}), c.Reshape(*c.args.rope_sin, {2, 1, 6, 4});
     }},
    {"separate_tables", SeparateTables},
    {"encoder_first", [](Backward& c) { c.args.options.concat_order = ConcatOrder::kEncoderFirst; }},
    {"no_positions_no_tables",
     [](Backward& c) {
       c.args.options = {.norm_type = NormType::kNone, .rotary = RotaryOptions{}};
       NormRopeConcatBackwardArgs args;
       args.options = c.args.options;
       args.grad_query_output = ConstTensorView{nullptr, kType, c.Keep({2, 3, 0, 8}), c.Keep({0, 0, 8, 1})};
       args.grad_key_output = c.args.grad_key_output;
       args.key = c.args.key, args.dkey = c.args.dkey;
       args.dencoder_key = c.args.dencoder_key;
       c.args = args;
     }},
    {"no_positions_tables_of_no_rows",
     [](Backward& c) {
       c.args.options.rope_start = 0;
       DropEncoder(c.args);
       DropKey(c.args);
       DropValue(c.args);
       for (auto* view : {&c.args.grad_query_output, &c.args.query}) {
         c.Reshape(**view, view == &c.args.query ? Shape{2, 0, 3, 8} : Shape{2, 3, 0, 8});
       }
       c.Reshape(*c.args.dquery, {2, 0, 3, 8});
       c.Reshape(*c.args.norm_query.mean, {2, 0, 3, 1}), c.Reshape(*c.args.norm_query.rstd, {2, 0, 3, 1});
       c.Reshape(*c.args.rope_cos, {0, 8}), c.Reshape(*c.args.rope_sin, {0, 8});
     }},
    {"odd_rows_without_rotary",
     [](Backward& c) {
       NormRopeConcatBackwardArgs args;
       args.grad_query_output = c.args.grad_query_output;
       c.Reshape(*args.grad_query_output, {2, 3, 7, 7});
       args.dquery = c.args.dquery;
       c.Reshape(*args.dquery, {2, 7, 3, 7});
       c.args = args;
     }},
    {"in_place_of_the_inputs",
     [](Backward& c) {
       c.args.dquery->data = const_cast<void*>(c.args.query->data);
       c.args.dencoder_key->data = const_cast<void*>(c.args.encoder_key->data);
       c.args.norm_key.dweight->data = const_cast<void*>(c.args.norm_key.weight->data);
     }},
    {"in_place_of_their_own_rows",
     [](Backward& c) {
       char* const rows = static_cast<char*>(const_cast<void*>(c.args.grad_query_output->data));
       c.args.dquery->data = rows;
       c.args.dencoder_query->data = rows + 2 * 4 * 8;
       c.args.dquery->strides = c.args.dencoder_query->strides = c.Keep({168, 8, 56, 1});
     }},
};

class NormRopeConcatBackwardFreedoms : public ::testing::TestWithParam<Freedom<NormRopeConcatBackwardArgs>> {};

TEST_P(NormRopeConcatBackwardFreedoms, Accepted) {
  TensorStore store;
  Backward call{BackwardArgs(store)};
  GetParam().change(call);
  EXPECT_TRUE(Ok(ValidateNormRopeConcatBackward(call.args)));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatBackwardFreedoms, ::testing::ValuesIn(kBackwardFreedoms),
                         CaseName<Freedom<NormRopeConcatBackwardArgs>>);

const Freedom<NormRopeConcatArgs> kForwardFreedoms[] = {
    {"no_value_wanted",
     [](Forward& c) {
       c.args.value.reset(), c.args.encoder_value.reset();
       c.args.value_output.reset();
     }},
    {"query_not_wanted",
     [](Forward& c) {
       c.args.query_output.reset();
       c.args.norm_query = c.args.norm_added_query = {};
     }},
    {"statistics_not_wanted",
     [](Forward& c) {
       c.args.norm_query.mean.reset();
       c.args.norm_added_key.rstd.reset();
     }},
    {"in_place",
     [](Forward& c) {
       char* const rows = static_cast<char*>(c.args.query_output->data);
       c.args.query->data = rows;
       c.args.encoder_query->data = rows + 2 * 4 * 8;
       c.args.query->strides = c.args.encoder_query->strides = c.Keep({168, 8, 56, 1});
     }},
};

class NormRopeConcatForwardFreedoms : public ::testing::TestWithParam<Freedom<NormRopeConcatArgs>> {};

TEST_P(NormRopeConcatForwardFreedoms, Accepted) {
  TensorStore store;
  Forward call{ForwardArgs(store)};
  GetParam().change(call);
  EXPECT_TRUE(Ok(ValidateNormRopeConcat(call.args)));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatForwardFreedoms, ::testing::ValuesIn(kForwardFreedoms),
                         CaseName<Freedom<NormRopeConcatArgs>>);

// ---- Random legal calls, and where their segments lie -----------------------------------------------------------

class RandomCalls {
 public:
  explicit RandomCalls(std::uint64_t seed) : random_(seed) {}

  NormRopeConcatBackwardArgs Make(TensorStore& store) {
    type_ = std::array{DType::kF64, DType::kF32, DType::kF16, DType::kBF16}[Below(4)];
    sizes_ = {Below(3), 1 + Below(3), 1 + Below(3), Below(5), Below(4), Below(5), Below(4), 2 * Below(5)};
    NormRopeConcatBackwardArgs args;
    args.options.norm_type = static_cast<NormType>(Below(5));
    args.options.norm_added_type = static_cast<NormType>(Below(5));
    args.options.concat_order = static_cast<ConcatOrder>(Below(2));
    const auto [b, nq, nk, sq, seq, sk, sek, d] = sizes_;
    GiveStream(store, args, args.norm_query, {b, sq, nq, d}, false, args.query, args.dquery);
    GiveStream(store, args, args.norm_key, {b, sk, nk, d}, false, args.key, args.dkey);
    GiveStream(store, args, args.norm_added_query, {b, seq, nq, d}, true, args.encoder_query, args.dencoder_query);
    GiveStream(store, args, args.norm_added_key, {b, sek, nk, d}, true, args.encoder_key, args.dencoder_key);
    args.grad_query_output = In(store, {b, nq, sq + seq, d});
    args.grad_key_output = In(store, {b, nk, sk + sek, d});
    if (Below(2)) GiveValue(store, args);
    if (Below(4)) GiveTables(store, args);
    return args;
  }

 private:
  std::int64_t Below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  ConstTensorView In(TensorStore& store, const Shape& shape) {
    return store.In(type_, shape, kInputLayouts[Below(std::size(kInputLayouts))]);
  }
  TensorView Out(TensorStore& store, const Shape& shape) {
    return store.Out(type_, shape, kOutputLayouts[Below(std::size(kOutputLayouts))]);
  }

  // One of x and its gradient at least, so that the stream's length is known; `shape` is [B, S, N, D].
  void GiveStream(TensorStore& store, const NormRopeConcatBackwardArgs& args, NormBackwardTensors& norm,
                  const Shape& shape, bool added, std::optional<ConstTensorView>& x, std::optional<TensorView>& dx) {
    const NormType type = added ? args.options.norm_added_type : args.options.norm_type;
    const DType stats = type_ == DType::kF64 ? DType::kF64 : DType::kF32;
    const Shape stats_shape = {shape[0], shape[1], shape[2], 1};
    if (Below(3)) dx = Out(store, shape);
    if (internal::IsNorm(type) || !dx || Below(2)) x = In(store, shape);
    if (internal::IsNorm(type)) norm.rstd = store.In(stats, stats_shape);
    if (internal::IsLayerNorm(type)) norm.mean = store.In(stats, stats_shape);
    if (internal::IsAffine(type)) norm.weight = In(store, {shape[3]});
    if (internal::IsAffine(type) && Below(2)) norm.dweight = Out(store, {shape[3]});
    if (type == NormType::kLayerAffine && Below(2)) norm.dbias = Out(store, {shape[3]});
  }

  void GiveValue(TensorStore& store, NormRopeConcatBackwardArgs& args) {
    const auto [b, nq, nk, sq, seq, sk, sek, d] = sizes_;
    const std::int64_t heads = 1 + Below(3);
    args.grad_value_output = In(store, {b, heads, sk + sek, d});
    if (Below(2)) args.dvalue = Out(store, {b, sk, heads, d});
    if (Below(2)) args.dencoder_value = Out(store, {b, sek, heads, d});
  }

  // Rows that fit after rope_start, at least 1 unless `limit` is 0.
  std::int64_t Rows(std::int64_t limit, std::int64_t start) { return limit == 0 ? 0 : 1 + Below(limit - start); }

  void GivePair(TensorStore& store, std::int64_t rows, std::optional<ConstTensorView>& cos,
                std::optional<ConstTensorView>& sin) {
    const bool rank_4 = Below(2);
    const Shape shape = rank_4 ? Shape{Below(2) ? 1 : sizes_.b, 1, rows, sizes_.d} : Shape{rows, sizes_.d};
    cos = In(store, shape);
    sin = In(store, shape);
  }

  void GiveTables(TensorStore& store, NormRopeConcatBackwardArgs& args) {
    const auto [b, nq, nk, sq, seq, sk, sek, d] = sizes_;
    args.options.rotary = RotaryOptions{.mode = kModes[Below(2)]};
    const auto shorter = [](std::int64_t a, std::int64_t c) { return a == 0 ? c : c == 0 ? a : std::min(a, c); };
    if (Below(2)) {
      const std::int64_t image = shorter(sq, sk), encoder = shorter(seq, sek), least = std::min(image, encoder);
      args.options.rope_start = least == 0 ? 0 : Below(least);
      GivePair(store, Rows(image, args.options.rope_start), args.rope_cos, args.rope_sin);
      GivePair(store, Rows(encoder, args.options.rope_start), args.encoder_rope_cos, args.encoder_rope_sin);
    } else {
      const std::int64_t limit = std::min(sq + seq, sk + sek);
      args.options.rope_start = limit == 0 ? 0 : Below(limit);
      GivePair(store, Rows(limit, args.options.rope_start), args.rope_cos, args.rope_sin);
    }
  }

  Random random_;
  DType type_ = DType::kF32;
  Sizes sizes_;
};

std::uintptr_t AddressOf(const ConstTensorView& view, const Shape& index) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    offset += view.shape[axis] == 1 ? 0 : index[axis] * view.strides[axis];
  }
  return reinterpret_cast<std::uintptr_t>(view.data) + SizeOf(view.dtype) * static_cast<std::uintptr_t>(offset);
}

// Row `row` of a table [L, R] or rank 4, for a batch.
std::uintptr_t TableRowAddress(const ConstTensorView& table, std::int64_t batch, std::int64_t row) {
  return table.shape.size() == 2 ? AddressOf(table, {row, 0}) : AddressOf(table, {batch, 0, row, 0});
}

// The segment of a stream; null where there is none.
const SegmentCall* Find(const NormRopeCall& list, int stream) {
  for (const SegmentCall& segment : list.segments) {
    if (segment.stream == stream) return &segment;
  }
  return nullptr;
}

// The definition, position by position: which stream a joint position belongs to, which table row turns it.
void ExpectSegmentsOf(const NormRopeConcatBackwardArgs& args, const NormRopeCall& list, const Sizes& sizes, int joint,
                      std::int64_t image, std::int64_t encoder) {
  const std::optional<ConstTensorView> grad[3] = {args.grad_query_output, args.grad_key_output, args.grad_value_output};
  if (!grad[joint] || sizes.d == 0 || sizes.b == 0) return;
  const bool encoder_first = args.options.concat_order == ConcatOrder::kEncoderFirst;
  for (std::int64_t position = 0; position < image + encoder; ++position) {
    const bool in_encoder = encoder_first ? position < encoder : position >= image;
    const std::int64_t local =
        in_encoder ? position - (encoder_first ? 0 : image) : position - (encoder_first ? encoder : 0);
    const SegmentCall* const segment = Find(list, 2 * joint + in_encoder);
    ASSERT_NE(segment, nullptr);
    ASSERT_LT(local, segment->sequence);
    const std::int64_t b = sizes.b - 1, n = segment->heads - 1;
    EXPECT_EQ(AddressOf(segment->views[Operand::kIn], {b, n, local, sizes.d - 1}),
              AddressOf(*grad[joint], {b, n, position, sizes.d - 1}));
    const auto& cos = in_encoder && args.encoder_rope_cos ? args.encoder_rope_cos : args.rope_cos;
    const auto& sin = in_encoder && args.encoder_rope_sin ? args.encoder_rope_sin : args.rope_sin;
    const std::int64_t counted = args.encoder_rope_cos ? local : position;
    const std::int64_t rows = cos ? cos->shape[cos->shape.size() - 2] : 0;
    const std::int64_t row = counted - args.options.rope_start;
    const bool turns = args.options.rotary && joint != 2 && row >= 0 && row < rows;
    const std::int64_t of_segment = local - segment->rope_first;
    ASSERT_EQ(segment->rotates && of_segment >= 0 && of_segment < segment->rope_rows, turns);
    if (!turns) continue;
    EXPECT_EQ(TableRowAddress(segment->views[Operand::kCos], b, of_segment), TableRowAddress(*cos, b, row));
    EXPECT_EQ(TableRowAddress(segment->views[Operand::kSin], b, of_segment), TableRowAddress(*sin, b, row));
  }
}

TEST(NormRopeConcatValidate, RandomLegalCalls) {
  int rotated = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TensorStore store;
    const NormRopeConcatBackwardArgs args = RandomCalls(seed).Make(store);
    ASSERT_TRUE(Ok(ValidateNormRopeConcatBackward(args)));
    store.ExpectUnchanged();
    const auto call = NormRopeConcatCall::From(args);
    NormRopeCall list = ListOf(call);
    const auto rows = [&](int stream) { return Find(list, stream) == nullptr ? 0 : Find(list, stream)->sequence; };
    const Sizes sizes{.b = args.grad_query_output->shape[0], .d = args.grad_query_output->shape[3]};
    const auto length = [](const auto& x, const auto& dx) { return x ? x->shape[1] : dx->shape[1]; };
    const std::int64_t sq = length(args.query, args.dquery), sk = length(args.key, args.dkey);
    const std::int64_t seq = length(args.encoder_query, args.dencoder_query);
    const std::int64_t sek = length(args.encoder_key, args.dencoder_key);
    EXPECT_EQ(rows(0), sq);
    EXPECT_EQ(rows(1), seq);
    ExpectSegmentsOf(args, list, sizes, 0, sq, seq);
    ExpectSegmentsOf(args, list, sizes, 1, sk, sek);
    ExpectSegmentsOf(args, list, sizes, 2, sk, sek);
    // A plan keeps the list without data, and reads the addresses off the arguments of a run.
    const NormRopeCall before = list;
    list.Detach();
    const auto pointers = PointersOf(list, call);
    for (std::size_t i = 0; i < list.segments.size(); ++i) {
      rotated += list.segments[i].rotates;
      for (int operand = 0; operand < internal::kNormRopeOperands; ++operand) {
        if (!before.segments[i].given[operand]) continue;
        EXPECT_EQ(pointers[i][operand], before.segments[i].views[operand].data) << i << " " << operand;
      }
    }
    EXPECT_TRUE(Ok(ValidateViews(list)));
    const std::span<const internal::NormRopePointerRow> span = pointers;
    EXPECT_TRUE(Ok(ValidateMemory(list, internal::AddressesOf(span))));
  }
  EXPECT_GT(rotated, 300);
}

// An absent stream has a segment where its sums, zeros, are asked for, and none otherwise.
TEST(NormRopeConcatValidate, SegmentsOfAbsentStreams) {
  TensorStore store;
  Backward call{BackwardArgs(store)};
  const auto dweight = call.args.norm_added_key.dweight;
  ShortenToImage(call);
  EXPECT_EQ(ListOf(NormRopeConcatCall::From(call.args)).segments.size(), 3u);
  call.args.norm_added_key.dweight = dweight;
  const NormRopeCall list = ListOf(NormRopeConcatCall::From(call.args));
  ASSERT_EQ(list.segments.size(), 4u);
  EXPECT_EQ(list.segments[2].stream, 3);
  EXPECT_EQ(list.segments[2].sequence, 0);
  EXPECT_EQ(list.segments[2].head_dim, 8);
  EXPECT_TRUE(list.segments[2].given[Operand::kDweight]);
}

TEST(NormRopeConcatValidate, ForwardAddressesOfARun) {
  TensorStore store;
  Forward call{ForwardArgs(store)};
  NormRopeCall list = ListOf(NormRopeConcatCall::From(call.args));
  list.Detach();
  call.args.query_output->data = static_cast<char*>(call.args.query_output->data) + 64;
  call.args.norm_key.mean->data = nullptr;
  const auto run = NormRopeConcatCall::From(call.args);
  const NormRopeCall now = ListOf(run);
  const auto pointers = PointersOf(list, run);
  ASSERT_EQ(list.segments.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    for (int operand = 0; operand < internal::kNormRopeOperands; ++operand) {
      EXPECT_EQ(pointers[i][operand], now.segments[i].views[operand].data) << i << " " << operand;
    }
  }
  const std::span<const internal::NormRopePointerRow> span = pointers;
  EXPECT_TRUE(Refused(ValidateNull(list, internal::AddressesOf(span)), StatusCode::kNullPointer,
                      {"norm_rope_concat: norm_key.mean has no data"}));
}

}  // namespace
}  // namespace gyrograd::testing
