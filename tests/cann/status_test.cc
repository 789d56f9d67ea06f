// Every status code of the first phases, with its message and the order of the rules.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>

#include "aclnn/opdev/op_errno.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

struct Broken {
  const char* what;
  std::function<void(GradProblem&)> how;
  aclnnStatus code;
  std::vector<std::string> words;
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.what; }

class CannGradRefuses : public ::testing::TestWithParam<Broken> {};

TEST_P(CannGradRefuses, WithTheCodeAndNothingTouched) {
  GradProblem problem;
  GetParam().how(problem);
  const std::vector<std::byte> dx = problem.dx.bytes();
  const std::vector<std::byte> dcos = problem.dcos.bytes();
  EXPECT_TRUE(Gives(problem.Plan(), GetParam().code, GetParam().words));
  EXPECT_EQ(problem.executor, nullptr);
  EXPECT_EQ(problem.workspace_size, ~std::uint64_t{0});
  EXPECT_EQ(problem.dx.bytes(), dx);
  EXPECT_EQ(problem.dcos.bytes(), dcos);
}

const Broken kBroken[] = {
    {"dy", [](GradProblem& p) { p.dy.Describe(nullptr); }, 161001, {"dy", "null", "ACLNN_ERR_PARAM_NULLPTR"}},
    {"cos", [](GradProblem& p) { p.cos.Describe(nullptr); }, 161001, {"cos is null"}},
    {"sin", [](GradProblem& p) { p.sin.Describe(nullptr); }, 161001, {"sin is null"}},
    {"dx", [](GradProblem& p) { p.dx.Describe(nullptr); }, 161001, {"dxOut is null"}},
    {"dcos", [](GradProblem& p) { p.dcos.Describe(nullptr); }, 161001, {"dcosOut is null"}},
    {"dsin", [](GradProblem& p) { p.dsin.Describe(nullptr); }, 161001, {"dsinOut is null"}},
    {"dcos_without_x",
     [](GradProblem& p) {
       p.with_x = false;
       p.dcos.Describe(nullptr);
     },
     161001,
     {"dcosOut is null"}},
    {"no_data",
     [](GradProblem& p) { p.sin.Describe(MakeHandle(p.sin.shape(), ACL_FLOAT, nullptr)); },
     161001,
     {"sin", "[1, 3, 1, 8]", "no data"}},
    {"type_outside_the_table",
     [](GradProblem& p) {
       for (Array* array : {&p.dy, &p.cos, &p.sin, &p.x, &p.dx, &p.dcos, &p.dsin}) {
         Redescribe(*array, array->shape(), ACL_DOUBLE);
       }
     },
     161002,
     {"dy", "11", "ACLNN_ERR_PARAM_INVALID"}},
    {"types_differ",
     [](GradProblem& p) {
       // f32 tables beside f16: legal in C++, not here.
       for (Array* array : {&p.dy, &p.x, &p.dx}) Redescribe(*array, array->shape(), ACL_FLOAT16);
     },
     161002,
     {"cos", "that of dy"}},
    {"type_of_dsin", [](GradProblem& p) { Redescribe(p.dsin, p.dsin.shape(), ACL_BF16); }, 161002, {"dsinOut", "27"}},
    {"format_fractal",
     [](GradProblem& p) { Redescribe(p.dy, p.dy.shape(), ACL_FLOAT, ACL_FORMAT_FRACTAL_NZ); },
     161002,
     {"dy", "format 29"}},
    {"format_nc1hwc0",
     [](GradProblem& p) { Redescribe(p.dcos, p.dcos.shape(), ACL_FLOAT, ACL_FORMAT_NC1HWC0); },
     161002,
     {"dcosOut", "format 3"}},
    {"format_fractal_z",
     [](GradProblem& p) { Redescribe(p.x, p.x.shape(), ACL_FLOAT, ACL_FORMAT_FRACTAL_Z); },
     161002,
     {"xOptional", "format 4"}},
    {"mode_4", [](GradProblem& p) { p.mode = 4; }, 561002, {"mode is 4", "ACLNN_ERR_INNER_TILING_ERROR"}},
    {"mode_negative", [](GradProblem& p) { p.mode = -1; }, 561002, {"mode is -1"}},
    {"mode_256", [](GradProblem& p) { p.mode = 256; }, 561002, {"mode is 256"}},
    {"mode_beyond_32_bits", [](GradProblem& p) { p.mode = std::int64_t{1} << 32; }, 561002, {"mode is 4294967296"}},
    {"rank_2",
     [](GradProblem& p) {
       for (Array* array : {&p.dy, &p.x, &p.dx}) Redescribe(*array, {6, 8});
       for (Array* array : {&p.cos, &p.sin, &p.dcos, &p.dsin}) Redescribe(*array, {6, 8});
     },
     561002,
     {"dy has rank 2"}},
    {"rank_5", [](GradProblem& p) { Redescribe(p.dy, {1, 2, 3, 4, 8}); }, 561002, {"dy has rank 5"}},
    {"no_channels",
     [](GradProblem& p) {
       for (Array* array : {&p.dy, &p.x, &p.dx}) Redescribe(*array, {2, 3, 4, 0});
       for (Array* array : {&p.cos, &p.sin, &p.dcos, &p.dsin}) Redescribe(*array, {1, 3, 1, 0});
     },
     561002,
     {"dy", "last extent is 0"}},
    {"rank_of_cos",
     [](GradProblem& p) { Redescribe(p.cos, {3, 1, 8}); },
     561002,
     {"cos has shape [3, 1, 8]", "hint: add extents of 1, such as [1, 3, 1, 8]"}},
    {"cos_and_sin_differ", [](GradProblem& p) { Redescribe(p.sin, {1, 1, 1, 8}); }, 561002, {"sin", "[1, 1, 1, 8]"}},
    {"extent_neither_1_nor_dys",
     [](GradProblem& p) {
       for (Array* array : {&p.cos, &p.sin, &p.dcos, &p.dsin}) Redescribe(*array, {1, 2, 1, 8});
     },
     561002,
     {"cos", "[1, 2, 1, 8]"}},
    {"narrow_tables",
     [](GradProblem& p) {
       for (Array* array : {&p.cos, &p.sin, &p.dcos, &p.dsin}) Redescribe(*array, {1, 3, 1, 4});
     },
     561002,
     {"cos", "[1, 3, 1, 4]"}},
    {"shape_of_x", [](GradProblem& p) { Redescribe(p.x, {2, 3, 1, 8}); }, 561002, {"xOptional has shape [2, 3, 1, 8]"}},
    {"shape_of_dx", [](GradProblem& p) { Redescribe(p.dx, {2, 4, 3, 8}); }, 561002, {"dxOut has shape [2, 4, 3, 8]"}},
    {"shape_of_dcos",
     [](GradProblem& p) { Redescribe(p.dcos, {1, 1, 1, 8}); },
     561002,
     {"dcosOut has shape [1, 1, 1, 8]"}},
    {"odd_channels",
     [](GradProblem& p) {
       for (Array* array : {&p.dy, &p.x, &p.dx}) Redescribe(*array, {2, 3, 4, 7});
       for (Array* array : {&p.cos, &p.sin, &p.dcos, &p.dsin}) Redescribe(*array, {1, 3, 1, 7});
     },
     561002,
     {"7"}},
    {"quarter_mode_of_6_channels",
     [](GradProblem& p) {
       p.mode = 2;
       for (Array* array : {&p.dy, &p.x, &p.dx}) Redescribe(*array, {2, 3, 4, 6});
       for (Array* array : {&p.cos, &p.sin, &p.dcos, &p.dsin}) Redescribe(*array, {1, 3, 1, 6});
     },
     561002,
     {"6"}},
    {"negative_extent", [](GradProblem& p) { Redescribe(p.dy, {2, -3, 4, 8}); }, 561002, {"dy", "[2, -3, 4, 8]"}},
    {"overflow",
     [](GradProblem& p) { Redescribe(p.dy, {std::int64_t{1} << 31, std::int64_t{1} << 31, 4, 8}); },
     561002,
     {"dy", "64 bits"}},
    {"storage_overflow",
     [](GradProblem& p) {
       const std::int64_t stored = std::int64_t{1} << 61;
       p.dy.Describe(TensorHandle(aclCreateTensor(p.dy.shape().data(), 4, ACL_FLOAT, nullptr, std::int64_t{1} << 60,
                                                  ACL_FORMAT_ND, &stored, 1, p.dy.data())));
     },
     561002,
     {"dy", "storage shape [2305843009213693952]", "64 bits"}},
    {"storage_negative",
     [](GradProblem& p) {
       const std::int64_t stored = -1;
       p.sin.Describe(TensorHandle(
           aclCreateTensor(p.sin.shape().data(), 4, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &stored, 1, p.sin.data())));
     },
     561002,
     {"sin", "storage shape [-1]"}},
    {"storage_too_small",
     [](GradProblem& p) {
       const std::int64_t stored = 2 * 3 * 4 * 8 - 1;
       p.dy.Describe(TensorHandle(
           aclCreateTensor(p.dy.shape().data(), 4, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &stored, 1, p.dy.data())));
     },
     561002,
     {"dy", "storage of 191 elements"}},
    {"offset_beyond_the_storage",
     [](GradProblem& p) {
       p.dx.Describe(TensorHandle(aclCreateTensor(p.dx.shape().data(), 4, ACL_FLOAT, nullptr, 1, ACL_FORMAT_ND,
                                                  p.dx.shape().data(), 4, p.dx.data())));
     },
     561002,
     {"dxOut", "offset 1"}},
    {"before_the_storage",
     [](GradProblem& p) {
       const Shape strides = {96, 32, 8, -1};
       p.dy.Describe(TensorHandle(aclCreateTensor(p.dy.shape().data(), 4, ACL_FLOAT, strides.data(), 6, ACL_FORMAT_ND,
                                                  p.dy.shape().data(), 4, p.dy.data())));
     },
     561002,
     {"dy", "strides [96, 32, 8, -1]"}},
    {"stride_overflow",
     [](GradProblem& p) {
       const Shape strides = {std::numeric_limits<std::int64_t>::max(), 32, 8, 1};
       p.dy.Describe(TensorHandle(aclCreateTensor(p.dy.shape().data(), 4, ACL_FLOAT, strides.data(), 6, ACL_FORMAT_ND,
                                                  p.dy.shape().data(), 4, p.dy.data())));
     },
     561002,
     {"dy"}},
    {"misaligned",
     [](GradProblem& p) {
       static std::vector<std::byte> memory(4096);
       p.dy.Describe(MakeHandle(p.dy.shape(), ACL_FLOAT, memory.data() + 1));
     },
     161002,
     {"dy has data at address 0x"}},
    {"dx_shares_a_table",
     [](GradProblem& p) { p.cos.Describe(MakeHandle(p.cos.shape(), ACL_FLOAT, p.dx.data())); },
     161002,
     {"dxOut shares memory with cos"}},
    {"dx_is_dy_shifted",
     [](GradProblem& p) {
       const std::int64_t stored = 4096;
       static std::vector<float> memory(4096);
       p.dy.Describe(TensorHandle(
           aclCreateTensor(p.dy.shape().data(), 4, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &stored, 1, memory.data())));
       p.dx.Describe(TensorHandle(
           aclCreateTensor(p.dx.shape().data(), 4, ACL_FLOAT, nullptr, 8, ACL_FORMAT_ND, &stored, 1, memory.data())));
     },
     161002,
     {"dxOut shares memory with dy"}},
    {"dcos_is_dsin",
     [](GradProblem& p) { p.dsin.Describe(MakeHandle(p.dsin.shape(), ACL_FLOAT, p.dcos.data())); },
     161002,
     {"dsinOut shares memory with dcosOut"}},
    {"dx_with_stride_0",
     [](GradProblem& p) {
       const Shape strides = {0, 32, 8, 1};
       p.dx.Describe(TensorHandle(aclCreateTensor(p.dx.shape().data(), 4, ACL_FLOAT, strides.data(), 0, ACL_FORMAT_ND,
                                                  p.dx.shape().data(), 4, p.dx.data())));
     },
     161002,
     {"dxOut has shape"}},
};

