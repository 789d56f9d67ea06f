// Calls from several threads at once.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/cann/norm_rope_concat_support.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

constexpr int kThreads = 6;

template <class Body>
void InThreads(const Body& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST(CannThreads, EachPlansAndRunsItsOwn) {
  InThreads([](int thread) {
    for (int i = 0; i < 20; ++i) {
      GradProblem problem(DType::kBF16, {2, 3, 4 + thread, 16}, {1, 1, 4 + thread, 16},
                          static_cast<std::uint64_t>(thread * 100 + i));
      problem.mode = i % 4;
      ASSERT_TRUE(problem.PlanAndRun());
      EXPECT_TRUE(problem.Check());
      problem.mode = 1000 + thread;
      EXPECT_TRUE(Gives(problem.Plan(), 561002, {"mode is " + std::to_string(1000 + thread)}));
    }
  });
}

TEST(CannThreads, EachPlansAndRunsItsOwnFused) {
  InThreads([](int thread) {
    for (int i = 0; i < 10; ++i) {
      FusedGradProblem problem(DType::kF16, {.query = 2 + thread, .rope = 3},
                               {.norm_type = i % 3, .concat_order = i % 2},
                               static_cast<std::uint64_t>(thread * 100 + i));
      ASSERT_TRUE(problem.PlanAndRun());
      EXPECT_TRUE(problem.Check());
      problem.attributes.rope_type = 1000 + thread;
      EXPECT_TRUE(Gives(problem.Plan(), 561103, {"ropeType is " + std::to_string(1000 + thread)}));
    }
  });
}

TEST(CannThreads, ShareARepeatableExecutor) {
  GradProblem problem(DType::kF32, {40, 30, 8}, {40, 1, 8});
  ASSERT_EQ(problem.Plan(), 0);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(problem.executor), 0);
  // The outputs take turns, so that the runs do not write the same memory.
  std::vector<GradProblem> own;
  for (int i = 0; i < kThreads; ++i) own.emplace_back(DType::kF32, Shape{40, 30, 8}, Shape{40, 1, 8});
  std::mutex turn;
  InThreads([&](int thread) {
    for (int i = 0; i < 10; ++i) {
      const std::lock_guard lock(turn);
      Array* const outputs[] = {&own[thread].dx, &own[thread].dcos, &own[thread].dsin};
      for (std::size_t k = 0; k < 3; ++k) {
        ASSERT_EQ(aclSetOutputTensorAddr(problem.executor, k, outputs[k]->handle(), outputs[k]->data()), 0);
      }
      ASSERT_TRUE(Gives(problem.Run(), 0));
    }
  });
  for (GradProblem& each : own) EXPECT_TRUE(each.Check());
  EXPECT_EQ(aclDestroyAclOpExecutor(problem.executor), 0);
}

// Of many threads that run one single-use executor, one succeeds.
TEST(CannThreads, RaceForASingleUse) {
  for (int i = 0; i < 50; ++i) {
    GradProblem problem;
    ASSERT_EQ(problem.Plan(), 0);
    std::atomic<int> succeeded{0};
    std::atomic<int> refused{0};
    InThreads([&](int) {
      const aclnnStatus status = aclnnRotaryPositionEmbeddingGrad(nullptr, 0, problem.executor, nullptr);
      if (status == 0) ++succeeded;
      if (status == 161002) ++refused;
    });
    EXPECT_EQ(succeeded, 1);
    EXPECT_EQ(refused, kThreads - 1);
    EXPECT_TRUE(problem.Check());
  }
}

// Of many threads that destroy one tensor, one succeeds.
TEST(CannThreads, RaceToDestroyATensor) {
  for (int i = 0; i < 50; ++i) {
    float data = 0;
    aclTensor* const tensor = MakeHandle({1}, ACL_FLOAT, &data).release();
    std::atomic<int> succeeded{0};
    std::atomic<int> refused{0};
    InThreads([&](int) {
      const aclnnStatus status = aclDestroyTensor(tensor);
      if (status == 0) ++succeeded;
      if (status == 161002) ++refused;
    });
    EXPECT_EQ(succeeded, 1);
    EXPECT_EQ(refused, kThreads - 1);
  }
}

// Threads plan and move a tensor while the last one to start destroys it: each call sees it whole or refuses it.
TEST(CannThreads, PlanWhileATensorIsDestroyed) {
  for (int i = 0; i < 50; ++i) {
    GradProblem problem;
    aclTensor* const dy = problem.dy.handle();
    InThreads([&](int thread) {
      if (thread == kThreads - 1) {
        EXPECT_EQ(aclDestroyTensor(dy), 0);
      } else if (thread == 0) {
        const aclnnStatus status = aclSetRawTensorAddr(dy, problem.dy.data());
        EXPECT_TRUE(status == 0 || status == 161002) << status;
      } else {
        std::uint64_t size = 0;
        aclOpExecutor* executor = nullptr;
        const aclnnStatus status = aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(
            dy, problem.cos.handle(), problem.sin.handle(), problem.x.handle(), 0, problem.dx.handle(),
            problem.dcos.handle(), problem.dsin.handle(), &size, &executor);
        EXPECT_TRUE(status == 0 || status == 161002) << status;
        EXPECT_EQ(executor != nullptr, status == 0);
        if (executor != nullptr) {
          EXPECT_EQ(aclDestroyAclOpExecutor(executor), 0);
        }
      }
    });
    EXPECT_TRUE(Gives(aclDestroyTensor(problem.dy.Take().release()), 161002));
  }
}

}  // namespace
}  // namespace gyrograd::testing
