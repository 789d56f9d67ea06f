// The two witnesses of the rotary operator against automatic differentiation of a forward written in the words of its
// definition. Nothing here calls the library.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/elements.h"
#include "reference/rotary.h"
#include "tests/support/problem.h"
#include "tests/support/tape.h"

namespace gyrograd::testing {
namespace {

// Row number `row` (of rows of `shape`) of a table that broadcasts to `shape`.
Row TableRow(const Row& table, const Shape& table_shape, const Shape& shape, std::size_t row) {
  std::size_t table_row = 0, unit = 1;
  for (std::size_t axis = shape.size() - 1; axis-- > 0;) {
    const auto extent = static_cast<std::size_t>(shape[axis]);
    if (table_shape[axis] != 1) table_row += row % extent * unit;
    unit *= static_cast<std::size_t>(table_shape[axis]);
    row /= extent;
  }
  const auto width = static_cast<std::ptrdiff_t>(table_shape.back());
  const auto first = table.begin() + static_cast<std::ptrdiff_t>(table_row) * width;
  return {first, first + width};
}

// Builds y = rotary(x, cos, sin) on the tape for a whole tensor.
Row Forward(Tape& tape, const Problem& problem, const Row& x, const Row& cos, const Row& sin) {
  const auto dim = static_cast<std::size_t>(problem.dy.back());
  Row y;
  for (std::size_t row = 0; row * dim < x.size(); ++row) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * dim);
    const Row rotated =
        RotateRow(tape, problem.Options(), Row(begin, begin + static_cast<std::ptrdiff_t>(dim)),
                  TableRow(cos, problem.tables, problem.dy, row), TableRow(sin, problem.tables, problem.dy, row));
    y.insert(y.end(), rotated.begin(), rotated.end());
  }
  return y;
}

// ---- The tests --------------------------------------------------------------------------------------------------

// In f64 to a few roundings; in the narrower types to one rounding of the arithmetic's and one of the type's.
double Tolerance(DType dtype) {
  return dtype == DType::kF64 ? 1e-14 : dtype == DType::kF32 ? 5e-7 : dtype == DType::kF16 ? 6e-4 : 4.5e-3;
}

void ExpectNear(const Tensor& got, const std::vector<double>& want, double scale, const char* name) {
  const std::vector<double> values = got.Values();
  ASSERT_EQ(values.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(values[i], want[i], Tolerance(got.dtype()) * scale) << name << " element " << i;
  }
}

void ExpectAgreement(const Problem& problem) {
  SCOPED_TRACE(::testing::PrintToString(problem));
  const BackwardTensors tensors(problem);
  Tape tape;
  const Row x = Leaves(tape, tensors.x.Values()), cos = Leaves(tape, tensors.cos.Values());
  const Row sin = Leaves(tape, tensors.sin.Values());
  const Row y = Forward(tape, problem, x, cos, sin);
  const std::vector<double> dy = tensors.dy.Values();
  for (std::size_t i = 0; i < y.size(); ++i) tape.AddGrad(y[i], dy[i]);
  tape.Backward();
  const Tensor forward(problem.types.activations, problem.dy);
  reference::Rotary({.x = tensors.x.in(),
                     .cos = tensors.cos.in(),
                     .sin = tensors.sin.in(),
                     .y = forward.out(),
                     .options = problem.Options(),
                     .execution = {}});
  ExpectNear(forward, ValuesOf(tape, y), 128, "y");
  reference::RotaryBackwardInput(tensors.Args());
  ExpectNear(tensors.dx, GradsOf(tape, x), 128, "dx");

  const reference::TableGradients tables = reference::RotaryBackwardTables(tensors.Args());
  const std::vector<double> dcos = GradsOf(tape, cos), dsin = GradsOf(tape, sin);
  ASSERT_EQ(tables.dcos.high.size(), dcos.size());
  ASSERT_EQ(tables.dsin.high.size(), dsin.size());
  for (std::size_t i = 0; i < dcos.size(); ++i) {
    EXPECT_NEAR(tables.dcos.high[i], dcos[i], 1e-14 * tables.dcos.magnitude[i]) << "dcos element " << i;
    EXPECT_NEAR(tables.dsin.high[i], dsin[i], 1e-14 * tables.dsin.magnitude[i]) << "dsin element " << i;
    EXPECT_GE(tables.dcos.magnitude[i], std::fabs(dcos[i]) * (1 - 1e-14));
  }
  const std::int64_t table_elements = Count(problem.tables), rotated = problem.rotary_dim.value_or(problem.dy.back());
  EXPECT_EQ(tables.dcos.terms * table_elements, Count(problem.dy) / problem.dy.back() * rotated);
}

