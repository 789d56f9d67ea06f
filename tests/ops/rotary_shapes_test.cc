// Shapes: ranks, head dimensions, head counts, every broadcast of the tables, partial rows, empty tensors; every subset
// of the outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

bool Divides(RotaryMode mode, std::int64_t width) { return width % (mode == RotaryMode::kQuarter ? 4 : 2) == 0; }

class RotaryShapes : public ::testing::TestWithParam<ModeAndTypes> {
 protected:
  Problem Make(const Shape& dy, const Shape& tables_outer, bool per_pair = false) {
    Problem problem = MakeProblem(GetParam().mode, GetParam().types, dy, tables_outer, per_pair);
    problem.seed = ++seed_;
    return problem;
  }

  void Check(const Problem& problem) {
    EXPECT_TRUE(CheckBackward(problem));
    EXPECT_TRUE(CheckForward(problem));
  }

 private:
  std::uint64_t seed_ = 0;
};

TEST_P(RotaryShapes, HeadDimensions) {
  for (const std::int64_t dim :
       {2, 4, 6, 12, 20, 30, 36, 62, 96, 100, 126, 128, 258, 260, 1024, 2048, 2052, 4096, 4098, 4100, 8196}) {
    if (!Divides(GetParam().mode, dim)) continue;
    for (const bool per_pair : {false, true}) {
      Check(Make({2, 3, 2, dim}, {1, 3, 1}, per_pair));
      Check(Make({5, dim}, {5}, per_pair));
    }
  }
}

// Every rest that a vector of any width can leave, on every target.
TEST_P(RotaryShapes, EveryEvenHeadDimension) {
  for (const CpuTarget target : AvailableCpuTargets()) {
    for (std::int64_t dim = 2; dim <= 72; dim += 2) {
      if (!Divides(GetParam().mode, dim)) continue;
      for (const bool per_pair : {false, true}) {
        Problem problem = Make({3, 2, dim}, {3, 1}, per_pair);
        problem.execution.cpu_target = target;
        Check(problem);
      }
    }
  }
}

TEST_P(RotaryShapes, HeadCounts) {
  for (const std::int64_t heads : {1, 12, 25}) {
    for (const std::int64_t dim : {8, 64, 100}) {
      for (const bool per_pair : {false, true}) {
        Check(Make({2, 3, heads, dim}, {1, 3, 1}, per_pair));      // BSND
        Check(Make({2, heads, 3, dim}, {1, 1, 3}, per_pair));      // BNSD
        Check(Make({3, 2, heads, dim}, {3, 1, 1}, per_pair));      // SBND
        Check(Make({7, heads, dim}, {7, 1}, per_pair));            // TND
        Check(Make({2, 3, heads, dim}, {1, 1, heads}, per_pair));  // tables that vary with the head alone
      }
    }
  }
}

// Every subset of the axes kept, for every rank.
TEST_P(RotaryShapes, EveryBroadcast) {
  const Shape shapes[] = {{8}, {3, 8}, {2, 3, 8}, {2, 3, 4, 8}, {2, 1, 3, 2, 8}, {2, 3, 1, 2, 2, 4}};
  for (const Shape& dy : shapes) {
    const std::size_t outer = dy.size() - 1;
    for (std::size_t kept = 0; kept < std::size_t{1} << outer; ++kept) {
      Shape tables(outer, 1);
      for (std::size_t axis = 0; axis < outer; ++axis) {
        if (kept >> axis & 1) tables[axis] = dy[axis];
      }
      for (const bool per_pair : {false, true}) Check(Make(dy, tables, per_pair));
    }
  }
}

// As many heads as positions: a transposition would not change the shape.
TEST_P(RotaryShapes, HeadsEqualPositions) {
  const Shape dy = {2, 16, 16, 64};
  const Shape tables[] = {{1, 1, 16}, {1, 16, 1}, {2, 1, 16}, {2, 16, 1}, {1, 16, 16}, {2, 16, 16}, {1, 1, 1}};
  for (const Shape& outer : tables) Check(Make(dy, outer));
}

TEST_P(RotaryShapes, PartialRows) {
  for (const auto& [dim, width, offset] : std::vector<std::array<std::int64_t, 3>>{{64, 32, 0},
                                                                                   {64, 32, 32},
                                                                                   {64, 32, 7},
                                                                                   {80, 20, 13},
                                                                                   {8, 4, 1},
                                                                                   {100, 100, 0},
                                                                                   {10, 8, 2},
                                                                                   {576, 64, 512},
                                                                                   {4200, 4100, 99}}) {
    for (const bool per_pair : {false, true}) {
      Problem problem = Make({2, 3, 2, dim}, {1, 3, 1}, per_pair);
      problem.rotary_dim = width;
      problem.rotary_offset = offset;
      problem.tables.back() = per_pair ? width / 2 : width;
      Check(problem);
    }
  }
}

