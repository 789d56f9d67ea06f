// Refusals: every rule with its code, the operator, the argument and the value in the message, and nothing written.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ios>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

using BackwardCall = Call<RotaryBackwardArgs>;
using ForwardCall = Call<RotaryArgs>;

// ---- Backward ---------------------------------------------------------------------------------------------------

// dy (2, 3, 4, 8), tables (2, 1, 4, 8), bf16, everything given.
const Refusal<RotaryBackwardArgs> kBackwardRefusals[] = {
    // null
    {"dy_is_null", [](BackwardCall& c) { c.args.dy.data = nullptr; }, StatusCode::kNullPointer, {"dy", "null"}},
    {"cos_is_null", [](BackwardCall& c) { c.args.cos.data = nullptr; }, StatusCode::kNullPointer, {"cos", "null"}},
    {"sin_is_null", [](BackwardCall& c) { c.args.sin.data = nullptr; }, StatusCode::kNullPointer, {"sin", "null"}},
    {"x_is_null", [](BackwardCall& c) { c.args.x->data = nullptr; }, StatusCode::kNullPointer, {"x", "null"}},
    {"dx_is_null", [](BackwardCall& c) { c.args.dx->data = nullptr; }, StatusCode::kNullPointer, {"dx", "null"}},
    {"dcos_is_null", [](BackwardCall& c) { c.args.dcos->data = nullptr; }, StatusCode::kNullPointer, {"dcos", "null"}},
    {"dsin_is_null", [](BackwardCall& c) { c.args.dsin->data = nullptr; }, StatusCode::kNullPointer, {"dsin", "null"}},
    // type
    {"dy_of_unknown_type",
     [](BackwardCall& c) { c.args.dy.dtype = static_cast<DType>(9); },
     StatusCode::kInvalidType,
     {"dy", "9"}},
    {"x_of_another_type",
     [](BackwardCall& c) { c.args.x->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"x", "f16", "dy", "bf16"}},
    {"dx_of_another_type",
     [](BackwardCall& c) { c.args.dx->dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"dx", "f16", "bf16"}},
    {"tables_f16_beside_bf16",
     [](BackwardCall& c) {
       c.args.cos.dtype = c.args.sin.dtype = c.args.dcos->dtype = c.args.dsin->dtype = DType::kF16;
     },
     StatusCode::kInvalidType,
     {"cos", "f16", "bf16"}},
    {"tables_f64_beside_bf16",
     [](BackwardCall& c) { c.args.cos.dtype = c.args.sin.dtype = DType::kF64; },
     StatusCode::kInvalidType,
     {"cos", "f64", "bf16"}},
    {"tables_bf16_beside_f32",
     [](BackwardCall& c) { c.args.dy.dtype = c.args.x->dtype = c.args.dx->dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"cos", "bf16", "f32"}},
    {"tables_f32_beside_f64",
     [](BackwardCall& c) {
       c.args.dy.dtype = c.args.x->dtype = c.args.dx->dtype = DType::kF64;
       c.args.cos.dtype = c.args.sin.dtype = c.args.dcos->dtype = c.args.dsin->dtype = DType::kF32;
     },
     StatusCode::kInvalidType,
     {"cos", "f32", "f64"}},
    {"sin_of_another_type",
     [](BackwardCall& c) { c.args.sin.dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"sin", "f32", "cos", "bf16"}},
    {"dcos_of_another_type",
     [](BackwardCall& c) { c.args.dcos->dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"dcos", "f32", "bf16"}},
    {"dsin_of_another_type",
     [](BackwardCall& c) { c.args.dsin->dtype = DType::kF64; },
     StatusCode::kInvalidType,
     {"dsin", "f64", "bf16"}},
    // attribute
    {"mode_4",
     [](BackwardCall& c) { c.args.options.mode = static_cast<RotaryMode>(4); },
     StatusCode::kInvalidAttribute,
     {"mode", "4"}},
    {"mode_below_0",
     [](BackwardCall& c) { c.args.options.mode = static_cast<RotaryMode>(-1); },
     StatusCode::kInvalidAttribute,
     {"mode", "-1"}},
    {"rotary_dim_0",
     [](BackwardCall& c) { c.args.options.rotary_dim = 0; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "0"}},
    {"rotary_dim_1",
     [](BackwardCall& c) { c.args.options.rotary_dim = 1; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "1"}},
    {"rotary_dim_negative",
     [](BackwardCall& c) { c.args.options.rotary_dim = -2; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "-2"}},
    {"rotary_dim_odd",
     [](BackwardCall& c) { c.args.options.rotary_dim = 5; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "5"}},
    {"rotary_dim_6_in_quarter",
     [](BackwardCall& c) {
       c.args.options.mode = RotaryMode::kQuarter;
       c.args.options.rotary_dim = 6;
     },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "6", "quarter", "4"}},
    {"rotary_dim_beyond_the_row",
     [](BackwardCall& c) { c.args.options.rotary_dim = 10; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "10", "8"}},
    {"rotary_dim_huge",
     [](BackwardCall& c) { c.args.options.rotary_dim = kHuge; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "4611686018427387904"}},
    {"rotary_offset_negative",
     [](BackwardCall& c) { c.args.options.rotary_offset = -1; },
     StatusCode::kInvalidAttribute,
     {"rotary_offset", "-1"}},
    {"rotary_offset_beyond_the_row",
     [](BackwardCall& c) {
       c.args.options.rotary_dim = 4;
       c.args.options.rotary_offset = 5;
     },
     StatusCode::kInvalidAttribute,
     {"rotary_offset", "5", "8"}},
    {"rotary_offset_huge",
     [](BackwardCall& c) {
       c.args.options.rotary_dim = 4;
       c.args.options.rotary_offset = INT64_MAX;
     },
     StatusCode::kInvalidAttribute,
     {"rotary_offset", "9223372036854775807"}},
    {"rotary_offset_of_a_whole_row",
     [](BackwardCall& c) { c.args.options.rotary_offset = 2; },
     StatusCode::kInvalidAttribute,
     {"rotary_offset", "2"}},
    {"threads_negative",
     [](BackwardCall& c) { c.args.execution.num_threads = -3; },
     StatusCode::kInvalidAttribute,
     {"num_threads", "-3"}},
    {"target_unknown",
     [](BackwardCall& c) { c.args.execution.cpu_target = static_cast<CpuTarget>(77); },
     StatusCode::kInvalidAttribute,
     {"cpu_target"}},
    // missing
    {"x_missing_for_dcos",
     [](BackwardCall& c) {
       c.args.x.reset();
       c.args.dsin.reset();
     },
     StatusCode::kMissingArgument,
     {"x", "dcos"}},
    {"x_missing_for_dsin",
     [](BackwardCall& c) {
       c.args.x.reset();
       c.args.dcos.reset();
     },
     StatusCode::kMissingArgument,
     {"x", "dsin"}},
    // shape
    {"dy_of_rank_0", [](BackwardCall& c) { c.Reshape(c.args.dy, {}); }, StatusCode::kInvalidShape, {"dy", "[]"}},
    {"dy_of_negative_extent",
     [](BackwardCall& c) { c.Reshape(c.args.dy, {2, -3, 4, 8}); },
     StatusCode::kInvalidShape,
     {"dy", "[2, -3, 4, 8]"}},
    {"dy_of_odd_width",
     [](BackwardCall& c) { c.Reshape(c.args.dy, {2, 3, 4, 7}); },
     StatusCode::kInvalidShape,
     {"dy", "[2, 3, 4, 7]", "2"}},
    {"dy_of_width_6_in_quarter",
     [](BackwardCall& c) {
       c.args.options.mode = RotaryMode::kQuarter;
       c.Reshape(c.args.dy, {2, 3, 4, 6});
     },
     StatusCode::kInvalidShape,
     {"dy", "[2, 3, 4, 6]", "quarter", "4"}},
    {"dy_with_too_few_strides",
     [](BackwardCall& c) { c.args.dy.strides = c.args.dy.strides.first(3); },
     StatusCode::kInvalidShape,
     {"dy", "3", "4", "strides"}},
    {"dcos_with_too_many_strides",
     [](BackwardCall& c) { c.args.dcos->strides = c.Keep({32, 32, 8, 1, 1}); },
     StatusCode::kInvalidShape,
     {"dcos", "5", "4", "strides"}},
    {"x_of_another_shape",
     [](BackwardCall& c) { c.Reshape(*c.args.x, {2, 3, 2, 8}); },
     StatusCode::kInvalidShape,
     {"x", "[2, 3, 2, 8]", "dy", "[2, 3, 4, 8]"}},
    {"x_of_another_rank",
     [](BackwardCall& c) { c.Reshape(*c.args.x, {6, 4, 8}); },
     StatusCode::kInvalidShape,
     {"x", "[6, 4, 8]", "[2, 3, 4, 8]"}},
    {"dx_of_another_shape",
     [](BackwardCall& c) { c.Reshape(*c.args.dx, {2, 4, 3, 8}); },
     StatusCode::kInvalidShape,
     {"dx", "[2, 4, 3, 8]", "dy", "[2, 3, 4, 8]"}},
    {"cos_of_another_rank",
     [](BackwardCall& c) { c.Reshape(c.args.cos, {1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"cos", "[1, 4, 8]", "4"}},
    {"cos_narrow",
     [](BackwardCall& c) { c.Reshape(c.args.cos, {2, 1, 4, 2}); },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 4, 2]", "8"}},
    {"cos_of_half_the_width_unless_asked_for",
     [](BackwardCall& c) {
       c.Reshape(c.args.cos, {2, 1, 4, 4});
       c.Reshape(c.args.sin, {2, 1, 4, 4});
       c.Reshape(*c.args.dcos, {2, 1, 4, 4});
       c.Reshape(*c.args.dsin, {2, 1, 4, 4});
     },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 4, 4]", "8"}},
    {"cos_of_full_width_per_pair",
     [](BackwardCall& c) { c.args.options.per_pair_tables = true; },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 4, 8]", "4"}},
    {"cos_wider_than_rotary_dim",
     [](BackwardCall& c) { c.args.options.rotary_dim = 4; },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 4, 8]", "4"}},
    {"cos_of_width_1",
     [](BackwardCall& c) { c.Reshape(c.args.cos, {2, 1, 4, 1}); },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 4, 1]", "8"}},
    {"cos_extent_neither_1_nor_dys",
     [](BackwardCall& c) { c.Reshape(c.args.cos, {2, 1, 2, 8}); },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 2, 8]", "4"}},
    {"cos_extent_above_dys",
     [](BackwardCall& c) { c.Reshape(c.args.cos, {4, 1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"cos", "[4, 1, 4, 8]", "2"}},
    {"cos_extent_0",
     [](BackwardCall& c) { c.Reshape(c.args.cos, {0, 1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"cos", "[0, 1, 4, 8]", "2"}},
    {"sin_of_another_shape",
     [](BackwardCall& c) { c.Reshape(c.args.sin, {1, 1, 4, 8}); },
     StatusCode::kInvalidShape,
     {"sin", "[1, 1, 4, 8]", "cos", "[2, 1, 4, 8]"}},
    {"dcos_of_another_shape",
     [](BackwardCall& c) { c.Reshape(*c.args.dcos, {2, 3, 4, 8}); },
     StatusCode::kInvalidShape,
     {"dcos", "[2, 3, 4, 8]", "[2, 1, 4, 8]"}},
    {"dsin_of_another_shape",
     [](BackwardCall& c) { c.Reshape(*c.args.dsin, {2, 1, 1, 8}); },
     StatusCode::kInvalidShape,
     {"dsin", "[2, 1, 1, 8]", "[2, 1, 4, 8]"}},
    // sizes beyond 64 bits
    {"dy_of_too_many_elements",
     [](BackwardCall& c) { c.Reshape(c.args.dy, {kHuge, 3, 4, 8}); },
     StatusCode::kInvalidShape,
     {"dy", "4611686018427387904", "64"}},
    {"dy_of_too_many_bytes",
     [](BackwardCall& c) { c.Reshape(c.args.dy, {kHuge / 8, 1, 1, 8}); },
     StatusCode::kInvalidShape,
     {"dy", "576460752303423488", "64"}},
    {"dy_whose_count_wraps_to_a_small_one",
     [](BackwardCall& c) { c.Reshape(c.args.dy, {kHuge, 4, 4, 8}); },
     StatusCode::kInvalidShape,
     {"dy", "4611686018427387904"}},
    {"dy_whose_strides_overflow",
     [](BackwardCall& c) { c.args.dy.strides = c.Keep({kHuge, kHuge, kHuge, 1}); },
     StatusCode::kInvalidShape,
     {"dy", "4611686018427387904", "64"}},
    {"x_whose_negative_strides_overflow",
     [](BackwardCall& c) { c.args.x->strides = c.Keep({INT64_MIN, 1, 1, 1}); },
     StatusCode::kInvalidShape,
     {"x", "-9223372036854775808", "64"}},
    // alias
    {"dy_misaligned",
     [](BackwardCall& c) { c.args.dy.data = static_cast<const char*>(c.args.dy.data) + 1; },
     StatusCode::kInvalidAlias,
     {"dy", "2"}},
    {"dsin_misaligned",
     [](BackwardCall& c) { c.args.dsin->data = static_cast<char*>(c.args.dsin->data) + 1; },
     StatusCode::kInvalidAlias,
     {"dsin", "2"}},
    {"dx_of_stride_zero",
     [](BackwardCall& c) { c.args.dx->strides = c.Keep({0, 32, 8, 1}); },
     StatusCode::kInvalidAlias,
     {"dx", "0"}},
    // precedence: null, type, attribute, missing, shape, alias
    {"null_before_type",
     [](BackwardCall& c) {
       c.args.dsin->data = nullptr;
       c.args.dy.dtype = static_cast<DType>(9);
     },
     StatusCode::kNullPointer,
     {"dsin"}},
    {"type_before_attribute",
     [](BackwardCall& c) {
       c.args.dsin->dtype = DType::kF64;
       c.args.options.mode = static_cast<RotaryMode>(7);
     },
     StatusCode::kInvalidType,
     {"dsin"}},
    {"attribute_before_missing",
     [](BackwardCall& c) {
       c.args.execution.num_threads = -1;
       c.args.x.reset();
     },
     StatusCode::kInvalidAttribute,
     {"num_threads"}},
    {"missing_before_shape",
     [](BackwardCall& c) {
       c.args.x.reset();
       c.Reshape(c.args.cos, {1, 1, 1, 3});
     },
     StatusCode::kMissingArgument,
     {"x"}},
    {"shape_before_alias",
     [](BackwardCall& c) {
       c.args.dy.data = static_cast<const char*>(c.args.dy.data) + 1;
       c.Reshape(*c.args.dsin, {1, 1, 1, 8});
     },
     StatusCode::kInvalidShape,
     {"dsin"}},
};

class RotaryBackwardRefusals : public ::testing::TestWithParam<Refusal<RotaryBackwardArgs>> {};

TEST_P(RotaryBackwardRefusals, SaysWhyAndWritesNothing) {
  const auto& refusal = GetParam();
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {DType::kBF16, DType::kBF16}, {2, 3, 4, 8}, {2, 1, 4}));
  BackwardCall call{tensors.Args()};
  ASSERT_TRUE(Ok(ValidateRotaryBackward(call.args)));
  refusal.change(call);
  std::vector<std::string> words = {"rotary_backward: "};
  words.insert(words.end(), refusal.words.begin(), refusal.words.end());
  EXPECT_TRUE(Refused(ValidateRotaryBackward(call.args), refusal.code, words));
  EXPECT_TRUE(Refused(RotaryBackward(call.args), refusal.code, words));
  for (const auto& [name, tensor] : {std::pair<const char*, const Tensor*>{"dy", &tensors.dy},
                                     {"cos", &tensors.cos},
                                     {"sin", &tensors.sin},
                                     {"x", &tensors.x},
                                     {"dx", &tensors.dx},
                                     {"dcos", &tensors.dcos},
                                     {"dsin", &tensors.dsin}}) {
    EXPECT_TRUE(tensor->Unchanged(name));
  }
}

template <class Args>
std::string RefusalName(const ::testing::TestParamInfo<Refusal<Args>>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(All, RotaryBackwardRefusals, ::testing::ValuesIn(kBackwardRefusals),
                         RefusalName<RotaryBackwardArgs>);

// ---- Forward ----------------------------------------------------------------------------------------------------

const Refusal<RotaryArgs> kForwardRefusals[] = {
    {"x_is_null", [](ForwardCall& c) { c.args.x.data = nullptr; }, StatusCode::kNullPointer, {"x", "null"}},
    {"y_is_null", [](ForwardCall& c) { c.args.y.data = nullptr; }, StatusCode::kNullPointer, {"y", "null"}},
    {"sin_is_null", [](ForwardCall& c) { c.args.sin.data = nullptr; }, StatusCode::kNullPointer, {"sin", "null"}},
    {"y_of_another_type",
     [](ForwardCall& c) { c.args.y.dtype = DType::kF16; },
     StatusCode::kInvalidType,
     {"y", "f16", "x", "bf16"}},
    {"sin_of_another_type",
     [](ForwardCall& c) { c.args.sin.dtype = DType::kF32; },
     StatusCode::kInvalidType,
     {"sin", "f32", "cos", "bf16"}},
    {"mode_9",
     [](ForwardCall& c) { c.args.options.mode = static_cast<RotaryMode>(9); },
     StatusCode::kInvalidAttribute,
     {"mode", "9"}},
    {"rotary_dim_beyond_the_row",
     [](ForwardCall& c) { c.args.options.rotary_dim = 10; },
     StatusCode::kInvalidAttribute,
     {"rotary_dim", "10", "x", "8"}},
    {"threads_negative",
     [](ForwardCall& c) { c.args.execution.num_threads = -3; },
     StatusCode::kInvalidAttribute,
     {"num_threads", "-3"}},
    {"x_of_odd_width",
     [](ForwardCall& c) { c.Reshape(c.args.x, {2, 3, 4, 7}); },
     StatusCode::kInvalidShape,
     {"x", "[2, 3, 4, 7]"}},
    {"y_of_another_shape",
     [](ForwardCall& c) { c.Reshape(c.args.y, {2, 3, 4, 6}); },
     StatusCode::kInvalidShape,
     {"y", "[2, 3, 4, 6]", "x", "[2, 3, 4, 8]"}},
    {"cos_extent_neither_1_nor_xs",
     [](ForwardCall& c) { c.Reshape(c.args.cos, {2, 2, 4, 8}); },
     StatusCode::kInvalidShape,
     {"cos", "[2, 2, 4, 8]", "x", "3"}},
    {"cos_narrow",
     [](ForwardCall& c) { c.Reshape(c.args.cos, {2, 1, 4, 4}); },
     StatusCode::kInvalidShape,
     {"cos", "[2, 1, 4, 4]", "8"}},
    {"x_of_too_many_elements",
     [](ForwardCall& c) { c.Reshape(c.args.x, {kHuge, 3, 4, 8}); },
     StatusCode::kInvalidShape,
     {"x", "4611686018427387904"}},
    {"y_misaligned",
     [](ForwardCall& c) { c.args.y.data = static_cast<char*>(c.args.y.data) + 1; },
     StatusCode::kInvalidAlias,
     {"y", "2"}},
};

class RotaryForwardRefusals : public ::testing::TestWithParam<Refusal<RotaryArgs>> {};

TEST_P(RotaryForwardRefusals, SaysWhyAndWritesNothing) {
  const auto& refusal = GetParam();
  const ForwardTensors tensors(MakeProblem(RotaryMode::kHalf, {DType::kBF16, DType::kBF16}, {2, 3, 4, 8}, {2, 1, 4}));
  ForwardCall call{tensors.Args()};
  ASSERT_TRUE(Ok(ValidateRotary(call.args)));
  refusal.change(call);
  std::vector<std::string> words = {"rotary: "};
  words.insert(words.end(), refusal.words.begin(), refusal.words.end());
  EXPECT_TRUE(Refused(ValidateRotary(call.args), refusal.code, words));
  EXPECT_TRUE(Refused(Rotary(call.args), refusal.code, words));
  EXPECT_TRUE(tensors.x.Unchanged("x"));
  EXPECT_TRUE(tensors.y.Unchanged("y"));
}

INSTANTIATE_TEST_SUITE_P(All, RotaryForwardRefusals, ::testing::ValuesIn(kForwardRefusals), RefusalName<RotaryArgs>);

// ---- Hints ------------------------------------------------------------------------------------------------------

struct HintCase {
  const char* name;
  Shape dy;
  Shape cos;
  RotaryOptions options;
  const char* rest;  // of the message, after "cos has shape [..]; its "
};

void PrintTo(const HintCase& hint, std::ostream* out) { *out << hint.name; }

constexpr RotaryOptions kWholeRows{};
constexpr RotaryOptions kPerPair{.per_pair_tables = true};
constexpr RotaryOptions kQuarter{.mode = RotaryMode::kQuarter};

const HintCase kHints[] = {
    {"half_the_width",
     {2, 8, 4, 128},
     {1, 8, 1, 64},
     kWholeRows,
     "last extent must equal dy's, 128; hint: per_pair_tables for one value a pair, or rotary_dim = 64 for partial "
     "rotary"},
    {"half_the_width_that_quarter_mode_cannot_turn",
     {3, 12},
     {1, 6},
     kQuarter,
     "last extent must equal dy's, 12; hint: per_pair_tables for one value a pair"},
    {"half_of_rotary_dim",
     {3, 12},
     {1, 4},
     {.rotary_dim = 8},
     "last extent must equal rotary_dim, 8; hint: per_pair_tables for one value a pair"},
    {"one_pair",
     {3, 2},
     {1, 1},
     kWholeRows,
     "last extent must equal dy's, 2; hint: per_pair_tables for one value a pair"},
    {"narrow", {3, 12}, {1, 4}, kWholeRows, "last extent must equal dy's, 12; hint: rotary_dim = 4 for partial rotary"},
    {"narrow_in_quarter_mode",
     {3, 12},
     {1, 8},
     kQuarter,
     "last extent must equal dy's, 12; hint: rotary_dim = 8 for partial rotary"},
    {"narrow_per_pair",
     {3, 12},
     {1, 4},
     kPerPair,
     "last extent must equal half the rotary dimension (per_pair_tables), 6; hint: rotary_dim = 8 for partial rotary"},
    {"full_width_per_pair",
     {3, 12},
     {1, 12},
     kPerPair,
     "last extent must equal half the rotary dimension (per_pair_tables), 6; hint: no per_pair_tables for one value a "
     "channel"},
    // No hint where the option would not be legal, or nothing is to be guessed.
    {"narrow_and_odd", {3, 12}, {1, 5}, kWholeRows, "last extent must equal dy's, 12"},
    {"width_1", {3, 12}, {1, 1}, kWholeRows, "last extent must equal dy's, 12"},
    {"width_0", {3, 12}, {1, 0}, kWholeRows, "last extent must equal dy's, 12"},
    {"narrow_and_no_multiple_of_4_in_quarter_mode", {3, 16}, {1, 6}, kQuarter, "last extent must equal dy's, 16"},
    {"wide", {3, 12}, {1, 16}, kWholeRows, "last extent must equal dy's, 12"},
    {"wide_per_pair",
     {3, 12},
     {1, 8},
     kPerPair,
     "last extent must equal half the rotary dimension (per_pair_tables), 6"},
    {"another_width_than_rotary_dim", {3, 12}, {1, 6}, {.rotary_dim = 8}, "last extent must equal rotary_dim, 8"},
    // Ranks.
    {"positions_of_bsnd",
     {2, 5, 3, 8},
     {5, 8},
     kWholeRows,
     "rank must be dy's, 4; hint: add extents of 1, such as [1, 5, 1, 8]"},
    {"batches_and_positions_of_bsnd",
     {2, 5, 3, 8},
     {2, 5, 8},
     kWholeRows,
     "rank must be dy's, 4; hint: add extents of 1, such as [2, 5, 1, 8]"},
    {"a_batch_of_1",
     {2, 5, 3, 8},
     {1, 3, 8},
     kWholeRows,
     "rank must be dy's, 4; hint: add extents of 1, such as [1, 1, 3, 8]"},
    {"one_row", {2, 5, 3, 8}, {8}, kWholeRows, "rank must be dy's, 4; hint: add extents of 1, such as [1, 1, 1, 8]"},
    {"two_places",
     {2, 5, 5, 8},
     {5, 8},
     kWholeRows,
     "rank must be dy's, 4; hint: add extents of 1, such as [1, 5, 1, 8] or [1, 1, 5, 8]"},
    {"no_place", {2, 5, 3, 8}, {7, 8}, kWholeRows, "rank must be dy's, 4; hint: add extents of 1"},
    {"places_in_another_order", {2, 5, 3, 8}, {3, 5, 8}, kWholeRows, "rank must be dy's, 4; hint: add extents of 1"},
    {"higher_rank", {5, 8}, {1, 5, 8}, kWholeRows, "rank must be dy's, 2"},
    {"rank_0", {5, 8}, {}, kWholeRows, "rank must be dy's, 2"},
};

class RotaryHints : public ::testing::TestWithParam<HintCase> {};

// The whole message: operator, argument, value, rule, and the hint where there is one.
TEST_P(RotaryHints, EndTheMessage) {
  const HintCase& hint = GetParam();
  const Shape dy_strides = StridesOf(Layout::kContiguous, hint.dy);
  const Shape cos_strides = StridesOf(Layout::kContiguous, hint.cos);
  RotaryBackwardArgs args;
  args.dy = {nullptr, DType::kF32, hint.dy, dy_strides};
  args.cos = args.sin = {nullptr, DType::kF32, hint.cos, cos_strides};
  args.options = hint.options;
  RotaryBackwardPlan plan;
  const Status status = RotaryBackwardPlan::Create(args, &plan);
  EXPECT_EQ(status.code(), StatusCode::kInvalidShape);
  const std::size_t start = status.message().find("; its ") + 6;
  EXPECT_EQ(status.message().rfind("rotary_backward: cos has shape [", 0), 0u) << status.message();
  EXPECT_EQ(status.message().substr(start), hint.rest);
}

INSTANTIATE_TEST_SUITE_P(All, RotaryHints, ::testing::ValuesIn(kHints),
                         [](const ::testing::TestParamInfo<HintCase>& test) { return std::string(test.param.name); });

// ---- Messages, and what is legal though it looks odd ------------------------------------------------------------

TEST(RotaryValidate, MessageIsTheOneOfTheContract) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 8, 4, 128}, {1, 8, 1}));
  BackwardCall call{tensors.Args()};
  call.Reshape(call.args.cos, {1, 8, 1, 63});
  EXPECT_EQ(ValidateRotaryBackward(call.args).message(),
            "rotary_backward: cos has shape [1, 8, 1, 63]; its last extent must equal dy's, 128");
}

