// The joint call of query, key and value of two streams against the witnesses: every norm, rotation and order, lengths
// round every boundary, streams that are absent, tables of every shape, packed buffers; and what a row becomes.
#include "gyrograd/norm_rope_concat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/norm_rope_concat.h"
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/problem.h"
#include "tests/support/verdict.h"

namespace gyrograd::testing {
namespace {

constexpr ConcatOrder kOrders[] = {ConcatOrder::kStreamFirst, ConcatOrder::kEncoderFirst};
// Rope types 0, 1, 2.
const std::optional<RotaryOptions> kRotations[] = {std::nullopt, RotaryOptions{.mode = RotaryMode::kInterleave},
                                                   RotaryOptions{.mode = RotaryMode::kHalf}};

void CheckBoth(const NormRopeConcatProblem& problem) {
  EXPECT_TRUE(CheckBackward(problem));
  EXPECT_TRUE(CheckForward(problem));
}

// Streams of 5 + 4 and 6 + 2 rows; the tables end inside query's second part and in key's first or second one.
NormRopeConcatProblem Small(ConcatOrder order, std::int64_t head_dim = 16) {
  NormRopeConcatProblem problem;
  problem.batch = 2;
  problem.heads = 3;
  problem.head_dim = head_dim;
  problem.seq_query = 5;
  problem.seq_encoder_query = 4;
  problem.seq_key = 6;
  problem.seq_encoder_key = 2;
  problem.seq_rope = 7;
  problem.options.concat_order = order;
  return problem;
}

// ---- Types ------------------------------------------------------------------------------------------------------

using TypesOfCall = std::tuple<NormType, NormType, int, ConcatOrder>;

std::string TypesName(const ::testing::TestParamInfo<TypesOfCall>& info) {
  const auto& [norm, added, rope, order] = info.param;
  return std::string(Name(norm)) + "_" + Name(added) + "_rope" + std::to_string(rope) + "_" + Name(order);
}

class NormRopeConcatTypes : public ::testing::TestWithParam<TypesOfCall> {};

TEST_P(NormRopeConcatTypes, BackwardAndForward) {
  const auto [norm, added, rope, order] = GetParam();
  for (const NormRopeTypes& types : kAllNormRopeTypes) {
    NormRopeConcatProblem problem = Small(order, 36);
    problem.types = types;
    problem.options.norm_type = norm;
    problem.options.norm_added_type = added;
    problem.options.rotary = kRotations[rope];
    CheckBoth(problem);
    problem.joint_layout = problem.stream_layout = Layout::kSwapped;  // [B, S, N, D] memory of all that is joint
    problem.execution.cpu_target = AvailableCpuTargets().back();
    CheckBoth(problem);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatTypes,
                         ::testing::Combine(::testing::ValuesIn(kNormTypes), ::testing::ValuesIn(kNormTypes),
                                            ::testing::Range(0, 3), ::testing::ValuesIn(kOrders)),
                         TypesName);

// ---- Lengths ----------------------------------------------------------------------------------------------------

struct Lengths {
  std::int64_t query, encoder_query, key, encoder_key;
};

class NormRopeConcatLengths : public ::testing::TestWithParam<ConcatOrder> {
 protected:
  static NormRopeConcatProblem Problem(const Lengths& lengths) {
    NormRopeConcatProblem problem = Small(GetParam(), 8);
    problem.seq_query = lengths.query;
    problem.seq_encoder_query = lengths.encoder_query;
    problem.seq_key = lengths.key;
    problem.seq_encoder_key = lengths.encoder_key;
    return problem;
  }
};

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatLengths, ::testing::ValuesIn(kOrders),
                         [](const auto& param_info) { return std::string(Name(param_info.param)); });

// Every first and last position that turns: inside each stream, at its edges, over a part of one, over several.
TEST_P(NormRopeConcatLengths, EveryTurningRange) {
  const Lengths all[] = {{3, 4, 5, 3}, {4, 3, 2, 6}, {1, 1, 1, 1}, {7, 0, 4, 2},
                         {3, 2, 5, 0}, {0, 5, 3, 2}, {2, 3, 0, 4}};
  std::uint64_t seed = 0;
  for (const Lengths& lengths : all) {
    const std::int64_t limit = std::min(lengths.query + lengths.encoder_query, lengths.key + lengths.encoder_key);
    for (std::int64_t first = 0; first < limit; ++first) {
      for (std::int64_t last = first + 1; last <= limit; ++last) {
        NormRopeConcatProblem problem = Problem(lengths);
        problem.options.rope_start = first;
        problem.seq_rope = last - first;
        problem.options.rotary = RotaryOptions{.mode = kModes[++seed % 4]};
        problem.options.norm_type = kNormTypes[seed % 5];
        problem.options.norm_added_type = kNormTypes[seed / 5 % 5];
        problem.seed = seed;
        CheckBoth(problem);
      }
    }
  }
}

TEST_P(NormRopeConcatLengths, NothingAtAll) {
  NormRopeConcatProblem problem = Problem({0, 0, 0, 0});
  problem.seq_rope = 0;
  problem.options = {.norm_type = NormType::kLayerAffine,
                     .norm_added_type = NormType::kRmsAffine,
                     .rotary = RotaryOptions{},
                     .concat_order = GetParam()};
  const NormRopeConcatTensors tensors(problem);
  ASSERT_TRUE(Ok(NormRopeConcatBackward(tensors.BackwardArgs())));
  EXPECT_TRUE(tensors.CheckBackward());
  for (const StreamTensors* stream : {&tensors.query, &tensors.encoder_key}) {
    EXPECT_EQ(stream->dweight.Bits(), std::vector<std::uint64_t>(8, 0));
  }
  EXPECT_TRUE(CheckForward(problem));
}

// An encoder that is given and has no rows is as good as none; its parameters' gradients are exactly 0.
TEST_P(NormRopeConcatLengths, AnEncoderOfLengthZero) {
  NormRopeConcatProblem problem = Problem({6, 0, 5, 0});
  problem.seq_rope = 4;
  problem.options.norm_type = problem.options.norm_added_type = NormType::kLayerAffine;
  problem.options.rotary = RotaryOptions{};
  const NormRopeConcatTensors absent(problem), given(problem);
  ASSERT_TRUE(Ok(NormRopeConcatBackward(absent.BackwardArgs())));
  EXPECT_TRUE(absent.CheckBackward());
  NormRopeConcatBackwardArgs args = given.BackwardArgs();
  args.encoder_query = given.encoder_query.x.in();
  args.encoder_key = given.encoder_key.x.in();
  args.dencoder_query = given.encoder_query.dx.out();
  args.dencoder_key = given.encoder_key.dx.out();
  args.dencoder_value = given.encoder_value.dx.out();
  ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
  EXPECT_TRUE(given.CheckBackward());
  for (const Tensor* sums : {&given.encoder_query.dweight, &given.encoder_query.dbias, &given.encoder_key.dweight,
                             &given.encoder_key.dbias, &absent.encoder_key.dbias}) {
    EXPECT_EQ(sums->Bits(), std::vector<std::uint64_t>(8, 0));
  }
  EXPECT_EQ(given.query.dx.Bits(), absent.query.dx.Bits());

  const NormRopeConcatTensors forward(problem);
  NormRopeConcatArgs forward_args = forward.ForwardArgs();
  forward_args.encoder_query = forward.encoder_query.x.in();
  forward_args.encoder_key = forward.encoder_key.x.in();
  forward_args.encoder_value = forward.encoder_value.x.in();
  ASSERT_TRUE(Ok(NormRopeConcat(forward_args)));
  EXPECT_TRUE(forward.CheckForward());
}

// ---- What is left out -------------------------------------------------------------------------------------------

NormRopeConcatProblem Typical(ConcatOrder order, const NormRopeTypes& types = {}) {
  NormRopeConcatProblem problem = Small(order);
  problem.types = types;
  problem.options.norm_type = NormType::kLayerAffine;
  problem.options.norm_added_type = NormType::kRmsAffine;
  problem.options.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
  return problem;
}

TEST_P(NormRopeConcatLengths, NoValue) {
  const NormRopeConcatTensors full(Typical(GetParam())), part(Typical(GetParam()));
  ASSERT_TRUE(Ok(NormRopeConcatBackward(full.BackwardArgs())));
  NormRopeConcatBackwardArgs args = part.BackwardArgs();
  args.grad_value_output.reset();
  args.dvalue.reset();
  args.dencoder_value.reset();
  ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
  EXPECT_EQ(part.key.dx.Bits(), full.key.dx.Bits());
  EXPECT_EQ(part.encoder_key.dweight.Bits(), full.encoder_key.dweight.Bits());
  EXPECT_TRUE(part.value.dx.Unchanged("dvalue"));
  EXPECT_TRUE(part.encoder_value.dx.Unchanged("dencoder_value"));

  ASSERT_TRUE(Ok(NormRopeConcat(full.ForwardArgs())));
  NormRopeConcatArgs forward = part.ForwardArgs();
  forward.value.reset();
  forward.encoder_value.reset();
  forward.value_output.reset();
  ASSERT_TRUE(Ok(NormRopeConcat(forward)));
  EXPECT_EQ(part.query_output.Bits(), full.query_output.Bits());
  EXPECT_EQ(part.key_output.Bits(), full.key_output.Bits());
  EXPECT_TRUE(part.value_output.Unchanged("value_output"));
}

TEST_P(NormRopeConcatLengths, QueryAlone) {
  const NormRopeConcatTensors full(Typical(GetParam())), part(Typical(GetParam()));
  ASSERT_TRUE(Ok(NormRopeConcatBackward(full.BackwardArgs())));
  NormRopeConcatBackwardArgs args;
  const NormRopeConcatBackwardArgs all = part.BackwardArgs();
  args.grad_query_output = all.grad_query_output;
  args.query = all.query;
  args.encoder_query = all.encoder_query;
  args.norm_query = all.norm_query;
  args.norm_added_query = all.norm_added_query;
  args.rope_cos = all.rope_cos;
  args.rope_sin = all.rope_sin;
  args.dquery = all.dquery;
  args.dencoder_query = all.dencoder_query;
  args.options = all.options;
  ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
  EXPECT_EQ(part.query.dx.Bits(), full.query.dx.Bits());
  EXPECT_EQ(part.encoder_query.dx.Bits(), full.encoder_query.dx.Bits());
  EXPECT_EQ(part.encoder_query.dweight.Bits(), full.encoder_query.dweight.Bits());
  EXPECT_TRUE(part.key.dx.Unchanged("dkey"));
}

// Each output alone has the bits that it has among all.
TEST_P(NormRopeConcatLengths, OneOutputAtATime) {
  using Tensors = NormRopeConcatTensors;
  using Args = NormRopeConcatBackwardArgs;
  const NormRopeConcatTensors full(Typical(GetParam()));
  ASSERT_TRUE(Ok(NormRopeConcatBackward(full.BackwardArgs())));
  struct Output {
    StreamTensors Tensors::* stream;
    std::optional<TensorView> Args::* dx;
    NormBackwardTensors Args::* norm;
  };
  const Output outputs[] = {{&Tensors::query, &Args::dquery, &Args::norm_query},
                            {&Tensors::key, &Args::dkey, &Args::norm_key},
                            {&Tensors::value, &Args::dvalue, nullptr},
                            {&Tensors::encoder_query, &Args::dencoder_query, &Args::norm_added_query},
                            {&Tensors::encoder_key, &Args::dencoder_key, &Args::norm_added_key},
                            {&Tensors::encoder_value, &Args::dencoder_value, nullptr}};
  const auto only = [](Args args, const auto& keep) {
    Args kept = args;
    for (const auto& dx : {&Args::dquery, &Args::dkey, &Args::dvalue, &Args::dencoder_query, &Args::dencoder_key,
                           &Args::dencoder_value}) {
      (kept.*dx).reset();
    }
    for (const auto& norm : {&Args::norm_query, &Args::norm_key, &Args::norm_added_query, &Args::norm_added_key}) {
      (kept.*norm).dweight.reset();
      (kept.*norm).dbias.reset();
    }
    keep(kept, args);
    return kept;
  };
  for (const Output& output : outputs) {
    const NormRopeConcatTensors part(Typical(GetParam()));
    const StreamTensors& got = part.*output.stream;
    const StreamTensors& want = full.*output.stream;
    ASSERT_TRUE(Ok(NormRopeConcatBackward(
        only(part.BackwardArgs(), [&](Args& kept, const Args& all) { kept.*output.dx = all.*output.dx; }))));
    EXPECT_EQ(got.dx.Bits(), want.dx.Bits());
    if (output.norm == nullptr) continue;
    EXPECT_TRUE(got.dweight.Unchanged("dweight"));
    ASSERT_TRUE(Ok(NormRopeConcatBackward(only(part.BackwardArgs(), [&](Args& kept, const Args& all) {
      (kept.*output.norm).dweight = (all.*output.norm).dweight;
    }))));
    EXPECT_EQ(got.dweight.Bits(), want.dweight.Bits());
  }
}

// ---- Heads and tables -------------------------------------------------------------------------------------------

TEST_P(NormRopeConcatLengths, GroupedHeads) {
  for (const NormRopeTypes& types : kAllNormRopeTypes) {
    for (const std::int64_t key_heads : {1, 2, 5}) {
      NormRopeConcatProblem problem = Typical(GetParam(), types);
      problem.heads = 4;
      problem.key_heads = key_heads;
      CheckBoth(problem);
      problem.options.norm_type = problem.options.norm_added_type = NormType::kNone;
      CheckBoth(problem);
    }
  }
}

TEST_P(NormRopeConcatLengths, TablesOfTheEncodersOwn) {
  for (const RotaryMode mode : kModes) {
    for (const std::int64_t own : {1, 2}) {
      for (const std::int64_t image : {1, 3, 5}) {
        for (const NormType norm : kNormTypes) {
          NormRopeConcatProblem problem = Typical(GetParam());
          problem.seq_rope = image;
          problem.seq_encoder_rope = own;
          problem.options.rotary->mode = mode;
          problem.options.norm_type = problem.options.norm_added_type = norm;
          CheckBoth(problem);
        }
      }
    }
  }
}

TEST_P(NormRopeConcatLengths, TablesOfEachBatchAndHead) {
  for (const int axes : {1, 2, 3}) {
    for (const RotaryMode mode : kModes) {
      for (const NormType norm : kNormTypes) {
        for (const bool own : {false, true}) {
          NormRopeConcatProblem problem = Typical(GetParam(), kAllNormRopeTypes[own ? 7 : 1]);
          problem.tables_per_batch = axes & 1;
          problem.tables_per_head = axes & 2;
          problem.options.rotary->mode = mode;
          problem.options.norm_type = problem.options.norm_added_type = norm;
          if (own) problem.seq_encoder_rope = 2;
          if (own) problem.seq_rope = 4;
          CheckBoth(problem);
        }
      }
    }
  }
}

TEST_P(NormRopeConcatLengths, PartsOfTheRowAndTablesOfPairs) {
  for (const RotaryMode mode : kModes) {
    for (const bool per_pair : {false, true}) {
      for (const NormType norm : kNormTypes) {
        NormRopeConcatProblem problem = Typical(GetParam());
        problem.head_dim = 72;
        problem.options.rotary = RotaryOptions{mode, per_pair, 40, 11};
        problem.options.norm_type = norm;
        CheckBoth(problem);
      }
    }
  }
}

TEST_P(NormRopeConcatLengths, Layouts) {
  for (const Layout layout : kOutputLayouts) {
    for (const NormType norm : {NormType::kNone, NormType::kLayerAffine}) {
      NormRopeConcatProblem problem = Typical(GetParam(), kAllNormRopeTypes[6]);
      problem.options.norm_type = norm;
      problem.joint_layout = layout;
      CheckBoth(problem);
      problem.joint_layout = Layout::kContiguous;
      problem.stream_layout = layout;
      CheckBoth(problem);
    }
  }
}

// ---- What becomes of each row -----------------------------------------------------------------------------------

// Small integers, so that every product and sum is exact: dy tells where it stands, and each position has tables of its
// own. Without norm nothing else is computed.
TEST_P(NormRopeConcatLengths, EachRowReturnsToItsOwnPlace) {
  const bool encoder_first = GetParam() == ConcatOrder::kEncoderFirst;
  constexpr std::int64_t kDim = 8, kHalf = 4, kFirst = 1;
  NormRopeConcatProblem problem = Small(GetParam(), kDim);
  problem.options.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
  problem.options.rope_start = kFirst;
  NormRopeConcatTensors tensors(problem);
  for (Tensor* joint : {&tensors.joint_query, &tensors.joint_key, &tensors.joint_value}) {
    joint->Fill([joint](std::int64_t i) { return static_cast<double>(i + (joint->shape()[2] == 9 ? 1000 : 1)); });
  }
  tensors.rope_cos.Fill([](std::int64_t i) { return static_cast<double>(i + 1); });
  tensors.rope_sin.Fill([](std::int64_t i) { return static_cast<double>(2 * i - 60); });
  ASSERT_TRUE(Ok(NormRopeConcatBackward(tensors.BackwardArgs())));
  struct Stream {
    const char* name;
    const StreamTensors& tensors;
    const Tensor& joint;
    std::int64_t place;  // of its first row in the joint sequence
    bool turns;
  };
  const std::int64_t first_query = encoder_first ? problem.seq_encoder_query : 0;
  const std::int64_t first_key = encoder_first ? problem.seq_encoder_key : 0;
  const Stream streams[] = {
      {"query", tensors.query, tensors.joint_query, first_query, true},
      {"encoder_query", tensors.encoder_query, tensors.joint_query, encoder_first ? 0 : problem.seq_query, true},
      {"key", tensors.key, tensors.joint_key, first_key, true},
      {"encoder_key", tensors.encoder_key, tensors.joint_key, encoder_first ? 0 : problem.seq_key, true},
      {"value", tensors.value, tensors.joint_value, first_key, false},
      {"encoder_value", tensors.encoder_value, tensors.joint_value, encoder_first ? 0 : problem.seq_key, false}};
  for (const Stream& stream : streams) {
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t s = 0; s < stream.tensors.dx.shape()[1]; ++s) {
        for (std::int64_t n = 0; n < problem.heads; ++n) {
          const std::int64_t joint = stream.place + s, l = joint - kFirst;
          const auto dy = [&](std::int64_t d) { return stream.joint.Get({b, n, joint, d}); };
          for (std::int64_t d = 0; d < kDim; ++d) {
            double want = dy(d);
            if (stream.turns && l >= 0 && l < problem.seq_rope) {
              const std::int64_t partner = d < kHalf ? d + kHalf : d - kHalf;
              const double sign = d < kHalf ? 1 : -1;
              want = tensors.rope_cos.Get({l, d}) * dy(d) + sign * tensors.rope_sin.Get({l, partner}) * dy(partner);
            }
            ASSERT_EQ(stream.tensors.dx.Get({b, s, n, d}), want) << stream.name << " " << ToString({b, s, n, d});
          }
        }
      }
    }
  }
}

