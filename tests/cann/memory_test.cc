// The system refuses memory: at every allocation of every call, an error like any other; nothing leaks, and nothing is
// written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "aclnn/opdev/op_errno.h"
#include "tests/cann/norm_rope_concat_support.h"
#include "tests/cann/support.h"
#include "tests/support/allocations.h"

namespace gyrograd::testing {
namespace {

class CannOutOfMemory : public ::testing::TestWithParam<Failing> {
 protected:
  void SetUp() override { GiveOneMessage(); }

  // Calls body() with ever more allocations that succeed, until none fails; returns how often one failed. What body()
  // makes it destroys.
  template <class Body>
  int FailEach(const Body& body, int want = ACLNN_ERR_INNER) {
    EXPECT_EQ(body(), 0);  // makes what is made once
    for (int failures = 0;; ++failures) {
      const std::int64_t live = LiveAllocations();
      int code = 0;
      bool refused = false;
      {
        const FailingAllocations failing(failures, GetParam());
        code = body();
        refused = failing.refused();
      }
      if (!refused) {
        EXPECT_EQ(code, 0);
        EXPECT_EQ(LiveAllocations(), live);
        return failures;
      }
      EXPECT_EQ(code, want);
      ExpectMessage(want);
      GiveOneMessage();
      EXPECT_EQ(LiveAllocations(), live) << "where allocation " << failures << " fails";
      if (::testing::Test::HasFailure()) return failures;
    }
  }

 private:
  // The thread keeps the messages that it gave last: from here on those of one refusal.
  static void GiveOneMessage() {
    EXPECT_NE(aclGetViewOffset(nullptr, nullptr), 0);
    EXPECT_FALSE(RecentMessages().empty());
  }

