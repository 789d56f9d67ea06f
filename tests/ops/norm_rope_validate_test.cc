// What is legal in a list of segments, and what a call keeps of its arguments.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ops/norm_rope/validate.h"
#include "tests/ops/norm_rope_lists.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

using internal::NormRopeCall;
using Operand = internal::NormRopeOperand;
using Backward = Call<BackwardList>;
using Forward = Call<ForwardList>;

// ---- What is legal ----------------------------------------------------------------------------------------------

TEST(NormRopeValidate, MessageIsTheOneOfTheContract) {
  TensorStore store;
  Backward call{ExampleBackwardList(store)};
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
    {"tables_of_rank_2",
     [](Backward& c) {
       c.Reshape(c.args[0].rotation->cos, {4, 8});
       c.Reshape(c.args[0].rotation->sin, {4, 8});
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
  Backward call{ExampleBackwardList(store)};
  GetParam().change(call);
  EXPECT_TRUE(Ok(ValidateNormRopeBackward(call.args.args())));
  store.ExpectUnchanged();
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeFreedoms, ::testing::ValuesIn(kFreedoms), CaseName<Freedom<BackwardList>>);

// y may stand where x stands; an unused eps is not looked at.
TEST(NormRopeValidate, ForwardFreedoms) {
  TensorStore store;
  Forward call{ExampleForwardList(store)};
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
    Backward args{ExampleBackwardList(store)};
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

}  // namespace
}  // namespace gyrograd::testing