INSTANTIATE_TEST_SUITE_P(Rules, CannGradRefuses, ::testing::ValuesIn(kBroken),
                         [](const ::testing::TestParamInfo<Broken>& test) { return std::string(test.param.what); });

// The C++ interface's hints name options; this interface has none of them.
TEST(CannGradRefusal, HintsAtNothingThatIsNotThere) {
  for (const std::int64_t width : {2, 4}) {
    GradProblem problem;
    Redescribe(problem.cos, {1, 3, 1, width});
    ASSERT_EQ(problem.Plan(), 561002);
    const std::string message = aclGetRecentErrMsg();
    EXPECT_NE(message.find("its last extent must equal dy's, 8"), std::string::npos) << message;
    EXPECT_EQ(message.find("hint"), std::string::npos) << message;
  }
}

// Null, type, attribute, shape, alias: each problem breaks one more rule than the next.
TEST(CannGradPrecedence, TheFirstBrokenRuleIsReported) {
  const auto break_alias = [](GradProblem& p) {
    p.dsin.Describe(MakeHandle(p.dsin.shape(), ACL_FLOAT, p.dcos.data()));
  };
  const auto break_shape = [](GradProblem& p) { Redescribe(p.sin, {1, 1, 1, 8}); };
  const auto break_mode = [](GradProblem& p) { p.mode = 7; };
  const auto break_type = [](GradProblem& p) { Redescribe(p.x, p.x.shape(), ACL_INT32); };
  const auto break_null = [](GradProblem& p) { p.cos.Describe(MakeHandle(p.cos.shape(), ACL_FLOAT, nullptr)); };
  GradProblem problem;
  break_alias(problem);
  EXPECT_TRUE(Gives(problem.Plan(), 161002, {"dsin"}));
  break_shape(problem);
  EXPECT_TRUE(Gives(problem.Plan(), 561002, {"sin", "[1, 1, 1, 8]"}));
  break_mode(problem);
  EXPECT_TRUE(Gives(problem.Plan(), 561002, {"mode is 7"}));
  break_type(problem);
  EXPECT_TRUE(Gives(problem.Plan(), 161002, {"xOptional", "data type 3"}));
  break_null(problem);
  EXPECT_TRUE(Gives(problem.Plan(), 161001, {"cos"}));
}

