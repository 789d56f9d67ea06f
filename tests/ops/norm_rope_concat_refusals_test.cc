// Refusals of the joint call: every rule with its code, the operator, the argument and the value in the message, and
// nothing written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/strides.h"
#include "tests/ops/norm_rope_concat_args.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

using Backward = Call<NormRopeConcatBackwardArgs>;
using Forward = Call<NormRopeConcatArgs>;

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
     [](Backward& c) { c.args.norm_added_key.weight->dtype = kJointType; },
     StatusCode::kInvalidType,
     {"norm_added_key.weight has type bf16; it must be norm_query.weight's, f32"}},
    {"rstd_of_the_rows_type",
     [](Backward& c) { c.args.norm_added_query.rstd->dtype = kJointType; },
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
     {"grad_query_output has shape [2, 3, 7, 8]; its sequence extent must be the sum of 4 (query) and 2 "
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
     {"grad_query_output has shape [2, 3, 7, 8]; its sequence extent must be at least encoder_query's, 8"}},
    {"grad_in_the_order_of_its_streams",
     [](Backward& c) { c.Reshape(*c.args.grad_query_output, {2, 7, 3, 8}); },
     StatusCode::kInvalidShape,
     {"grad_query_output has shape [2, 7, 3, 8]; its sequence extent must be the sum of 4 (query) and 3 "
      "(encoder_query); hint: exchange axes 1 and 2 of grad_query_output"}},
    {"grad_in_the_order_of_its_streams_of_few_heads",
     [](Backward& c) {
       c.Reshape(*c.args.grad_key_output, {2, 7, 1, 8});
       c.args.grad_value_output.reset(), c.args.dvalue.reset(), c.args.dencoder_value.reset();
     },
     StatusCode::kInvalidShape,
     {"its sequence extent must be at least encoder_key's, 2; hint: exchange axes 1 and 2 of grad_key_output"}},
    {"query_in_the_order_of_its_gradient",
     [](Backward& c) {
       DropKey(c.args), DropValue(c.args), DropEncoder(c.args);
       c.args.options = {};
       c.args.norm_query = {};
       c.Reshape(*c.args.dquery, {2, 7, 3, 8});
       c.Reshape(*c.args.grad_query_output, {2, 3, 7, 8});
       c.args.query->shape = c.Keep({2, 7, 3, 8});
       c.Reshape(*c.args.dquery, {2, 3, 7, 8});
     },
     StatusCode::kInvalidShape,
     {"dquery has shape [2, 3, 7, 8]; it must be [B, S, N, D] of grad_query_output, [2, 7, 3, 8]; hint: exchange axes "
      "1 "
      "and 2 of dquery, or of grad_query_output"}},
    {"streams_whose_sum_overflows",
     [](Backward& c) {
       c.Reshape(*c.args.encoder_query, {0, INT64_MAX, 3, 8});
       c.Reshape(*c.args.query, {0, INT64_MAX, 3, 8});
     },
     StatusCode::kInvalidShape,
     {"grad_query_output", "at least encoder_query's, 9223372036854775807"}},
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
     {"rope_cos has shape [1, 6, 8]; its rank must be 2 or 4; hint: add extents of 1, such as [1, 1, 6, 8]"}},
    {"rope_cos_of_heads_that_query_alone_has",
     [](Backward& c) { c.Reshape(*c.args.rope_cos, {3, 6, 8}); },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [3, 6, 8]; its rank must be 2 or 4; hint: add extents of 1"}},
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
     {"rope_cos has shape [6, 8]; rope_start, 2, and its 6 rows must sum to at most the length of the shorter joint "
      "sequence, 7"}},
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
     {"rope_cos has shape [1, 3, 6, 8]; its head extent must be 1 or grad_key_output's, 2"}},
    {"encoder_tables_too_long",
     [](Backward& c) {
       SeparateTables(c);
       c.Reshape(*c.args.encoder_rope_cos, {2, 8});
     },
     StatusCode::kInvalidShape,
     {"encoder_rope_cos has shape [2, 8]; rope_start, 1, and its 2 rows",
      "shorter of encoder_query and encoder_key, 2"}},
    {"tables_longer_than_the_stream_beside_encoder_tables",
     [](Backward& c) {
       SeparateTables(c);
       c.Reshape(*c.args.rope_cos, {4, 8});
     },
     StatusCode::kInvalidShape,
     {"rope_cos has shape [4, 8]; rope_start, 1, and its 4 rows", "shorter of query and key, 4"}},
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
       c.args.norm_added_key.rstd->dtype = kJointType;
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
  Backward call{ExampleBackwardArgs(store)};
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
     [](Forward& c) { c.args.norm_added_key.bias->dtype = kJointType; },
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
     {"key_output has shape [2, 2, 8, 8]; its sequence extent must be the sum of 5 (key) and 2 (encoder_key)"}},
    {"query_output_too_long",
     [](Forward& c) { c.Reshape(*c.args.query_output, {2, 3, 8, 8}); },
     StatusCode::kInvalidShape,
     {"query_output has shape [2, 3, 8, 8]; its sequence extent must be the sum of 4 (query) and 3 (encoder_query)"}},
    {"value_shorter_than_key",
     [](Forward& c) { c.Reshape(*c.args.value, {2, 4, 2, 8}); },
     StatusCode::kInvalidShape,
     {"value has shape [2, 4, 2, 8]; its sequence extent must be key's, 5"}},
    {"encoder_value_shorter_than_encoder_key",
     [](Forward& c) { c.Reshape(*c.args.encoder_value, {2, 1, 2, 8}); },
     StatusCode::kInvalidShape,
     {"encoder_value has shape [2, 1, 2, 8]; its sequence extent must be encoder_key's, 2"}},
    {"encoder_query_in_another_order",
     [](Forward& c) { c.Reshape(*c.args.encoder_query, {2, 3, 5, 8}); },
     StatusCode::kInvalidShape,
     {"encoder_query has shape [2, 3, 5, 8]; its head extent must be query's, 3; hint: exchange axes 1 and 2 of "
      "encoder_query"}},
    {"query_output_of_other_heads",
     [](Forward& c) { c.Reshape(*c.args.query_output, {2, 2, 7, 8}); },
     StatusCode::kInvalidShape,
     {"query_output has shape [2, 2, 7, 8]; its head extent must be query's, 3"}},
    {"query_output_in_the_order_of_query",
     [](Forward& c) { c.Reshape(*c.args.query_output, {2, 7, 3, 8}); },
     StatusCode::kInvalidShape,
     {"query_output has shape [2, 7, 3, 8]; its head extent must be query's, 3; hint: exchange axes 1 and 2 of "
      "query_output"}},
    {"value_output_of_another_batch",
     [](Forward& c) { c.Reshape(*c.args.value_output, {1, 2, 7, 8}); },
     StatusCode::kInvalidShape,
     {"value_output has shape [1, 2, 7, 8]; its batch must be value's, 2"}},
    {"output_narrower_than_rotary_dim",
     [](Forward& c) {
       c.Reshape(*c.args.query_output, {2, 3, 7, 4});
       c.args.options.rotary->rotary_dim = 8;
     },
     StatusCode::kInvalidShape,
     {"query_output has shape [2, 3, 7, 4]; its last extent must be query's, 8"}},
    {"rotary_dim_beyond_the_row",
     [](Forward& c) { c.args.options.rotary->rotary_dim = 10; },
     StatusCode::kInvalidAttribute,
     {"rotary.rotary_offset is 0 and rotary_dim is 10", "query's last extent, 8"}},
    {"rope_cos_of_another_type",
     [](Forward& c) { c.args.rope_cos->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"rope_cos has type f16; it must be query's, bf16, or f32"}},
    {"encoder_weight_of_another_width",
     [](Forward& c) { c.Reshape(*c.args.norm_added_key.weight, {7}); },
     StatusCode::kInvalidShape,
     {"norm_added_key.weight has shape [7]; it must be [D] of key, [8]"}},
    {"neither_query_for_its_mean",
     [](Forward& c) { c.args.query.reset(), c.args.encoder_query.reset(), c.args.query_output.reset(); },
     StatusCode::kMissingArgument,
     {"query is missing; norm_query.mean needs it"}},
    {"rstd_of_another_shape",
     [](Forward& c) { c.Reshape(*c.args.norm_query.rstd, {2, 3, 4, 1}); },
     StatusCode::kInvalidShape,
     {"norm_query.rstd has shape [2, 3, 4, 1]", "[2, 4, 3, 1]"}},
    {"streams_of_too_many_elements",
     [](Forward& c) {
       c.Reshape(*c.args.query, {2, kHuge, 3, 8}), c.Reshape(*c.args.query_output, {2, 3, kHuge + 3, 8});
       c.args.norm_query.mean.reset(), c.args.norm_query.rstd.reset();
     },
     StatusCode::kInvalidShape,
     {"query_output has shape [2, 3, 4611686018427387907, 8]", "64"}},
    {"streams_whose_sum_overflows",
     [](Forward& c) {
       c.Reshape(*c.args.query, {2, INT64_MAX, 3, 8}), c.Reshape(*c.args.encoder_query, {2, INT64_MAX, 3, 8});
     },
     StatusCode::kInvalidShape,
     {"query_output", "at least encoder_query's, 9223372036854775807"}},
    {"key_output_whose_strides_overflow",
     [](Forward& c) { c.args.key_output->strides = c.Keep({kHuge, kHuge, kHuge, 1}); },
     StatusCode::kInvalidShape,
     {"key_output has", "4611686018427387904", "64"}},
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
  Forward call{ExampleForwardArgs(store)};
  ASSERT_TRUE(Ok(ValidateNormRopeConcat(call.args)));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope_concat: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRopeConcat(call.args), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatForwardRefusals, ::testing::ValuesIn(kForwardRefusals),
                         CaseName<Refusal<NormRopeConcatArgs>>);

