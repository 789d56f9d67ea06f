// The second phase of the fused operators: executors, addresses, the workspace.
#include <gtest/gtest.h>

#include "aclnn/opdev/op_errno.h"
#include "tests/cann/norm_rope_concat_support.h"

namespace gyrograd::testing {
namespace {

// Sums of many terms: the plan wants a workspace.
const FusedShape kLarge{
    .batch = 2, .heads = 24, .head_dim = 64, .query = 70, .key = 33, .encoder_query = 9, .encoder_key = 50, .rope = 60};

template <class Problem>
class CannFusedExecutor : public ::testing::Test {};
using Problems = ::testing::Types<FusedGradProblem, FusedForwardProblem>;
TYPED_TEST_SUITE(CannFusedExecutor, Problems);

TYPED_TEST(CannFusedExecutor, ServesOneRun) {
  TypeParam problem;
  ASSERT_TRUE(problem.PlanAndRun());
  const std::vector<std::byte> written = problem.arrays.back().bytes();
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_EQ(problem.arrays.back().bytes(), written);
}

TYPED_TEST(CannFusedExecutor, RepeatableServesMany) {
  TypeParam problem;
  ASSERT_EQ(problem.Plan(), 0);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(problem.executor), 0);
  for (int i = 0; i < 3; ++i) {
    for (const std::string& name : problem.Wanted()) {
      problem[name].bytes().assign(problem[name].bytes().size(), static_cast<std::byte>(i));
    }
    ASSERT_TRUE(Gives(problem.Run(), 0));
    EXPECT_TRUE(problem.Check());
  }
  EXPECT_EQ(aclDestroyAclOpExecutor(problem.executor), 0);
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
}

TYPED_TEST(CannFusedExecutor, TensorsMayGoAfterTheFirstPhase) {
  TypeParam problem;
  ASSERT_EQ(problem.Plan(), 0);
  for (Array& array : problem.arrays) array.Describe(nullptr);
  ASSERT_TRUE(Gives(problem.Run(), 0));
  EXPECT_TRUE(problem.Check());
}

TYPED_TEST(CannFusedExecutor, NullIsRefused) {
  TypeParam problem;
  problem.workspace_size = 0;
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_NULLPTR, {"executor is null"}));
}

// Every tensor moves to another problem's memory.
TYPED_TEST(CannFusedExecutor, MoveEveryTensor) {
  TypeParam planned;
  TypeParam other(DType::kF32, {}, {}, 2);
  ASSERT_EQ(planned.Plan(), 0);
  for (std::size_t i = 0; i < planned.arrays.size(); ++i) {
    ASSERT_TRUE(Gives(aclSetTensorAddr(planned.executor, i, planned.arrays[i].handle(), other.arrays[i].data()), 0))
        << i;
  }
  EXPECT_TRUE(Gives(aclSetTensorAddr(planned.executor, planned.arrays.size(), planned.arrays[0].handle(), nullptr),
                    ACLNN_ERR_PARAM_INVALID, {"index"}));
  ASSERT_TRUE(Gives(planned.Run(), 0));
  EXPECT_TRUE(other.Check());
  EXPECT_TRUE(planned.OnlyChanged({}));
}

// Outputs are counted from 0 again.
TYPED_TEST(CannFusedExecutor, MoveTheFirstOutput) {
  TypeParam planned;
  TypeParam other;
  ASSERT_EQ(planned.Plan(), 0);
  const std::string first = planned.Wanted().front();
  ASSERT_EQ(aclSetOutputTensorAddr(planned.executor, 0, planned[first].handle(), other[first].data()), 0);
  ASSERT_TRUE(Gives(planned.Run(), 0));
  planned[first].bytes() = other[first].bytes();
  EXPECT_TRUE(planned.Check());
}