TEST(CannGradStatus, OutputsOfTheFirstPhaseMustBeGiven) {
  GradProblem p;
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(p.dy.handle(), p.cos.handle(), p.sin.handle(),
                                                                     p.x.handle(), 0, p.dx.handle(), p.dcos.handle(),
                                                                     p.dsin.handle(), nullptr, &p.executor),
                    ACLNN_ERR_PARAM_NULLPTR, {"workspaceSize is null"}));
  EXPECT_EQ(p.executor, nullptr);
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(p.dy.handle(), p.cos.handle(), p.sin.handle(),
                                                                     p.x.handle(), 0, p.dx.handle(), p.dcos.handle(),
                                                                     p.dsin.handle(), &p.workspace_size, nullptr),
                    ACLNN_ERR_PARAM_NULLPTR, {"executor is null"}));
}

TEST(CannForwardStatus, EveryTensorIsRequired) {
  for (int missing = 0; missing < 4; ++missing) {
    ForwardProblem problem;
    Array* const arrays[] = {&problem.x, &problem.cos, &problem.sin, &problem.out};
    const char* const names[] = {"x is null", "cos is null", "sin is null", "out is null"};
    arrays[missing]->Describe(nullptr);
    EXPECT_TRUE(Gives(problem.Plan(), 161001, {names[missing]}));
  }
}

