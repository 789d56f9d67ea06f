// The two witnesses of the norm and rotary segments and of the joint call, against automatic differentiation of a
// forward written in the words of its definition; the comparisons, which must be able to fail; and answers known by
// hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "reference/norm_rope.h"
#include "reference/norm_rope_concat.h"
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/tape.h"

namespace gyrograd::testing {
namespace {

using reference::BoundedValues;
using reference::NormRopeGradients;

// ---- The forward on a tape --------------------------------------------------------------------------------------

// Row number `number` of variables that lie row-major.
Row RowAt(const Row& all, std::int64_t number, std::int64_t width) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(number * width);
  return {first, first + static_cast<std::ptrdiff_t>(width)};
}

// The variables of one stream: x is [B, S, N, D].
struct Stream {
  Stream(Tape& tape, NormType norm_type, double epsilon, const Tensor& x_tensor, const Tensor* weight_tensor,
         const Tensor* bias_tensor)
      : type(norm_type), eps(epsilon), shape(x_tensor.shape()), x(Leaves(tape, x_tensor.Values())) {
    if (HasWeight(type)) weight = Leaves(tape, weight_tensor->Values());
    if (HasBias(type))
      bias = bias_tensor != nullptr ? Leaves(tape, bias_tensor->Values())
                                    : Leaves(tape, std::vector<double>(weight.size(), 0.25));
  }

  Row Normed(Tape& tape, std::int64_t b, std::int64_t s, std::int64_t n) const {
    Row row = RowAt(x, (b * shape[1] + s) * shape[2] + n, shape[3]);
    if (type != NormType::kNone) row = NormalizeRow(tape, row, HasMean(type), eps);
    if (HasWeight(type)) row = Multiply(tape, row, weight);
    return HasBias(type) ? Add(tape, row, bias) : row;
  }

  NormType type;
  double eps;
  Shape shape;
  Row x, weight, bias;
};

// Tables [B or 1, N or 1, L, R] that turn the rows first .. first + L - 1 of a sequence.
struct Tables {
  Tables(Tape& tape, const RotaryOptions& rotary, std::int64_t first_row, const Tensor& cos_tensor,
         const Tensor& sin_tensor)
      : options(rotary),
        first(first_row),
        shape(cos_tensor.shape()),
        cos(Leaves(tape, cos_tensor.Values())),
        sin(Leaves(tape, sin_tensor.Values())) {
    if (shape.size() == 2) shape = {1, 1, shape[0], shape[1]};
  }

  Row Rotate(Tape& tape, const Row& row, std::int64_t b, std::int64_t n, std::int64_t position) const {
    const std::int64_t l = position - first;
    if (l < 0 || l >= shape[2]) return row;
    const std::int64_t number = ((b % shape[0]) * shape[1] + n % shape[1]) * shape[2] + l;
    return RotateRow(tape, options, row, RowAt(cos, number, shape[3]), RowAt(sin, number, shape[3]));
  }

  RotaryOptions options;
  std::int64_t first;
  Shape shape;
  Row cos, sin;
};

// [B, N, S, D]: the streams' normed rows one after the other along S; `turned` has tables for each position counted
// from the start of everything, `own` (one for each stream) tables for the positions of each stream.
Row Join(Tape& tape, const std::vector<const Stream*>& streams, const Tables* turned,
         const std::vector<const Tables*>& own) {
  Row y;
  const Shape& shape = streams[0]->shape;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t n = 0; n < shape[2]; ++n) {
      std::vector<Row> sequence;
      for (std::size_t i = 0; i < streams.size(); ++i) {
        for (std::int64_t s = 0; s < streams[i]->shape[1]; ++s) {
          const Row row = streams[i]->Normed(tape, b, s, n);
          sequence.push_back(own.empty() ? row : own[i]->Rotate(tape, row, b, n, s));
        }
      }
      for (std::size_t s = 0; s < sequence.size() && turned != nullptr; ++s) {
        sequence[s] = turned->Rotate(tape, sequence[s], b, n, static_cast<std::int64_t>(s));
      }
      const Row joined = Cat(sequence);
      y.insert(y.end(), joined.begin(), joined.end());
    }
  }
  return y;
}

void AddGrads(Tape& tape, const Row& y, const std::vector<double>& dy) {
  ASSERT_EQ(y.size(), dy.size());
  for (std::size_t i = 0; i < y.size(); ++i) tape.AddGrad(y[i], dy[i]);
}

// ---- Agreement --------------------------------------------------------------------------------------------------

// To one rounding of the arithmetic's and one of the type's, of values of ordinary size.
void ExpectNear(const Tensor& got, const std::vector<double>& want, const std::string& name) {
  const DType dtype = got.dtype();
  const double tolerance = dtype == DType::kF64   ? 1e-14
                           : dtype == DType::kF32 ? 5e-7
                           : dtype == DType::kF16 ? 6e-4
                                                  : 4.5e-3;
  const std::vector<double> values = got.Values();
  ASSERT_EQ(values.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(values[i], want[i], tolerance * (128 + std::fabs(want[i]))) << name << " element " << i;
  }
}

