// The two witnesses against automatic differentiation of a forward written in the words of its definition: chunks,
// concatenation, even and odd channels. Nothing here calls the library.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "reference/elements.h"
#include "reference/rotary.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

// ---- A tape: reverse-mode differentiation of sums and products --------------------------------------------------

class Tape {
 public:
  struct Node {
    double value = 0;
    double grad = 0;
    std::size_t parents[2] = {0, 0};
    double partials[2] = {0, 0};
  };

  std::size_t Leaf(double value) { return Push({value, 0, {0, 0}, {0, 0}}); }
  std::size_t Product(std::size_t a, std::size_t b) {
    return Push({nodes_[a].value * nodes_[b].value, 0, {a, b}, {nodes_[b].value, nodes_[a].value}});
  }
  std::size_t Sum(std::size_t a, std::size_t b) { return Push({nodes_[a].value + nodes_[b].value, 0, {a, b}, {1, 1}}); }
  std::size_t Negative(std::size_t a) { return Push({-nodes_[a].value, 0, {a, a}, {-1, 0}}); }

  double Value(std::size_t node) const { return nodes_[node].value; }
  double Grad(std::size_t node) const { return nodes_[node].grad; }
  void AddGrad(std::size_t node, double grad) { nodes_[node].grad += grad; }
  void Backward() {
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      for (int k = 0; k < 2; ++k) nodes_[nodes_[i].parents[k]].grad += nodes_[i].partials[k] * nodes_[i].grad;
    }
  }

 private:
  std::size_t Push(const Node& node) {
    nodes_.push_back(node);
    return nodes_.size() - 1;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);  // node 0 takes what leaves pass on
};

// ---- Rows of variables ------------------------------------------------------------------------------------------

using Row = std::vector<std::size_t>;

std::vector<Row> Chunk(const Row& row, std::size_t count) {
  const std::size_t length = row.size() / count;
  std::vector<Row> chunks;
  for (std::size_t i = 0; i < count; ++i) {
    chunks.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(i * length),
                        row.begin() + static_cast<std::ptrdiff_t>((i + 1) * length));
  }
  return chunks;
}

Row Every2(const Row& row, std::size_t first) {
  Row result;
  for (std::size_t i = first; i < row.size(); i += 2) result.push_back(row[i]);
  return result;
}

Row Cat(const std::vector<Row>& rows) {
  Row result;
  for (const Row& row : rows) result.insert(result.end(), row.begin(), row.end());
  return result;
}

Row Interleave(const Row& even, const Row& odd) {
  Row result;
  for (std::size_t i = 0; i < even.size(); ++i) result.insert(result.end(), {even[i], odd[i]});
  return result;
}

Row Multiply(Tape& tape, const Row& a, const Row& b) {
  Row result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(tape.Product(a[i], b[i]));
  return result;
}

Row Add(Tape& tape, const Row& a, const Row& b) {
  Row result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(tape.Sum(a[i], b[i]));
  return result;
}

Row Negate(Tape& tape, const Row& a) {
  Row result;
  for (const std::size_t i : a) result.push_back(tape.Negative(i));
  return result;
}

// ---- The forward ------------------------------------------------------------------------------------------------

// x * cos + rotated * sin, where `rotated` brings each channel its partner.
Row RotateHalf(Tape& tape, const Row& x, const Row& cos, const Row& sin) {
  const std::vector<Row> halves = Chunk(x, 2);
  const Row rotated = Cat({Negate(tape, halves[1]), halves[0]});
  return Add(tape, Multiply(tape, x, cos), Multiply(tape, rotated, sin));
}

Row RotateQuarter(Tape& tape, const Row& x, const Row& cos, const Row& sin) {
  const std::vector<Row> quarters = Chunk(x, 4);
  const Row rotated = Cat({Negate(tape, quarters[1]), quarters[0], Negate(tape, quarters[3]), quarters[2]});
  return Add(tape, Multiply(tape, x, cos), Multiply(tape, rotated, sin));
}

