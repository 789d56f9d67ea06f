// Both witnesses of the rotary operator and their comparators, in loops that follow the formulas word by word.
#include "reference/rotary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <sstream>
#include <utility>

#include "reference/elements.h"

namespace gyrograd::reference {
namespace {

using Index = std::int64_t;
using Indices = std::vector<Index>;

const std::byte* Address(const void* data, DType dtype, Index offset) {
  return static_cast<const std::byte*>(data) + offset * static_cast<Index>(ElementSize(dtype));
}

std::byte* Address(void* data, DType dtype, Index offset) {
  return static_cast<std::byte*>(data) + offset * static_cast<Index>(ElementSize(dtype));
}

// ---- Walking over shapes ----------------------------------------------------------------------------------------

Index Count(std::span<const Index> shape) {
  Index count = 1;
  for (const Index extent : shape) count *= extent;
  return count;
}

// Moves to the next index in row-major order; false after the last one.
bool Advance(Indices& index, std::span<const Index> shape) {
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (++index[axis] < shape[axis]) return true;
    index[axis] = 0;
  }
  return false;
}

Index Offset(const Indices& index, std::span<const Index> strides) {
  Index offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (index[axis] != 0) offset += index[axis] * strides[axis];  // strides of axes of extent 1 may be anything
  }
  return offset;
}

// The same over a table, whose index is 0 along the axes where its extent is 1.
Index BroadcastOffset(const Indices& index, std::span<const Index> shape, std::span<const Index> strides) {
  Index offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (shape[axis] != 1) offset += index[axis] * strides[axis];
  }
  return offset;
}

Indices RowMajorStrides(std::span<const Index> shape) {
  Indices strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

// Calls body(index) for every row of `shape`, row-major; index has 0 for the last axis.
template <class Body>
void ForEachRow(std::span<const Index> shape, const Body& body) {
  if (Count(shape.first(shape.size() - 1)) == 0) return;
  Indices index(shape.size(), 0);
  do {
    body(index);
    index.back() = shape.back() - 1;
  } while (Advance(index, shape));
}

// Channels first .. first + row.size() - 1 of one row, in Real.
template <class Real>
void LoadRow(const ConstTensorView& view, Index row_offset, Index first, std::vector<Real>& row) {
  const Index stride = view.strides.back();
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Index offset = row_offset + (first + static_cast<Index>(i)) * stride;
    row[i] = static_cast<Real>(Load(Address(view.data, view.dtype, offset), view.dtype));
  }
}

// ---- Modes: a pair's place in the row ---------------------------------------------------------------------------

struct Rotation {
  RotaryMode mode = RotaryMode::kHalf;
  bool per_pair_tables = false;
  Index first = 0;  // the first channel that turns
  Index width = 0;  // how many turn
  Index pairs() const { return width / 2; }
};

Rotation MakeRotation(const RotaryOptions& options, Index head_dim) {
  return {options.mode, options.per_pair_tables, options.rotary_offset, options.rotary_dim.value_or(head_dim)};
}

// Where member m of pair p stands in a row of x (and dx).
Index ChannelOfX(const Rotation& rotation, Index p, Index m) {
  const Index half = rotation.width / 2, quarter = rotation.width / 4;
  switch (rotation.mode) {
    case RotaryMode::kHalf: return p + m * half;
    case RotaryMode::kQuarter: return p < quarter ? p + m * quarter : half + (p - quarter) + m * quarter;
    case RotaryMode::kInterleave:
    case RotaryMode::kInterleaveHalf: return 2 * p + m;
  }
  return 0;
}

// Where it stands in a row of y (and dy).
Index ChannelOfY(const Rotation& rotation, Index p, Index m) {
  if (rotation.mode == RotaryMode::kInterleaveHalf) return p + m * (rotation.width / 2);
  return ChannelOfX(rotation, p, m);
}

// Where its table values stand: with y's channel, or one place for the pair.
Index ChannelOfTable(const Rotation& rotation, Index p, Index m) {
  return rotation.per_pair_tables ? p : ChannelOfY(rotation, p, m);
}