// The exact values lie within their own bounds of the tape's, which hold ten times what the saved statistics' rounding
// can do to a gradient of x. To sums it can do a little more where x_hat is small, and formula's values have no bound.
void ExpectWithin(const BoundedValues& exact, const std::vector<double>& want, DType activations, double scale,
                  const std::string& name) {
  ASSERT_EQ(exact.high.size(), want.size()) << name;
  const double rounding = (activations == DType::kF64 ? 1e-15 : 1e-6) * scale;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double bound = exact.bound.empty() ? 0 : exact.bound[i];
    EXPECT_NEAR(exact.high[i], want[i], bound + rounding) << name << " element " << i;
  }
}

void ExpectAgreement(const NormRopeBackwardSegment& segment, const Tape& tape, const Stream& stream,
                     const std::string& name) {
  const NormRopeGradients exact = reference::NormRopeBackward(segment);
  const DType activations = segment.dy.dtype;
  const auto terms = static_cast<double>(Count(stream.shape) / stream.shape[3]);
  if (segment.dx) {
    ExpectWithin(exact.dx, GradsOf(tape, stream.x), activations, stream.type == NormType::kNone ? 128 : 0, name + "dx");
  }
  if (segment.dweight) {
    ExpectWithin(exact.dweight, GradsOf(tape, stream.weight), activations, 32 * terms, name + "dweight");
  }
  if (segment.dbias) {
    ExpectWithin(exact.dbias, GradsOf(tape, stream.bias), activations, 32 * terms, name + "dbias");
  }
}

void ExpectAgreement(const NormRopeProblem& problem) {
  SCOPED_TRACE(::testing::PrintToString(problem));
  const NormRopeBackwardTensors tensors(problem);
  Tape tape;
  const Stream stream(tape, problem.norm_type, problem.eps, tensors.x, &tensors.weight, nullptr);
  const Tables tables(tape, problem.rotary.value_or(RotaryOptions{}), problem.first, tensors.cos, tensors.sin);
  const Row y = Join(tape, {&stream}, problem.rotary ? &tables : nullptr, {});
  AddGrads(tape, y, tensors.dy.Values());
  tape.Backward();
  ExpectAgreement(tensors.Segment(), tape, stream, "");
}

void ExpectForwardAgreement(const NormRopeProblem& problem) {
  SCOPED_TRACE(::testing::PrintToString(problem));
  const NormRopeForwardTensors tensors(problem);
  Tape tape;
  const Stream stream(tape, problem.norm_type, problem.eps, tensors.x, &tensors.weight, &tensors.bias);
  const Tables tables(tape, problem.rotary.value_or(RotaryOptions{}), problem.first, tensors.cos, tensors.sin);
  const Row y = Join(tape, {&stream}, problem.rotary ? &tables : nullptr, {});
  reference::NormRope(tensors.Segment());
  ExpectNear(tensors.y, ValuesOf(tape, y), "y");
  EXPECT_TRUE(tensors.Check());
}

using TypeAndMode = std::tuple<NormType, std::optional<RotaryMode>>;