  // Where all later allocations fail, the message found no memory either.
  static void ExpectMessage(int code) {
    const std::string messages = RecentMessages();
    const std::string words =
        GetParam() == Failing::kEveryLaterAllocation ? "out of memory" : "failed with " + std::to_string(code);
    EXPECT_NE(messages.find(words), messages.npos) << messages;
  }
};

// A first phase that failed has left the executor as it was; one that did not is destroyed.
template <class Problem>
aclnnStatus PlanAndDestroy(Problem& problem) {
  problem.executor = nullptr;
  const aclnnStatus status = problem.Plan();
  EXPECT_EQ(problem.executor == nullptr, status != 0);
  return status == 0 ? aclDestroyAclOpExecutor(problem.executor) : status;
}

TEST_P(CannOutOfMemory, InTheFirstPhases) {
  GradProblem grad;
  const std::vector<std::byte> dx = grad.dx.bytes(), dcos = grad.dcos.bytes(), dsin = grad.dsin.bytes();
  EXPECT_GT(FailEach([&] { return PlanAndDestroy(grad); }), 3);
  EXPECT_TRUE(grad.dx.bytes() == dx && grad.dcos.bytes() == dcos && grad.dsin.bytes() == dsin);
  ASSERT_TRUE(grad.PlanAndRun());
  EXPECT_TRUE(grad.Check());
  ForwardProblem forward;
  const std::vector<std::byte> out = forward.out.bytes();
  EXPECT_GT(FailEach([&] { return PlanAndDestroy(forward); }), 3);
  EXPECT_TRUE(forward.out.bytes() == out);
  ASSERT_TRUE(forward.PlanAndRun());
  EXPECT_TRUE(forward.Check());
}

TEST_P(CannOutOfMemory, InTheFusedFirstPhases) {
  FusedGradProblem grad;
  EXPECT_GT(FailEach([&] { return PlanAndDestroy(grad); }), 3);
  EXPECT_TRUE(grad.OnlyChanged({}));
  ASSERT_TRUE(grad.PlanAndRun());
  EXPECT_TRUE(grad.Check());
  FusedForwardProblem forward;
  EXPECT_GT(FailEach([&] { return PlanAndDestroy(forward); }), 3);
  EXPECT_TRUE(forward.OnlyChanged({}));
  ASSERT_TRUE(forward.PlanAndRun());
  EXPECT_TRUE(forward.Check());
}

// ---- Tensors and arrays -----------------------------------------------------------------------------------------

TensorHandle MakeTensor() {
  static const Shape shape = {2, 3, 4};
  static float data[24] = {};
  return MakeHandle(shape, ACL_FLOAT, data);
}

// A handle, or the code of the call that made none.
template <class Object, class Create, class Destroy>
aclnnStatus CreateAndDestroy(const Create& create, const Destroy& destroy) {
  const Object* const object = create();
  return object == nullptr ? ACLNN_ERR_INNER : destroy(object);
}

TEST_P(CannOutOfMemory, InCreatingATensor) {
  const Shape shape = {2, 3, 4};
  const int failures = FailEach([&] {
    return CreateAndDestroy<aclTensor>(
        [&] {
          return aclCreateTensor(shape.data(), 3, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(), 3, nullptr);
        },
        aclDestroyTensor);
  });
  EXPECT_GE(failures, 5);
}

TEST_P(CannOutOfMemory, InCreatingScalarsArraysAndLists) {
  float number = 1;
  const std::int64_t integers[] = {1, 2};
  const float numbers[] = {1, 2};
  const bool truths[] = {true, false};
  const auto scalar = [&] { return aclCreateScalar(&number, ACL_FLOAT); };
  EXPECT_GE(FailEach([&] { return CreateAndDestroy<aclScalar>(scalar, aclDestroyScalar); }), 2);
  const auto ints = [&] { return aclCreateIntArray(integers, 2); };
  EXPECT_GE(FailEach([&] { return CreateAndDestroy<aclIntArray>(ints, aclDestroyIntArray); }), 2);
  const auto floats = [&] { return aclCreateFloatArray(numbers, 2); };
  EXPECT_GE(FailEach([&] { return CreateAndDestroy<aclFloatArray>(floats, aclDestroyFloatArray); }), 2);
  const auto bools = [&] { return aclCreateBoolArray(truths, 2); };
  EXPECT_GE(FailEach([&] { return CreateAndDestroy<aclBoolArray>(bools, aclDestroyBoolArray); }), 2);
  // A list takes its tensors with it: one that is not there is none to take.
  const aclTensor* const none[] = {nullptr, nullptr};
  const auto list = [&] { return aclCreateTensorList(none, 2); };
  EXPECT_GE(FailEach([&] { return CreateAndDestroy<aclTensorList>(list, aclDestroyTensorList); }), 2);
}

TEST_P(CannOutOfMemory, InAskingForExtents) {
  const TensorHandle tensor = MakeTensor();
  for (const auto ask : {aclGetViewShape, aclGetViewStrides, aclGetStorageShape}) {
    std::int64_t untouched = 0;
    const int failures = FailEach([&] {
      std::int64_t* extents = &untouched;
      std::uint64_t size = 77;
      const aclnnStatus status = ask(tensor.get(), &extents, &size);
      EXPECT_EQ(extents == &untouched && size == 77, status != 0);
      if (status == 0) delete[] extents;
      return status;
    });
    EXPECT_GE(failures, 1);
  }
}

// ---- The runtime ------------------------------------------------------------------------------------------------

TEST_P(CannOutOfMemory, InTheRuntime) {
  const auto of = [](auto create, auto destroy) {
    return [=] {
      void* handle = nullptr;
      const aclError error = create(&handle);
      EXPECT_EQ(handle == nullptr, error != 0);
      return error == 0 ? destroy(handle) : error;
    };
  };
  EXPECT_GE(FailEach(of(aclrtCreateStream, aclrtDestroyStream), ACL_ERROR_BAD_ALLOC), 1);
  EXPECT_GE(FailEach(of([](void** stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }, aclrtDestroyStream),
                     ACL_ERROR_BAD_ALLOC),
            1);
  EXPECT_GE(FailEach(of(aclrtCreateEvent, aclrtDestroyEvent), ACL_ERROR_BAD_ALLOC), 1);
  EXPECT_GE(FailEach(of([](void** context) { return aclrtCreateContext(context, 0); }, aclrtDestroyContext),
                     ACL_ERROR_BAD_ALLOC),
            1);
  EXPECT_GE(FailEach(of([](void** memory) { return aclrtMalloc(memory, 100, ACL_MEM_MALLOC_NORMAL_ONLY); }, aclrtFree),
                     ACL_ERROR_BAD_ALLOC),
            1);
  EXPECT_GE(
      FailEach(of([](void** memory) { return aclrtMallocHost(memory, 100); }, aclrtFreeHost), ACL_ERROR_BAD_ALLOC), 1);
}

// ---- What needs no memory ---------------------------------------------------------------------------------------

// A run that succeeds allocates nothing that could fail.
TEST_P(CannOutOfMemory, NotInTheSecondPhase) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), 0);
  aclnnStatus status = -1;
  {
    const FailingAllocations failing(0, GetParam());
    status = aclnnRotaryPositionEmbeddingGrad(nullptr, 0, problem.executor, nullptr);
    EXPECT_FALSE(failing.refused());
  }
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(problem.Check());
}