TEST(CannForwardStatus, Rules) {
  ForwardProblem alias;
  alias.out.Describe(MakeHandle(alias.out.shape(), ACL_FLOAT, alias.cos.data()));
  Redescribe(alias.sin, alias.sin.shape());
  EXPECT_TRUE(Gives(alias.Plan(), 161002,
                    {"aclnnRotaryPositionEmbeddingGetWorkspaceSize failed with 161002 (ACLNN_ERR_PARAM_INVALID): out "
                     "shares memory with cos"}));
  ForwardProblem shape;
  Redescribe(shape.out, {2, 3, 4, 6});
  EXPECT_TRUE(Gives(shape.Plan(), 561002, {"): out has shape [2, 3, 4, 6]"}));
  ForwardProblem rank;
  Redescribe(rank.x, {24, 8});
  EXPECT_TRUE(Gives(rank.Plan(), 561002, {"x has rank 2"}));
  ForwardProblem mode;
  mode.mode = 256;
  EXPECT_TRUE(Gives(mode.Plan(), 561002, {"mode is 256"}));
  ForwardProblem type;
  Redescribe(type.out, type.out.shape(), ACL_FLOAT16);
  EXPECT_TRUE(Gives(type.Plan(), 161002, {"out", "that of x"}));
  ForwardProblem format;
  Redescribe(format.x, format.x.shape(), ACL_FLOAT, ACL_FORMAT_HWCN);
  EXPECT_TRUE(Gives(format.Plan(), 161002, {"x", "format 16"}));
}