std::string TypeAndModeName(const ::testing::TestParamInfo<TypeAndMode>& info) {
  const auto [type, mode] = info.param;
  std::string name = std::string(Name(type)) + "_" + (mode ? Name(*mode) : "unrotated");
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

class NormRopeWitness : public ::testing::TestWithParam<TypeAndMode> {
 protected:
  NormRopeProblem Problem(NormRopeTypes types) const {
    NormRopeProblem problem;
    const auto [type, mode] = GetParam();
    problem.norm_type = type;
    problem.types = types;
    problem.batch = 2;
    problem.sequence = 5;
    problem.heads = 3;
    problem.head_dim = 12;
    if (mode) problem.rotary = RotaryOptions{.mode = *mode};
    problem.length = 5;
    return problem;
  }
};

void ExpectBoth(NormRopeProblem problem, std::uint64_t seed) {
  problem.seed = seed;
  ExpectAgreement(problem);
  ExpectForwardAgreement(problem);
}

TEST_P(NormRopeWitness, AgreesWithAutomaticDifferentiation) {
  std::uint64_t seed = 1;
  for (const NormRopeTypes types : kAllNormRopeTypes) ExpectBoth(Problem(types), ++seed);
}

TEST_P(NormRopeWitness, AgreesWhereSomePositionsTurn) {
  std::uint64_t seed = 100;
  for (const NormRopeTypes types : kAllNormRopeTypes) {
    NormRopeProblem problem = Problem(types);
    problem.first = 2;
    problem.length = 2;
    problem.tables_per_batch = seed % 2 == 0;
    problem.tables_per_head = seed % 3 == 0;
    ExpectBoth(problem, ++seed);
  }
}

TEST_P(NormRopeWitness, AgreesWhereAPartOfTheRowTurnsByTablesOfPairs) {
  std::uint64_t seed = 200;
  for (std::int64_t offset = 0; offset <= 8; ++offset) {
    NormRopeProblem problem = Problem(kAllNormRopeTypes[static_cast<std::size_t>(offset)]);
    if (problem.rotary) {
      problem.rotary->per_pair_tables = offset % 2 == 0;
      problem.rotary->rotary_dim = 4;
      problem.rotary->rotary_offset = offset;
    }
    problem.first = 1;
    problem.length = 3;
    problem.dy_layout = Layout::kSwapped;
    problem.x_layout = Layout::kReversedAll;
    problem.tables_layout = Layout::kLastSlowest;
    problem.dx_layout = Layout::kPaddedRows;
    ExpectBoth(problem, ++seed);
  }
}

TEST_P(NormRopeWitness, AgreesOnOneRow) {
  std::uint64_t seed = 300;
  for (const NormRopeTypes types : kAllNormRopeTypes) {
    NormRopeProblem problem = Problem(types);
    problem.batch = problem.sequence = problem.heads = problem.length = 1;
    ExpectBoth(problem, ++seed);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeWitness,
                         ::testing::Combine(::testing::ValuesIn(kNormTypes),
                                            ::testing::Values(std::optional<RotaryMode>(), RotaryMode::kHalf,
                                                              RotaryMode::kInterleave, RotaryMode::kQuarter,
                                                              RotaryMode::kInterleaveHalf)),
                         TypeAndModeName);

TEST(NormRopeRandom, ProblemsAgreeWithAutomaticDifferentiation) {
  int checked = 0;
  for (std::uint64_t seed = 1; checked < 300; ++seed) {
    const NormRopeProblem problem = RandomNormRopeProblem(seed);
    if (Count(problem.XShape()) > 2000) continue;  // a tape of it would be long
    ++checked;
    ExpectAgreement(problem);
    ExpectForwardAgreement(problem);
  }
}

// ---- The joint call ---------------------------------------------------------------------------------------------

struct JointTape {
  explicit JointTape(const NormRopeConcatTensors& tensors) : problem(tensors.problem) {
    const NormType norm = problem.options.norm_type, added = problem.options.norm_added_type;
    Add("query", tensors.query, norm);
    Add("key", tensors.key, norm);
    Add("value", tensors.value, NormType::kNone);
    Add("encoder_query", tensors.encoder_query, added);
    Add("encoder_key", tensors.encoder_key, added);
    Add("encoder_value", tensors.encoder_value, NormType::kNone);
    const RotaryOptions options = problem.options.rotary.value_or(RotaryOptions{});
    const std::int64_t first = problem.options.rope_start;
    const Tables tables(tape, options, first, tensors.rope_cos, tensors.rope_sin);
    const Tables encoder_tables(tape, options, first, tensors.encoder_rope_cos, tensors.encoder_rope_sin);
    query = Joined("query", tables, encoder_tables);
    key = Joined("key", tables, encoder_tables);
    value = Joined("value", tables, encoder_tables);
  }

  void Add(const std::string& name, const StreamTensors& tensors, NormType type) {
    streams.emplace(name, Stream(tape, type, problem.eps, tensors.x, &tensors.weight, &tensors.bias));
  }

  Row Joined(const std::string& name, const Tables& tables, const Tables& encoder_tables) {
    const bool turns = problem.options.rotary && name != "value", own = turns && problem.seq_encoder_rope;
    std::vector<const Stream*> order = {&streams.at(name), &streams.at("encoder_" + name)};
    std::vector<const Tables*> own_tables = {&tables, &encoder_tables};
    if (problem.options.concat_order == ConcatOrder::kEncoderFirst) {
      std::swap(order[0], order[1]);
      std::swap(own_tables[0], own_tables[1]);
    }
    return Join(tape, order, turns && !own ? &tables : nullptr, own ? own_tables : std::vector<const Tables*>{});
  }

  NormRopeConcatProblem problem;
  Tape tape;
  std::map<std::string, Stream> streams;
  Row query, key, value;
};

void ExpectJointAgreement(const NormRopeConcatProblem& problem) {
  SCOPED_TRACE(::testing::PrintToString(problem));
  const NormRopeConcatTensors tensors(problem);
  JointTape joint(tensors);
  AddGrads(joint.tape, joint.query, tensors.joint_query.Values());
  AddGrads(joint.tape, joint.key, tensors.joint_key.Values());
  AddGrads(joint.tape, joint.value, tensors.joint_value.Values());
  joint.tape.Backward();
  const auto backward = reference::SegmentsOf(tensors.BackwardArgs());
  std::size_t gradients = 0;
  for (const auto& [name, segment] : backward.streams) {
    ExpectAgreement(segment, joint.tape, joint.streams.at(name), std::string(name) + ".");
    gradients += segment.dx ? 1 : 0;
  }
  EXPECT_EQ(gradients, 3u + (problem.seq_encoder_query > 0 ? 1 : 0) + (problem.seq_encoder_key > 0 ? 2 : 0));

  const auto forward = reference::SegmentsOf(tensors.ForwardArgs());
  for (const auto& [name, segment] : forward.streams) reference::NormRope(segment);
  ExpectNear(tensors.query_output, ValuesOf(joint.tape, joint.query), "query_output");
  ExpectNear(tensors.key_output, ValuesOf(joint.tape, joint.key), "key_output");
  ExpectNear(tensors.value_output, ValuesOf(joint.tape, joint.value), "value_output");
  EXPECT_TRUE(tensors.CheckForward());
}

NormRopeConcatProblem SmallConcatProblem(ConcatOrder order, std::uint64_t seed) {
  NormRopeConcatProblem problem;
  problem.id = "small";
  problem.batch = 2;
  problem.heads = 3;
  problem.head_dim = 8;
  problem.seq_query = 3;
  problem.seq_key = 4;
  problem.seq_encoder_query = 2;
  problem.seq_encoder_key = 5;
  problem.seq_rope = 4;
  problem.options.concat_order = order;
  problem.options.rotary = RotaryOptions{};
  problem.seed = seed;
  return problem;
}

class ConcatWitness : public ::testing::TestWithParam<ConcatOrder> {};

TEST_P(ConcatWitness, AgreesForAllNormsAndTypes) {
  std::uint64_t seed = 1;
  for (const NormType norm : kNormTypes) {
    for (const NormType added : kNormTypes) {
      NormRopeConcatProblem problem = SmallConcatProblem(GetParam(), ++seed);
      problem.types = kAllNormRopeTypes[seed % std::size(kAllNormRopeTypes)];
      problem.options.norm_type = norm;
      problem.options.norm_added_type = added;
      const std::optional<RotaryOptions> rotaries[] = {std::nullopt, RotaryOptions{.mode = RotaryMode::kInterleave},
                                                       RotaryOptions{.mode = RotaryMode::kHalf}};
      problem.options.rotary = rotaries[seed % 3];
      ExpectJointAgreement(problem);
    }
  }
}

TEST_P(ConcatWitness, AgreesWhereverTheTablesLie) {
  for (std::int64_t start = 0; start <= 4; ++start) {
    for (std::int64_t length = 0; start + length <= 5; ++length) {
      NormRopeConcatProblem problem = SmallConcatProblem(GetParam(), static_cast<std::uint64_t>(10 * start + length));
      problem.options.rope_start = start;
      problem.seq_rope = length;
      problem.options.norm_type = NormType::kLayerAffine;
      problem.options.norm_added_type = NormType::kRms;
      problem.joint_layout = Layout::kSwapped;
      problem.stream_layout = Layout::kReversedRows;
      ExpectJointAgreement(problem);
    }
  }
}

TEST_P(ConcatWitness, AgreesWithTablesOfTheEncodersOwn) {
  NormRopeConcatProblem problem = SmallConcatProblem(GetParam(), 77);
  problem.options.norm_type = NormType::kRmsAffine;
  problem.options.norm_added_type = NormType::kLayer;
  problem.options.rotary = RotaryOptions{.mode = RotaryMode::kInterleave, .per_pair_tables = true};
  problem.seq_rope = 2;
  problem.seq_encoder_rope = 1;
  ExpectJointAgreement(problem);
  problem.options.rope_start = 1;
  ExpectJointAgreement(problem);
}

TEST_P(ConcatWitness, AgreesWithoutEncoderAndWithGroupedHeads) {
  NormRopeConcatProblem problem = SmallConcatProblem(GetParam(), 78);
  problem.options.norm_type = NormType::kLayerAffine;
  problem.options.norm_added_type = NormType::kLayerAffine;
  problem.key_heads = 1;
  problem.seq_encoder_query = 0;
  problem.seq_rope = 3;
  ExpectJointAgreement(problem);
  problem.seq_encoder_key = 0;
  ExpectJointAgreement(problem);
}

INSTANTIATE_TEST_SUITE_P(All, ConcatWitness, ::testing::Values(ConcatOrder::kStreamFirst, ConcatOrder::kEncoderFirst),
                         [](const auto& order) { return std::string(Name(order.param)); });

TEST(Concat, AnAbsentStreamsWeightsHaveZeroGradients) {
  NormRopeConcatProblem problem = SmallConcatProblem(ConcatOrder::kStreamFirst, 79);
  problem.options.norm_added_type = NormType::kLayerAffine;
  problem.seq_encoder_query = 0;
  problem.seq_rope = 3;
  const NormRopeConcatTensors tensors(problem);
  const auto segments = reference::SegmentsOf(tensors.BackwardArgs());
  const auto& absent = segments.streams.at(3);
  ASSERT_STREQ(absent.name, "encoder_query");
  const NormRopeGradients gradients = reference::NormRopeBackward(absent.segment);
  EXPECT_EQ(gradients.dweight.high, std::vector<double>(8, 0));
  EXPECT_EQ(gradients.dbias.high, std::vector<double>(8, 0));
  EXPECT_TRUE(gradients.dbias.bound.empty());  // to the bit
}

TEST(Concat, LengthsComeFromGradientsWhereInputsAreNotGiven) {
  for (const ConcatOrder order : {ConcatOrder::kStreamFirst, ConcatOrder::kEncoderFirst}) {
    const NormRopeConcatTensors tensors(SmallConcatProblem(order, 80));
    NormRopeConcatBackwardArgs args = tensors.BackwardArgs();
    const auto want = reference::SegmentsOf(args);
    args.query = args.key = args.encoder_query = args.encoder_key = std::nullopt;
    const auto got = reference::SegmentsOf(args);
    ASSERT_EQ(got.streams.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(got.streams[i].segment.dy.data, want.streams[i].segment.dy.data) << want.streams[i].name;
      EXPECT_EQ(got.streams[i].segment.dy.shape[2], want.streams[i].segment.dy.shape[2]) << want.streams[i].name;
    }
  }
}

// ---- The case list ----------------------------------------------------------------------------------------------

TEST(CaseList, IsReadWhole) {
  std::string error;
  const auto problems = ReadNormRopeConcatProblems(GYROGRAD_SOURCE_DIR "/cases/norm_rope_concat_grad.csv", &error);
  ASSERT_EQ(problems.size(), 131u) << error;
  const NormRopeConcatProblem& problem = problems[1];
  EXPECT_EQ(::testing::PrintToString(problem),
            "n001 norm_rope_concat:types=f16,heads=11,head_dim=64,query=2,key=841,encoder_query=279,encoder_key=320,"
            "norm_added=layer_affine,rotary=interleave,rope=28");
  for (const NormRopeConcatProblem& each : problems) {
    EXPECT_GE(each.seq_rope, 1) << each;
    EXPECT_LE(each.seq_rope, std::min(each.seq_query + each.seq_encoder_query, each.seq_key + each.seq_encoder_key));
  }
  EXPECT_TRUE(ReadNormRopeConcatProblems("no such file", &error).empty());
  EXPECT_NE(error.find("no such file"), std::string::npos);
}

// A small case of the list's kind, with its data and statistics.
TEST(CaseList, DataAreStandardNormalWithTrueStatistics) {
  NormRopeConcatProblem problem = SmallConcatProblem(ConcatOrder::kStreamFirst, 5);
  problem.seq_query = 40;
  problem.head_dim = 64;
  problem.options.norm_type = NormType::kLayer;
  const NormRopeConcatTensors tensors(problem);
  double sum = 0, squares = 0, row_sum = 0, row_squares = 0;
  const std::vector<double> x = tensors.query.x.Values();
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += x[i];
    squares += x[i] * x[i];
    if (i < 64) row_sum += x[i];
  }
  for (std::size_t i = 0; i < 64; ++i) row_squares += (x[i] - row_sum / 64) * (x[i] - row_sum / 64);
  const auto count = static_cast<double>(x.size());
  EXPECT_NEAR(sum / count, 0, 4 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1, 6 / std::sqrt(count));
  EXPECT_NEAR(tensors.query.mean.Get({0, 0, 0, 0}), row_sum / 64, 1e-8);
  EXPECT_NEAR(tensors.query.rstd.Get({0, 0, 0, 0}), 1 / std::sqrt(row_squares / 64 + 1e-5), 1e-7);
}

// ---- The bounds -------------------------------------------------------------------------------------------------

// One row of half mode whose bounds are written out here once more.
TEST(Bounds, AreThoseOfTheContract) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayerAffine;
  problem.heads = 2;
  problem.head_dim = 8;
  problem.rotary = RotaryOptions{};
  problem.length = 1;
  const NormRopeBackwardTensors tensors(problem);
  const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
  std::vector<double> sum_r(8), sum_r_x_hat(8), max_r(8), max_x_hat(8);
  for (std::int64_t n = 0; n < 2; ++n) {
    double G[8], x_hat[8], mean_G = 0, mean_G_x_hat = 0, row_x_hat = 0, row_weight = 0;
    const double mean = tensors.mean.Get({0, 0, n, 0}), rstd = tensors.rstd.Get({0, 0, n, 0});
    for (std::int64_t d = 0; d < 8; ++d) {
      const auto i = static_cast<std::size_t>(d);
      const std::int64_t partner = (d + 4) % 8;
      const double weight = std::fabs(tensors.weight.Get({d}));
      const double R = std::fabs(tensors.cos.Get({0, 0, 0, d}) * tensors.dy.Get({0, n, 0, d})) +
                       std::fabs(tensors.sin.Get({0, 0, 0, partner}) * tensors.dy.Get({0, n, 0, partner}));
      G[i] = weight * R;
      x_hat[i] = std::fabs((tensors.x.Get({0, 0, n, d}) - mean) * rstd);
      mean_G += G[i] / 8;
      mean_G_x_hat += G[i] * x_hat[i] / 8;
      row_x_hat = std::max(row_x_hat, x_hat[i]);
      row_weight = std::max(row_weight, weight);
      sum_r[i] += R;
      sum_r_x_hat[i] += R * x_hat[i];
      max_r[i] = std::max(max_r[i], R);
      max_x_hat[i] = std::max(max_x_hat[i], x_hat[i]);
    }
    for (std::size_t i = 0; i < 8; ++i) {
      const double want = 6e-6 * rstd * (G[i] + mean_G + x_hat[i] * mean_G_x_hat) +
                          std::ldexp(1, -147) * (1 + row_weight) * std::pow(1 + row_x_hat, 2) * std::max(1.0, rstd);
      EXPECT_NEAR(exact.dx.bound[static_cast<std::size_t>(n) * 8 + i] / want, 1, 1e-12);
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    const double underflow = 2 * std::ldexp(1, -149) * 4 * (1 + max_x_hat[i]) * (1 + max_r[i]);
    EXPECT_NEAR(exact.dweight.bound[i] / (1.25e-6 * sum_r_x_hat[i] + underflow), 1, 1e-12);
    EXPECT_NEAR(exact.dbias.bound[i] / (1.25e-6 * sum_r[i] + underflow), 1, 1e-12);
  }
}

TEST(Bounds, RmsNormsDropTheMean) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kRms;
  problem.head_dim = 4;
  const NormRopeBackwardTensors tensors(problem);
  const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
  const double rstd = tensors.rstd.Get({0, 0, 0, 0});
  double mean_G_x_hat = 0;
  for (std::int64_t d = 0; d < 4; ++d) {
    mean_G_x_hat += std::fabs(tensors.dy.Get({0, 0, 0, d}) * tensors.x.Get({0, 0, 0, d}) * rstd) / 4;
  }
  for (std::int64_t d = 0; d < 4; ++d) {
    const double G = std::fabs(tensors.dy.Get({0, 0, 0, d})), x_hat = std::fabs(tensors.x.Get({0, 0, 0, d})) * rstd;
    EXPECT_NEAR(exact.dx.bound[static_cast<std::size_t>(d)] / (6e-6 * rstd * (G + x_hat * mean_G_x_hat)), 1, 1e-12);
  }
}

