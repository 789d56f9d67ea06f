// Executors: single use and repeatable, handles that are none, new addresses, the workspace.
#include <gtest/gtest.h>

#include <cstring>

#include "aclnn/opdev/op_errno.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

// Sums of 12,000 terms for few table elements: the plan wants a workspace.
GradProblem WithWorkspace() { return GradProblem(DType::kF32, {300, 40, 8}, {1, 1, 8}); }

TEST(CannExecutor, ServesOneRun) {
  GradProblem problem;
  ASSERT_TRUE(problem.PlanAndRun());
  problem.dx.bytes().assign(problem.dx.bytes().size(), std::byte{7});
  const std::vector<std::byte> before = problem.dx.bytes();
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_EQ(problem.dx.bytes(), before);
}

TEST(CannExecutor, RepeatableServesMany) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(problem.executor), ACLNN_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    std::memset(problem.dx.data(), i, problem.dx.bytes().size());
    ASSERT_TRUE(Gives(problem.Run(), ACLNN_SUCCESS));
    EXPECT_TRUE(problem.Check());
  }
  EXPECT_EQ(aclDestroyAclOpExecutor(problem.executor), ACLNN_SUCCESS);
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_TRUE(Gives(aclDestroyAclOpExecutor(problem.executor), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_TRUE(Gives(aclSetAclOpExecutorRepeatable(problem.executor), ACLNN_ERR_PARAM_INVALID, {"executor"}));
}

TEST(CannExecutor, DestroyedWithoutARun) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyAclOpExecutor(problem.executor), ACLNN_SUCCESS);
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
}

TEST(CannExecutor, NullIsRefused) {
  GradProblem problem;
  problem.workspace_size = 0;
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_NULLPTR, {"executor is null"}));
  EXPECT_TRUE(Gives(aclSetAclOpExecutorRepeatable(nullptr), ACLNN_ERR_INNER_NULLPTR));
  EXPECT_TRUE(Gives(aclDestroyAclOpExecutor(nullptr), ACLNN_ERR_INNER_NULLPTR));
}

