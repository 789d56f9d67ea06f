// The caller's floating-point environment neither changes the results nor is changed, of any types.
#include <gtest/gtest.h>

#include <cfenv>
#include <functional>
#include <vector>

#include "tests/support/environment.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

// Values that rounding modes and flushed denormals would change.
BackwardTensors DelicateTensors(Types types, int threads) {
  Problem problem = MakeProblem(RotaryMode::kHalf, types, {2, 100, 4, 64}, {1, 100, 1});
  problem.execution.num_threads = threads;
  BackwardTensors tensors(problem);
  const double scale = types.activations == DType::kF64 ? 1e-160 : types.activations == DType::kF16 ? 1e-4 : 1e-20;
  for (Tensor* tensor : {&tensors.dy, &tensors.x, &tensors.cos, &tensors.sin}) {
    const std::vector<double> values = tensor->Values();
    tensor->Fill([&](std::int64_t i) { return values[static_cast<std::size_t>(i)] * (i % 3 == 0 ? scale : 1); });
  }
  return tensors;
}

// Calls the library between `enter` and `leave`, and compares with what the default environment gave.
void RunUnder(const std::function<void()>& enter, const std::function<void()>& leave, Types types, int threads) {
  const BackwardTensors tensors = DelicateTensors(types, threads);
  const RotaryBackwardArgs args = tensors.Args();
  ASSERT_TRUE(Ok(RotaryBackward(args)));
  ASSERT_TRUE(tensors.Check());
  const std::vector<std::uint64_t> want = tensors.ResultBits();
  for (const Tensor* tensor : {&tensors.dx, &tensors.dcos, &tensors.dsin}) tensor->Clear();
  enter();
  const Status status = RotaryBackward(args);
  leave();
  ASSERT_TRUE(Ok(status));
  EXPECT_TRUE(tensors.ResultBits() == want);
}

class RotaryEnvironment : public ::testing::TestWithParam<Types> {};

TEST_P(RotaryEnvironment, RoundingModes) {
  ExpectRoundingModesAreKept(
      [](const auto& enter, const auto& leave, int threads) { RunUnder(enter, leave, GetParam(), threads); });
}

TEST_P(RotaryEnvironment, ExceptionFlags) {
  ExpectExceptionFlagsAreKept(
      [](const auto& enter, const auto& leave, int threads) { RunUnder(enter, leave, GetParam(), threads); });
}

#if defined(__SSE__)

TEST_P(RotaryEnvironment, ControlWordOfTheCaller) {
  for (const unsigned word : kControlWords) {
    for (const int threads : {1, 3}) {
      unsigned after = 0;
      RunUnder([word] { _mm_setcsr(word); },
               [&after] {
                 after = _mm_getcsr();
                 _mm_setcsr(kDefaultControlWord);
               },
               GetParam(), threads);
      EXPECT_EQ(after, word);
    }
  }
}

// What the threads of the pool hold after a call is what they would hold without it. (LLVM's OpenMP gives every thread
// the first one's word, its flags cleared, at the start of a parallel region, and the first one its own at the end.)
TEST_P(RotaryEnvironment, ControlWordsOfTheOtherThreads) {
  for (const unsigned word : kControlWords) {
    std::vector<unsigned> before, after;
    RunUnder(
        [&] {
          SetControlWordsOfThreads(word);
          before = ControlWordsOfThreads();
        },
        [&] {
          after = ControlWordsOfThreads();
          SetControlWordsOfThreads(kDefaultControlWord);
        },
        GetParam(), kPoolThreads);
    EXPECT_EQ(after, before);
    EXPECT_EQ(before[1] & ~kFlagBits, word & ~kFlagBits);
  }
}

#endif

INSTANTIATE_TEST_SUITE_P(All, RotaryEnvironment, ::testing::ValuesIn(kAllTypes), [](const auto& param_info) {
  return std::string(Name(param_info.param.activations)) + "_" + Name(param_info.param.tables);
});

}  // namespace
}  // namespace gyrograd::testing
