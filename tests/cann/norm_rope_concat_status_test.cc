// Every status code of the fused operators' first phases, with its message and the order of the rules.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "aclnn/opdev/op_errno.h"
#include "tests/cann/norm_rope_concat_support.h"

namespace gyrograd::testing {
namespace {

template <class Problem>
::testing::AssertionResult Refused(Problem& problem, aclnnStatus code, const std::vector<std::string>& words) {
  ::testing::AssertionResult given = Gives(problem.Plan(), code, words);
  if (!given) return given;
  if (problem.executor != nullptr) return ::testing::AssertionFailure() << "an executor was made";
  if (problem.workspace_size != ~std::uint64_t{0}) return ::testing::AssertionFailure() << "workspaceSize was written";
  return problem.OnlyChanged({});
}

std::vector<const char*> NamesOf(std::span<const FusedParameter> parameters) {
  std::vector<const char*> names;
  for (const FusedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

std::string NameOfTest(const ::testing::TestParamInfo<const char*>& test) { return test.param; }

// ---- each tensor in turn

// What each rule that any tensor can break gives, for one operator.
struct Codes {
  aclnnStatus missing;
  aclnnStatus rank;
  aclnnStatus shape;
};
constexpr Codes kGradCodes{561103, 561103, 561103};
constexpr Codes kForwardCodes{561002, 161002, 561002};

// All below: types and streams that call for every tensor.

template <class Problem>
void ExpectPresenceRules(const std::string& name, const Codes& codes) {
  Problem null;
  const FusedParameter parameter = null.parameters[null.IndexOf(name)];
  null.Omit(name);
  if (parameter.role == Role::kStream && name.starts_with("encoder")) {
    // An absent stream is legal, but not beside a joint tensor that holds it.
    EXPECT_TRUE(Refused(null, codes.shape, {"Output"}));
  } else {
    EXPECT_TRUE(Refused(null, parameter.required ? 161001 : codes.missing, {name + " is null"}));
  }
  Problem no_data;
  Array& array = no_data[name];
  array.Describe(MakeHandle(array.shape(), AclType(array.dtype()), nullptr));
  EXPECT_TRUE(Refused(no_data, 161001, {name, "no data"}));
}

template <class Problem>
void ExpectTypeRules(const std::string& name) {
  Problem type;
  Redescribe(type[name], type[name].shape(), ACL_FLOAT16);
  EXPECT_TRUE(Refused(type, 161002, {"has data type"}));
  Problem format;
  Redescribe(format[name], format[name].shape(), ACL_FLOAT, ACL_FORMAT_FRACTAL_NZ);
  EXPECT_TRUE(Refused(format, 161002, {name, "format 29"}));
}

template <class Problem>
void ExpectShapeRules(const std::string& name, const Codes& codes) {
  Problem rank;
  const Shape shape = rank[name].shape();
  Shape more = shape;
  more.insert(more.begin(), 1);
  Redescribe(rank[name], more);
  EXPECT_TRUE(Refused(rank, codes.rank, {name, "has rank " + std::to_string(more.size())}));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    Problem extent;
    Shape other = shape;
    other[axis] += 2;
    Redescribe(extent[name], other);
    EXPECT_TRUE(Refused(extent, codes.shape, {"["})) << "axis " << axis;
  }
  Problem negative;
  Shape below = shape;
  below[0] = -below[0];
  Redescribe(negative[name], below);
  EXPECT_TRUE(Refused(negative, codes.shape, {name, "negative"}));
}

template <class Problem>
void ExpectMemoryRules(const std::string& name, const Codes& codes) {
  Problem storage;
  const Shape shape = storage[name].shape();
  const std::int64_t stored = 1;
  storage[name].Describe(TensorHandle(aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND,
                                                      &stored, 1, storage[name].data())));
  EXPECT_TRUE(Refused(storage, codes.shape, {name, "storage of 1 elements"}));
  Problem misaligned;
  std::vector<std::uint64_t> memory(4096);
  misaligned[name].Describe(MakeHandle(shape, ACL_FLOAT, reinterpret_cast<std::byte*>(memory.data()) + 2));
  EXPECT_TRUE(Refused(misaligned, 161002, {"address"}));
}

template <class Problem>
void ExpectRulesOf(const std::string& name, const Codes& codes) {
  ExpectPresenceRules<Problem>(name, codes);
  ExpectTypeRules<Problem>(name);
  ExpectShapeRules<Problem>(name, codes);
  ExpectMemoryRules<Problem>(name, codes);
}

class CannFusedGradTensor : public ::testing::TestWithParam<const char*> {};
TEST_P(CannFusedGradTensor, IsChecked) { ExpectRulesOf<FusedGradProblem>(GetParam(), kGradCodes); }
INSTANTIATE_TEST_SUITE_P(Each, CannFusedGradTensor, ::testing::ValuesIn(NamesOf(GradParameters())), NameOfTest);

class CannFusedForwardTensor : public ::testing::TestWithParam<const char*> {};
TEST_P(CannFusedForwardTensor, IsChecked) { ExpectRulesOf<FusedForwardProblem>(GetParam(), kForwardCodes); }
INSTANTIATE_TEST_SUITE_P(Each, CannFusedForwardTensor, ::testing::ValuesIn(NamesOf(ForwardParameters())), NameOfTest);

// ---- whole problems

template <class Problem>
struct Broken {
  const char* what;
  std::function<void(Problem&)> how;
  aclnnStatus code;
  std::vector<std::string> words;