TEST_P(RotaryShapes, EmptyTensors) {
  const std::pair<Shape, Shape> shapes[] = {{{0, 3, 2, 8}, {1, 3, 1}},
                                            {{0, 3, 2, 8}, {0, 3, 1}},
                                            {{2, 0, 2, 8}, {1, 0, 1}},
                                            {{2, 0, 2, 8}, {1, 1, 1}},
                                            {{2, 3, 0, 8}, {2, 3, 1}},
                                            {{2, 3, 0, 8}, {2, 3, 0}},
                                            {{2, 3, 2, 0}, {1, 3, 1}},
                                            {{0, 0, 0, 0}, {1, 1, 1}},
                                            {{0}, {}},
                                            {{0, 4}, {1}},
                                            {{0, 4}, {0}}};
  for (const auto& [dy, outer] : shapes) {
    for (const bool per_pair : {false, true}) Check(Make(dy, outer, per_pair));
  }
}

TEST_P(RotaryShapes, NullPointersOfEmptyTensors) {
  BackwardTensors tensors(Make({2, 3, 0, 8}, {2, 3, 1}));
  RotaryBackwardArgs args = tensors.Args();
  args.dy.data = nullptr;
  args.x->data = nullptr;
  args.dx->data = nullptr;
  ASSERT_TRUE(Ok(RotaryBackward(args)));
  EXPECT_TRUE(tensors.Check());
}

// Every subset of the outputs gives the bits of the full run and touches nothing else.
TEST_P(RotaryShapes, EverySubsetOfTheOutputs) {
  const std::pair<Shape, Shape> shapes[] = {{{2, 3, 5, 34}, {1, 3, 1}},
                                            {{2, 3, 5, 34}, {2, 3, 5}},
                                            {{3, 300, 20}, {1, 1}},
                                            {{2, 3, 5, 36}, {1, 1, 5}},
                                            {{2, 2, 20, 4, 36}, {2, 1, 20, 1}}};
  for (const auto& [dy, outer] : shapes) {
    if (!Divides(GetParam().mode, dy.back())) continue;
    for (const bool per_pair : {false, true}) {
      const Problem problem = Make(dy, outer, per_pair);
      const BackwardTensors full(problem);
      ASSERT_TRUE(Ok(RotaryBackward(full.Args())));
      EXPECT_TRUE(full.Check());
      for (unsigned wanted = 0; wanted < 8; ++wanted) {
        const bool dx = wanted & 1, dcos = wanted & 2, dsin = wanted & 4;
        for (const bool with_x : {true, false}) {
          if ((dcos || dsin) && !with_x) continue;
          const BackwardTensors some(problem);
          ASSERT_TRUE(Ok(RotaryBackward(some.Args(dx, dcos, dsin, with_x)))) << problem << " outputs " << wanted;
          EXPECT_TRUE(dx ? some.dx.GuardsIntact("dx") : some.dx.Unchanged("dx")) << problem << " outputs " << wanted;
          EXPECT_TRUE(dcos ? some.dcos.GuardsIntact("dcos") : some.dcos.Unchanged("dcos")) << problem;
          EXPECT_TRUE(dsin ? some.dsin.GuardsIntact("dsin") : some.dsin.Unchanged("dsin")) << problem;
          if (dx) {
            EXPECT_EQ(some.dx.Bits(), full.dx.Bits()) << problem << " outputs " << wanted;
          }
          if (dcos) {
            EXPECT_EQ(some.dcos.Bits(), full.dcos.Bits()) << problem << " outputs " << wanted;
          }
          if (dsin) {
            EXPECT_EQ(some.dsin.Bits(), full.dsin.Bits()) << problem << " outputs " << wanted;
          }
        }
      }
    }
  }
}

// Sizes at which work is split: many rows, many table rows, both.
TEST_P(RotaryShapes, ManyRows) {
  for (const bool per_pair : {false, true}) {
    Check(Make({2, 200, 3, 36}, {1, 200, 1}, per_pair));
    Check(Make({5000, 4}, {1}, per_pair));
    Check(Make({2, 3, 200, 36}, {1, 1, 200}, per_pair));
    Check(Make({40, 50, 4}, {40, 1}, per_pair));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryShapes, ModesAndTypes(), ModeAndTypesName);

TEST(RotaryShapes, TwoCallsLeaveTheInputs) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, {}, {2, 3, 4, 64}, {1, 3, 1}));
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  const std::vector<std::uint64_t> first = tensors.ResultBits();
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_EQ(tensors.ResultBits(), first);
  EXPECT_TRUE(tensors.Check());
}

// A table can be one value for all, or vary along axes that dy repeats: 64-bit counts on either side.
TEST(RotaryShapes, ManyAxesOfExtentOne) {
  Problem problem;
  problem.dy = Shape(70, 1);
  problem.dy[3] = 3;
  problem.dy[60] = 2;
  problem.dy.back() = 8;
  problem.tables = problem.dy;
  problem.tables[60] = 1;
  EXPECT_TRUE(CheckBackward(problem));
  EXPECT_TRUE(CheckForward(problem));
}

}  // namespace
}  // namespace gyrograd::testing
