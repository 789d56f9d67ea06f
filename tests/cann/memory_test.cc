// The system refuses memory: at every allocation of every call, an error like any other, and nothing leaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

#include "tests/cann/norm_rope_concat_support.h"
#include "tests/cann/support.h"

namespace {

// The calling thread's allocations that still succeed, and whether all later ones fail or one alone.
thread_local long allocations_left = std::numeric_limits<long>::max();
thread_local bool fails_for_good = false;

bool Refuses() {
  if (allocations_left > 0) {
    --allocations_left;
    return false;
  }
  if (!fails_for_good) allocations_left = std::numeric_limits<long>::max();
  return true;
}

void* Allocate(std::size_t size) {
  if (Refuses()) throw std::bad_alloc();
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return Refuses() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void* operator new[](std::size_t size, const std::nothrow_t& nothrow) noexcept { return operator new(size, nothrow); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace gyrograd::testing {
namespace {

enum class Failing { kOneAllocation, kEveryLaterAllocation };

class CannOutOfMemory : public ::testing::TestWithParam<Failing> {
 protected:
  // Calls body() with ever more allocations that succeed, until it does not fail; returns how often it failed.
  template <class Body>
  int FailEach(const Body& body) {
    for (int failures = 0;; ++failures) {
      fails_for_good = GetParam() == Failing::kEveryLaterAllocation;
      allocations_left = failures;
      const aclnnStatus status = body();
      allocations_left = std::numeric_limits<long>::max();
      if (status == 0) return failures;
      EXPECT_EQ(status, 561000);
      // Where all later allocations fail, the message found no memory either.
      const std::string messages = RecentMessages();
      EXPECT_NE(messages.find(fails_for_good ? "out of memory" : "failed with 561000"), messages.npos) << messages;
      if (failures > 1000 || ::testing::Test::HasFailure()) return failures;
    }
  }
};

TEST_P(CannOutOfMemory, InTheFirstPhase) {
  GradProblem problem;
  const int failures = FailEach([&] {
    problem.executor = nullptr;
    const aclnnStatus status = problem.Plan();
    EXPECT_EQ(problem.executor == nullptr, status != 0);
    return status;
  });
  EXPECT_GT(failures, 3);
  ASSERT_TRUE(Gives(problem.Run(), 0));
  EXPECT_TRUE(problem.Check());
}

TEST_P(CannOutOfMemory, InTheForwardsFirstPhase) {
  ForwardProblem problem;
  EXPECT_GT(FailEach([&] { return problem.Plan(); }), 3);
  ASSERT_TRUE(Gives(problem.Run(), 0));
  EXPECT_TRUE(problem.Check());
}

TEST_P(CannOutOfMemory, InTheFusedFirstPhases) {
  FusedGradProblem grad;
  EXPECT_GT(FailEach([&] { return grad.Plan(); }), 3);
  ASSERT_TRUE(Gives(grad.Run(), 0));
  EXPECT_TRUE(grad.Check());
  FusedForwardProblem forward;
  EXPECT_GT(FailEach([&] { return forward.Plan(); }), 3);
  ASSERT_TRUE(Gives(forward.Run(), 0));
  EXPECT_TRUE(forward.Check());
}

TEST_P(CannOutOfMemory, InCreatingATensor) {
  const Shape shape = {2, 3, 4};
  aclTensor* tensor = nullptr;
  const int failures = FailEach([&] {
    tensor = aclCreateTensor(shape.data(), 3, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape.data(), 3, nullptr);
    return tensor == nullptr ? 561000 : 0;
  });
  EXPECT_GE(failures, 5);
  EXPECT_EQ(aclDestroyTensor(tensor), 0);
}

// A run that succeeds allocates nothing that could fail.
TEST_P(CannOutOfMemory, NotInTheSecondPhase) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), 0);
  fails_for_good = GetParam() == Failing::kEveryLaterAllocation;
  allocations_left = 0;
  const aclnnStatus status = aclnnRotaryPositionEmbeddingGrad(nullptr, 0, problem.executor, nullptr);
  allocations_left = std::numeric_limits<long>::max();
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(problem.Check());
}

TEST_P(CannOutOfMemory, NotInTheFusedSecondPhases) {
  FusedGradProblem grad;
  FusedForwardProblem forward;
  ASSERT_EQ(grad.Plan(), 0);
  ASSERT_EQ(forward.Plan(), 0);
  std::vector<std::byte> workspace(std::max(grad.workspace_size, forward.workspace_size));
  fails_for_good = GetParam() == Failing::kEveryLaterAllocation;
  allocations_left = 0;
  const aclnnStatus first = aclnnNormRopeConcatBackward(workspace.data(), workspace.size(), grad.executor, nullptr);
  const aclnnStatus second = aclnnNormRopeConcat(workspace.data(), workspace.size(), forward.executor, nullptr);
  allocations_left = std::numeric_limits<long>::max();
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 0);
  EXPECT_TRUE(grad.Check());
  EXPECT_TRUE(forward.Check());
}

INSTANTIATE_TEST_SUITE_P(Of, CannOutOfMemory,
                         ::testing::Values(Failing::kOneAllocation, Failing::kEveryLaterAllocation),
                         [](const ::testing::TestParamInfo<Failing>& test) {
                           return std::string(test.param == Failing::kOneAllocation ? "One" : "EveryLater");
                         });

}  // namespace
}  // namespace gyrograd::testing
