// Refusals of lists of segments: every rule with its code, the operator, the argument and the value in the message, and
// nothing written; random legal lists; sharing of memory against sets of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/norm_rope/validate.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

using internal::NormRopeCall;
using Operand = internal::NormRopeOperand;

struct BackwardList {
  std::vector<NormRopeBackwardSegment> segments;
  Execution execution = {};

  NormRopeBackwardSegment& operator[](std::size_t i) { return segments[i]; }
  NormRopeBackwardArgs args() const { return {segments, execution}; }
};

struct ForwardList {
  std::vector<NormRopeSegment> segments;
  Execution execution = {};

  NormRopeSegment& operator[](std::size_t i) { return segments[i]; }
  NormRopeArgs args() const { return {segments, execution}; }
};

using Backward = Call<BackwardList>;
using Forward = Call<ForwardList>;

constexpr DType kType = DType::kBF16;

// Segment 0: B 2, N 3, S 5, D 8, layer_affine, rotated from position 1 by tables of 4 rows. Segment 1: B 1, N 2, S 4,
// D 7, rms_affine. Segment 2: no norm, dx alone. Weights are f32 beside bf16.
BackwardList BackwardArgs(TensorStore& store) {
  const auto stats = [&](const Shape& shape) { return store.In(DType::kF32, shape); };
  const auto weight = [&](std::int64_t width) { return store.In(DType::kF32, {width}); };
  const auto weight_out = [&](std::int64_t width) { return store.Out(DType::kF32, {width}); };
  BackwardList list;
  list.segments.push_back(
      {.dy = store.In(kType, {2, 3, 5, 8}),
       .x = store.In(kType, {2, 5, 3, 8}),
       .norm_type = NormType::kLayerAffine,
       .weight = weight(8),
       .mean = stats({2, 5, 3, 1}),
       .rstd = stats({2, 5, 3, 1}),
       .rotation = NormRopeRotation{store.In(kType, {2, 1, 4, 8}), store.In(kType, {2, 1, 4, 8}), 1, {}},
       .dx = store.Out(kType, {2, 5, 3, 8}),
       .dweight = weight_out(8),
       .dbias = weight_out(8)});
  list.segments.push_back({.dy = store.In(kType, {1, 2, 4, 7}),
                           .x = store.In(kType, {1, 4, 2, 7}),
                           .norm_type = NormType::kRmsAffine,
                           .weight = weight(7),
                           .rstd = stats({1, 4, 2, 1}),
                           .dx = store.Out(kType, {1, 4, 2, 7}),
                           .dweight = weight_out(7)});
  list.segments.push_back({.dy = store.In(kType, {1, 1, 2, 5}), .dx = store.Out(kType, {1, 2, 1, 5})});
  return list;
}