TEST(CannProfileVariable, BindsTheFirstPhase) {
  GradProblem problem;
  problem.mode = 2;
  {
    const ScopedEnvironment profile("GYROGRAD_PROFILE", "atlas-a2");
    EXPECT_TRUE(Gives(problem.Plan(), 561002, {"atlas-a2", "mode is 2"}));
  }
  {
    const ScopedEnvironment profile("GYROGRAD_PROFILE", "ascend-950");
    EXPECT_TRUE(problem.PlanAndRun());
  }
  {
    const ScopedEnvironment profile("GYROGRAD_PROFILE", "native");
    EXPECT_TRUE(problem.PlanAndRun());
  }
  EXPECT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

TEST(CannProfileVariable, OtherValuesAreRefused) {
  for (const char* value : {"atlas-a1", "", "ATLAS-A2", "native "}) {
    const ScopedEnvironment profile("GYROGRAD_PROFILE", value);
    GradProblem problem;
    EXPECT_TRUE(Gives(problem.Plan(), 161002, {"GYROGRAD_PROFILE is '" + std::string(value) + "'"}));
    ForwardProblem forward;
    EXPECT_TRUE(Gives(forward.Plan(), 161002, {"GYROGRAD_PROFILE"}));
  }
}

// The tables' gradients tighten the limits: wanted or not is part of the call.
TEST(CannProfileVariable, KnowsWhetherTablesGradientsAreWanted) {
  const ScopedEnvironment profile("GYROGRAD_PROFILE", "atlas-a3");
  GradProblem problem(DType::kF32, {33, 32, 40, 2}, {1, 1, 40, 2});
  EXPECT_TRUE(Gives(problem.Plan(), 561002, {"B*N is 1056", "when dcosOut and dsinOut are wanted"}));
  problem.with_x = false;
  EXPECT_TRUE(problem.PlanAndRun());
}

// The profile's rule is one on shapes: it comes before those on memory, and after the operator's own.
TEST(CannProfileVariable, Precedence) {
  const ScopedEnvironment profile("GYROGRAD_PROFILE", "atlas-a2");
  GradProblem problem;
  problem.mode = 3;
  problem.dsin.Describe(MakeHandle(problem.dsin.shape(), ACL_FLOAT, problem.dcos.data()));
  EXPECT_TRUE(Gives(problem.Plan(), 561002, {"atlas-a2"}));
  // An output whose own elements share memory is a rule on memory too.
  const std::vector<std::int64_t>& shape = problem.dx.shape();
  const std::vector<std::int64_t> strides(shape.size(), 1);
  problem.dx.Describe(TensorHandle(aclCreateTensor(shape.data(), shape.size(), ACL_FLOAT, strides.data(), 0,
                                                   ACL_FORMAT_ND, shape.data(), shape.size(), problem.dx.data())));
  EXPECT_TRUE(Gives(problem.Plan(), 561002, {"atlas-a2"}));
  Redescribe(problem.sin, {1, 1, 1, 8});
  EXPECT_TRUE(Gives(problem.Plan(), 561002, {"[1, 1, 1, 8]"}));
}

TEST(CannMessages, NewestFirstAndGoneOnceRead) {
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
  GradProblem problem;
  problem.mode = 10;
  EXPECT_EQ(problem.Plan(), 561002);
  problem.mode = 11;
  EXPECT_EQ(problem.Plan(), 561002);
  const char* messages = aclGetRecentErrMsg();
  ASSERT_NE(messages, nullptr);
  const std::string text = messages;
  ASSERT_NE(text.find("mode is 10"), text.npos);
  ASSERT_NE(text.find("mode is 11"), text.npos);
  EXPECT_LT(text.find("mode is 11"), text.find("mode is 10"));
  problem.mode = 12;
  EXPECT_EQ(problem.Plan(), 561002);
  EXPECT_EQ(text, messages);  // good until the next call
  EXPECT_TRUE(Gives(561002, 561002, {"mode is 12"}));
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
}

TEST(CannMessages, OnlyTheNewestAreKept) {
  GradProblem problem;
  for (problem.mode = 1000; problem.mode < 1070; ++problem.mode) EXPECT_EQ(problem.Plan(), 561002);
  const std::string text = RecentMessages();
  EXPECT_NE(text.find("mode is 1069"), text.npos);
  EXPECT_NE(text.find("mode is 1006"), text.npos);
  EXPECT_EQ(text.find("mode is 1005"), text.npos);
}

}  // namespace
}  // namespace gyrograd::testing