Row RotateInterleave(Tape& tape, const Row& x, const Row& cos, const Row& sin) {
  const Row rotated = Interleave(Negate(tape, Every2(x, 1)), Every2(x, 0));
  return Add(tape, Multiply(tape, x, cos), Multiply(tape, rotated, sin));
}

Row RotateInterleaveHalf(Tape& tape, const Row& x, const Row& cos, const Row& sin) {
  return RotateHalf(tape, Cat({Every2(x, 0), Every2(x, 1)}), cos, sin);
}

Row RotateRow(Tape& tape, RotaryMode mode, const Row& x, const Row& cos, const Row& sin) {
  switch (mode) {
    case RotaryMode::kHalf: return RotateHalf(tape, x, cos, sin);
    case RotaryMode::kInterleave: return RotateInterleave(tape, x, cos, sin);
    case RotaryMode::kQuarter: return RotateQuarter(tape, x, cos, sin);
    case RotaryMode::kInterleaveHalf: return RotateInterleaveHalf(tape, x, cos, sin);
  }
  return {};
}

// A table of one value per pair, written out for every channel.
Row RepeatPairs(RotaryMode mode, const Row& pairs) {
  if (mode == RotaryMode::kInterleave) return Interleave(pairs, pairs);
  if (mode != RotaryMode::kQuarter) return Cat({pairs, pairs});
  const std::vector<Row> halves = Chunk(pairs, 2);
  return Cat({halves[0], halves[0], halves[1], halves[1]});
}

Row Leaves(Tape& tape, const Tensor& tensor) {
  Row leaves;
  for (const double value : tensor.Values()) leaves.push_back(tape.Leaf(value));
  return leaves;
}

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
  const auto first = static_cast<std::size_t>(problem.rotary_offset);
  const auto width = static_cast<std::size_t>(problem.rotary_dim.value_or(problem.dy.back()));
  Row y;
  for (std::size_t row = 0; row * dim < x.size(); ++row) {
    Row cos_row = TableRow(cos, problem.tables, problem.dy, row),
        sin_row = TableRow(sin, problem.tables, problem.dy, row);
    if (problem.per_pair) {
      cos_row = RepeatPairs(problem.mode, cos_row);
      sin_row = RepeatPairs(problem.mode, sin_row);
    }
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * dim);
    const auto turned = begin + static_cast<std::ptrdiff_t>(first), end = begin + static_cast<std::ptrdiff_t>(dim);
    const auto passed = turned + static_cast<std::ptrdiff_t>(width);
    const Row rotated = RotateRow(tape, problem.mode, Row(turned, passed), cos_row, sin_row);
    const Row all = Cat({Row(begin, turned), rotated, Row(passed, end)});
    y.insert(y.end(), all.begin(), all.end());
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
  const Row x = Leaves(tape, tensors.x), cos = Leaves(tape, tensors.cos), sin = Leaves(tape, tensors.sin);
  const Row y = Forward(tape, problem, x, cos, sin);
  const std::vector<double> dy = tensors.dy.Values();
  for (std::size_t i = 0; i < y.size(); ++i) tape.AddGrad(y[i], dy[i]);
  tape.Backward();
  const auto values = [&](const Row& row) {
    std::vector<double> result;
    for (const std::size_t node : row) result.push_back(tape.Value(node));
    return result;
  };
  const auto grads = [&](const Row& row) {
    std::vector<double> result;
    for (const std::size_t node : row) result.push_back(tape.Grad(node));
    return result;
  };

  const Tensor forward(problem.types.activations, problem.dy);
  reference::Rotary({.x = tensors.x.in(),
                     .cos = tensors.cos.in(),
                     .sin = tensors.sin.in(),
                     .y = forward.out(),
                     .options = problem.Options(),
                     .execution = {}});
  ExpectNear(forward, values(y), 128, "y");
  reference::RotaryBackwardInput(tensors.Args());
  ExpectNear(tensors.dx, grads(x), 128, "dx");

  const reference::TableGradients tables = reference::RotaryBackwardTables(tensors.Args());
  const std::vector<double> dcos = grads(cos), dsin = grads(sin);
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