// ---- Packed buffers ---------------------------------------------------------------------------------------------

// Query, key and value of one stream as slices of [B, S, 3, N, D].
class Packed {
 public:
  Packed(const NormRopeConcatProblem& problem, std::int64_t sequence)
      : shape_{problem.batch, sequence, problem.heads, problem.head_dim},
        memory_(problem.types.activations, {problem.batch, sequence, 3, problem.heads, problem.head_dim}),
        strides_{memory_.strides()[0], memory_.strides()[1], memory_.strides()[3], memory_.strides()[4]},
        swapped_shape_{shape_[0], shape_[2], shape_[1], shape_[3]},
        swapped_strides_{strides_[0], strides_[2], strides_[1], strides_[3]} {}

  TensorView out(int slice) const { return {Address(slice), memory_.dtype(), shape_, strides_}; }
  ConstTensorView in(int slice) const { return {Address(slice), memory_.dtype(), shape_, strides_}; }
  // The slice as [B, N, S, D].
  ConstTensorView joint(int slice) const { return {Address(slice), memory_.dtype(), swapped_shape_, swapped_strides_}; }
  TensorView joint_out(int slice) const { return {Address(slice), memory_.dtype(), swapped_shape_, swapped_strides_}; }

  // `from` is [B, S, N, D]; or [B, N, S, D], `swapped`.
  void Put(int slice, const Tensor& from, bool swapped) {
    for (std::int64_t b = 0; b < shape_[0]; ++b) {
      for (std::int64_t s = 0; s < shape_[1]; ++s) {
        for (std::int64_t n = 0; n < shape_[2]; ++n) {
          for (std::int64_t d = 0; d < shape_[3]; ++d) {
            memory_.Set({b, s, slice, n, d}, from.Get(swapped ? Shape{b, n, s, d} : Shape{b, s, n, d}));
          }
        }
      }
    }
  }