// ---- formula ----------------------------------------------------------------------------------------------------

// One row of the rotated width, in the arithmetic of Real: every product and every sum is rounded on its own.
template <class Real>
void ForwardRow(const Rotation& rotation, const std::vector<Real>& x, const std::vector<Real>& cos,
                const std::vector<Real>& sin, std::vector<Real>& y) {
  for (Index p = 0; p < rotation.pairs(); ++p) {
    const Real x0 = x[ChannelOfX(rotation, p, 0)], x1 = x[ChannelOfX(rotation, p, 1)];
    const Index t0 = ChannelOfTable(rotation, p, 0), t1 = ChannelOfTable(rotation, p, 1);
    const Real x0c0 = x0 * cos[t0], x1s0 = x1 * sin[t0];
    const Real x1c1 = x1 * cos[t1], x0s1 = x0 * sin[t1];
    y[ChannelOfY(rotation, p, 0)] = x0c0 - x1s0;
    y[ChannelOfY(rotation, p, 1)] = x1c1 + x0s1;
  }
}

template <class Real>
void BackwardRow(const Rotation& rotation, const std::vector<Real>& dy, const std::vector<Real>& cos,
                 const std::vector<Real>& sin, std::vector<Real>& dx) {
  for (Index p = 0; p < rotation.pairs(); ++p) {
    const Real dy0 = dy[ChannelOfY(rotation, p, 0)], dy1 = dy[ChannelOfY(rotation, p, 1)];
    const Index t0 = ChannelOfTable(rotation, p, 0), t1 = ChannelOfTable(rotation, p, 1);
    const Real c0dy0 = cos[t0] * dy0, s1dy1 = sin[t1] * dy1;
    const Real c1dy1 = cos[t1] * dy1, s0dy0 = sin[t0] * dy0;
    dx[ChannelOfX(rotation, p, 0)] = c0dy0 + s1dy1;
    dx[ChannelOfX(rotation, p, 1)] = c1dy1 - s0dy0;
  }
}

template <class Real>
using RowFunction = void (*)(const Rotation&, const std::vector<Real>&, const std::vector<Real>&,
                             const std::vector<Real>&, std::vector<Real>&);

// out = row_function(in, cos, sin) on every row; the channels outside the rotation are copied, bits and all.
template <class Real>
void RotateRows(const ConstTensorView& in, const ConstTensorView& cos, const ConstTensorView& sin,
                const TensorView& out, const RotaryOptions& options, RowFunction<Real> row_function) {
  const Rotation rotation = MakeRotation(options, in.shape.back());
  std::vector<Real> in_row(rotation.width), out_row(rotation.width);
  std::vector<Real> cos_row(cos.shape.back()), sin_row(sin.shape.back());
  ForEachRow(in.shape, [&](const Indices& index) {
    const Index in_offset = Offset(index, in.strides), out_offset = Offset(index, out.strides);
    LoadRow(in, in_offset, rotation.first, in_row);
    LoadRow(cos, BroadcastOffset(index, cos.shape, cos.strides), 0, cos_row);
    LoadRow(sin, BroadcastOffset(index, sin.shape, sin.strides), 0, sin_row);
    row_function(rotation, in_row, cos_row, sin_row, out_row);
    for (Index channel = 0; channel < in.shape.back(); ++channel) {
      std::byte* to = Address(out.data, out.dtype, out_offset + channel * out.strides.back());
      const Index turned = channel - rotation.first;
      if (turned >= 0 && turned < rotation.width) {
        Store(out_row[turned], to, out.dtype);
      } else {
        std::memmove(to, Address(in.data, in.dtype, in_offset + channel * in.strides.back()), ElementSize(in.dtype));
      }
    }
  });
}

// ---- exact ------------------------------------------------------------------------------------------------------

// high + low, a number of about 106 bits. Not finite: high alone.
struct DoubleDouble {
  double high = 0;
  double low = 0;
};

