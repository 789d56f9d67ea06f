// How much of a thread's stack calls take: at most 64 KiB, measured on one whose stack was painted.
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

constexpr std::size_t kPaintedBytes = std::size_t{256} << 10;
constexpr unsigned char kPaint = 0xa5;

// The bytes, counted from the stack's top, that work wrote, and whatever lies between.
std::size_t StackOf(const std::function<void()>& work) {
  const std::unique_ptr<void, decltype(&std::free)> stack(std::aligned_alloc(4096, kPaintedBytes), &std::free);
  auto* const bytes = static_cast<unsigned char*>(stack.get());
  std::memset(bytes, kPaint, kPaintedBytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  EXPECT_EQ(pthread_attr_setstack(&attributes, bytes, kPaintedBytes), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  const unsigned char* const used =
      std::find_if(bytes, bytes + kPaintedBytes, [](auto byte) { return byte != kPaint; });
  return static_cast<std::size_t>(bytes + kPaintedBytes - used);
}

// Beyond what any thread takes. Functions are found, and what is made once is made, in a call before.
void ExpectLittleStack(const std::function<Status()>& call, const std::string& what) {
  Status status;
  const auto work = [&] { status = call(); };
  work();
  static const std::size_t of_any_thread = StackOf([] {});
  const std::size_t bytes = StackOf(work) - of_any_thread;
  EXPECT_TRUE(Ok(status)) << what;
  EXPECT_LE(bytes, std::size_t{64} << 10) << what;
  EXPECT_GT(bytes, std::size_t{1} << 10) << what;  // the measure measures
}

TEST(Stack, OfRotary) {
  for (const RotaryMode mode : kModes) {
    for (const Types types : {Types{DType::kF64, DType::kF64}, {DType::kBF16, DType::kF32}}) {
      for (const std::int64_t dim : {128, 4096}) {
        for (const CpuTarget target : AvailableCpuTargets()) {
          Problem problem = MakeProblem(mode, types, {2, 12, 3, dim}, {1, 12, 1});
          problem.execution = {.num_threads = 2, .cpu_target = target};
          const BackwardTensors tensors(problem);
          for (const bool in_place : {false, true}) {
            RotaryBackwardArgs args = tensors.Args();
            if (in_place) args.dx = tensors.dy.out();
            ExpectLittleStack([&] { return RotaryBackward(args); }, ::testing::PrintToString(problem));
          }
        }
      }
    }
  }
}

TEST(Stack, OfNormRope) {
  for (const NormType norm : kNormTypes) {
    for (const NormRopeTypes& types : {kAllNormRopeTypes[0], kAllNormRopeTypes[6]}) {
      for (const std::int64_t dim : {128, 2052, 9000}) {
        NormRopeProblem problem = Typical(types, norm, RotaryMode::kInterleaveHalf, dim);
        problem.execution.num_threads = 2;
        const NormRopeBackwardTensors backward(problem);
        const NormRopeForwardTensors forward(problem);
        ExpectLittleStack([&] { return Compute(backward); }, "backward " + ::testing::PrintToString(problem));
        ExpectLittleStack([&] { return Compute(forward); }, "forward " + ::testing::PrintToString(problem));
      }
    }
  }
}

}  // namespace
}  // namespace gyrograd::testing