  const Tensor& memory() const { return memory_; }

 private:
  void* Address(int slice) const {
    return static_cast<char*>(memory_.data()) +
           static_cast<std::size_t>(slice * memory_.strides()[2]) * SizeOf(memory_.dtype());
  }

  Shape shape_;
  Tensor memory_;
  Shape strides_;
  Shape swapped_shape_, swapped_strides_;
};

::testing::AssertionResult Same(const std::string& name, const TensorView& got, const Tensor& want) {
  return Verdict(name, reference::CompareBits({got.data, got.dtype, got.shape, got.strides}, want.in()));
}

// Both streams' inputs are slices of packed buffers, and so are all six gradients.
TEST_P(NormRopeConcatLengths, SlicesOfPackedBuffers) {
  for (const NormRopeTypes& types : kAllNormRopeTypes) {
    NormRopeConcatProblem problem = Typical(GetParam(), types);
    problem.seq_query = problem.seq_key = 6;
    problem.seq_encoder_query = problem.seq_encoder_key = 3;
    const NormRopeConcatTensors apart(problem), tensors(problem);
    ASSERT_TRUE(Ok(NormRopeConcatBackward(apart.BackwardArgs())));
    EXPECT_TRUE(apart.CheckBackward());
    Packed image(problem, 6), text(problem, 3);
    const Packed dimage(problem, 6), dtext(problem, 3);
    image.Put(0, tensors.query.x, false);
    image.Put(1, tensors.key.x, false);
    text.Put(0, tensors.encoder_query.x, false);
    text.Put(1, tensors.encoder_key.x, false);
    NormRopeConcatBackwardArgs args = tensors.BackwardArgs();
    args.query = image.in(0);
    args.key = image.in(1);
    args.encoder_query = text.in(0);
    args.encoder_key = text.in(1);
    args.dquery = dimage.out(0);
    args.dkey = dimage.out(1);
    args.dvalue = dimage.out(2);
    args.dencoder_query = dtext.out(0);
    args.dencoder_key = dtext.out(1);
    args.dencoder_value = dtext.out(2);
    ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
    EXPECT_TRUE(Same("dquery", *args.dquery, apart.query.dx));
    EXPECT_TRUE(Same("dkey", *args.dkey, apart.key.dx));
    EXPECT_TRUE(Same("dvalue", *args.dvalue, apart.value.dx));
    EXPECT_TRUE(Same("dencoder_query", *args.dencoder_query, apart.encoder_query.dx));
    EXPECT_TRUE(Same("dencoder_key", *args.dencoder_key, apart.encoder_key.dx));
    EXPECT_TRUE(Same("dencoder_value", *args.dencoder_value, apart.encoder_value.dx));
    EXPECT_EQ(tensors.query.dweight.Bits(), apart.query.dweight.Bits());
    EXPECT_TRUE(image.memory().Unchanged("the packed inputs"));
    EXPECT_TRUE(dimage.memory().GuardsIntact("the packed gradients"));
    EXPECT_TRUE(dtext.memory().GuardsIntact("the packed gradients"));
  }
}