TEST(RotaryValidate, AddressesAreHexadecimal) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 3, 8}, {1, 3}));
  RotaryBackwardArgs args = tensors.Args();
  args.dsin->data = static_cast<char*>(args.dsin->data) + 2;
  std::ostringstream address;
  address << std::hex << std::showbase << reinterpret_cast<std::uintptr_t>(args.dsin->data);
  EXPECT_EQ(ValidateRotaryBackward(args).message(), "rotary_backward: dsin has data at address " + address.str() +
                                                        "; it must be a multiple of its element's size, 4");
}

TEST(RotaryValidate, EmptyPlansNameTheirOperator) {
  EXPECT_EQ(RotaryBackwardPlan().Run({}, nullptr, 0).message(),
            "rotary_backward: the plan is empty; it must be created first");
  EXPECT_EQ(RotaryPlan().Run({}, nullptr, 0).message(), "rotary: the plan is empty; it must be created first");
  const Problem problem = MakeProblem(RotaryMode::kHalf, {}, {2, 3, 8}, {1, 3});
  EXPECT_TRUE(Refused(RotaryBackwardPlan::Create(BackwardTensors(problem).Args(), nullptr), StatusCode::kNullPointer,
                      {"rotary_backward: plan is null"}));
  EXPECT_TRUE(Refused(RotaryPlan::Create(ForwardTensors(problem).Args(), nullptr), StatusCode::kNullPointer,
                      {"rotary: plan is null"}));
}