// The forward of the same segments 0 and 1.
ForwardList ForwardArgs(TensorStore& store) {
  ForwardList list;
  list.segments.push_back(
      {.x = store.In(kType, {2, 5, 3, 8}),
       .norm_type = NormType::kLayerAffine,
       .weight = store.In(DType::kF32, {8}),
       .bias = store.In(DType::kF32, {8}),
       .rotation = NormRopeRotation{store.In(kType, {2, 1, 4, 8}), store.In(kType, {2, 1, 4, 8}), 1, {}},
       .y = store.Out(kType, {2, 3, 5, 8}),
       .mean = store.Out(DType::kF32, {2, 5, 3, 1}),
       .rstd = store.Out(DType::kF32, {2, 5, 3, 1})});
  list.segments.push_back({.x = store.In(kType, {1, 4, 2, 7}),
                           .norm_type = NormType::kRmsAffine,
                           .weight = store.In(DType::kF32, {7}),
                           .y = store.Out(kType, {1, 2, 4, 7}),
                           .rstd = store.Out(DType::kF32, {1, 4, 2, 1})});
  return list;
}

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
     [](Backward& c) { c.args[0].dweight->dtype = kType; },
     StatusCode::kInvalidType,
     {"segments[0].dweight has type bf16; it must be segments[0].weight's, f32"}},
    {"dbias_not_as_weight",
     [](Backward& c) { c.args[0].dbias->dtype = kType; },
     StatusCode::kInvalidType,
     {"segments[0].dbias has type bf16; it must be segments[0].weight's, f32"}},
    {"weights_of_different_types",
     [](Backward& c) { c.args[1].weight->dtype = c.args[1].dweight->dtype = kType; },
     StatusCode::kInvalidType,
     {"segments[1].weight has type bf16; it must be segments[0].weight's, f32"}},
    {"mean_of_the_rows_type",
     [](Backward& c) { c.args[0].mean->dtype = kType; },
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
     {"cpu_target"}},
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
     {"segments[0].x has shape [2, 3, 5, 8]", "[B, S, N, D] of segments[0].dy, [2, 5, 3, 8]"}},
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
     {"segments[0].rstd has shape [2, 3, 5, 1]", "[2, 5, 3, 1]"}},
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
    {"cos_of_rank_2",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [4, 8]", "rank", "4"}},
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
     {"segments[0].rotation.cos has shape [3, 1, 4, 8]", "axis 0", "2"}},
    {"cos_of_other_heads",
     [](Backward& c) { c.Reshape(c.args[0].rotation->cos, {1, 2, 4, 8}); },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.cos has shape [1, 2, 4, 8]", "axis 1", "3"}},
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
  Backward call{BackwardArgs(store)};
  ASSERT_TRUE(Ok(ValidateNormRopeBackward(call.args.args())));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope_backward: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRopeBackward(call.args.args()), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeBackwardRefusals, ::testing::ValuesIn(kBackwardRefusals),
                         CaseName<Refusal<BackwardList>>);

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
     [](Forward& c) { c.args[0].bias->dtype = kType; },
     StatusCode::kInvalidType,
     {"segments[0].bias has type bf16; it must be segments[0].weight's, f32"}},
    {"mean_of_the_rows_type",
     [](Forward& c) { c.args[0].mean->dtype = kType; },
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
     {"segments[0].y has shape [2, 5, 3, 8]", "[B, N, S, D] of segments[0].x, [2, 3, 5, 8]"}},
    {"rstd_of_another_shape",
     [](Forward& c) { c.Reshape(*c.args[1].rstd, {1, 2, 4, 1}); },
     StatusCode::kInvalidShape,
     {"segments[1].rstd has shape [1, 2, 4, 1]", "[1, 4, 2, 1]"}},
    {"rotation_beyond_the_sequence",
     [](Forward& c) { c.args[0].rotation->first = 2; },
     StatusCode::kInvalidShape,
     {"segments[0].rotation.first, 2", "segments[0].x's sequence extent, 5"}},
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
  Forward call{ForwardArgs(store)};
  ASSERT_TRUE(Ok(ValidateNormRope(call.args.args())));
  GetParam().change(call);
  std::vector<std::string> words = {"norm_rope: "};
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  EXPECT_TRUE(Refused(ValidateNormRope(call.args.args()), GetParam().code, words));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeForwardRefusals, ::testing::ValuesIn(kForwardRefusals),
                         CaseName<Refusal<ForwardList>>);

// ---- What is legal ----------------------------------------------------------------------------------------------

TEST(NormRopeValidate, MessageIsTheOneOfTheContract) {
  TensorStore store;
  Backward call{BackwardArgs(store)};
  call.Reshape(*call.args[1].x, {1, 4, 2, 6});
  EXPECT_EQ(
      ValidateNormRopeBackward(call.args.args()).message(),
      "norm_rope_backward: segments[1].x has shape [1, 4, 2, 6]; it must be [B, S, N, D] of segments[1].dy, [1, 4, "
      "2, 7]");
}

TEST(NormRopeValidate, NamesOfNorms) {
  const std::pair<int, std::string> names[] = {{0, "none"},       {1, "layer"},   {2, "layer_affine"}, {3, "rms"},
                                               {4, "rms_affine"}, {5, "unknown"}, {-1, "unknown"}};
  for (const auto& [value, name] : names) EXPECT_EQ(Name(static_cast<NormType>(value)), name);
}