struct ShapePair {
  Shape dy, tables_outer;
};

const ShapePair kShapes[] = {{{8}, {}},
                             {{3, 8}, {1}},
                             {{3, 8}, {3}},
                             {{2, 3, 8}, {1, 3}},
                             {{2, 3, 8}, {2, 1}},
                             {{2, 3, 4, 12}, {2, 3, 1}},
                             {{2, 3, 4, 4}, {1, 3, 4}},
                             {{2, 3, 2, 4}, {2, 1, 2}},
                             {{2, 3, 1, 2, 8}, {1, 1, 1, 1}}};

class RotaryWitness : public ::testing::TestWithParam<ModeAndTypes> {};

TEST_P(RotaryWitness, AgreesWithAutomaticDifferentiation) {
  const auto [mode, types] = GetParam();
  std::uint64_t seed = 1;
  for (const auto& [dy, tables_outer] : kShapes) {
    for (const bool per_pair : {false, true}) {
      Problem problem = MakeProblem(mode, types, dy, tables_outer, per_pair);
      problem.seed = ++seed;
      ExpectAgreement(problem);
    }
  }
}

TEST_P(RotaryWitness, AgreesWhereAPartOfTheRowTurns) {
  const auto [mode, types] = GetParam();
  for (const auto& [dy, tables_outer] : kShapes) {
    for (std::int64_t offset = 0; offset + 4 <= dy.back(); ++offset) {
      Problem problem = MakeProblem(mode, types, dy, tables_outer, offset % 2 == 1);
      problem.rotary_dim = 4;
      problem.rotary_offset = offset;
      problem.tables.back() = problem.per_pair ? 2 : 4;
      problem.tables_layout = Layout::kLastSlowest;
      problem.dy_layout = Layout::kReversedAll;
      problem.x_layout = Layout::kPaddedRows;
      ExpectAgreement(problem);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryWitness, ModesAndTypes(), ModeAndTypesName);

// ---- The comparators can fail -----------------------------------------------------------------------------------

TEST(CompareBits, SeesOneBitAndNaN) {
  Tensor a(DType::kF32, {2, 3}), b(DType::kF32, {2, 3}, Layout::kReversedAll);
  const double nan = std::nan("");
  a.Fill({1, -2, 0, nan, 5, 6});
  b.Fill({1, -2, 0, -nan, 5, 6});
  EXPECT_TRUE(reference::CompareBits(a.in(), b.in()).ok);
  b.Set({0, 2}, -0.0);
  EXPECT_EQ(reference::CompareBits(a.in(), b.in()).mismatches, 1);
  b.Set({1, 0}, 3);
  EXPECT_EQ(reference::CompareBits(a.in(), b.in()).mismatches, 2);
  b.Set({1, 2}, std::nextafterf(6, 7));
  const reference::Comparison comparison = reference::CompareBits(a.in(), b.in());
  EXPECT_EQ(comparison.mismatches, 3);
  EXPECT_FALSE(comparison.ok);
  EXPECT_NE(comparison.message.find("[0, 2]"), std::string::npos) << comparison.message;
}

TEST(CompareBits, CountsUnitsInTheLastPlace) {
  Tensor got(DType::kBF16, {3}), want(DType::kBF16, {3});
  const auto worst = [&] { return reference::CompareBits(got.in(), want.in()).worst; };
  want.Fill({1, -4, 0});
  got.Fill({1 + 3.0 / 128, -4 + 2.0 / 32, -0.0});
  EXPECT_EQ(worst(), 3);
  got.Set({2}, std::ldexp(5, -133));  // the least denormal, five times
  EXPECT_EQ(worst(), 5);
  got.Set({1}, std::nan(""));
  EXPECT_EQ(worst(), HUGE_VAL);
}

bool SumIsAccepted(double got, DType dtype, double exact, double magnitude, std::int64_t terms) {
  Tensor tensor(dtype, {1});
  tensor.Fill({got});
  const reference::TableSums want = {{exact}, {0}, {magnitude}, terms};
  return reference::CompareSums(tensor.in(), want, dtype).ok;
}

TEST(CompareSums, KeepsTheBound) {
  const double infinity = HUGE_VAL, nan = std::nan("");
  EXPECT_TRUE(SumIsAccepted(1, DType::kF32, 1, 1, 5));
  EXPECT_TRUE(SumIsAccepted(1 + 0.9e-6, DType::kF32, 1, 1, 5));
  EXPECT_FALSE(SumIsAccepted(1 + 1.2e-6, DType::kF32, 1, 1, 5));
  EXPECT_TRUE(SumIsAccepted(1 + 1.2e-6, DType::kF32, 1, 2, 5));
  EXPECT_TRUE(SumIsAccepted(1 + 2.0 / 256, DType::kBF16, 1 + 1.01 / 256, 1, 5));
  EXPECT_FALSE(SumIsAccepted(1, DType::kBF16, 1 + 1.01 / 256, 1, 5));
  EXPECT_TRUE(SumIsAccepted(1, DType::kBF16, 1 + 1.0000001 / 256, 1, 5));  // within the bound of the tie
  EXPECT_FALSE(SumIsAccepted(nan, DType::kF32, 1, 1, 5));
  EXPECT_FALSE(SumIsAccepted(infinity, DType::kF32, 1, 1, 5));
  EXPECT_FALSE(SumIsAccepted(1, DType::kF32, nan, 1, 5));
  EXPECT_FALSE(SumIsAccepted(1, DType::kF32, infinity, 1, 5));
  EXPECT_TRUE(SumIsAccepted(-infinity, DType::kF32, -infinity, 1, 5));
  EXPECT_TRUE(SumIsAccepted(infinity, DType::kF16, 70000, 70000, 5));
  EXPECT_FALSE(SumIsAccepted(65504, DType::kF16, 70000, 70000, 5));
  EXPECT_TRUE(SumIsAccepted(nan, DType::kF32, 0, 1e39, 5));
  EXPECT_FALSE(SumIsAccepted(1e33, DType::kF32, 0, 1e38, 5));
  EXPECT_TRUE(SumIsAccepted(1 + 9e-15, DType::kF64, 1, 1, 5));
  EXPECT_FALSE(SumIsAccepted(1 + 1.1e-14, DType::kF64, 1, 1, 5));
}

TEST(CompareSums, OneTermIsTheTermAndNoneIsZero) {
  EXPECT_TRUE(SumIsAccepted(-0.0, DType::kF32, -1e-60, 1e-60, 1));
  EXPECT_FALSE(SumIsAccepted(0.0, DType::kF32, -1e-60, 1e-60, 1));
  EXPECT_FALSE(SumIsAccepted(1 + 1e-7, DType::kF32, 1, 1, 1));
  EXPECT_TRUE(SumIsAccepted(0.0, DType::kF32, 0, 0, 0));
  EXPECT_FALSE(SumIsAccepted(-0.0, DType::kF32, 0, 0, 0));
  EXPECT_FALSE(SumIsAccepted(1e-45, DType::kF32, 0, 0, 0));
}

TEST(Exact, InfinityStaysInfinity) {
  Problem problem = MakeProblem(RotaryMode::kHalf, {DType::kF64, DType::kF64}, {3, 2}, {1});
  BackwardTensors tensors(problem);
  tensors.dy.Fill({1, 1, HUGE_VAL, 1, 1, 1});
  tensors.x.Fill({1, 2, 3, 4, 5, -HUGE_VAL});
  const reference::TableGradients grads = reference::RotaryBackwardTables(tensors.Args());
  EXPECT_EQ(grads.dcos.high, (std::vector<double>{HUGE_VAL, -HUGE_VAL}));
  EXPECT_TRUE(std::isnan(grads.dsin.high[0]));  // inf * -4 and 1 * inf
  EXPECT_EQ(grads.dsin.high[1], 9);
  EXPECT_EQ(grads.dsin.magnitude[1], 9);
}

TEST(Exact, SumsBeyondDouble) {
  Problem problem = MakeProblem(RotaryMode::kHalf, {DType::kF64, DType::kF64}, {4, 2}, {1});
  BackwardTensors tensors(problem);
  tensors.dy.Fill({1e20, 1, 1, 1, -1e20, 1, 1e-5, 1});
  tensors.x.Fill({1e10, 1, 1, 1, 1e10, 1, 1e-5, 1});
  const reference::TableGradients grads = reference::RotaryBackwardTables(tensors.Args());
  EXPECT_DOUBLE_EQ(grads.dcos.high[0], 1 + 1e-10);  // 1e30 came and went
}

}  // namespace
}  // namespace gyrograd::testing