TEST(RotaryValidate, ValidationWritesNothing) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 3, 8}, {1, 3}));
  EXPECT_TRUE(Ok(ValidateRotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.dx.Unchanged("dx"));
  EXPECT_TRUE(tensors.dcos.Unchanged("dcos"));
}

TEST(RotaryValidate, NoOutputsAtAll) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 3, 8}, {1, 3}));
  EXPECT_TRUE(Ok(RotaryBackward(tensors.Args(false, false, false, false))));
  EXPECT_TRUE(tensors.dx.Unchanged("dx"));
}

TEST(RotaryValidate, MisalignedEmptyTensors) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {0, 3, 8}, {0, 3}));
  RotaryBackwardArgs args = tensors.Args();
  args.dy.data = static_cast<const char*>(args.dy.data) + 1;
  EXPECT_TRUE(Ok(RotaryBackward(args)));
}

// 2^62 elements in no memory: stride 0 along a huge axis is a legal view; an empty tensor may have any other extents.
TEST(RotaryValidate, HugeExtents) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {1, 1, 8}, {1, 1}));
  BackwardCall call{tensors.Args(false, false, false, false)};
  call.Reshape(call.args.dy, {kHuge / 64, 1, 8});
  EXPECT_TRUE(Ok(ValidateRotaryBackward(call.args)));
  BackwardCall empty{tensors.Args(true, false, false, false)};
  empty.Reshape(empty.args.dy, {kHuge, 0, 8});
  empty.Reshape(*empty.args.dx, {kHuge, 0, 8});
  EXPECT_TRUE(Ok(RotaryBackward(empty.args)));
  EXPECT_TRUE(tensors.dx.Unchanged("dx"));
}

TEST(RotaryValidate, PlansRefuseTheSame) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 3, 8}, {1, 3}));
  BackwardCall call{tensors.Args()};
  call.Reshape(call.args.cos, {1, 2, 8});
  RotaryBackwardPlan plan;
  EXPECT_TRUE(Refused(RotaryBackwardPlan::Create(call.args, &plan), StatusCode::kInvalidShape,
                      {"rotary_backward: ", "cos", "[1, 2, 8]", "3"}));
}

}  // namespace
}  // namespace gyrograd::testing