// What a legal list may go without.
const Freedom<BackwardList> kFreedoms[] = {
    {"no_segments", [](Backward& c) { c.args.segments.clear(); }},
    {"no_outputs_no_norm_inputs",
     [](Backward& c) {
       auto& s = c.args[0];
       s.dx.reset(), s.dweight.reset(), s.dbias.reset(), s.x.reset(), s.mean.reset(), s.rstd.reset(), s.weight.reset();
     }},
    {"weight_for_sums_alone",
     [](Backward& c) {
       c.args[0].dx.reset();
       c.args[0].weight.reset();
     }},
    {"unused_inputs_are_ignored",
     [](Backward& c) {
       auto& s = c.args[2];  // no norm: none of these is looked at
       s.x = ConstTensorView{nullptr, static_cast<DType>(9), c.Keep({3}), c.Keep({})};
       s.weight = s.mean = s.rstd = s.x;
       c.args[1].mean = s.x;  // rms has no mean
     }},
    {"tables_without_rows",
     [](Backward& c) {
       c.Reshape(c.args[0].rotation->cos, {2, 1, 0, 8});
       c.Reshape(c.args[0].rotation->sin, {2, 1, 0, 8});
       c.args[0].rotation->cos.data = nullptr;
       c.args[0].rotation->first = 5;
     }},
    {"tables_f32",
     [](Backward& c) {
       c.args[0].rotation->cos.dtype = c.args[0].rotation->sin.dtype = DType::kF32;
       c.args[0].rotation->cos.strides = c.args[0].rotation->sin.strides = c.Keep({0, 0, 0, 1});
     }},
    {"partial_rotary_of_an_odd_row",
     [](Backward& c) {
       auto& rotation = c.args[1].rotation.emplace(*c.args[0].rotation);
       rotation.options = {.mode = RotaryMode::kQuarter, .per_pair_tables = true, .rotary_dim = 4, .rotary_offset = 3};
       rotation.first = 2;
       c.Reshape(rotation.cos, {1, 2, 2, 2});
       c.Reshape(rotation.sin, {1, 2, 2, 2});
     }},
    {"segment_without_rows_needs_nothing",
     [](Backward& c) {
       auto& s = c.args[0];
       c.Reshape(s.dy, {2, 3, 0, 8});
       s.dy.data = nullptr;
       c.Reshape(*s.dx, {2, 0, 3, 8});
       s.dx->data = nullptr;
       s.x.reset(), s.weight.reset(), s.mean.reset(), s.rstd.reset(), s.rotation.reset();
     }},
    {"empty_tensors_lie_anywhere",
     [](Backward& c) {
       auto& s = c.args[2];
       c.Reshape(s.dy, {0, 1, 2, 5});
       c.Reshape(*s.dx, {0, 2, 1, 5});
       s.dx->data = static_cast<char*>(const_cast<void*>(c.args[0].dy.data)) + 1;
     }},
    {"rows_without_channels",
     [](Backward& c) {
       c.Reshape(c.args[2].dy, {1, 1, 2, 0});
       c.Reshape(*c.args[2].dx, {1, 2, 1, 0});
     }},
    {"inputs_of_stride_zero",
     [](Backward& c) {
       c.args[0].dy.strides = c.args[0].x->strides = c.args[0].mean->strides = c.Keep({0, 0, 0, 0});
       c.args[0].weight->strides = c.Keep({0});
     }},
    {"dx_in_place_of_x", [](Backward& c) { c.args[0].dx->data = const_cast<void*>(c.args[0].x->data); }},
    {"dx_in_place_of_dy",
     [](Backward& c) {
       auto& s = c.args[0];
       s.dx->data = const_cast<void*>(s.dy.data);
       s.dx->strides = c.Keep({120, 8, 40, 1});
     }},
    {"dx_in_place_of_x_and_dy",
     [](Backward& c) {
       auto& s = c.args[0];
       s.x->data = s.dx->data = const_cast<void*>(s.dy.data);
       s.x->strides = s.dx->strides = c.Keep({120, 8, 40, 1});
     }},
    {"strides_of_extent_1_are_not_compared",
     [](Backward& c) {
       auto& s = c.args[2];
       s.dx->data = const_cast<void*>(s.dy.data);
       s.dx->strides = c.Keep({-77, 5, 1234, 1});
       s.dy.strides = c.Keep({3, 11, 5, 1});
     }},
    {"dweight_in_place_of_weight",
     [](Backward& c) { c.args[0].dweight->data = const_cast<void*>(c.args[0].weight->data); }},
    {"two_segments_read_the_same",
     [](Backward& c) {
       const auto first = c.args[0];
       auto& s = c.args.segments.emplace_back(first);
       s.dx.reset(), s.dweight.reset(), s.dbias.reset();
     }},
};

class NormRopeFreedoms : public ::testing::TestWithParam<Freedom<BackwardList>> {};

TEST_P(NormRopeFreedoms, Accepted) {
  TensorStore store;
  Backward call{BackwardArgs(store)};
  GetParam().change(call);
  EXPECT_TRUE(Ok(ValidateNormRopeBackward(call.args.args())));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeFreedoms, ::testing::ValuesIn(kFreedoms), CaseName<Freedom<BackwardList>>);