// The gradients take the packed inputs' own memory: dquery on query, dkey on key, and dvalue where value stood.
TEST_P(NormRopeConcatLengths, GradientsOnThePackedInputs) {
  NormRopeConcatProblem problem = Typical(GetParam(), kAllNormRopeTypes[7]);
  problem.seq_query = problem.seq_key = 6;
  const NormRopeConcatTensors apart(problem), tensors(problem);
  ASSERT_TRUE(Ok(NormRopeConcatBackward(apart.BackwardArgs())));
  Packed image(problem, 6);
  image.Put(0, tensors.query.x, false);
  image.Put(1, tensors.key.x, false);
  NormRopeConcatBackwardArgs args = tensors.BackwardArgs();
  args.query = image.in(0);
  args.key = image.in(1);
  args.dquery = image.out(0);
  args.dkey = image.out(1);
  args.dvalue = image.out(2);
  ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
  EXPECT_TRUE(Same("dquery", *args.dquery, apart.query.dx));
  EXPECT_TRUE(Same("dkey", *args.dkey, apart.key.dx));
  EXPECT_TRUE(Same("dvalue", *args.dvalue, apart.value.dx));
}

// Attention's gradients in one [B, S, 3, N, D] buffer, and each stream's gradient on its own rows of it.
TEST_P(NormRopeConcatLengths, GradientsOnTheirOwnRowsOfTheIncomingOnes) {
  for (const RotaryMode mode : kModes) {
    for (const NormType norm : kNormTypes) {
      NormRopeConcatProblem problem = Typical(GetParam());
      problem.options.rotary->mode = mode;
      problem.options.norm_type = norm;
      problem.seq_query = problem.seq_key = 6;
      problem.seq_encoder_query = problem.seq_encoder_key = 3;
      const NormRopeConcatTensors apart(problem), tensors(problem);
      ASSERT_TRUE(Ok(NormRopeConcatBackward(apart.BackwardArgs())));
      Packed joint(problem, 9);
      joint.Put(0, tensors.joint_query, true);
      joint.Put(1, tensors.joint_key, true);
      joint.Put(2, tensors.joint_value, true);
      // The rows of a stream, from joint position `first` on.
      const auto rows = [&](int slice, std::int64_t first, const Tensor& like) {
        TensorView view = joint.out(slice);
        view.data =
            static_cast<char*>(view.data) + static_cast<std::size_t>(first * view.strides[1]) * SizeOf(view.dtype);
        view.shape = like.shape();
        return view;
      };
      const bool encoder_first = GetParam() == ConcatOrder::kEncoderFirst;
      const std::int64_t image = encoder_first ? 3 : 0, text = encoder_first ? 0 : 6;
      NormRopeConcatBackwardArgs args = tensors.BackwardArgs();
      args.grad_query_output = joint.joint(0);
      args.grad_key_output = joint.joint(1);
      args.grad_value_output = joint.joint(2);
      args.dquery = rows(0, image, tensors.query.dx);
      args.dkey = rows(1, image, tensors.key.dx);
      args.dvalue = rows(2, image, tensors.value.dx);
      args.dencoder_query = rows(0, text, tensors.encoder_query.dx);
      args.dencoder_key = rows(1, text, tensors.encoder_key.dx);
      args.dencoder_value = rows(2, text, tensors.encoder_value.dx);
      ASSERT_TRUE(Ok(NormRopeConcatBackward(args)));
      EXPECT_TRUE(Same("dquery", *args.dquery, apart.query.dx)) << problem;
      EXPECT_TRUE(Same("dkey", *args.dkey, apart.key.dx)) << problem;
      EXPECT_TRUE(Same("dvalue", *args.dvalue, apart.value.dx)) << problem;
      EXPECT_TRUE(Same("dencoder_query", *args.dencoder_query, apart.encoder_query.dx)) << problem;
      EXPECT_TRUE(Same("dencoder_key", *args.dencoder_key, apart.encoder_key.dx)) << problem;
      EXPECT_TRUE(Same("dencoder_value", *args.dencoder_value, apart.encoder_value.dx)) << problem;
      EXPECT_EQ(tensors.encoder_key.dweight.Bits(), apart.encoder_key.dweight.Bits()) << problem;
    }
  }
}