DoubleDouble TwoSum(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return {sum, 0};
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

DoubleDouble TwoProduct(double a, double b) {
  const double product = a * b;
  if (!std::isfinite(product)) return {product, 0};
  return {product, std::fma(a, b, -product)};
}

DoubleDouble operator+(const DoubleDouble& a, const DoubleDouble& b) {
  const DoubleDouble sum = TwoSum(a.high, b.high);
  return TwoSum(sum.high, sum.low + (a.low + b.low));
}

// The running sums of one table's gradient.
class Accumulators {
 public:
  Accumulators(Index count, Index terms) : terms_(terms), sums_(count), magnitudes_(count) {}

  void Add(Index element, double a, double b) {
    const DoubleDouble term = TwoProduct(a, b);
    sums_[element] = terms_ == 1 ? term : sums_[element] + term;  // one term is the sum, its -0 too
    if (std::isfinite(term.high)) magnitudes_[element] += std::fabs(term.high);
  }

  TableSums Finish() && {
    TableSums result;
    result.terms = terms_;
    for (const DoubleDouble& sum : sums_) {
      result.high.push_back(sum.high);
      result.low.push_back(sum.low);
    }
    result.magnitude = std::move(magnitudes_);
    return result;
  }

 private:
  Index terms_;
  std::vector<DoubleDouble> sums_;
  std::vector<double> magnitudes_;
};

// How many terms each table element has: the axes it does not vary along, and both members of a pair per pair.
Index TermsOf(std::span<const Index> shape, std::span<const Index> table_shape, const Rotation& rotation) {
  Index terms = rotation.per_pair_tables ? 2 : 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) terms *= table_shape[axis] == 1 ? shape[axis] : 1;
  return terms;
}

// ---- comparators ------------------------------------------------------------------------------------------------

std::string Describe(const Indices& index) {
  std::ostringstream out;
  out << "[";
  for (std::size_t axis = 0; axis < index.size(); ++axis) out << (axis == 0 ? "" : ", ") << index[axis];
  out << "]";
  return out.str();
}

