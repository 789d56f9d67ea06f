// Calls computed side by side (queries and keys under the same tables): the bits of each call alone.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "ops/rotary/run.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

using internal::RotaryCall;

class RotaryTogether : public ::testing::TestWithParam<ModeAndTypes> {
 protected:
  // Many blocks beside few, one table row beside many, sums kept by chunks, nothing at all, long rows.
  std::vector<std::array<Problem, 2>> Pairs() const {
    const auto [mode, types] = GetParam();
    const auto problem = [&](const Shape& dy, const Shape& tables) { return MakeProblem(mode, types, dy, tables); };
    return {{problem({2, 90, 8, 64}, {1, 90, 1}), problem({2, 90, 1, 64}, {1, 90, 1})},
            {problem({1, 12, 64}, {1, 12}), problem({300, 12, 64}, {1, 12})},
            {problem({7000, 4}, {1}), problem({40, 10, 60}, {40, 10})},
            {problem({0, 5, 8}, {1, 5}), problem({9, 5, 8}, {1, 5})},
            {problem({40, 8204}, {40}), problem({1, 8204}, {1})}};
  }
};

// dx on dy, which in interleave-half mode takes scratch memory of a thread's own.
RotaryBackwardArgs InPlace(const BackwardTensors& tensors, Tensor* dy, int threads) {
  dy->Fill(tensors.dy.Values());
  RotaryBackwardArgs args = tensors.Args();
  args.dy = dy->in();
  args.dx = dy->out();
  args.execution.num_threads = threads;
  return args;
}

std::vector<std::uint64_t> BitsInPlace(const BackwardTensors& tensors, const Tensor& dy) {
  std::vector<std::uint64_t> bits = dy.Bits();
  for (const Tensor* sums : {&tensors.dcos, &tensors.dsin}) {
    const std::vector<std::uint64_t> more = sums->Bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

TEST_P(RotaryTogether, BitsOfEachCallAlone) {
  for (const auto& [first, second] : Pairs()) {
    const std::array<BackwardTensors, 2> tensors = {BackwardTensors(first), BackwardTensors(second)};
    const auto copy = [](const Tensor& dy) { return Tensor(dy.dtype(), dy.shape()); };
    std::array<Tensor, 2> dy = {copy(tensors[0].dy), copy(tensors[1].dy)};
    std::array<std::vector<std::uint64_t>, 2> want;
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(Ok(RotaryBackward(InPlace(tensors[i], &dy[i], 1))));
      want[i] = BitsInPlace(tensors[i], dy[i]);
    }
    for (const std::array<int, 2> threads : {std::array{1, 1}, {2, 2}, {7, 7}, {1, 3}, {3, 1}}) {
      std::array<RotaryBackwardArgs, 2> args;
      for (std::size_t i = 0; i < 2; ++i) {
        tensors[i].dcos.Clear();
        tensors[i].dsin.Clear();
        args[i] = InPlace(tensors[i], &dy[i], threads[i]);
      }
      internal::RunOnce(std::array{RotaryCall::From(args[0]), RotaryCall::From(args[1])});
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(BitsInPlace(tensors[i], dy[i]) == want[i])
            << tensors[i].problem << " beside " << tensors[1 - i].problem << " threads " << threads[0] << ", "
            << threads[1];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryTogether, ModesAndTypes(), ModeAndTypesName);

}  // namespace
}  // namespace gyrograd::testing