TEST_P(NormRopeConcatLengths, ForwardFromAndToPackedBuffers) {
  for (const NormRopeTypes& types : kAllNormRopeTypes) {
    NormRopeConcatProblem problem = Typical(GetParam(), types);
    problem.seq_query = problem.seq_key = 6;
    problem.seq_encoder_query = problem.seq_encoder_key = 3;
    const NormRopeConcatTensors apart(problem), tensors(problem);
    ASSERT_TRUE(Ok(NormRopeConcat(apart.ForwardArgs())));
    Packed image(problem, 6);
    const Packed joint(problem, 9);
    image.Put(0, tensors.query.x, false);
    image.Put(1, tensors.key.x, false);
    image.Put(2, tensors.value.x, false);
    NormRopeConcatArgs args = tensors.ForwardArgs();
    args.query = image.in(0);
    args.key = image.in(1);
    args.value = image.in(2);
    args.query_output = joint.joint_out(0);
    args.key_output = joint.joint_out(1);
    args.value_output = joint.joint_out(2);
    ASSERT_TRUE(Ok(NormRopeConcat(args)));
    EXPECT_TRUE(Same("query_output", *args.query_output, apart.query_output));
    EXPECT_TRUE(Same("key_output", *args.key_output, apart.key_output));
    EXPECT_TRUE(Same("value_output", *args.value_output, apart.value_output));
    EXPECT_TRUE(image.memory().Unchanged("the packed inputs"));
    EXPECT_TRUE(joint.memory().GuardsIntact("the packed outputs"));
  }
}