bool SameBits(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

double Distance(double a, double b) {
  if (SameBits(a, b) || a == b) return 0;
  const double distance = std::fabs(a - b);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

// One sum against its bound: whether it holds, and the error in units of the bound.
struct SumVerdict {
  bool ok = true;
  double error = 0;
};

SumVerdict ExactVerdict(double got, double want) {
  const bool same = SameBits(got, want);
  return {same, same ? 0 : std::numeric_limits<double>::infinity()};
}

SumVerdict JudgeSum(double got, DType dtype, const TableSums& want, std::size_t i, DType activations) {
  const bool f64 = activations == DType::kF64;
  const DoubleDouble exact = {want.high[i], want.low[i]};
  if (want.terms == 0) return ExactVerdict(got, 0);
  if (want.terms == 1) return ExactVerdict(got, Round(f64 ? exact.high : static_cast<float>(exact.high), dtype));
  const bool may_overflow = want.magnitude[i] > Largest(f64 ? DType::kF64 : DType::kF32);
  if (may_overflow && !std::isfinite(got)) return {};
  if (!std::isfinite(exact.high)) return ExactVerdict(got, exact.high);
  const double bound = (f64 ? 1e-14 : 1e-6) * want.magnitude[i] +
                       static_cast<double>(want.terms) * (f64 ? std::ldexp(1.0, -1073) : std::ldexp(1.0, -149));
  const double lowest = Round((exact + DoubleDouble{-bound, 0}).high, dtype);
  const double highest = Round((exact + DoubleDouble{bound, 0}).high, dtype);
  const bool ok = lowest <= got && got <= highest;
  if (!std::isfinite(got)) return {ok, ok ? 0 : std::numeric_limits<double>::infinity()};
  const double error = std::fabs((got - exact.high) - exact.low);
  return {ok, error / (bound + Ulp(exact.high, dtype) / 2)};
}

}  // namespace

void Rotary(const RotaryArgs& args) {
  if (args.x.dtype == DType::kF64) {
    RotateRows<double>(args.x, args.cos, args.sin, args.y, args.options, ForwardRow<double>);
  } else {
    RotateRows<float>(args.x, args.cos, args.sin, args.y, args.options, ForwardRow<float>);
  }
}

void RotaryBackwardInput(const RotaryBackwardArgs& args) {
  if (!args.dx) return;
  if (args.dy.dtype == DType::kF64) {
    RotateRows<double>(args.dy, args.cos, args.sin, *args.dx, args.options, BackwardRow<double>);
  } else {
    RotateRows<float>(args.dy, args.cos, args.sin, *args.dx, args.options, BackwardRow<float>);
  }
}

TableGradients RotaryBackwardTables(const RotaryBackwardArgs& args) {
  const std::span<const Index> shape = args.dy.shape, table_shape = args.cos.shape;
  const Rotation rotation = MakeRotation(args.options, shape.back());
  const Indices table_strides = RowMajorStrides(table_shape);
  const Index terms = TermsOf(shape, table_shape, rotation);
  Accumulators dcos(Count(table_shape), terms), dsin(Count(table_shape), terms);
  std::vector<double> dy(rotation.width), x(rotation.width);
  ForEachRow(shape, [&](const Indices& index) {
    LoadRow(args.dy, Offset(index, args.dy.strides), rotation.first, dy);
    LoadRow(*args.x, Offset(index, args.x->strides), rotation.first, x);
    const Index row = BroadcastOffset(index, table_shape, table_strides);
    for (Index p = 0; p < rotation.pairs(); ++p) {
      const double x0 = x[ChannelOfX(rotation, p, 0)], x1 = x[ChannelOfX(rotation, p, 1)];
      const double dy0 = dy[ChannelOfY(rotation, p, 0)], dy1 = dy[ChannelOfY(rotation, p, 1)];
      const Index t0 = row + ChannelOfTable(rotation, p, 0), t1 = row + ChannelOfTable(rotation, p, 1);
      dcos.Add(t0, dy0, x0);
      dcos.Add(t1, dy1, x1);
      dsin.Add(t0, dy0, -x1);
      dsin.Add(t1, dy1, x0);
    }
  });
  return {std::move(dcos).Finish(), std::move(dsin).Finish()};
}

Comparison CompareBits(const ConstTensorView& got, const ConstTensorView& want) {
  Comparison result;
  if (Count(got.shape) == 0) return result;
  Indices index(got.shape.size(), 0);
  do {
    const double a = Load(Address(got.data, got.dtype, Offset(index, got.strides)), got.dtype);
    const double b = Load(Address(want.data, want.dtype, Offset(index, want.strides)), want.dtype);
    if (SameBits(a, b)) continue;
    result.ok = false;
    result.worst = std::max(result.worst, Distance(a, b));
    if (result.mismatches++ == 0) {
      std::ostringstream out;
      out.precision(17);
      out << "at " << Describe(index) << " got " << a << ", want " << b << std::hexfloat << " (" << a << ", " << b
          << ")";
      result.message = out.str();
    }
  } while (Advance(index, got.shape));
  return result;
}

Comparison CompareSums(const ConstTensorView& got, const TableSums& want, DType activations) {
  Comparison result;
  if (Count(got.shape) == 0) return result;
  Indices index(got.shape.size(), 0);
  double worst_mismatch = -1;
  std::size_t i = 0;
  do {
    const double value = Load(Address(got.data, got.dtype, Offset(index, got.strides)), got.dtype);
    const SumVerdict verdict = JudgeSum(value, got.dtype, want, i, activations);
    result.worst = std::max(result.worst, verdict.error);
    if (!verdict.ok) ++result.mismatches;
    if (!verdict.ok && verdict.error > worst_mismatch) {
      worst_mismatch = verdict.error;
      std::ostringstream out;
      out.precision(17);
      out << "at " << Describe(index) << " got " << value << ", exact " << want.high[i] << ", sum of |term| "
          << want.magnitude[i] << ", terms " << want.terms << ", error " << verdict.error << " bounds";
      result.message = out.str();
    }
    ++i;
  } while (Advance(index, got.shape));
  result.ok = result.mismatches == 0;
  return result;
}

}  // namespace gyrograd::reference