// y may stand where x stands; an unused eps is not looked at.
TEST(NormRopeValidate, ForwardFreedoms) {
  TensorStore store;
  Forward call{ForwardArgs(store)};
  call.args[0].y.data = const_cast<void*>(call.args[0].x.data);
  call.args[0].y.strides = call.Keep({120, 8, 24, 1});
  call.args[1] = {.x = call.args[1].x, .eps = -1, .y = call.args[1].y};
  EXPECT_TRUE(Ok(ValidateNormRope(call.args.args())));
}

// Gradients of query, key and value as slices of one buffer, the usual ways: [B, S, 3, N, D], [B, S, N, 3, D], and a
// separate query beside packed keys and values of fewer heads.
TEST(NormRopeValidate, SlicesOfOnePackedBuffer) {
  constexpr std::int64_t kB = 2, kS = 300, kN = 24, kD = 64, kWidth = 3 * kN * kD;
  TensorStore store;
  const Tensor& packed = store.Make(DType::kF32, {kB, kS, kWidth});
  const Shape x_shape = {kB, kS, kN, kD}, strides[2] = {{kS * kWidth, kWidth, kD, 1}, {kS * kWidth, kWidth, 3 * kD, 1}};
  const std::int64_t steps[2] = {kN * kD, kD};
  const ConstTensorView dy = store.In(DType::kF32, {kB, kN, kS, kD});
  for (int layout = 0; layout < 2; ++layout) {
    BackwardList list;
    for (int i = 0; i < 3; ++i) {
      float* const data = static_cast<float*>(packed.data()) + i * steps[layout];
      list.segments.push_back({.dy = dy, .dx = TensorView{data, DType::kF32, x_shape, strides[layout]}});
    }
    EXPECT_TRUE(Ok(ValidateNormRopeBackward(list.args())));
    list[2].dx->data = static_cast<float*>(list[2].dx->data) - 1;
    EXPECT_TRUE(Refused(ValidateNormRopeBackward(list.args()), StatusCode::kInvalidAlias,
                        {"segments[2].dx shares memory with segments[1].dx; it may not"}));
  }
}

// ---- Random legal lists -----------------------------------------------------------------------------------------

class RandomLists {
 public:
  explicit RandomLists(std::uint64_t seed) : random_(seed) {}

  BackwardList Make(TensorStore& store) {
    type_ = std::array{DType::kF64, DType::kF32, DType::kF16, DType::kBF16}[Below(4)];
    parameter_ = IsNarrow() && Below(2) ? DType::kF32 : type_;
    BackwardList list;
    for (std::int64_t i = Below(5); i > 0; --i) list.segments.push_back(MakeSegment(store));
    return list;
  }

 private:
  bool IsNarrow() const { return type_ == DType::kF16 || type_ == DType::kBF16; }
  std::int64_t Below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  Layout InLayout() { return kInputLayouts[Below(std::size(kInputLayouts))]; }
  Layout OutLayout() { return kOutputLayouts[Below(std::size(kOutputLayouts))]; }

  NormRopeBackwardSegment MakeSegment(TensorStore& store) {
    const std::int64_t b = Below(4), s = Below(6), n = Below(4), d = Below(13);
    const bool no_rows = b == 0 || s == 0 || n == 0;
    const DType stats = type_ == DType::kF64 ? DType::kF64 : DType::kF32;
    NormRopeBackwardSegment segment;
    segment.norm_type = static_cast<NormType>(Below(5));
    const bool affine = internal::IsAffine(segment.norm_type);
    segment.dy = store.In(type_, {b, n, s, d}, InLayout());
    if (Below(2)) segment.dx = store.Out(type_, {b, s, n, d}, OutLayout());
    if (affine && Below(2)) segment.dweight = store.Out(parameter_, {d}, OutLayout());
    if (segment.norm_type == NormType::kLayerAffine && Below(2))
      segment.dbias = store.Out(parameter_, {d}, OutLayout());
    const bool nothing_asked = !segment.dx && !segment.dweight && !segment.dbias;
    const auto gives = [&](bool needed) { return (needed && !no_rows && !nothing_asked) || Below(2); };
    if (gives(internal::IsNorm(segment.norm_type))) segment.x = store.In(type_, {b, s, n, d}, InLayout());
    if (gives(internal::IsNorm(segment.norm_type))) segment.rstd = store.In(stats, {b, s, n, 1}, InLayout());
    if (gives(internal::IsLayerNorm(segment.norm_type))) segment.mean = store.In(stats, {b, s, n, 1}, InLayout());
    if (gives(affine && segment.dx)) segment.weight = store.In(parameter_, {d}, InLayout());
    if (Below(2)) segment.rotation = MakeRotation(store, {b, n, s, d});
    return segment;
  }