// ---- The call and its segments ----------------------------------------------------------------------------------

// One call has the bits of one call for each stream; for any number of threads, on every target.
TEST_P(NormRopeConcatLengths, AgreesWithItsSegmentsHoweverItRuns) {
  for (const NormRopeTypes& types : {kAllNormRopeTypes[0], kAllNormRopeTypes[1], kAllNormRopeTypes[7]}) {
    NormRopeConcatProblem problem = Typical(GetParam(), types);
    problem.heads = 5;
    problem.key_heads = 3;
    problem.head_dim = 64;
    problem.seq_query = 70;
    problem.seq_encoder_query = 33;
    problem.seq_key = 51;
    problem.seq_encoder_key = 90;
    problem.seq_rope = 80;
    const NormRopeConcatTensors alone(problem);
    const auto segments = reference::SegmentsOf(alone.BackwardArgs());
    ASSERT_EQ(segments.streams.size(), 6u);
    for (const auto& [name, segment] : segments.streams) {
      const NormRopeBackwardSegment list[] = {segment};
      ASSERT_TRUE(Ok(NormRopeBackward({.segments = list, .execution = {.num_threads = 1}})));
    }
    EXPECT_TRUE(alone.CheckBackward());
    for (const CpuTarget target : AvailableCpuTargets()) {
      for (const int threads : {1, 2, 3, 7}) {
        problem.execution = {threads, target};
        const NormRopeConcatTensors together(problem);
        ASSERT_TRUE(Ok(NormRopeConcatBackward(together.BackwardArgs())));
        using Stream = StreamTensors NormRopeConcatTensors::*;
        for (const Stream stream : {&NormRopeConcatTensors::query, &NormRopeConcatTensors::key,
                                    &NormRopeConcatTensors::value, &NormRopeConcatTensors::encoder_query,
                                    &NormRopeConcatTensors::encoder_key, &NormRopeConcatTensors::encoder_value}) {
          const StreamTensors &got = together.*stream, &want = alone.*stream;
          EXPECT_TRUE(got.dx.Bits() == want.dx.Bits()) << problem;
          if (stream == &NormRopeConcatTensors::value || stream == &NormRopeConcatTensors::encoder_value) continue;
          EXPECT_TRUE(got.dweight.Bits() == want.dweight.Bits()) << problem;
          if (stream == &NormRopeConcatTensors::query || stream == &NormRopeConcatTensors::key) {
            EXPECT_TRUE(got.dbias.Bits() == want.dbias.Bits()) << problem;
          }
        }
      }
    }
  }
}