// Handles are looked up, never followed: addresses that must not be read are safe.
TEST(CannExecutor, HandlesThatAreNone) {
  int somewhere = 0;
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  for (void* handle : {static_cast<void*>(&somewhere), reinterpret_cast<void*>(8), stream}) {
    GradProblem problem;
    problem.executor = static_cast<aclOpExecutor*>(handle);
    problem.workspace_size = 0;
    EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
    EXPECT_TRUE(Gives(aclDestroyAclOpExecutor(problem.executor), ACLNN_ERR_PARAM_INVALID));
    EXPECT_TRUE(
        Gives(aclSetTensorAddr(problem.executor, 0, problem.dy.handle(), problem.dy.data()), ACLNN_ERR_PARAM_INVALID));
  }
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

TEST(CannExecutor, AHandleIsNeverGivenTwice) {
  GradProblem first;
  ASSERT_TRUE(first.PlanAndRun());
  for (int i = 0; i < 100; ++i) {
    GradProblem next;
    ASSERT_EQ(next.Plan(), ACLNN_SUCCESS);
    EXPECT_NE(next.executor, first.executor);
    EXPECT_TRUE(Gives(first.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
    ASSERT_TRUE(Gives(next.Run(), ACLNN_SUCCESS));
  }
}

TEST(CannExecutor, BelongsToItsOperator) {
  ForwardProblem forward;
  ASSERT_EQ(forward.Plan(), ACLNN_SUCCESS);
  GradProblem grad;
  grad.executor = forward.executor;
  grad.workspace_size = 0;
  EXPECT_TRUE(Gives(grad.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));
  EXPECT_TRUE(Gives(forward.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(forward.Check());
}

TEST(CannWorkspace, IsAskedForWhereItIsNeeded) {
  GradProblem small;
  ASSERT_EQ(small.Plan(), ACLNN_SUCCESS);
  EXPECT_EQ(small.workspace_size, 0u);
  EXPECT_EQ(aclnnRotaryPositionEmbeddingGrad(nullptr, 0, small.executor, nullptr), ACLNN_SUCCESS);
  EXPECT_TRUE(small.Check());
  GradProblem large = WithWorkspace();
  ASSERT_EQ(large.Plan(), ACLNN_SUCCESS);
  EXPECT_GT(large.workspace_size, 0u);
  EXPECT_TRUE(Gives(large.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(large.Check());
}

// A refused workspace leaves the executor alive, so that the caller may bring a better one.
TEST(CannWorkspace, RefusedOneKeepsTheExecutor) {
  GradProblem problem = WithWorkspace();
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  const std::vector<std::byte> dx = problem.dx.bytes();
  std::vector<std::byte> workspace(problem.workspace_size);
  EXPECT_TRUE(
      Gives(aclnnRotaryPositionEmbeddingGrad(workspace.data(), problem.workspace_size - 1, problem.executor, nullptr),
            ACLNN_ERR_PARAM_INVALID, {"workspaceSize", std::to_string(problem.workspace_size)}));
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGrad(nullptr, problem.workspace_size, problem.executor, nullptr),
                    ACLNN_ERR_PARAM_NULLPTR, {"workspace is null"}));
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGrad(nullptr, 0, problem.executor, nullptr), ACLNN_ERR_PARAM_NULLPTR,
                    {"workspace is null"}));
  EXPECT_EQ(problem.dx.bytes(), dx);
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(problem.Check());
}

TEST(CannWorkspace, MayHaveAnyAddress) {
  for (std::size_t shift : {1, 3, 8, 17}) {
    GradProblem problem = WithWorkspace();
    ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
    std::vector<std::byte> workspace(problem.workspace_size + 64, std::byte{0xA5});
    ASSERT_TRUE(Gives(
        aclnnRotaryPositionEmbeddingGrad(workspace.data() + shift, problem.workspace_size, problem.executor, nullptr),
        ACLNN_SUCCESS));
    EXPECT_TRUE(problem.Check());
    for (std::size_t i = 0; i < workspace.size(); ++i) {
      const bool outside = i < shift || i >= shift + problem.workspace_size;
      ASSERT_TRUE(!outside || workspace[i] == std::byte{0xA5}) << i;
    }
  }
}

TEST(CannExecutor, TensorsMayGoAfterTheFirstPhase) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  for (Array* array :
       {&problem.dy, &problem.cos, &problem.sin, &problem.x, &problem.dx, &problem.dcos, &problem.dsin}) {
    array->Describe(nullptr);
  }
  ASSERT_TRUE(Gives(problem.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(problem.Check());
}

// Setting a tensor's own address does not reach an executor made before.
TEST(CannExecutor, HoldsCopiesOfTheDescriptions) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  EXPECT_EQ(aclSetRawTensorAddr(problem.dy.handle(), nullptr), ACLNN_SUCCESS);
  ASSERT_TRUE(Gives(problem.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(problem.Check());
}

using SetAddress = aclnnStatus (*)(aclOpExecutor*, size_t, aclTensor*, void*);

struct Setters {
  SetAddress input;
  SetAddress output;
  SetAddress any;
};

class CannAddresses : public ::testing::TestWithParam<Setters> {};

// All seven tensors move from one problem's memory to another's.
TEST_P(CannAddresses, MoveEveryTensor) {
  GradProblem planned;
  GradProblem other(DType::kF32, {2, 3, 4, 8}, {1, 3, 1, 8}, 2);
  ASSERT_EQ(planned.Plan(), ACLNN_SUCCESS);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(planned.executor), ACLNN_SUCCESS);
  ASSERT_TRUE(Gives(planned.Run(), ACLNN_SUCCESS));
  Array* const from[] = {&planned.dy, &planned.cos,  &planned.sin, &planned.x,
                         &planned.dx, &planned.dcos, &planned.dsin};
  Array* const to[] = {&other.dy, &other.cos, &other.sin, &other.x, &other.dx, &other.dcos, &other.dsin};
  for (std::size_t i = 0; i < 7; ++i) {
    const bool is_input = i < 4;
    const SetAddress set = GetParam().any != nullptr ? GetParam().any : is_input ? GetParam().input : GetParam().output;
    const std::size_t index = GetParam().any != nullptr || is_input ? i : i - 4;
    ASSERT_TRUE(Gives(set(planned.executor, index, from[i]->handle(), to[i]->data()), ACLNN_SUCCESS)) << i;
    void* address = nullptr;
    EXPECT_EQ(aclGetRawTensorAddr(from[i]->handle(), &address), ACLNN_SUCCESS);
    EXPECT_EQ(address, to[i]->data());
  }
  ASSERT_TRUE(Gives(planned.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(other.Check());
  EXPECT_EQ(aclDestroyAclOpExecutor(planned.executor), ACLNN_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(Spellings, CannAddresses,
                         ::testing::Values(Setters{aclSetInputTensorAddr, aclSetOutputTensorAddr, nullptr},
                                           Setters{AclSetInputTensorAddr, AclSetOutputTensorAddr, nullptr},
                                           Setters{nullptr, nullptr, aclSetTensorAddr},
                                           Setters{nullptr, nullptr, AclSetTensorAddr}),
                         [](const ::testing::TestParamInfo<Setters>& test) {
                           return std::string(test.index < 2 ? "ByDirection" : "ByIndex") +
                                  (test.index % 2 == 0 ? "" : "Capitalised");
                         });

TEST(CannAddress, KeepsTheViewsOffset) {
  ForwardProblem problem;
  std::vector<float> storage(1000);
  const std::int64_t stored = 1000;
  problem.x.Describe(TensorHandle(aclCreateTensor(problem.x.shape().data(), 4, ACL_FLOAT, nullptr, 100, ACL_FORMAT_ND,
                                                  &stored, 1, storage.data())));
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  std::vector<float> moved(1000);
  std::memcpy(moved.data() + 100, problem.x.data(), problem.x.bytes().size());
  ASSERT_EQ(aclSetInputTensorAddr(problem.executor, 0, problem.x.handle(), moved.data()), ACLNN_SUCCESS);
  ASSERT_TRUE(Gives(problem.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(problem.Check());
}

// Addresses are checked again in the second phase; the executor is released whatever it says.
TEST(CannAddress, IsCheckedInTheSecondPhase) {
  GradProblem null;
  ASSERT_EQ(null.Plan(), ACLNN_SUCCESS);
  ASSERT_EQ(aclSetInputTensorAddr(null.executor, 1, null.cos.handle(), nullptr), ACLNN_SUCCESS);
  EXPECT_TRUE(Gives(null.Run(), ACLNN_ERR_PARAM_NULLPTR, {"cos"}));
  EXPECT_TRUE(Gives(null.Run(), ACLNN_ERR_PARAM_INVALID, {"executor"}));

  GradProblem misaligned;
  ASSERT_EQ(misaligned.Plan(), ACLNN_SUCCESS);
  std::vector<std::byte> odd(4096);
  ASSERT_EQ(aclSetInputTensorAddr(misaligned.executor, 0, misaligned.dy.handle(), odd.data() + 2), ACLNN_SUCCESS);
  EXPECT_TRUE(Gives(misaligned.Run(), ACLNN_ERR_PARAM_INVALID, {"dy"}));

  GradProblem shared;
  ASSERT_EQ(shared.Plan(), ACLNN_SUCCESS);
  ASSERT_EQ(aclSetOutputTensorAddr(shared.executor, 2, shared.dsin.handle(), shared.dcos.data()), ACLNN_SUCCESS);
  const std::vector<std::byte> dx = shared.dx.bytes();
  EXPECT_TRUE(Gives(shared.Run(), ACLNN_ERR_PARAM_INVALID, {"dcos", "dsin"}));
  EXPECT_EQ(shared.dx.bytes(), dx);
}

TEST(CannAddress, IndicesAreThoseOfTheArguments) {
  GradProblem problem;
  problem.with_x = false;
  ASSERT_EQ(problem.Plan(), ACLNN_SUCCESS);
  aclTensor* tensor = problem.x.handle();
  void* before = nullptr;
  ASSERT_EQ(aclGetRawTensorAddr(tensor, &before), ACLNN_SUCCESS);
  EXPECT_TRUE(Gives(aclSetInputTensorAddr(problem.executor, 3, tensor, nullptr), ACLNN_ERR_PARAM_INVALID, {"index"}));
  EXPECT_TRUE(
      Gives(aclSetInputTensorAddr(problem.executor, 4, tensor, nullptr), ACLNN_ERR_PARAM_INVALID, {"index is 4"}));
  EXPECT_TRUE(Gives(aclSetOutputTensorAddr(problem.executor, 3, tensor, nullptr), ACLNN_ERR_PARAM_INVALID, {"index"}));
  EXPECT_TRUE(Gives(aclSetTensorAddr(problem.executor, 7, tensor, nullptr), ACLNN_ERR_PARAM_INVALID, {"index is 7"}));
  void* after = nullptr;
  ASSERT_EQ(aclGetRawTensorAddr(tensor, &after), ACLNN_SUCCESS);
  EXPECT_EQ(before, after);
  EXPECT_TRUE(
      Gives(aclSetTensorAddr(problem.executor, 0, nullptr, nullptr), ACLNN_ERR_INNER_NULLPTR, {"tensor is null"}));
  EXPECT_TRUE(Gives(aclSetTensorAddr(nullptr, 0, tensor, nullptr), ACLNN_ERR_INNER_NULLPTR, {"executor is null"}));
  // dcos is not used without x: any address will do.
  EXPECT_EQ(aclSetOutputTensorAddr(problem.executor, 1, problem.dcos.handle(), nullptr), ACLNN_SUCCESS);
  EXPECT_TRUE(Gives(problem.Run(), ACLNN_SUCCESS));
  EXPECT_TRUE(problem.Check(false));
}

}  // namespace
}  // namespace gyrograd::testing