  // A rotation of rows of `dy`, if rows of that width can turn.
  std::optional<NormRopeRotation> MakeRotation(TensorStore& store, const Shape& dy) {
    NormRopeRotation rotation;
    rotation.options.mode = kModes[Below(4)];
    rotation.options.per_pair_tables = Below(2) == 1;
    const std::int64_t multiple = rotation.options.mode == RotaryMode::kQuarter ? 4 : 2;
    std::int64_t width = dy[3];
    if (width >= multiple && (width % multiple != 0 || Below(2))) {
      width = multiple * (1 + Below(width / multiple));
      rotation.options.rotary_dim = width;
      rotation.options.rotary_offset = Below(dy[3] - width + 1);
    }
    if (width % multiple != 0) return std::nullopt;
    const std::int64_t rows = Below(dy[2] + 1);
    rotation.first = Below(dy[2] - rows + 1);
    const Shape shape = {Below(2) ? 1 : dy[0], Below(2) ? 1 : dy[1], rows,
                         rotation.options.per_pair_tables ? width / 2 : width};
    const DType table = IsNarrow() && Below(2) ? DType::kF32 : type_;
    rotation.cos = store.In(table, shape, InLayout());
    rotation.sin = store.In(table, shape, InLayout());
    return rotation;
  }

  Random random_;
  DType type_ = DType::kF32;
  DType parameter_ = DType::kF32;
};

TEST(NormRopeValidate, RandomLegalLists) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TensorStore store;
    const BackwardList list = RandomLists(seed).Make(store);
    ASSERT_TRUE(Ok(ValidateNormRopeBackward(list.args())));
    store.ExpectUnchanged();
  }
}

// ---- A call outlives its arguments ------------------------------------------------------------------------------

TEST(NormRopeValidate, DetachedCallsKeepTheirViews) {
  NormRopeCall call;
  std::vector<NormRopeBackwardPointers> run;
  {
    TensorStore store;
    Backward args{BackwardArgs(store)};
    for (const auto& s : args.args.segments) {
      NormRopeBackwardPointers& p = run.emplace_back();
      p.dy = s.dy.data;
      if (s.x) p.x = s.x->data;
      if (s.weight) p.weight = s.weight->data;
      if (s.mean) p.mean = s.mean->data;
      if (s.rstd) p.rstd = s.rstd->data;
      if (s.rotation) p.cos = s.rotation->cos.data, p.sin = s.rotation->sin.data;
      p.dx = s.dx->data;
      if (s.dweight) p.dweight = s.dweight->data;
      if (s.dbias) p.dbias = s.dbias->data;
    }
    call = NormRopeCall::From(args.args.args());
    call.Detach();
  }
  const NormRopeCall copy = call;
  call = {};
  EXPECT_TRUE(Ok(ValidateViews(copy)));
  const std::span<const NormRopeBackwardPointers> span = run;
  EXPECT_TRUE(Ok(ValidateCount(copy, span.size())));
  EXPECT_TRUE(Ok(ValidateNull(copy, internal::AddressesOf(span))));
  EXPECT_TRUE(Ok(ValidateMemory(copy, internal::AddressesOf(span))));
  EXPECT_EQ(copy.segments[0].sequence, 5);
  EXPECT_EQ(copy.segments[0].views[Operand::kIn].data, nullptr);
  EXPECT_TRUE(Refused(ValidateCount(copy, 2), StatusCode::kInvalidShape, {"norm_rope_backward: pointers has 2", "3"}));
  run[1].rstd = nullptr;
  EXPECT_TRUE(Refused(ValidateNull(copy, internal::AddressesOf(span)), StatusCode::kNullPointer, {"segments[1].rstd"}));
  run[1].dx = run[0].dx;
  EXPECT_TRUE(Refused(ValidateMemory(copy, internal::AddressesOf(span)), StatusCode::kInvalidAlias,
                      {"segments[1].dx shares memory with segments[0].dx"}));
}

// ---- Sharing, against sets of bytes -----------------------------------------------------------------------------

// A view of [B, S, N, D] or the like at an address in a small arena: only an address, never read.
struct Placed {
  std::uintptr_t address = 0;
  Shape shape = {}, strides = {};
  std::size_t size = 2;

  ConstTensorView in() const { return {reinterpret_cast<const void*>(address), DType::kBF16, shape, strides}; }
  TensorView out() const { return {reinterpret_cast<void*>(address), DType::kBF16, shape, strides}; }