// ---- The case list ----------------------------------------------------------------------------------------------

constexpr std::size_t kCases = 12;

// Those of fewest elements.
std::vector<NormRopeConcatProblem> SmallestCases() {
  std::string error;
  std::vector<NormRopeConcatProblem> problems =
      ReadNormRopeConcatProblems(std::string(GYROGRAD_SOURCE_DIR) + "/cases/norm_rope_concat_grad.csv", &error);
  EXPECT_EQ(error, "");
  const auto size = [](const NormRopeConcatProblem& p) {
    const std::int64_t rows = p.seq_query + p.seq_encoder_query + 2 * (p.seq_key + p.seq_encoder_key);
    return std::pair(p.batch * p.heads * p.head_dim * rows, p.id);
  };
  std::sort(problems.begin(), problems.end(), [&](const auto& a, const auto& b) { return size(a) < size(b); });
  problems.resize(std::min(problems.size(), kCases));
  return problems;
}

class NormRopeConcatCases : public ::testing::TestWithParam<std::size_t> {};

TEST_P(NormRopeConcatCases, Backward) {
  const std::vector<NormRopeConcatProblem> problems = SmallestCases();
  ASSERT_EQ(problems.size(), kCases);
  EXPECT_TRUE(CheckBackward(problems[GetParam()]));
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeConcatCases, ::testing::Range<std::size_t>(0, kCases));

}  // namespace
}  // namespace gyrograd::testing
