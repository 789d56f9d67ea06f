// What is legal in a joint call; random legal calls, whose segments must lie where the definition says.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/norm_rope/validate.h"
#include "ops/norm_rope_concat/validate.h"
#include "tests/ops/norm_rope_concat_args.h"
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
       c.args.encoder_query = ConstTensorView{nullptr, kJointType, c.Keep({2, 0, 3, 8}), c.Keep({0, 0, 8, 1})};
       c.args.dencoder_query = TensorView{nullptr, kJointType, c.Keep({2, 0, 3, 8}), c.Keep({0, 0, 8, 1})};
       c.args.encoder_key = ConstTensorView{nullptr, kJointType, c.Keep({2, 0, 2, 8}), c.Keep({0, 0, 8, 1})};
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
       args.grad_query_output = ConstTensorView{nullptr, kJointType, c.Keep({2, 3, 0, 8}), c.Keep({0, 0, 8, 1})};
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
  Backward call{ExampleBackwardArgs(store)};
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
  Forward call{ExampleForwardArgs(store)};
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
  JointSizes sizes_;
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
void ExpectSegmentsOf(const NormRopeConcatBackwardArgs& args, const NormRopeCall& list, const JointSizes& sizes,
                      int joint, std::int64_t image, std::int64_t encoder) {
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
    const JointSizes sizes{.b = args.grad_query_output->shape[0], .d = args.grad_query_output->shape[3]};
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
  Backward call{ExampleBackwardArgs(store)};
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
  Forward call{ExampleForwardArgs(store)};
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