  friend void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.what; }
};

template <class Problem>
std::string NameOf(const ::testing::TestParamInfo<Broken<Problem>>& test) {
  return test.param.what;
}

constexpr std::int64_t kBeyond32Bits = std::int64_t{1} << 32;

// Every tensor of another problem, so that the shapes agree and break one rule alone.
template <class Problem>
std::function<void(Problem&)> Shaped(const FusedShape& shape, const FusedAttributes& attributes = {},
                                     DType dtype = DType::kF32) {
  return [=](Problem& problem) { problem = Problem(dtype, shape, attributes); };
}

// The tensors of the key's and value's side in another number of heads.
template <class Problem>
void GroupHeads(Problem& problem) {
  for (const FusedParameter& parameter : problem.parameters) {
    const bool of_key = parameter.part == Part::kKey || parameter.part == Part::kEncoderKey;
    if (!of_key || parameter.role == Role::kVector || parameter.role == Role::kTable) continue;
    Shape shape = problem[parameter.name].shape();
    shape[parameter.role == Role::kJoint ? 1 : 2] = 1;
    // Memory of its own: nothing is shared.
    problem[parameter.name].Describe(MakeHandle(shape, ACL_FLOAT, problem[parameter.name].data()));
  }
}

template <class Problem>
void Doubles(Problem& problem) {
  for (Array& array : problem.arrays) Redescribe(array, array.shape(), ACL_DOUBLE);
}

// f32 tables beside f16: legal in C++, not here. The rules on types come before those on memory.
template <class Problem>
void WideTables(Problem& problem) {
  problem = Problem(DType::kF16);
  for (const char* table : {"ropeSin", "ropeCos"}) Redescribe(problem[table], problem[table].shape(), ACL_FLOAT);
}

template <class Problem>
void WideWeights(Problem& problem) {
  problem = Problem(DType::kBF16);
  for (const FusedParameter& parameter : problem.parameters) {
    if (parameter.role == Role::kVector) Redescribe(problem[parameter.name], problem[parameter.name].shape());
  }
}

// A tensor's memory in place of another's.
template <class Problem>
void Share(Problem& problem, const char* name, const char* with, std::size_t bytes = 0) {
  Array& array = problem[name];
  array.Describe(
      MakeHandle(array.shape(), AclType(array.dtype()), static_cast<std::byte*>(problem[with].data()) + bytes));
}

template <class Problem>
void StrideZero(Problem& problem, const char* name) {
  Array& array = problem[name];
  Shape strides = ContiguousStrides(array.shape());
  strides[0] = 0;
  array.Describe(
      TensorHandle(aclCreateTensor(array.shape().data(), array.shape().size(), ACL_FLOAT, strides.data(), 0,
                                   ACL_FORMAT_ND, array.shape().data(), array.shape().size(), array.data())));
}

template <class Problem>
std::vector<Broken<Problem>> Both(const Codes& codes, aclnnStatus joining, std::int64_t last_norm) {
  using P = Problem;
  const auto with = [](auto change) {
    FusedShape shape;
    change(shape);
    return shape;
  };
  return {
      {"type_outside_the_table", Doubles<P>, 161002, {"data type 11"}},
      {"wide_tables", WideTables<P>, 161002, {"ropeSin", "data type 0"}},
      {"wide_weights", WideWeights<P>, 161002, {"normQueryWeight", "data type 0"}},
      {"norm_type_negative", [](P& p) { p.attributes.norm_type = -1; }, codes.shape, {"normType is -1"}},
      {"norm_type_above",
       [=](P& p) { p.attributes.norm_type = last_norm + 1; },
       codes.shape,
       {"normType is " + std::to_string(last_norm + 1), "0 to " + std::to_string(last_norm)}},
      {"norm_type_258", [](P& p) { p.attributes.norm_type = 258; }, codes.shape, {"normType is 258"}},
      {"norm_type_beyond_32_bits",
       [](P& p) { p.attributes.norm_type = kBeyond32Bits; },
       codes.shape,
       {"normType is 4294967296"}},
      {"norm_added_type_above",
       [=](P& p) { p.attributes.norm_added_type = last_norm + 1; },
       codes.shape,
       {"normAddedType is " + std::to_string(last_norm + 1)}},
      {"norm_added_type_without_encoder",
       [](P& p) {
         p = P(DType::kF32, {.encoder_query = {}, .encoder_key = {}});
         p.attributes.norm_added_type = -7;
       },
       codes.shape,
       {"normAddedType is -7"}},
      {"rope_type_3", [](P& p) { p.attributes.rope_type = 3; }, joining, {"ropeType is 3", "0 to 2"}},
      {"rope_type_negative", [](P& p) { p.attributes.rope_type = -1; }, joining, {"ropeType is -1"}},
      {"rope_type_beyond_32_bits",
       [](P& p) { p.attributes.rope_type = kBeyond32Bits + 1; },
       joining,
       {"ropeType is 4294967297"}},
      {"concat_order_2", [](P& p) { p.attributes.concat_order = 2; }, joining, {"concatOrder is 2", "0 to 1"}},
      {"concat_order_256", [](P& p) { p.attributes.concat_order = 256; }, joining, {"concatOrder is 256"}},
      {"odd_channels", Shaped<P>(with([](FusedShape& f) { f.head_dim = 7; })), codes.shape, {"7"}},
      {"odd_channels_unrotated",
       Shaped<P>(with([](FusedShape& f) { f.head_dim = 7; }), {.rope_type = 0}),
       codes.shape,
       {"D is 7", "even"}},
      {"no_channels", Shaped<P>(with([](FusedShape& f) { f.head_dim = 0; })), codes.shape, {"D is 0"}},
      {"too_many_channels",
       Shaped<P>(with([](FusedShape& f) { f.head_dim = 1026; })),
       codes.shape,
       {"D is 1026", "1024"}},
      {"tables_longer_than_the_shorter_joint",
       Shaped<P>(with([](FusedShape& f) { f.rope = 7; })),
       codes.shape,
       {"7", "6"}},
      {"tables_without_rows", Shaped<P>(with([](FusedShape& f) { f.rope = 0; })), codes.shape, {"[0, 8]", "1 row"}},
      {"grouped_heads", GroupHeads<P>, codes.shape, {"key's N is 1", "query's, 3"}},
      {"overflow",
       [](P& p) { Redescribe(p["query"], {std::int64_t{1} << 31, std::int64_t{1} << 31, 4, 8}); },
       codes.shape,
       {"query", "64 bits"}},
  };
}

std::vector<Broken<FusedGradProblem>> BrokenGrads() {
  using P = FusedGradProblem;
  std::vector<Broken<P>> all = Both<P>(kGradCodes, 561103, 2);
  const std::vector<Broken<P>> own = {
      {"rms", [](P& p) { p.attributes.norm_type = 3; }, 561103, {"normType is 3", "ACLNN_ERR_INNER_NULLPTR"}},
      {"rms_added", [](P& p) { p.attributes.norm_added_type = 4; }, 561103, {"normAddedType is 4"}},
      {"grad_query_is_query_shifted", [](P& p) { Share(p, "gradQuery", "query", 8); }, 161002, {"memory"}},
      {"grad_query_is_a_table", [](P& p) { Share(p, "ropeSin", "gradQuery"); }, 161002, {"memory"}},
      {"grad_query_is_key", [](P& p) { Share(p, "gradKey", "query"); }, 161002, {"memory"}},
      {"grad_weight_is_another_weight",
       [](P& p) { Share(p, "gradNormQueryWeight", "normKeyWeight"); },
       161002,
       {"memory"}},
      {"grad_bias_is_a_weight", [](P& p) { Share(p, "gradNormQueryBias", "normQueryWeight"); }, 161002, {"memory"}},
      {"outputs_share", [](P& p) { Share(p, "gradNormKeyBias", "gradNormKeyWeight"); }, 161002, {"memory"}},
      {"grad_value_over_itself", [](P& p) { StrideZero(p, "gradValue"); }, 161002, {"memory"}},
  };
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::vector<Broken<FusedForwardProblem>> BrokenForwards() {
  using P = FusedForwardProblem;
  std::vector<Broken<P>> all = Both<P>(kForwardCodes, 361001, 4);
  const std::vector<Broken<P>> own = {
      {"eps_negative", [](P& p) { p.attributes.eps = -1e-3; }, 561002, {"eps"}},
      {"eps_nan", [](P& p) { p.attributes.eps = std::numeric_limits<double>::quiet_NaN(); }, 561002, {"eps"}},
      {"output_is_key", [](P& p) { Share(p, "queryOutput", "key"); }, 161002, {"memory"}},
      {"mean_is_rstd", [](P& p) { Share(p, "normKeyRstd", "normKeyMean"); }, 161002, {"memory"}},
      {"output_over_itself", [](P& p) { StrideZero(p, "valueOutput"); }, 161002, {"memory"}},
      {"codes_are_named", [](P& p) { p.attributes.rope_type = 9; }, 361001, {"ACLNN_ERR_RUNTIME_ERROR"}},
  };
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

class CannFusedGradRefuses : public ::testing::TestWithParam<Broken<FusedGradProblem>> {};
TEST_P(CannFusedGradRefuses, WithTheCodeAndNothingTouched) {
  FusedGradProblem problem;
  GetParam().how(problem);
  EXPECT_TRUE(Refused(problem, GetParam().code, GetParam().words));
}
INSTANTIATE_TEST_SUITE_P(Rules, CannFusedGradRefuses, ::testing::ValuesIn(BrokenGrads()), NameOf<FusedGradProblem>);

class CannFusedForwardRefuses : public ::testing::TestWithParam<Broken<FusedForwardProblem>> {};
TEST_P(CannFusedForwardRefuses, WithTheCodeAndNothingTouched) {
  FusedForwardProblem problem;
  GetParam().how(problem);
  EXPECT_TRUE(Refused(problem, GetParam().code, GetParam().words));
}
INSTANTIATE_TEST_SUITE_P(Rules, CannFusedForwardRefuses, ::testing::ValuesIn(BrokenForwards()),
                         NameOf<FusedForwardProblem>);

// Null, type, attribute, missing optional, shape, memory: each step breaks a rule that comes before the last one.
template <class Problem>
void ExpectPrecedence(const Codes& codes, const char* output, const char* with) {
  Problem problem;
  Share(problem, output, with);
  EXPECT_TRUE(Refused(problem, 161002, {"memory"}));
  Redescribe(problem["key"], {2, 4, 3, 6});
  EXPECT_TRUE(Refused(problem, codes.shape, {"[2, 4, 3, 6]"}));
  problem.Omit("ropeCos");
  EXPECT_TRUE(Refused(problem, codes.missing, {"ropeCos is null"}));
  problem.attributes.norm_type = 9;
  EXPECT_TRUE(Refused(problem, codes.missing, {"normType is 9"}));
  Redescribe(problem["ropeSin"], problem["ropeSin"].shape(), ACL_INT32);
  EXPECT_TRUE(Refused(problem, 161002, {"ropeSin", "data type 3"}));
  problem["encoderKey"].Describe(MakeHandle(problem["encoderKey"].shape(), ACL_FLOAT, nullptr));
  EXPECT_TRUE(Refused(problem, 161001, {"encoderKey", "no data"}));
  problem.Omit("query");
  EXPECT_TRUE(Refused(problem, 161001, {"query is null"}));
}

TEST(CannFusedPrecedence, OfTheBackward) {
  ExpectPrecedence<FusedGradProblem>(kGradCodes, "gradNormKeyBias", "gradNormKeyWeight");
}

TEST(CannFusedPrecedence, OfTheForward) {
  ExpectPrecedence<FusedForwardProblem>(kForwardCodes, "normKeyRstd", "normKeyMean");
}

// ---- words

// Subject, rule and reference of the plan's messages, in this interface's names.
TEST(CannFusedMessages, AreInTheCallersNames) {
  const auto refusal = [](const auto& change) {
    FusedGradProblem problem;
    change(problem);
    EXPECT_NE(problem.Plan(), 0);
    return RecentMessages();
  };
  const std::string code = "aclnnNormRopeConcatBackwardGetWorkspaceSize failed with 561103 (ACLNN_ERR_INNER_NULLPTR): ";
  const std::string memory =
      "aclnnNormRopeConcatBackwardGetWorkspaceSize failed with 161002 (ACLNN_ERR_PARAM_INVALID): ";
  using P = FusedGradProblem;
  EXPECT_EQ(refusal([](P& p) { Redescribe(p["gradEncoderQuery"], {2, 1, 3, 6}); }),
            code + "gradEncoderQuery has shape [2, 1, 3, 6]; it must be [B, S, N, D] of gradQueryOutput, [2, 1, 3, 8]");
  EXPECT_EQ(refusal([](P& p) { Redescribe(p["gradNormAddedKeyBias"], {6}); }),
            code + "gradNormAddedKeyBias has shape [6]; it must be [D] of gradKeyOutput, [8]");
  EXPECT_EQ(
      refusal([](P& p) { Redescribe(p["normAddedQueryMean"], {2, 1, 1, 1}); }),
      code + "normAddedQueryMean has shape [2, 1, 1, 1]; it must be [B, S, N, 1] of gradQueryOutput, [2, 1, 3, 1]");
  EXPECT_EQ(refusal([](P& p) { Redescribe(p["ropeSin"], {4, 8}); }),
            code + "ropeSin has shape [4, 8]; it must be ropeCos's, [5, 8]");
  EXPECT_EQ(refusal([](P& p) {
              for (const char* table : {"ropeSin", "ropeCos"}) Redescribe(p[table], {7, 8});
            }),
            code + "ropeCos has shape [7, 8]; its 7 rows must be at most the length of the shorter joint sequence, 6");
  EXPECT_EQ(refusal(Shaped<P>({.head_dim = 7}, {.rope_type = 1})),
            code + "gradQueryOutput has shape [2, 3, 6, 7]; with ropeType 1 its last extent must be divisible by 2");
  EXPECT_EQ(refusal([](P& p) { Share(p, "gradKey", "query"); }),
            memory + "gradKey shares memory with query; it may not");
}

// The one attribute, or the stream, that calls for the tensor.
template <class Problem>
void ExpectNeeds(const Codes& codes, std::initializer_list<std::pair<const char*, const char*>> needs) {
  for (const auto& [name, need] : needs) {
    Problem problem(DType::kF32, {}, {.norm_type = 2, .norm_added_type = 1, .rope_type = 1});
    problem.Omit(name);
    ASSERT_EQ(problem.Plan(), codes.missing) << name;
    const std::string want = "): " + std::string(name) + " is null; " + need + " needs it";
    EXPECT_TRUE(RecentMessages().ends_with(want)) << want;
  }
}

TEST(CannFusedMessages, NameWhatTheBackwardNeedsATensorFor) {
  ExpectNeeds<FusedGradProblem>(kGradCodes, {{"normQueryWeight", "normType 2"},
                                             {"normKeyRstd", "normType 2"},
                                             {"gradNormKeyBias", "normType 2"},
                                             {"normAddedQueryMean", "normAddedType 1"},
                                             {"ropeSin", "ropeType 1"},
                                             {"ropeCos", "ropeType 1"},
                                             {"gradEncoderQuery", "encoderQuery"},
                                             {"gradEncoderKey", "encoderKey"},
                                             {"gradEncoderValue", "encoderKey"}});
}

TEST(CannFusedMessages, NameWhatTheForwardNeedsATensorFor) {
  ExpectNeeds<FusedForwardProblem>(kForwardCodes, {{"normQueryBias", "normType 2"},
                                                   {"normKeyMean", "normType 2 with isTraining"},
                                                   {"normAddedKeyRstd", "normAddedType 1 with isTraining"},
                                                   {"ropeCos", "ropeType 1"}});
}

// ---- profiles

// Every product has the rules that the interface has without one.
TEST(CannFusedProfileVariable, ChangesNothing) {
  for (const char* product : {"native", "atlas-a2", "atlas-a3", "ascend-950"}) {
    const ScopedEnvironment profile("GYROGRAD_PROFILE", product);
    FusedGradProblem grad(DType::kF32, {.head_dim = 1024});
    EXPECT_TRUE(grad.PlanAndRun()) << product;
    FusedGradProblem wide(DType::kF32, {.head_dim = 1026});
    EXPECT_TRUE(Refused(wide, 561103, {"D is 1026"})) << product;
    FusedForwardProblem forward(DType::kF32, {}, {.norm_type = 4});
    EXPECT_TRUE(forward.PlanAndRun()) << product;
  }
}

TEST(CannFusedProfileVariable, OtherValuesAreRefused) {
  const ScopedEnvironment profile("GYROGRAD_PROFILE", "atlas-a1");
  FusedGradProblem grad;
  EXPECT_TRUE(Refused(grad, 161002, {"GYROGRAD_PROFILE is 'atlas-a1'"}));
  FusedForwardProblem forward;
  EXPECT_TRUE(Refused(forward, 161002, {"GYROGRAD_PROFILE"}));
}

}  // namespace
}  // namespace gyrograd::testing