// ---- The comparisons can fail -----------------------------------------------------------------------------------

bool IsAccepted(double got, DType dtype, const BoundedValues& want) {
  Tensor tensor(dtype, {1});
  tensor.Fill({got});
  return reference::CompareBounded(tensor.in(), want).ok;
}

TEST(CompareBounded, KeepsTheBound) {
  const double infinity = HUGE_VAL, nan = std::nan("");
  const BoundedValues want = {{1}, {}, {1e-6}};
  EXPECT_TRUE(IsAccepted(1, DType::kF32, want));
  EXPECT_TRUE(IsAccepted(1 + 0.9e-6, DType::kF32, want));
  EXPECT_TRUE(IsAccepted(1 - 0.9e-6, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(1 + 1.2e-6, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(1 - 1.2e-6, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(nan, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(infinity, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(-infinity, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(1 + 1.0 / 128, DType::kBF16, want));
  EXPECT_TRUE(IsAccepted(1 + 1.0 / 128, DType::kBF16, {{1 + 0.5000001 / 128}, {}, {0}}));
  EXPECT_FALSE(IsAccepted(1, DType::kF32, {{nan}, {}, {1e-6}}));
  EXPECT_TRUE(IsAccepted(nan, DType::kF32, {{nan}, {}, {1e-6}}));
  EXPECT_FALSE(IsAccepted(1, DType::kF32, {{infinity}, {}, {1e-6}}));
  EXPECT_TRUE(IsAccepted(1 + 1e-14, DType::kF64, {{1}, {1e-17}, {1e-14}}));
}

TEST(CompareBounded, LetsOverflowPass) {
  const BoundedValues want = {{1}, {}, {1e-6}, {1}};
  for (const double got : {1.0, HUGE_VAL, -HUGE_VAL, std::nan("")}) EXPECT_TRUE(IsAccepted(got, DType::kF32, want));
  EXPECT_FALSE(IsAccepted(2, DType::kF32, want));
}

TEST(CompareBounded, WithoutBoundsComparesBits) {
  EXPECT_TRUE(IsAccepted(-0.0, DType::kF32, {{-0.0}, {}, {}}));
  EXPECT_FALSE(IsAccepted(0.0, DType::kF32, {{-0.0}, {}, {}}));
  EXPECT_FALSE(IsAccepted(std::nextafterf(1, 2), DType::kF32, {{1}, {}, {}}));
  EXPECT_TRUE(IsAccepted(std::nan(""), DType::kF32, {{std::nan("")}, {}, {}}));
  EXPECT_FALSE(IsAccepted(1, DType::kF32, {{std::nan("")}, {}, {}}));
}

// Writes into the outputs what they must be.
void WriteExact(const NormRopeBackwardTensors& tensors) {
  const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
  const auto write = [](Tensor tensor, const BoundedValues& values) {
    if (!values.high.empty()) tensor.Fill(values.high);
  };
  write(tensors.dx, exact.dx);
  write(tensors.dweight, exact.dweight);
  write(tensors.dbias, exact.dbias);
}

// The smallest change of the element that no bound allows, by far larger than a rounding.
void Spoil(Tensor tensor, const Shape& index) { tensor.Set(index, tensor.Get(index) * 1.02 + 0.01); }

TEST(Check, SeesOneWrongElementOfEachOutput) {
  for (const NormRopeTypes types : kAllNormRopeTypes) {
    NormRopeProblem problem;
    problem.norm_type = NormType::kLayerAffine;
    problem.types = types;
    problem.batch = 2;
    problem.sequence = 3;
    problem.head_dim = 6;
    problem.rotary = RotaryOptions{.mode = RotaryMode::kInterleave};
    problem.length = 2;
    const NormRopeBackwardTensors tensors(problem);
    WriteExact(tensors);
    EXPECT_TRUE(tensors.Check());
    Spoil(tensors.dx, {1, 2, 0, 5});
    EXPECT_FALSE(tensors.Check());
    WriteExact(tensors);
    Spoil(tensors.dweight, {4});
    EXPECT_FALSE(tensors.Check());
    WriteExact(tensors);
    Spoil(tensors.dbias, {0});
    EXPECT_FALSE(tensors.Check());
    WriteExact(tensors);
    Tensor(tensors.dx).Set({0, 0, 0, 0}, std::nan(""));
    EXPECT_FALSE(tensors.Check());
    WriteExact(tensors);
    EXPECT_TRUE(tensors.Check());

    const NormRopeForwardTensors forward(problem);
    reference::NormRope(forward.Segment());
    EXPECT_TRUE(forward.Check());
    Spoil(forward.y, {1, 0, 2, 5});
    EXPECT_FALSE(forward.Check());
    reference::NormRope(forward.Segment());
    Spoil(forward.rstd, {1, 2, 0, 0});
    EXPECT_FALSE(forward.Check());
    reference::NormRope(forward.Segment());
    Spoil(forward.mean, {1, 2, 0, 0});
    EXPECT_FALSE(forward.Check());
  }
}

TEST(Check, SeesAWrongStreamOfTheJointCall) {
  NormRopeConcatProblem problem = SmallConcatProblem(ConcatOrder::kEncoderFirst, 9);
  problem.options.norm_type = NormType::kLayerAffine;
  problem.options.norm_added_type = NormType::kRmsAffine;
  const NormRopeConcatTensors tensors(problem);
  const auto write = [&] {
    const auto segments = reference::SegmentsOf(tensors.BackwardArgs());
    for (const auto& [name, segment] : segments.streams) {
      const NormRopeGradients exact = reference::NormRopeBackward(segment);
      const auto fill = [](const std::optional<TensorView>& view, const BoundedValues& values) {
        for (std::size_t i = 0; view && i < values.high.size(); ++i) {
          static_cast<float*>(view->data)[i] = static_cast<float>(values.high[i]);
        }
      };
      fill(segment.dx, exact.dx);
      fill(segment.dweight, exact.dweight);
      fill(segment.dbias, exact.dbias);
    }
  };
  write();
  ASSERT_TRUE(tensors.CheckBackward());
  for (const StreamTensors* stream : {&tensors.query, &tensors.key, &tensors.value, &tensors.encoder_query,
                                      &tensors.encoder_key, &tensors.encoder_value}) {
    Spoil(stream->dx, {1, stream->x.shape()[1] - 1, 2, 7});
    EXPECT_FALSE(tensors.CheckBackward());
    write();
  }
  for (const Tensor* weights :
       {&tensors.query.dweight, &tensors.key.dbias, &tensors.encoder_query.dweight, &tensors.encoder_key.dweight}) {
    Spoil(*weights, {3});
    EXPECT_FALSE(tensors.CheckBackward());
    write();
  }
  EXPECT_TRUE(tensors.CheckBackward());
}

// ---- NaN, infinity, overflow ------------------------------------------------------------------------------------

NormRopeProblem TwoRows(NormType type) {
  NormRopeProblem problem;
  problem.norm_type = type;
  problem.sequence = 2;
  problem.head_dim = 4;
  return problem;
}

TEST(Exact, NaNAndInfinityStayInTheirRow) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    NormRopeBackwardTensors tensors(TwoRows(NormType::kLayerAffine));
    tensors.dy.Set({0, 0, 1, 2}, bad);
    const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(std::isfinite(exact.dx.high[i]), i < 4);
      EXPECT_EQ(exact.dx.may_overflow[i], 0);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::isfinite(exact.dbias.high[i]), i != 2);
      EXPECT_EQ(exact.dbias.may_overflow[i], 0);
    }
    WriteExact(tensors);
    EXPECT_TRUE(tensors.Check());
    tensors.dx.Set({0, 1, 0, 0}, 1);
    EXPECT_FALSE(tensors.Check());
  }
}

TEST(Exact, SaysWhereAnIntermediateMayOverflow) {
  NormRopeBackwardTensors tensors(TwoRows(NormType::kLayerAffine));
  tensors.dy.Set({0, 0, 1, 2}, 1e30);
  tensors.weight.Set({2}, 1e30);
  const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(exact.dx.may_overflow[i] != 0, i >= 4) << i;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(exact.dweight.may_overflow[i], 0) << i;
  WriteExact(tensors);
  for (std::int64_t d = 0; d < 4; ++d) tensors.dx.Set({0, 1, 0, d}, std::nan(""));
  EXPECT_TRUE(tensors.Check());
  tensors.dx.Set({0, 0, 0, 0}, std::nan(""));
  EXPECT_FALSE(tensors.Check());
}

// ---- Known answers ----------------------------------------------------------------------------------------------

TEST(KnownAnswers, ARowOfEqualValues) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayerAffine;
  problem.head_dim = 256;
  NormRopeBackwardTensors tensors(problem);
  tensors.x.Fill([](std::int64_t) { return 1234.0; });
  tensors.weight.Fill([](std::int64_t) { return 1.0; });
  tensors.dy.Fill([](std::int64_t i) { return i == 0 ? 1.0 : 0.0; });
  FillStatistics(tensors.x, problem.norm_type, 1e-5, &tensors.mean, &tensors.rstd);
  const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
  EXPECT_NEAR(exact.dx.high[0], 314.9925, 1e-4);
  for (std::size_t i = 1; i < 256; ++i) EXPECT_NEAR(exact.dx.high[i], -1.23526, 1e-5);
  for (const double value : exact.dweight.high) EXPECT_EQ(value, 0);
  EXPECT_EQ(exact.dbias.high[0], 1);
}

TEST(KnownAnswers, ARowOfTwoCloseValues) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayer;
  NormRopeBackwardTensors tensors(problem);
  tensors.x.Fill({-1.83965693, -1.82964566});
  FillStatistics(tensors.x, problem.norm_type, 1e-5, &tensors.mean, &tensors.rstd);
  EXPECT_NEAR(tensors.rstd.Get({0, 0, 0, 0}), 168.9, 0.05);
  tensors.dy.Fill({1, 1});
  const NormRopeGradients flat = reference::NormRopeBackward(tensors.Segment());
  EXPECT_NEAR(flat.dx.high[0], 0, 2e-3);  // 1.4e-3 is what the rounding of the saved mean does
  EXPECT_NEAR(flat.dx.high[1], 0, 2e-3);
  tensors.dy.Fill({1, 0});
  const NormRopeGradients one = reference::NormRopeBackward(tensors.Segment());
  EXPECT_NEAR(one.dx.high[0], 24.088, 1e-3);
  EXPECT_NEAR(one.dx.high[1], -24.088, 1e-3);
}

TEST(KnownAnswers, AThousandOnesSumToAThousand) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayerAffine;
  problem.sequence = 1000;
  problem.head_dim = 6;
  NormRopeBackwardTensors tensors(problem);
  tensors.dy.Fill([](std::int64_t) { return 1.0; });
  const NormRopeGradients exact = reference::NormRopeBackward(tensors.Segment());
  EXPECT_EQ(exact.dbias.high, std::vector<double>(6, 1000));
  EXPECT_EQ(exact.dbias.low, std::vector<double>(6, 0));
}

TEST(KnownAnswers, ForwardOfARowOfFour) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayer;
  problem.head_dim = 4;
  problem.eps = 0;
  NormRopeForwardTensors tensors(problem);
  tensors.x.Fill({1, 3, 1, 3});
  reference::NormRope(tensors.Segment());
  EXPECT_EQ(tensors.y.Values(), (std::vector<double>{-1, 1, -1, 1}));
  EXPECT_EQ(tensors.mean.Get({0, 0, 0, 0}), 2);
  EXPECT_EQ(tensors.rstd.Get({0, 0, 0, 0}), 1);
}

}  // namespace
}  // namespace gyrograd::testing