  // The address of every element, row-major over [B, S, N, D]; `transposed` for a view of [B, N, S, D].
  std::vector<std::uintptr_t> Elements(bool transposed) const {
    const int axes[4] = {0, transposed ? 2 : 1, transposed ? 1 : 2, 3};
    std::vector<std::uintptr_t> elements = {address};
    for (const int axis : axes) {
      std::vector<std::uintptr_t> more;
      for (const std::uintptr_t element : elements) {
        for (std::int64_t i = 0; i < shape[axis]; ++i) {
          more.push_back(element + 2 * static_cast<std::uintptr_t>(i * strides[axis]));
        }
      }
      elements = std::move(more);
    }
    return elements;
  }
};

// Segments without norm of dy and dx: the first forbidden pair, as "output other"; empty where there is none.
std::string FirstForbidden(const std::vector<Placed>& dys, const std::vector<Placed>& dxs) {
  const auto meet = [](const std::vector<std::uintptr_t>& a, const std::vector<std::uintptr_t>& b) {
    const std::set<std::uintptr_t> set(a.begin(), a.end());
    return std::any_of(b.begin(), b.end(), [&](std::uintptr_t element) { return set.count(element) != 0; });
  };
  for (std::size_t i = 0; i < dxs.size(); ++i) {
    const auto dx = dxs[i].Elements(false);
    for (std::size_t j = 0; j < dys.size(); ++j) {
      const auto dy = dys[j].Elements(true);
      const std::string output = "segments[" + std::to_string(i) + "].dx shares memory with segments[";
      if (meet(dx, dy) && (i != j || dx != dy)) return output + std::to_string(j) + "].dy";
      if (j < i && meet(dx, dxs[j].Elements(false))) return output + std::to_string(j) + "].dx";
    }
  }
  return "";
}

class RandomPlaces {
 public:
  RandomPlaces(std::uint64_t seed, std::int64_t arena) : random_(seed), arena_(arena) {}

  // [B, S, N, D] of 1 or 2 steps each, in any order of axes, with gaps.
  Placed Make() {
    Placed view;
    for (int axis = 0; axis < 4; ++axis) view.shape.push_back(1 + Below(2));
    view.strides.assign(4, 0);
    int order[4] = {0, 1, 2, 3};
    std::shuffle(order, order + 4, random_);
    std::int64_t stride = 1 + Below(3);
    for (const int axis : order) {
      view.strides[axis] = stride;
      stride *= view.shape[axis] + Below(2);
    }
    view.address = 0x10000 + 2 * static_cast<std::uintptr_t>(Below(arena_));
    return view;
  }
  static Placed Transposed(Placed view) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
    return view;
  }
  std::int64_t Below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

 private:
  Random random_;
  std::int64_t arena_;
};

// How many of `runs` random lists were refused; each with the first forbidden pair in its message.
int CompareWithSets(int runs, std::size_t segments, std::int64_t arena) {
  int refused = 0;
  for (int run = 0; run < runs; ++run) {
    RandomPlaces places(static_cast<std::uint64_t>(run), arena);
    std::vector<Placed> dys, dxs;
    BackwardList list;
    for (std::size_t i = 0; i < segments; ++i) {
      dxs.push_back(places.Make());
      Placed dy = places.Make();
      dy.shape = dxs.back().shape;
      if (places.Below(2)) dy = dxs.back();  // in place
      dys.push_back(RandomPlaces::Transposed(dy));
    }
    for (std::size_t i = 0; i < segments; ++i) list.segments.push_back({.dy = dys[i].in(), .dx = dxs[i].out()});
    const Status status = ValidateNormRopeBackward(list.args());
    const std::string expected = FirstForbidden(dys, dxs);
    if (expected.empty()) {
      EXPECT_TRUE(Ok(status)) << "run " << run;
    } else {
      EXPECT_TRUE(Refused(status, StatusCode::kInvalidAlias, {expected})) << "run " << run;
    }
    refused += !expected.empty();
  }
  return refused;
}

TEST(NormRopeValidate, SharingIsDecidedExactly) {
  const int refused = CompareWithSets(2000, 3, 150);
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 1500);
}

// More outputs than are compared at once.
TEST(NormRopeValidate, SharingAmongManySegments) {
  const int refused = CompareWithSets(30, 150, 1500000);
  EXPECT_GT(refused, 5);
  EXPECT_LT(refused, 25);
}

}  // namespace
}  // namespace gyrograd::testing
