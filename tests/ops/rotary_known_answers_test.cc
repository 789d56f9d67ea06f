// Answers worked out by hand: each mode must be itself and no other.
#include <gtest/gtest.h>

#include <vector>

#include "reference/elements.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

using Values = std::vector<double>;

Values Rounded(Values values, DType dtype) {
  for (double& value : values) value = reference::Round(value, dtype);
  return values;
}

class RotaryKnownAnswers : public ::testing::TestWithParam<ModeAndTypes> {};

// cos 0 and sin 1 bring every channel its partner.
TEST_P(RotaryKnownAnswers, SineOfOneSwapsPartners) {
  const auto [mode, types] = GetParam();
  const Values want[] = {{5, 6, 7, 8, -1, -2, -3, -4},
                         {2, -1, 4, -3, 6, -5, 8, -7},
                         {3, 4, -1, -2, 7, 8, -5, -6},
                         {5, -1, 6, -2, 7, -3, 8, -4}};
  BackwardTensors tensors(MakeProblem(mode, types, {1, 8}, {1}));
  tensors.dy.Fill({1, 2, 3, 4, 5, 6, 7, 8});
  tensors.cos.Fill(Values(8, 0));
  tensors.sin.Fill(Values(8, 1));
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args(true, false, false, false))));
  EXPECT_EQ(tensors.dx.Values(), want[static_cast<int>(mode)]);
}

// What a mode gives for cos = 1 2 3 4, sin = 5 6 7 8, dy = 1 10 100 1000, x = 1 2 3 4.
struct Answer {
  Values dx, dcos, dsin, y;
};

const Answer kAnswers[] = {{{701, 8020, 295, 3940}, {1, 20, 300, 4000}, {-3, -40, 100, 2000}, {-14, -20, 16, 32}},
                           {{61, 15, 8300, 3300}, {1, 20, 300, 4000}, {-2, 10, -400, 3000}, {-9, 10, -19, 40}},
                           {{61, 15, 8300, 3300}, {1, 20, 300, 4000}, {-2, 10, -400, 3000}, {-9, 10, -19, 40}},
                           {{701, 295, 8020, 3940}, {1, 30, 200, 4000}, {-2, -40, 100, 3000}, {-9, -18, 13, 40}}};

TEST_P(RotaryKnownAnswers, TablesThatDifferInEveryChannel) {
  const auto [mode, types] = GetParam();
  const Answer& want = kAnswers[static_cast<int>(mode)];
  BackwardTensors tensors(MakeProblem(mode, types, {4}, {}));
  tensors.dy.Fill({1, 10, 100, 1000});
  tensors.cos.Fill({1, 2, 3, 4});
  tensors.sin.Fill({5, 6, 7, 8});
  tensors.x.Fill({1, 2, 3, 4});
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_EQ(tensors.dx.Values(), Rounded(want.dx, types.activations));
  EXPECT_EQ(tensors.dcos.Values(), Rounded(want.dcos, types.tables));
  EXPECT_EQ(tensors.dsin.Values(), Rounded(want.dsin, types.tables));

  const RotaryArgs forward = {.x = tensors.x.in(),
                              .cos = tensors.cos.in(),
                              .sin = tensors.sin.in(),
                              .y = tensors.dx.out(),
                              .options = tensors.problem.Options(),
                              .execution = {}};
  ASSERT_TRUE(Ok(Rotary(forward)));
  EXPECT_EQ(tensors.dx.Values(), Rounded(want.y, types.activations));
}

// The same problem, and the tables of one value per pair against those written out.
TEST_P(RotaryKnownAnswers, TablesPerPairAreRepeatedTables) {
  const auto [mode, types] = GetParam();
  const std::vector<int> pair_of_channel[] = {
      {0, 1, 2, 3, 0, 1, 2, 3}, {0, 0, 1, 1, 2, 2, 3, 3}, {0, 1, 0, 1, 2, 3, 2, 3}, {0, 1, 2, 3, 0, 1, 2, 3}};
  const BackwardTensors pairs(MakeProblem(mode, types, {2, 3, 8}, {2, 3}, true));
  BackwardTensors full(MakeProblem(mode, types, {2, 3, 8}, {2, 3}));
  full.dy.Fill(pairs.dy.Values());
  full.x.Fill(pairs.x.Values());
  const auto repeated = [&, pair_of = pair_of_channel[static_cast<int>(mode)]](const Tensor& table) {
    return [&, values = table.Values(), pair_of](std::int64_t i) {
      return values[static_cast<std::size_t>(i / 8 * 4 + pair_of[static_cast<std::size_t>(i % 8)])];
    };
  };
  full.cos.Fill(repeated(pairs.cos));
  full.sin.Fill(repeated(pairs.sin));
  ASSERT_TRUE(Ok(RotaryBackward(pairs.Args())));
  ASSERT_TRUE(Ok(RotaryBackward(full.Args())));
  EXPECT_TRUE(pairs.Check());
  EXPECT_TRUE(full.Check());
  EXPECT_EQ(pairs.dx.Bits(), full.dx.Bits());
}

TEST_P(RotaryKnownAnswers, TablesPerPairSumOverThePair) {
  const auto [mode, types] = GetParam();
  if (mode != RotaryMode::kHalf) return;  // one mode is enough for an answer by hand
  BackwardTensors tensors(MakeProblem(mode, types, {4}, {}, true));
  tensors.dy.Fill({1, 10, 100, 1000});
  tensors.cos.Fill({2, 3});
  tensors.sin.Fill({5, 7});
  tensors.x.Fill({1, 2, 3, 4});
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_EQ(tensors.dx.Values(), Rounded({502, 7030, 195, 2930}, types.activations));
  EXPECT_EQ(tensors.dcos.Values(), Rounded({301, 4020}, types.tables));
  EXPECT_EQ(tensors.dsin.Values(), Rounded({97, 1960}, types.tables));
}

INSTANTIATE_TEST_SUITE_P(All, RotaryKnownAnswers, ModesAndTypes(), ModeAndTypesName);

TEST(RotaryKnownAnswers, ABatchReadsItsOwnTable) {
  BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 3, 4, 8}, {2, 3, 1}));
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  const Values dx = tensors.dx.Values(), dcos = tensors.dcos.Values();
  const Values cos = tensors.cos.Values();
  tensors.cos.Fill([&](std::int64_t i) { return i < 24 ? cos[static_cast<std::size_t>(i)] : 1e30; });
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  const Values again = tensors.dx.Values();
  EXPECT_EQ(Values(again.begin(), again.begin() + 96), Values(dx.begin(), dx.begin() + 96));
  for (std::size_t i = 96; i < 192; ++i) EXPECT_NE(again[i], dx[i]);
  EXPECT_EQ(tensors.dcos.Values(), dcos);
}

TEST(RotaryKnownAnswers, OtherChannelsPass) {
  Problem problem = MakeProblem(RotaryMode::kInterleave, {DType::kBF16, DType::kBF16}, {2, 10}, {1});
  problem.rotary_dim = 4;
  problem.rotary_offset = 3;
  problem.tables = {1, 4};
  BackwardTensors tensors(problem);
  tensors.dy.FillBits([](std::int64_t i) { return static_cast<std::uint32_t>(i * 3277); });
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.Check());
  const std::vector<std::uint64_t> dy = tensors.dy.Bits(), dx = tensors.dx.Bits();
  for (const std::size_t channel : {0, 1, 2, 7, 8, 9, 10, 11, 12, 17, 18, 19}) EXPECT_EQ(dx[channel], dy[channel]);
}

}  // namespace
}  // namespace gyrograd::testing