// ---- Outputs that follow the inputs -----------------------------------------------------------------------------

// The inputs of a joint call by name.
std::vector<std::pair<std::string, std::optional<ConstTensorView>*>> InputsOf(NormRopeConcatArgs& args) {
  return {{"query", &args.query},
          {"key", &args.key},
          {"value", &args.value},
          {"encoder_query", &args.encoder_query},
          {"encoder_key", &args.encoder_key},
          {"encoder_value", &args.encoder_value},
          {"rope_cos", &args.rope_cos},
          {"rope_sin", &args.rope_sin},
          {"norm_query.weight", &args.norm_query.weight},
          {"norm_added_query.bias", &args.norm_added_query.bias},
          {"norm_added_key.weight", &args.norm_added_key.weight}};
}

// Joint outputs as a caller makes them who sees the inputs alone: of the first stream's shape, the lengths added.
void FollowInputs(Forward& c) {
  auto& a = c.args;
  for (const auto& [output, image, encoder] : {std::tuple(&a.query_output, &a.query, &a.encoder_query),
                                               {&a.key_output, &a.key, &a.encoder_key},
                                               {&a.value_output, &a.value, &a.encoder_value}}) {
    const auto shape = (*image ? *image : *encoder)->shape;
    const std::int64_t rows = (*image ? (*image)->shape[1] : 0) + (*encoder ? (*encoder)->shape[1] : 0);
    c.Reshape(**output, {shape[0], shape[2], rows, shape[3]});
  }
  for (NormTensors* norm : {&a.norm_query, &a.norm_key, &a.norm_added_query, &a.norm_added_key}) {
    norm->mean.reset(), norm->rstd.reset();
  }
}

