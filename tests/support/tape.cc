// Rows of variables and the forwards built of them.
#include "tests/support/tape.h"

namespace gyrograd::testing {

Row Leaves(Tape& tape, const std::vector<double>& values) {
  Row leaves;
  for (const double value : values) leaves.push_back(tape.Leaf(value));
  return leaves;
}

std::vector<double> ValuesOf(const Tape& tape, const Row& row) {
  std::vector<double> values;
  for (const std::size_t node : row) values.push_back(tape.Value(node));
  return values;
}

std::vector<double> GradsOf(const Tape& tape, const Row& row) {
  std::vector<double> grads;
  for (const std::size_t node : row) grads.push_back(tape.Grad(node));
  return grads;
}

Row Cat(const std::vector<Row>& rows) {
  Row result;
  for (const Row& row : rows) result.insert(result.end(), row.begin(), row.end());
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

namespace {

Row Every2(const Row& row, std::size_t first) {
  Row result;
  for (std::size_t i = first; i < row.size(); i += 2) result.push_back(row[i]);
  return result;
}

Row Interleave(const Row& even, const Row& odd) {
  Row result;
  for (std::size_t i = 0; i < even.size(); ++i) result.insert(result.end(), {even[i], odd[i]});
  return result;
}

Row Negate(Tape& tape, const Row& a) {
  Row result;
  for (const std::size_t i : a) result.push_back(tape.Negative(i));
  return result;
}

Row Repeat(std::size_t variable, std::size_t count) { return Row(count, variable); }

std::size_t Mean(Tape& tape, const Row& row) {
  std::size_t sum = tape.Leaf(0);
  for (const std::size_t i : row) sum = tape.Sum(sum, i);
  return tape.Product(sum, tape.Leaf(1 / static_cast<double>(row.size())));
}

std::vector<Row> Chunk(const Row& row, std::size_t count) {
  const std::size_t length = row.size() / count;
  std::vector<Row> chunks;
  for (std::size_t i = 0; i < count; ++i) {
    chunks.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(i * length),
                        row.begin() + static_cast<std::ptrdiff_t>((i + 1) * length));
  }
  return chunks;
}

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

Row RotateWholeRow(Tape& tape, RotaryMode mode, const Row& x, const Row& cos, const Row& sin) {
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

}  // namespace

Row RotateRow(Tape& tape, const RotaryOptions& options, const Row& x, const Row& cos, const Row& sin) {
  const auto first = static_cast<std::ptrdiff_t>(options.rotary_offset);
  const auto width = static_cast<std::ptrdiff_t>(options.rotary_dim.value_or(static_cast<std::int64_t>(x.size())));
  const Row turning(x.begin() + first, x.begin() + first + width);
  const Row cos_row = options.per_pair_tables ? RepeatPairs(options.mode, cos) : cos;
  const Row sin_row = options.per_pair_tables ? RepeatPairs(options.mode, sin) : sin;
  return Cat({Row(x.begin(), x.begin() + first), RotateWholeRow(tape, options.mode, turning, cos_row, sin_row),
              Row(x.begin() + first + width, x.end())});
}

Row NormalizeRow(Tape& tape, const Row& x, bool centred, double eps) {
  Row deviations = x;
  if (centred) deviations = Add(tape, x, Repeat(tape.Negative(Mean(tape, x)), x.size()));
  const std::size_t variance = Mean(tape, Multiply(tape, deviations, deviations));
  const std::size_t rstd = tape.InverseSqrt(tape.Sum(variance, tape.Leaf(eps)));
  return Multiply(tape, deviations, Repeat(rstd, x.size()));
}

}  // namespace gyrograd::testing