TYPED_TEST(CannFusedExecutor, AddressesAreCheckedInTheSecondPhase) {
  TypeParam null;
  ASSERT_EQ(null.Plan(), 0);
  ASSERT_EQ(aclSetTensorAddr(null.executor, null.IndexOf("ropeCos"), null["ropeCos"].handle(), nullptr), 0);
  EXPECT_TRUE(Gives(null.Run(), ACLNN_ERR_PARAM_NULLPTR, {"): ropeCos has no data"}));
  EXPECT_TRUE(Gives(null.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_TRUE(null.OnlyChanged({}));

  TypeParam misaligned;
  ASSERT_EQ(misaligned.Plan(), 0);
  std::vector<std::uint64_t> memory(512);
  ASSERT_EQ(aclSetTensorAddr(misaligned.executor, misaligned.IndexOf("query"), misaligned["query"].handle(),
                             reinterpret_cast<std::byte*>(memory.data()) + 2),
            0);
  EXPECT_TRUE(Gives(misaligned.Run(), ACLNN_ERR_PARAM_INVALID, {"query", "address"}));

  TypeParam shared;
  const std::vector<std::string> wanted = shared.Wanted();
  ASSERT_EQ(shared.Plan(), 0);
  ASSERT_EQ(aclSetTensorAddr(shared.executor, shared.IndexOf(wanted[0]), shared[wanted[0]].handle(),
                             shared[wanted[1]].data()),
            0);
  EXPECT_TRUE(Gives(shared.Run(), ACLNN_ERR_PARAM_INVALID, {"memory"}));
  EXPECT_TRUE(shared.OnlyChanged({}));
}

TEST(CannFusedAddress, OptionalTensorsKeepTheirNumbers) {
  FusedGradProblem problem(DType::kF32, {.encoder_query = {}}, {.norm_type = 1, .norm_added_type = 0});
  problem.Omit("normKeyWeight");
  ASSERT_EQ(problem.Plan(), 0);
  aclTensor* tensor = problem["query"].handle();
  for (const char* name : {"encoderQuery", "normKeyWeight"}) {
    EXPECT_TRUE(Gives(aclSetInputTensorAddr(problem.executor, problem.IndexOf(name), tensor, nullptr),
                      ACLNN_ERR_PARAM_INVALID, {"index"}));
  }
  // Given and not used: any address will do.
  EXPECT_EQ(aclSetInputTensorAddr(problem.executor, problem.IndexOf("normQueryWeight"),
                                  problem["normQueryWeight"].handle(), nullptr),
            0);
  ASSERT_TRUE(Gives(problem.Run(), 0));
  EXPECT_TRUE(problem.Check());
}

TEST(CannFusedExecutorOf, ItsOperatorAlone) {
  FusedForwardProblem forward;
  ASSERT_EQ(forward.Plan(), 0);
  FusedGradProblem grad;
  grad.executor = forward.executor;
  grad.workspace_size = forward.workspace_size;
  EXPECT_TRUE(Gives(grad.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  std::vector<std::byte> workspace(forward.workspace_size);
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGrad(workspace.data(), workspace.size(), forward.executor, nullptr),
                    ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_TRUE(Gives(forward.Run(), 0));
  EXPECT_TRUE(forward.Check());
}

// A refused workspace leaves the executor alive, so that the caller may bring a better one.
TEST(CannFusedWorkspace, RefusedOneKeepsTheExecutor) {
  FusedGradProblem problem(DType::kF32, kLarge);
  ASSERT_EQ(problem.Plan(), 0);
  ASSERT_GT(problem.workspace_size, 0u);
  std::vector<std::byte> workspace(problem.workspace_size + 64, std::byte{0xA5});
  EXPECT_TRUE(
      Gives(aclnnNormRopeConcatBackward(workspace.data(), problem.workspace_size - 1, problem.executor, nullptr),
            ACLNN_ERR_PARAM_INVALID, {"workspaceSize", std::to_string(problem.workspace_size)}));
  EXPECT_TRUE(Gives(aclnnNormRopeConcatBackward(nullptr, problem.workspace_size, problem.executor, nullptr),
                    ACLNN_ERR_PARAM_NULLPTR, {"workspace is null"}));
  EXPECT_TRUE(problem.OnlyChanged({}));
  // Any address, and not a byte outside.
  ASSERT_TRUE(
      Gives(aclnnNormRopeConcatBackward(workspace.data() + 3, problem.workspace_size, problem.executor, nullptr), 0));
  EXPECT_TRUE(problem.Check());
  for (std::size_t i = 0; i < workspace.size(); ++i) {
    const bool outside = i < 3 || i >= 3 + problem.workspace_size;
    ASSERT_TRUE(!outside || workspace[i] == std::byte{0xA5}) << i;
  }
}

TEST(CannFusedFirstPhase, WorkspaceSizeAndExecutorMustBeGiven) {
  const FusedGradProblem g;
  const FusedForwardProblem f;
  std::uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto grad = [&](std::uint64_t* size_out, aclOpExecutor** executor_out) {
    const auto t = [&](const char* name) { return g[name].handle(); };
    return aclnnNormRopeConcatBackwardGetWorkspaceSize(
        t("gradQueryOutput"), t("gradKeyOutput"), t("gradValueOutput"), t("query"), t("key"), nullptr, nullptr, nullptr,
        nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
        nullptr, 0, 0, 0, 0, t("gradQuery"), t("gradKey"), t("gradValue"), nullptr, nullptr, nullptr, nullptr, nullptr,
        nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, size_out, executor_out);
  };
  const auto forward = [&](std::uint64_t* size_out, aclOpExecutor** executor_out) {
    const auto t = [&](const char* name) { return f[name].handle(); };
    return aclnnNormRopeConcatGetWorkspaceSize(t("query"), t("key"), t("value"), nullptr, nullptr, nullptr, nullptr,
                                               nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                               nullptr, 0, 0, 0, 0, 1e-5, true, t("queryOutput"), t("keyOutput"),
                                               t("valueOutput"), nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                               nullptr, nullptr, size_out, executor_out);
  };
  EXPECT_TRUE(Gives(grad(nullptr, &executor), ACLNN_ERR_PARAM_NULLPTR, {"workspaceSize is null"}));
  EXPECT_TRUE(Gives(grad(&size, nullptr), ACLNN_ERR_PARAM_NULLPTR, {"executor is null"}));
  EXPECT_TRUE(Gives(forward(nullptr, &executor), ACLNN_ERR_PARAM_NULLPTR, {"workspaceSize is null"}));
  EXPECT_TRUE(Gives(forward(&size, nullptr), ACLNN_ERR_PARAM_NULLPTR, {"executor is null"}));
  EXPECT_EQ(executor, nullptr);
}

}  // namespace
}  // namespace gyrograd::testing
