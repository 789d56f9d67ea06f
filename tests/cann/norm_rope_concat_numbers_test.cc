// The numbers that the fused operators give through the C interface, against the witnesses: every type, norm, rotation
// and order, streams that are absent or empty, views, and memory that is shared legally.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>

#include "tests/cann/norm_rope_concat_support.h"

namespace gyrograd::testing {
namespace {

// ---- attributes and types

using Parameter = std::tuple<DType, int, int, int, int>;  // norm type, added norm type, rotation, order

FusedAttributes AttributesOf(const Parameter& parameter) {
  return {.norm_type = std::get<1>(parameter),
          .norm_added_type = std::get<2>(parameter),
          .rope_type = std::get<3>(parameter),
          .concat_order = std::get<4>(parameter)};
}

std::string NameOf(const ::testing::TestParamInfo<Parameter>& test) {
  const auto& [dtype, norm, added, rope, order] = test.param;
  return std::string(Name(dtype)) + "_norm" + std::to_string(norm) + "_added" + std::to_string(added) + "_rope" +
         std::to_string(rope) + "_order" + std::to_string(order);
}

const auto kTypes = ::testing::Values(DType::kF32, DType::kF16, DType::kBF16);

class CannFusedGradNumbers : public ::testing::TestWithParam<Parameter> {};

TEST_P(CannFusedGradNumbers, MatchTheWitness) {
  FusedGradProblem problem(std::get<0>(GetParam()), {}, AttributesOf(GetParam()));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

// What the types do not call for may be null, or a dummy that breaks every rule; neither changes anything.
TEST_P(CannFusedGradNumbers, NeedOnlyWhatTheTypesCallFor) {
  FusedGradProblem full(std::get<0>(GetParam()), {}, AttributesOf(GetParam()));
  ASSERT_TRUE(full.PlanAndRun());
  for (const bool dummies : {false, true}) {
    FusedGradProblem problem(std::get<0>(GetParam()), {}, AttributesOf(GetParam()));
    const std::vector<std::string> wanted = problem.Wanted();
    for (const FusedParameter& parameter : problem.parameters) {
      const std::string name = parameter.name;
      const std::int64_t norm = problem.norm(parameter.part);
      const bool output = problem.IndexOf(name) >= kGradInputs;
      const bool used = output                               ? std::ranges::find(wanted, name) != wanted.end()
                        : parameter.role == Role::kVector    ? norm == 2
                        : parameter.role == Role::kStatistic ? norm != 0
                        : parameter.role == Role::kTable     ? problem.attributes.rope_type != 0
                                                             : true;
      if (used) continue;
      problem[name].Describe(dummies ? MakeHandle({}, ACL_INT8, nullptr, ACL_FORMAT_FRACTAL_NZ) : nullptr);
    }
    ASSERT_TRUE(problem.PlanAndRun()) << dummies;
    EXPECT_TRUE(problem.OnlyChanged(wanted));
    for (const std::string& name : wanted) EXPECT_EQ(problem[name].bytes(), full[name].bytes()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CannFusedGradNumbers,
                         ::testing::Combine(kTypes, ::testing::Values(0, 1, 2), ::testing::Values(0, 1, 2),
                                            ::testing::Values(0, 1, 2), ::testing::Values(0, 1)),
                         NameOf);

class CannFusedForwardNumbers : public ::testing::TestWithParam<Parameter> {};

TEST_P(CannFusedForwardNumbers, MatchTheWitness) {
  FusedForwardProblem problem(std::get<0>(GetParam()), {}, AttributesOf(GetParam()));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

// Without training the same outputs; means and rstds may be null and are left alone.
TEST_P(CannFusedForwardNumbers, WithoutTraining) {
  FusedForwardProblem training(std::get<0>(GetParam()), {}, AttributesOf(GetParam()));
  ASSERT_TRUE(training.PlanAndRun());
  for (const bool null : {false, true}) {
    FusedAttributes attributes = AttributesOf(GetParam());
    attributes.training = false;
    FusedForwardProblem problem(std::get<0>(GetParam()), {}, attributes);
    for (const FusedParameter& parameter : problem.parameters) {
      if (null && parameter.role == Role::kStatistic) problem.Omit(parameter.name);
    }
    ASSERT_TRUE(problem.PlanAndRun());
    EXPECT_TRUE(problem.Check());
    for (const char* name : {"queryOutput", "keyOutput", "valueOutput"}) {
      EXPECT_EQ(problem[name].bytes(), training[name].bytes()) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CannFusedForwardNumbers,
                         ::testing::Combine(kTypes, ::testing::Values(0, 1, 2, 3, 4), ::testing::Values(0, 2, 3, 4),
                                            ::testing::Values(0, 1, 2), ::testing::Values(0, 1)),
                         NameOf);

// ---- shapes

struct Case {
  const char* what;
  FusedShape shape;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.what; }

const Case kCases[] = {
    {"no_encoder", {.encoder_query = {}, .encoder_key = {}, .rope = 3}},
    {"encoder_query_alone", {.encoder_key = {}, .rope = 4}},
    {"encoder_key_alone", {.encoder_query = {}}},
    {"empty_encoder", {.encoder_query = 0, .encoder_key = 0, .rope = 4}},
    {"empty_query", {.query = 0, .encoder_query = 7}},
    {"empty_key", {.key = 0}},
    {"nothing_but_heads", {.query = 0, .key = 0, .encoder_query = {}, .encoder_key = {}, .rope = 0}},
    {"no_batch", {.batch = 0}},
    {"no_heads", {.heads = 0}},
    {"one_of_all",
     {.batch = 1, .heads = 1, .head_dim = 2, .query = 1, .key = 1, .encoder_query = {}, .encoder_key = {}, .rope = 1}},
    {"one_row_rotated", {.rope = 1}},
    {"whole_shorter_joint", {.rope = 6}},
    {"wide", {.head_dim = 1024}},
    {"many_rows",
     {.batch = 2,
      .heads = 24,
      .head_dim = 64,
      .query = 70,
      .key = 33,
      .encoder_query = 9,
      .encoder_key = 50,
      .rope = 60}},
};

class CannFusedShapes : public ::testing::TestWithParam<Case> {};

TEST_P(CannFusedShapes, Backward) {
  for (const std::int64_t order : {0, 1}) {
    FusedGradProblem problem(DType::kF32, GetParam().shape, {.rope_type = 1 + order, .concat_order = order});
    ASSERT_TRUE(problem.PlanAndRun());
    EXPECT_TRUE(problem.Check());
  }
}

TEST_P(CannFusedShapes, Forward) {
  for (const std::int64_t order : {0, 1}) {
    FusedForwardProblem problem(DType::kF32, GetParam().shape, {.rope_type = 1 + order, .concat_order = order});
    ASSERT_TRUE(problem.PlanAndRun());
    EXPECT_TRUE(problem.Check());
  }
}

INSTANTIATE_TEST_SUITE_P(All, CannFusedShapes, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& test) { return std::string(test.param.what); });

// A stream without elements needs no weight, mean or rstd; its weight's and bias's gradients are exactly 0.
TEST(CannFusedEmptyStream, NeedsNothingAndGivesZeros) {
  FusedGradProblem problem(DType::kBF16, {.encoder_query = 0, .encoder_key = 6});
  for (const char* name : {"normAddedQueryWeight", "normAddedQueryMean", "normAddedQueryRstd"}) problem.Omit(name);
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
  const std::vector<std::byte> zeros(problem["gradNormAddedQueryBias"].bytes().size());
  EXPECT_EQ(problem["gradNormAddedQueryBias"].bytes(), zeros);
  EXPECT_EQ(problem["gradNormAddedQueryWeight"].bytes(), zeros);
  problem.Omit("gradNormAddedQueryBias");
  EXPECT_TRUE(Gives(problem.Plan(), 561103, {"gradNormAddedQueryBias is null"}));
}

// An absent stream's outputs are left alone, whatever the type says.
TEST(CannFusedAbsentStream, OutputsAreDummies) {
  FusedGradProblem problem(DType::kF32, {.encoder_query = {}, .encoder_key = {}, .rope = 3});
  const Shape shape = {};
  for (const FusedParameter& parameter : problem.parameters) {
    const bool added = parameter.part == Part::kEncoderQuery || parameter.part == Part::kEncoderKey;
    if (added && problem.IndexOf(parameter.name) >= kGradInputs) {
      problem[parameter.name].Describe(MakeHandle(shape, ACL_FLOAT, problem[parameter.name].data()));
    }
  }
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

// RMS norms: rstd is written where given; CANN does not write it, so a null or a dummy is legal.
TEST(CannFusedRms, RstdIsOptional) {
  for (const std::int64_t norm : {3, 4}) {
    FusedForwardProblem full(DType::kF32, {}, {.norm_type = norm, .norm_added_type = norm});
    ASSERT_TRUE(full.PlanAndRun());
    EXPECT_TRUE(full.Check());
    FusedForwardProblem problem(DType::kF32, {}, {.norm_type = norm, .norm_added_type = norm});
    problem.Omit("normQueryRstd");
    problem["normKeyRstd"].Describe(MakeHandle({}, ACL_FLOAT, problem["normKeyRstd"].data()));
    problem["normAddedKeyRstd"].Describe(MakeHandle({1, 1, 1, 0}, ACL_FLOAT, nullptr));
    ASSERT_TRUE(problem.PlanAndRun());
    EXPECT_TRUE(problem.OnlyChanged({"queryOutput", "keyOutput", "valueOutput", "normAddedQueryRstd"}));
    for (const char* name : {"queryOutput", "keyOutput", "valueOutput", "normAddedQueryRstd"}) {
      EXPECT_EQ(problem[name].bytes(), full[name].bytes()) << name;
    }
  }
}

// ---- the order of the arguments

// Each pair has one shape and one type: only the place in the argument list tells them apart.
struct Exchange {
  const char* first;
  const char* second;
};

class CannFusedGradExchange : public ::testing::TestWithParam<Exchange> {};

TEST_P(CannFusedGradExchange, IsSeen) {
  // All lengths alike, so that only numbers can tell.
  FusedGradProblem problem(DType::kF32, {.query = 4, .key = 4, .encoder_query = 4, .encoder_key = 4});
  Array& first = problem[GetParam().first];
  Array& second = problem[GetParam().second];
  ASSERT_EQ(first.shape(), second.shape());
  first.Describe(MakeHandle(first.shape(), AclType(first.dtype()), second.data()));
  second.Describe(MakeHandle(second.shape(), AclType(second.dtype()), first.data()));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_FALSE(problem.Check());
}

INSTANTIATE_TEST_SUITE_P(Pairs, CannFusedGradExchange,
                         ::testing::Values(Exchange{"ropeSin", "ropeCos"}, Exchange{"gradQueryOutput", "gradKeyOutput"},
                                           Exchange{"gradKeyOutput", "gradValueOutput"}, Exchange{"query", "key"},
                                           Exchange{"key", "encoderQuery"}, Exchange{"encoderQuery", "encoderKey"},
                                           Exchange{"normQueryWeight", "normKeyWeight"},
                                           Exchange{"normKeyMean", "normKeyRstd"},
                                           Exchange{"normAddedQueryMean", "normAddedKeyMean"},
                                           Exchange{"gradKey", "gradValue"},
                                           Exchange{"gradEncoderKey", "gradEncoderValue"},
                                           Exchange{"gradNormQueryWeight", "gradNormQueryBias"},
                                           Exchange{"gradNormAddedQueryBias", "gradNormAddedKeyBias"}),
                         [](const ::testing::TestParamInfo<Exchange>& test) {
                           return std::string(test.param.first) + "_" + test.param.second;
                         });

TEST(CannFusedForwardExchange, OfSineAndCosineIsSeen) {
  FusedForwardProblem problem;
  ASSERT_TRUE(problem.PlanAndRun());
  ASSERT_TRUE(problem.Check());
  std::swap(problem["ropeSin"].bytes(), problem["ropeCos"].bytes());
  EXPECT_FALSE(problem.Check());
}

// cos 0 and sin 1 turn a pair by a quarter: the numbers by hand. One row (1 2 3 4), half mode, no norm.
TEST(CannFusedKnownAnswer, AQuarterTurn) {
  FusedGradProblem problem(
      DType::kF32,
      {.batch = 1, .heads = 1, .head_dim = 4, .query = 1, .key = 1, .encoder_query = {}, .encoder_key = {}, .rope = 1},
      {.norm_type = 0, .norm_added_type = 0});
  const float dy[] = {1, 2, 3, 4};
  const float turned[] = {3, 4, -1, -2};
  const float zeros[] = {0, 0, 0, 0};
  const float ones[] = {1, 1, 1, 1};
  for (const char* name : {"gradQueryOutput", "gradKeyOutput", "gradValueOutput"}) {
    std::memcpy(problem[name].data(), dy, sizeof(dy));
  }
  std::memcpy(problem["ropeCos"].data(), zeros, sizeof(zeros));
  std::memcpy(problem["ropeSin"].data(), ones, sizeof(ones));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_EQ(std::memcmp(problem["gradQuery"].data(), turned, sizeof(turned)), 0);
  EXPECT_EQ(std::memcmp(problem["gradKey"].data(), turned, sizeof(turned)), 0);
  EXPECT_EQ(std::memcmp(problem["gradValue"].data(), dy, sizeof(dy)), 0);
}

// ---- views and shared memory

// gradQueryOutput in the memory order of [B, S, N, D], behind an offset, with a storage of rank 1.
TEST(CannFusedViews, StridedViewWithAnOffset) {
  FusedGradProblem problem;
  Array& array = problem["gradQueryOutput"];
  const std::int64_t batch = 2, heads = 3, length = 6, width = 8;
  std::vector<float> moved(11 + array.bytes().size() / 4);
  const Shape strides = {length * heads * width, width, heads * width, 1};
  const auto* from = static_cast<const float*>(array.data());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t n = 0; n < heads; ++n) {
      for (std::int64_t s = 0; s < length; ++s, from += width) {
        std::memcpy(&moved[11 + b * strides[0] + n * strides[1] + s * strides[2]], from, width * sizeof(float));
      }
    }
  }
  const auto stored = static_cast<std::int64_t>(moved.size());
  array.Describe(TensorHandle(aclCreateTensor(array.shape().data(), 4, ACL_FLOAT, strides.data(), 11, ACL_FORMAT_NCHW,
                                              &stored, 1, moved.data())));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

void ExpectSameGradients(FusedGradProblem& got, FusedGradProblem& want, const std::vector<std::string>& but) {
  for (const std::string& name : want.Wanted()) {
    if (std::ranges::find(but, name) != but.end()) continue;
    EXPECT_EQ(got[name].bytes(), want[name].bytes()) << name;
  }
}

TEST(CannFusedAlias, GradientsMayBeTheirInputs) {
  FusedGradProblem want;
  ASSERT_TRUE(want.PlanAndRun());
  FusedGradProblem problem;
  const std::pair<const char*, const char*> pairs[] = {{"gradQuery", "query"},
                                                       {"gradKey", "key"},
                                                       {"gradEncoderQuery", "encoderQuery"},
                                                       {"gradEncoderKey", "encoderKey"},
                                                       {"gradNormQueryWeight", "normQueryWeight"},
                                                       {"gradNormAddedKeyWeight", "normAddedKeyWeight"}};
  std::vector<std::string> moved;
  for (const auto& [gradient, input] : pairs) {
    problem[gradient].Describe(MakeHandle(problem[input].shape(), ACL_FLOAT, problem[input].data()));
    moved.push_back(gradient);
  }
  ASSERT_TRUE(problem.PlanAndRun());
  for (const auto& [gradient, input] : pairs) EXPECT_EQ(problem[input].bytes(), want[gradient].bytes()) << gradient;
  ExpectSameGradients(problem, want, moved);
}

// gradQuery and gradEncoderQuery as their rows of gradQueryOutput: [B, S, N, D] views into [B, N, Sq + Seq, D].
TEST(CannFusedAlias, GradientsMayBeTheirRowsOfTheIncomingOne) {
  for (const std::int64_t order : {0, 1}) {
    FusedGradProblem want(DType::kF32, {}, {.concat_order = order});
    ASSERT_TRUE(want.PlanAndRun());
    FusedGradProblem problem(DType::kF32, {}, {.concat_order = order});
    Array& joint = problem["gradQueryOutput"];
    const std::int64_t heads = 3, length = 6, width = 8, stream = 5;
    const Shape strides = {heads * length * width, width, length * width, 1};
    const auto describe = [&](const char* name, std::int64_t first) {
      problem[name].Describe(
          TensorHandle(aclCreateTensor(problem[name].shape().data(), 4, ACL_FLOAT, strides.data(), first * width,
                                       ACL_FORMAT_ND, joint.shape().data(), 4, joint.data())));
    };
    describe("gradQuery", order == 0 ? 0 : length - stream);
    describe("gradEncoderQuery", order == 0 ? stream : 0);
    ASSERT_TRUE(problem.PlanAndRun());
    ExpectSameGradients(problem, want, {"gradQuery", "gradEncoderQuery"});
    const auto* rows = static_cast<const float*>(joint.data());
    const auto* gradients = static_cast<const float*>(want["gradQuery"].data());
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t s = 0; s < stream; ++s) {
        for (std::int64_t n = 0; n < heads; ++n, gradients += width) {
          const std::int64_t position = s + (order == 0 ? 0 : length - stream);
          EXPECT_EQ(std::memcmp(rows + b * strides[0] + position * strides[1] + n * strides[2], gradients,
                                width * sizeof(float)),
                    0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gyrograd::testing