// The message names an input, as it was passed, and no output; "" where the call is legal.
void ExpectNamesAnInput(Forward& c, const std::string& change) {
  FollowInputs(c);
  const std::string message = ValidateNormRopeConcat(c.args).message();
  EXPECT_EQ(message.find("output"), std::string::npos) << change << ": " << message;
  const std::string begin = "norm_rope_concat: ";
  const std::string name =
      message.substr(std::min(begin.size(), message.size()), message.find(" has shape") - begin.size());
  for (const auto& [input, view] : InputsOf(c.args)) {
    if (message.find(" has shape") == std::string::npos || name != input) continue;
    EXPECT_NE(message.find(input + " has shape " + internal::ToString((*view)->shape) + ";"), std::string::npos)
        << change << ": " << message;
  }
}

TEST(NormRopeConcatForward, MessagesNameWhatWasPassed) {
  NormRopeConcatArgs names;
  for (std::size_t i = 0; i < InputsOf(names).size(); ++i) {
    TensorStore store;
    Forward missing{ExampleForwardArgs(store)};
    const auto [name, view] = InputsOf(missing.args)[i];
    const Shape shape((*view)->shape.begin(), (*view)->shape.end());
    view->reset();
    ExpectNamesAnInput(missing, name + " missing");
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      for (const std::int64_t step : {-1, 1, 2}) {
        Forward other{ExampleForwardArgs(store)};
        Shape changed = shape;
        changed[axis] += step;
        other.Reshape(**InputsOf(other.args)[i].second, changed);
        ExpectNamesAnInput(other, name + " of shape " + internal::ToString(changed));
      }
    }
  }
}

// What a caller who forgets one of two streams is told.
TEST(NormRopeConcatForward, ForgottenStreams) {
  const std::tuple<const char*, std::size_t, const char*> cases[] = {
      {"encoder_value", 5, "encoder_key has 2 rows, and it must have as many"},
      {"encoder_key", 4, "encoder_value has 2 rows, and it must have as many"},
      {"value", 2, "key has 5 rows, and it must have as many"},
      {"key", 1, "value has 5 rows, and it must have as many"}};
  for (const auto& [name, input, rest] : cases) {
    TensorStore store;
    Forward call{ExampleForwardArgs(store)};
    InputsOf(call.args)[input].second->reset();
    FollowInputs(call);
    EXPECT_EQ(ValidateNormRopeConcat(call.args).message(),
              std::string("norm_rope_concat: ") + name + " is missing; " + rest);
  }
}

// Of one stream alone: no word of the other, though value's output has rows that key's does not.
TEST(NormRopeConcatForward, ValueOfAnotherLengthThanKey) {
  const std::pair<std::size_t, const char*> streams[] = {{0, ""}, {3, "encoder_"}};
  for (const auto& [first, prefix] : streams) {
    for (const std::int64_t step : {-1, 1, 2}) {
      TensorStore store;
      Forward call{ExampleForwardArgs(store)};
      const auto inputs = InputsOf(call.args);
      for (std::size_t other = 0; other < 3; ++other) inputs[3 - first + other].second->reset();
      const std::int64_t rows = (*inputs[first + 1].second)->shape[1];
      call.Reshape(**inputs[first + 2].second, {2, rows + step, 2, 8});
      FollowInputs(call);
      const std::string value = std::string(prefix) + "value";
      EXPECT_EQ(ValidateNormRopeConcat(call.args).message(),
                "norm_rope_concat: " + value + " has shape " + internal::ToString((*inputs[first + 2].second)->shape) +
                    "; its sequence extent must be " + prefix + "key's, " + std::to_string(rows));
    }
  }
}

}  // namespace
}  // namespace gyrograd::testing