TEST_P(CannOutOfMemory, NotInTheFusedSecondPhases) {
  FusedGradProblem grad;
  FusedForwardProblem forward;
  ASSERT_EQ(grad.Plan(), 0);
  ASSERT_EQ(forward.Plan(), 0);
  std::vector<std::byte> workspace(std::max(grad.workspace_size, forward.workspace_size));
  aclnnStatus first = -1, second = -1;
  {
    const FailingAllocations failing(0, GetParam());
    first = aclnnNormRopeConcatBackward(workspace.data(), workspace.size(), grad.executor, nullptr);
    second = aclnnNormRopeConcat(workspace.data(), workspace.size(), forward.executor, nullptr);
    EXPECT_FALSE(failing.refused());
  }
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 0);
  EXPECT_TRUE(grad.Check());
  EXPECT_TRUE(forward.Check());
}

// A second phase that is refused leaves its outputs, and says why if it can.
TEST_P(CannOutOfMemory, InARefusedSecondPhase) {
  FusedGradProblem problem;
  ASSERT_EQ(problem.Plan(), 0);
  ASSERT_GT(problem.workspace_size, 0u);
  const auto refused = [&] { return aclnnNormRopeConcatBackward(nullptr, 0, problem.executor, nullptr); };
  for (int failures = 0; failures < 20; ++failures) {
    const FailingAllocations failing(failures, GetParam());
    EXPECT_NE(refused(), 0);
  }
  EXPECT_FALSE(RecentMessages().empty());
  EXPECT_TRUE(problem.OnlyChanged({}));
}

// Handles are given back where there is no memory.
TEST_P(CannOutOfMemory, NotInDestroying) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), 0);
  TensorHandle tensor = MakeTensor();
  aclrtStream stream = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), 0);
  ASSERT_EQ(aclrtMalloc(&memory, 100, ACL_MEM_MALLOC_NORMAL_ONLY), 0);
  const FailingAllocations failing(0, GetParam());
  const int codes[] = {aclDestroyTensor(tensor.release()), aclDestroyAclOpExecutor(problem.executor),
                       aclrtDestroyStream(stream), aclrtFree(memory)};
  EXPECT_FALSE(failing.refused());
  for (const int code : codes) EXPECT_EQ(code, 0);
}

INSTANTIATE_TEST_SUITE_P(Of, CannOutOfMemory,
                         ::testing::Values(Failing::kOneAllocation, Failing::kEveryLaterAllocation),
                         [](const ::testing::TestParamInfo<Failing>& test) {
                           return std::string(test.param == Failing::kOneAllocation ? "One" : "EveryLater");
                         });

}  // namespace
}  // namespace gyrograd::testing
