// Refusals of lists of segments: every rule with its code, the operator, the argument and the value in the message, and
// nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "tests/ops/norm_rope_lists.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

using Backward = Call<BackwardList>;
using Forward = Call<ForwardList>;

// ---- Backward ---------------------------------------------------------------------------------------------------

const Refusal<BackwardList> kBackwardRefusals[] = {
    // null
    {"dy_is_null",
     [](Backward& c) { c.args[0].dy.data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].dy has no"}},
    {"x_is_null", [](Backward& c) { c.args[1].x->data = nullptr; }, StatusCode::kNullPointer, {"segments[1].x has no"}},
    {"weight_is_null",
     [](Backward& c) { c.args[0].weight->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].weight has no"}},
    {"mean_is_null",
     [](Backward& c) { c.args[0].mean->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].mean has no"}},
    {"rstd_is_null",
     [](Backward& c) { c.args[1].rstd->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[1].rstd has no"}},
    {"cos_is_null",
     [](Backward& c) { c.args[0].rotation->cos.data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].rotation.cos has no"}},
    {"sin_is_null",
     [](Backward& c) { c.args[0].rotation->sin.data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].rotation.sin has no"}},
    {"dx_is_null",
     [](Backward& c) { c.args[2].dx->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[2].dx has no"}},
    {"dweight_is_null",
     [](Backward& c) { c.args[1].dweight->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[1].dweight has no"}},
    {"dbias_is_null",
     [](Backward& c) { c.args[0].dbias->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].dbias has no"}},
    // type
    {"dy_of_unknown_type",
     [](Backward& c) { c.args[1].dy.dtype = static_cast<DType>(9); },
     StatusCode::kInvalidType,
     {"segments[1].dy", "9"}},
    {"x_of_another_type",
     [](Backward& c) { c.args[0].x->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"segments[0].x has type f16; it must be segments[0].dy's, bf16"}},
    {"dx_of_another_type",
     [](Backward& c) { c.args[0].dx->dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"segments[0].dx has type f32; it must be segments[0].dy's, bf16"}},
    {"segments_of_different_types",
     [](Backward& c) { c.args[2].dy.dtype = c.args[2].dx->dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"segments[2].dy has type f32; it must be segments[0].dy's, bf16"}},
    {"weight_f16_beside_bf16",
     [](Backward& c) { c.args[0].weight->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"segments[0].weight has type f16; it must be segments[0].dy's, bf16, or f32"}},
    {"dweight_not_as_weight",
     [](Backward& c) { c.args[0].dweight->dtype = kListType; },
     StatusCode::kInvalidType,
     {"segments[0].dweight has type bf16; it must be segments[0].weight's, f32"}},
    {"dbias_not_as_weight",
     [](Backward& c) { c.args[0].dbias->dtype = kListType; },
     StatusCode::kInvalidType,
     {"segments[0].dbias has type bf16; it must be segments[0].weight's, f32"}},
    {"weights_of_different_types",
     [](Backward& c) { c.args[1].weight->dtype = c.args[1].dweight->dtype = kListType; },
     StatusCode::kInvalidType,
     {"segments[1].weight has type bf16; it must be segments[0].weight's, f32"}},
    {"mean_of_the_rows_type",
     [](Backward& c) { c.args[0].mean->dtype = kListType; },
     StatusCode::kInvalidType,
     {"segments[0].mean has type bf16; it must be f32, as segments[0].dy is bf16"}},
    {"rstd_f64_beside_bf16",
     [](Backward& c) { c.args[1].rstd->dtype = DType::kF64; },
     StatusCode::kInvalidType,
     {"segments[1].rstd has type f64; it must be f32"}},
    {"rstd_f32_beside_f64",
     [](Backward& c) {
       c.args.segments.erase(c.args.segments.begin());
       c.args[0].dy.dtype = c.args[0].x->dtype = c.args[0].dx->dtype = DType::kF64;
       c.args[0].weight->dtype = c.args[0].dweight->dtype = DType::kF64;
     },
     StatusCode::kInvalidType,
     {"segments[0].rstd has type f32; it must be f64, as segments[0].dy is f64"}},
    {"cos_f16_beside_bf16",
     [](Backward& c) { c.args[0].rotation->cos.dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"segments[0].rotation.cos has type f16; it must be segments[0].dy's, bf16, or f32"}},
    {"sin_not_as_cos",
     [](Backward& c) { c.args[0].rotation->sin.dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"segments[0].rotation.sin has type f32; it must be segments[0].rotation.cos's, bf16"}},
    // attribute
    {"norm_type_5",
     [](Backward& c) { c.args[1].norm_type = static_cast<NormType>(5); },
     StatusCode::kInvalidAttribute,
     {"segments[1].norm_type is 5"}},
    {"norm_type_negative",
     [](Backward& c) { c.args[1].norm_type = static_cast<NormType>(-1); },
     StatusCode::kInvalidAttribute,
     {"segments[1].norm_type is -1"}},
    {"dweight_without_weight",
     [](Backward& c) { c.args[0].norm_type = NormType::kLayer; },
     StatusCode::kInvalidAttribute,
     {"segments[0].dweight is asked for; norm_type layer has no weight"}},
    {"dbias_of_rms_affine",
     [](Backward& c) { c.args[0].norm_type = NormType::kRmsAffine; },
     StatusCode::kInvalidAttribute,
     {"segments[0].dbias is asked for; norm_type rms_affine has no bias"}},
    {"dweight_of_none",
     [](Backward& c) { c.args[1].norm_type = NormType::kNone; },
     StatusCode::kInvalidAttribute,
     {"segments[1].dweight is asked for; norm_type none has no weight"}},
    {"mode_4",
     [](Backward& c) { c.args[0].rotation->options.mode = static_cast<RotaryMode>(4); },
     StatusCode::kInvalidAttribute,
     {"segments[0].rotation.options.mode is 4"}},
    {"rotary_dim_0",
     [](Backward& c) { c.args[0].rotation->options.rotary_dim = 0; },
     StatusCode::kInvalidAttribute,
     {"segments[0].rotation.options.rotary_dim is 0"}},
    {"rotary_dim_odd",
     [](Backward& c) { c.args[0].rotation->options.rotary_dim = 5; },
     StatusCode::kInvalidAttribute,
     {"segments[0].rotation.options.rotary_dim is 5", "half", "2"}},
    {"rotary_dim_6_in_quarter",
     [](Backward& c) { c.args[0].rotation->options = {.mode = RotaryMode::kQuarter, .rotary_dim = 6}; },
     StatusCode::kInvalidAttribute,
     {"segments[0].rotation.options.rotary_dim is 6", "quarter", "4"}},
    {"rotary_dim_beyond_the_row",
     [](Backward& c) { c.args[0].rotation->options.rotary_dim = 10; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim is 10", "segments[0].dy's last extent, 8"}},
    {"rotary_offset_negative",
     [](Backward& c) { c.args[0].rotation->options.rotary_offset = -1; },
     StatusCode::kInvalidAttribute,
     {"segments[0].rotation.options.rotary_offset is -1"}},
    {"rotary_offset_huge",
     [](Backward& c) { c.args[0].rotation->options = {.rotary_dim = 4, .rotary_offset = INT64_MAX}; },
     StatusCode::kInvalidAttribute,
     {"rotary_offset is 9223372036854775807", "8"}},
    {"first_negative",
     [](Backward& c) { c.args[0].rotation->first = -1; },
     StatusCode::kInvalidAttribute,
     {"segments[0].rotation.first is -1"}},
    {"threads_negative",
     [](Backward& c) { c.args.execution.num_threads = -3; },
     StatusCode::kInvalidAttribute,
     {"num_threads is -3"}},
    {"target_unknown",
     [](Backward& c) { c.args.execution.cpu_target = static_cast<CpuTarget>(77); },
     StatusCode::kInvalidAttribute,
     {"norm_rope_backward: cpu_target is 'unknown'; "}},
    // missing
    {"x_missing",
     [](Backward& c) { c.args[1].x.reset(); },
     StatusCode::kMissingArgument,
     {"segments[1].x is missing; norm_type rms_affine needs it"}},
    {"rstd_missing",
     [](Backward& c) { c.args[1].rstd.reset(); },
     StatusCode::kMissingArgument,
     {"segments[1].rstd is missing; norm_type rms_affine needs it"}},
    {"mean_missing",
     [](Backward& c) { c.args[0].mean.reset(); },
     StatusCode::kMissingArgument,
     {"segments[0].mean is missing; norm_type layer_affine needs it"}},
    {"weight_missing_for_dx",
     [](Backward& c) {
       c.args[0].weight.reset();
       c.args[0].dweight.reset();
       c.args[0].dbias.reset();
     },
     StatusCode::kMissingArgument,
     {"segments[0].weight is missing; norm_type layer_affine needs it"}},
    {"x_missing_for_dweight_alone",
     [](Backward& c) {
       c.args[1].x.reset();
       c.args[1].dx.reset();
     },
     StatusCode::kMissingArgument,
     {"segments[1].x is missing"}},
    // shape
    {"dy_of_rank_3",
     [](Backward& c) { c.Reshape(c.args[2].dy, {1, 2, 5}); },
     StatusCode::kInvalidShape,
     {"segments[2].dy has shape [1, 2, 5]", "rank", "4"}},
    {"dy_of_negative_extent",
     [](Backward& c) { c.Reshape(c.args[0].dy, {2, -3, 5, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].dy has shape [2, -3, 5, 8]", "negative"}},
    {"x_in_the_order_of_dy",
     [](Backward& c) { c.Reshape(*c.args[0].x, {2, 3, 5, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].x has shape [2, 3, 5, 8]; it must be [B, S, N, D] of segments[0].dy, [2, 5, 3, 8]; hint: exchange "
      "axes 1 and 2 of segments[0].x, or of segments[0].dy"}},
    {"dx_of_another_width",
     [](Backward& c) { c.Reshape(*c.args[2].dx, {1, 2, 1, 4}); },
     StatusCode::kInvalidShape,
     {"segments[2].dx has shape [1, 2, 1, 4]", "[1, 2, 1, 5]"}},
    {"weight_of_another_width",
     [](Backward& c) { c.Reshape(*c.args[0].weight, {4}); },
     StatusCode::kInvalidShape,
     {"segments[0].weight has shape [4]", "[D] of segments[0].dy, [8]"}},
    {"weight_per_head",
     [](Backward& c) { c.Reshape(*c.args[1].weight, {1, 7}); },
     StatusCode::kInvalidShape,
     {"segments[1].weight has shape [1, 7]", "[7]"}},
    {"mean_without_its_last_axis",
     [](Backward& c) { c.Reshape(*c.args[0].mean, {2, 5, 3}); },
     StatusCode::kInvalidShape,
     {"segments[0].mean has shape [2, 5, 3]", "[B, S, N, 1] of segments[0].dy, [2, 5, 3, 1]"}},
    {"rstd_in_the_order_of_dy",
     [](Backward& c) { c.Reshape(*c.args[0].rstd, {2, 3, 5, 1}); },
     StatusCode::kInvalidShape,
     {"segments[0].rstd has shape [2, 3, 5, 1]", "[2, 5, 3, 1]; hint: exchange axes 1 and 2 of segments[0].rstd"}},
    {"dweight_of_another_width",
     [](Backward& c) { c.Reshape(*c.args[1].dweight, {6}); },
     StatusCode::kInvalidShape,
     {"segments[1].dweight has shape [6]", "[7]"}},
    {"dbias_of_another_width",
     [](Backward& c) { c.Reshape(*c.args[0].dbias, {1}); },
     StatusCode::kInvalidShape,
     {"segments[0].dbias has shape [1]", "[8]"}},
    {"too_few_strides",
     [](Backward& c) { c.args[0].x->strides = c.args[0].x->strides.first(3); },
     StatusCode::kInvalidShape,
     {"segments[0].x has 3 strides", "4"}},
    {"row_odd",
     [](Backward& c) {
       c.args[1].rotation = c.args[0].rotation;
       c.Reshape(c.args[1].rotation->cos, {1, 1, 2, 7});
       c.Reshape(c.args[1].rotation->sin, {1, 1, 2, 7});
     },
     StatusCode::kInvalidShape,
     {"segments[1].dy has shape [1, 2, 4, 7]", "half", "2"}},
    {"cos_of_rank_5",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {1, 1, 1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [1, 1, 1, 4, 8]; its rank must be 2 or 4"}},
    {"sin_of_fewer_rows",
     [](Backward& c) {
       c.Reshape(c.args[0].rotation->cos, {4, 8});
       c.Reshape(c.args[0].rotation->sin, {2, 8});
     },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.sin has shape [2, 8]; it must be segments[0].rotation.cos's, [4, 8]"}},
    {"cos_and_sin_of_different_ranks",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.sin has shape [2, 1, 4, 8]; it must be segments[0].rotation.cos's, [4, 8]"}},
    {"tables_of_rank_2_longer_than_the_sequence",
     [](Backward& c) {
       c.Reshape(c.args[0].rotation->cos, {5, 8});
       c.Reshape(c.args[0].rotation->sin, {5, 8});
     },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [5, 8]; its 5 rows and segments[0].rotation.first, 1, must sum to at most "
      "segments[0].dy's sequence extent, 5"}},
    {"cos_narrow",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {2, 1, 4, 4}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [2, 1, 4, 4]; its last extent must equal segments[0].dy's, 8; hint: "
      "per_pair_tables for one value a pair, or rotary_dim = 4 for partial rotary"}},
    {"cos_of_full_width_per_pair",
     [](Backward& c) { c.args[0].rotation->options.per_pair_tables = true; },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [2, 1, 4, 8]",
      "(per_pair_tables), 4; hint: no per_pair_tables for one value a channel"}},
    {"cos_wider_than_rotary_dim",
     [](Backward& c) { c.args[0].rotation->options.rotary_dim = 4; },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [2, 1, 4, 8]", "rotary_dim, 4"}},
    {"cos_of_another_batch",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {3, 1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [3, 1, 4, 8]; its batch extent must be 1 or segments[0].dy's, 2"}},
    {"cos_of_other_heads",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {1, 2, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [1, 2, 4, 8]; its head extent must be 1 or segments[0].dy's, 3"}},
    {"cos_with_positions_before_heads",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {2, 4, 1, 8}); },
     StatusCode::kInvalidShape,
     {"its head extent must be 1 or segments[0].dy's, 3; hint: exchange axes 1 and 2 of segments[0].rotation.cos"}},
    {"rotation_beyond_the_sequence",
     [](Backward& c) { c.args[0].rotation->first = 2; },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [2, 1, 4, 8]", "4 rows", "segments[0].rotation.first, 2", "5"}},
    {"rotation_first_huge",
     [](Backward& c) { c.args[0].rotation->first = INT64_MAX; },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.first, 9223372036854775807", "5"}},
    {"more_rows_than_the_sequence",
     [](Backward& c) {
       c.args[0].rotation->first = 0;
       c.Reshape(c.args[0].rotation->cos, {1, 1, 6, 8});
     },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [1, 1, 6, 8]", "6 rows", "5"}},
    {"sin_of_another_shape",
     [](Backward& c) { c.Reshape(c.args[0].rotation->sin, {1, 1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.sin has shape [1, 1, 4, 8]", "segments[0].rotation.cos's, [2, 1, 4, 8]"}},
    // sizes beyond 64 bits
    {"too_many_elements",
     [](Backward& c) { c.Reshape(c.args[2].dy, {kHuge, 4, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[2].dy", "4611686018427387904", "64"}},
    {"count_wraps_to_nothing",
     [](Backward& c) { c.Reshape(*c.args[1].dx, {std::int64_t{1} << 32, std::int64_t{1} << 32, 2, 7}); },
     StatusCode::kInvalidShape,
     {"segments[1].dx", "4294967296", "64"}},
    {"strides_overflow",
     [](Backward& c) { c.args[0].mean->strides = c.Keep({kHuge, kHuge, kHuge, 1}); },
     StatusCode::kInvalidShape,
     {"segments[0].mean", "4611686018427387904", "64"}},
    // alias
    {"x_misaligned",
     [](Backward& c) { Misalign(*c.args[1].x); },
     StatusCode::kInvalidAlias,
     {"segments[1].x has data at address 0x", "2"}},
    {"rstd_misaligned",
     [](Backward& c) { Misalign(*c.args[1].rstd); },
     StatusCode::kInvalidAlias,
     {"segments[1].rstd has data at address", "4"}},
    {"dx_of_stride_zero",
     [](Backward& c) { c.args[0].dx->strides = c.Keep({120, 0, 8, 1}); },
     StatusCode::kInvalidAlias,
     {"segments[0].dx", "[120, 0, 8, 1]", "its elements share memory"}},
    {"dweight_of_stride_zero",
     [](Backward& c) { c.args[0].dweight->strides = c.Keep({0}); },
     StatusCode::kInvalidAlias,
     {"segments[0].dweight", "[0]", "its elements share memory"}},
    {"dx_on_x_of_another_segment",
     [](Backward& c) { c.args[2].dx->data = const_cast<void*>(c.args[1].x->data); },
     StatusCode::kInvalidAlias,
     {"segments[2].dx shares memory with segments[1].x; it may not"}},
    {"dx_on_dx_of_another_segment",
     [](Backward& c) { c.args[1].dx->data = c.args[2].dx->data; },
     StatusCode::kInvalidAlias,
     {"segments[2].dx shares memory with segments[1].dx; it may not"}},
    {"dx_on_dy_untransposed",
     [](Backward& c) { c.args[0].dx->data = const_cast<void*>(c.args[0].dy.data); },
     StatusCode::kInvalidAlias,
     {"segments[0].dx shares memory with segments[0].dy; it may do so only with the same address, type and strides"}},
    {"dx_on_x_one_element_on",
     [](Backward& c) { c.args[1].dx->data = static_cast<char*>(const_cast<void*>(c.args[1].x->data)) + 2; },
     StatusCode::kInvalidAlias,
     {"segments[1].dx shares memory with segments[1].x; it may do so only"}},
    {"dx_on_tables",
     [](Backward& c) { c.args[0].dx->data = const_cast<void*>(c.args[0].rotation->sin.data); },
     StatusCode::kInvalidAlias,
     {"segments[0].dx shares memory with segments[0].rotation.sin; it may not"}},
    {"dbias_on_weight",
     [](Backward& c) { c.args[0].dbias->data = const_cast<void*>(c.args[0].weight->data); },
     StatusCode::kInvalidAlias,
     {"segments[0].dbias shares memory with segments[0].weight; it may not"}},
    {"dbias_on_dweight",
     [](Backward& c) { c.args[0].dbias->data = c.args[0].dweight->data; },
     StatusCode::kInvalidAlias,
     {"segments[0].dbias shares memory with segments[0].dweight; it may not"}},
    {"dweight_on_weight_of_another_segment",
     [](Backward& c) { c.args[1].dweight->data = const_cast<void*>(c.args[0].weight->data); },
     StatusCode::kInvalidAlias,
     {"segments[1].dweight shares memory with segments[0].weight; it may not"}},
    {"dweight_on_a_weight_that_two_segments_read",
     [](Backward& c) {
       c.Reshape(*c.args[0].weight, {8});
       c.args[1].weight->data = c.args[0].weight->data;
       c.args[0].dweight->data = const_cast<void*>(c.args[0].weight->data);
     },
     StatusCode::kInvalidAlias,
     {"segments[0].dweight shares memory with segments[1].weight; it may not"}},
    // precedence: null, type, attribute, missing, shape, alias
    {"null_before_type",
     [](Backward& c) {
       c.args[1].dweight->data = nullptr;
       c.args[0].dy.dtype = static_cast<DType>(9);
     },
     StatusCode::kNullPointer,
     {"segments[1].dweight"}},
    {"type_before_attribute",
     [](Backward& c) {
       c.args[1].dx->dtype = DType::kF64;
       c.args[0].norm_type = static_cast<NormType>(7);
     },
     StatusCode::kInvalidType,
     {"segments[1].dx"}},
    {"attribute_before_missing",
     [](Backward& c) {
       c.args[1].norm_type = static_cast<NormType>(7);
       c.args[0].x.reset();
     },
     StatusCode::kInvalidAttribute,
     {"segments[1].norm_type"}},
    {"missing_before_shape",
     [](Backward& c) {
       c.args[1].x.reset();
       c.Reshape(*c.args[0].x, {1, 1, 1, 3});
     },
     StatusCode::kMissingArgument,
     {"segments[1].x"}},
    {"shape_before_alias",
     [](Backward& c) {
       Misalign(c.args[0].dy);
       c.Reshape(*c.args[1].x, {1, 1, 1, 8});
     },
     StatusCode::kInvalidShape,
     {"segments[1].x"}},
};

class NormRopeBackwardRefusals : public ::testing::TestWithParam<Refusal<BackwardList>> {};

TEST_P(NormRopeBackwardRefusals, SaysWhyAndWritesNothing) {
  TensorStore store;
  Backward call{ExampleBackwardList(store)};
  ASSERT_TRUE(Ok(ValidateNormRopeBackward(call.args.args())));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope_backward: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRopeBackward(call.args.args()), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeBackwardRefusals, ::testing::ValuesIn(kBackwardRefusals),
                         CaseName<Refusal<BackwardList>>);

// ---- Hints ------------------------------------------------------------------------------------------------------

struct HintCase {
  const char* name;
  Shape cos;
  const char* hint;  // all that follows "its rank must be 2 or 4"
};

void PrintTo(const HintCase& hint, std::ostream* out) { *out << hint.name; }

// Beside dy [2, 3, 5, 8].
const HintCase kHints[] = {
    {"batches_and_positions", {2, 4, 8}, "; hint: add extents of 1, such as [2, 1, 4, 8]"},
    {"heads_and_positions", {3, 4, 8}, "; hint: add extents of 1, such as [1, 3, 4, 8]"},
    {"one_batch", {1, 4, 8}, "; hint: add extents of 1, such as [1, 1, 4, 8]"},
    {"as_many_positions_as_heads", {2, 3, 8}, "; hint: add extents of 1, such as [2, 1, 3, 8]"},
    {"one_row", {8}, "; hint: add extents of 1, such as [1, 8]"},
    {"no_place", {7, 4, 8}, "; hint: add extents of 1"},
    {"rank_0", {}, ""},
    {"rank_5", {1, 2, 1, 4, 8}, ""},
};

class NormRopeHints : public ::testing::TestWithParam<HintCase> {};

TEST_P(NormRopeHints, OfTablesOfAnotherRank) {
  TensorStore store;
  Backward call{ExampleBackwardList(store)};
  call.Reshape(call.args[0].rotation->cos, GetParam().cos);
  const Status status = ValidateNormRopeBackward(call.args.args());
  const std::string rule = "its rank must be 2 or 4";
  ASSERT_NE(status.message().find(rule), std::string::npos) << status.message();
  EXPECT_EQ(status.message().substr(status.message().find(rule) + rule.size()), GetParam().hint);
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeHints, ::testing::ValuesIn(kHints),
                         [](const ::testing::TestParamInfo<HintCase>& test) { return std::string(test.param.name); });

// ---- Forward ----------------------------------------------------------------------------------------------------

const Refusal<ForwardList> kForwardRefusals[] = {
    {"x_is_null", [](Forward& c) { c.args[1].x.data = nullptr; }, StatusCode::kNullPointer, {"segments[1].x has no"}},
    {"y_is_null", [](Forward& c) { c.args[0].y.data = nullptr; }, StatusCode::kNullPointer, {"segments[0].y has no"}},
    {"bias_is_null",
     [](Forward& c) { c.args[0].bias->data = nullptr; },
     StatusCode::kNullPointer,
     {"segments[0].bias has no"}},
    {"y_of_another_type",
     [](Forward& c) { c.args[1].y.dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"segments[1].y has type f16; it must be segments[0].x's, bf16"}},
    {"bias_not_as_weight",
     [](Forward& c) { c.args[0].bias->dtype = kListType; },
     StatusCode::kInvalidType,
     {"segments[0].bias has type bf16; it must be segments[0].weight's, f32"}},
    {"mean_of_the_rows_type",
     [](Forward& c) { c.args[0].mean->dtype = kListType; },
     StatusCode::kInvalidType,
     {"segments[0].mean has type bf16; it must be f32"}},
    {"norm_type_5",
     [](Forward& c) { c.args[0].norm_type = static_cast<NormType>(5); },
     StatusCode::kInvalidAttribute,
     {"segments[0].", "5"}},
    {"eps_negative",
     [](Forward& c) { c.args[0].eps = -1e-7; },
     StatusCode::kInvalidAttribute,
     {"segments[0].eps is -1e-07; it must be at least 0"}},
    {"eps_nan",
     [](Forward& c) { c.args[1].eps = std::nan(""); },
     StatusCode::kInvalidAttribute,
     {"segments[1].eps is nan"}},
    {"mean_of_rms",
     [](Forward& c) { c.args[0].norm_type = NormType::kRmsAffine; },
     StatusCode::kInvalidAttribute,
     {"segments[0].mean is asked for; norm_type rms_affine has no mean"}},
    {"rstd_of_none",
     [](Forward& c) { c.args[1].norm_type = NormType::kNone; },
     StatusCode::kInvalidAttribute,
     {"segments[1].rstd is asked for; norm_type none has no rstd"}},
    {"weight_missing",
     [](Forward& c) { c.args[1].weight.reset(); },
     StatusCode::kMissingArgument,
     {"segments[1].weight is missing; norm_type rms_affine needs it"}},
    {"bias_missing",
     [](Forward& c) { c.args[0].bias.reset(); },
     StatusCode::kMissingArgument,
     {"segments[0].bias is missing; norm_type layer_affine needs it"}},
    {"x_of_rank_3",
     [](Forward& c) { c.Reshape(c.args[1].x, {4, 2, 7}); },
     StatusCode::kInvalidShape,
     {"segments[1].x has shape [4, 2, 7]", "rank", "4"}},
    {"y_in_the_order_of_x",
     [](Forward& c) { c.Reshape(c.args[0].y, {2, 5, 3, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].y has shape [2, 5, 3, 8]; it must be [B, N, S, D] of segments[0].x, [2, 3, 5, 8]; hint: exchange "
      "axes 1 and 2 of segments[0].y, or of segments[0].x"}},
    {"cos_of_other_heads",
     [](Forward& c) { c.Reshape(c.args[0].rotation->cos, {1, 2, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [1, 2, 4, 8]; its head extent must be 1 or segments[0].x's, 3"}},
    {"rstd_of_another_shape",
     [](Forward& c) { c.Reshape(*c.args[1].rstd, {1, 2, 4, 1}); },
     StatusCode::kInvalidShape,
     {"segments[1].rstd has shape [1, 2, 4, 1]", "[1, 4, 2, 1]"}},
    {"rotation_beyond_the_sequence",
     [](Forward& c) { c.args[0].rotation->first = 2; },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.first, 2", "segments[0].x's sequence extent, 5"}},
    // sizes beyond 64 bits: too many elements, a count that wraps to 0, too many bytes
    {"x_of_too_many_elements",
     [](Forward& c) { c.Reshape(c.args[1].x, {kHuge, 3, 2, 7}); },
     StatusCode::kInvalidShape,
     {"segments[1].x", "4611686018427387904", "64"}},
    {"x_whose_count_wraps_to_nothing",
     [](Forward& c) { c.Reshape(c.args[1].x, {std::int64_t{1} << 32, std::int64_t{1} << 32, 2, 7}); },
     StatusCode::kInvalidShape,
     {"segments[1].x", "4294967296", "64"}},
    {"x_of_too_many_bytes",
     [](Forward& c) { c.Reshape(c.args[1].x, {1, kHuge / 8, 2, 7}); },
     StatusCode::kInvalidShape,
     {"segments[1].x", "576460752303423488", "64"}},
    {"y_whose_strides_overflow",
     [](Forward& c) { c.args[0].y.strides = c.Keep({kHuge, kHuge, kHuge, 1}); },
     StatusCode::kInvalidShape,
     {"segments[0].y", "4611686018427387904", "64"}},
    {"y_misaligned", [](Forward& c) { Misalign(c.args[0].y); }, StatusCode::kInvalidAlias, {"segments[0].y", "2"}},
    {"mean_of_stride_zero",
     [](Forward& c) { c.args[0].mean->strides = c.Keep({0, 3, 1, 1}); },
     StatusCode::kInvalidAlias,
     {"segments[0].mean", "its elements share memory"}},
    {"y_on_x_untransposed",
     [](Forward& c) { c.args[0].y.data = const_cast<void*>(c.args[0].x.data); },
     StatusCode::kInvalidAlias,
     {"segments[0].y shares memory with segments[0].x; it may do so only"}},
    {"rstd_on_mean",
     [](Forward& c) { c.args[0].rstd->data = c.args[0].mean->data; },
     StatusCode::kInvalidAlias,
     {"segments[0].rstd shares memory with segments[0].mean; it may not"}},
    {"rstd_on_weight",
     [](Forward& c) { c.args[0].rstd->data = const_cast<void*>(c.args[0].weight->data); },
     StatusCode::kInvalidAlias,
     {"segments[0].rstd shares memory with segments[0].weight; it may not"}},
    {"y_on_y_of_another_segment",
     [](Forward& c) { c.args[1].y.data = c.args[0].y.data; },
     StatusCode::kInvalidAlias,
     {"segments[1].y shares memory with segments[0].y; it may not"}},
};

class NormRopeForwardRefusals : public ::testing::TestWithParam<Refusal<ForwardList>> {};

TEST_P(NormRopeForwardRefusals, SaysWhyAndWritesNothing) {
  TensorStore store;
  Forward call{ExampleForwardList(store)};
  ASSERT_TRUE(Ok(ValidateNormRope(call.args.args())));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRope(call.args.args()), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeForwardRefusals, ::testing::ValuesIn(kForwardRefusals),
                         CaseName<Refusal<ForwardList>>);

}  // namespace
}  // namespace gyrograd::testing
