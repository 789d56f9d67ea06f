// The comparators, element by element.
#include "reference/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>

#include "reference/double_double.h"
#include "reference/elements.h"
#include "reference/walk.h"

namespace gyrograd::reference {
namespace {

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

// In units in the last place of `want`.
double Distance(double got, double want, DType dtype) {
  if (SameBits(got, want) || got == want) return 0;
  const double distance = std::fabs(got - want);
  return std::isfinite(distance) ? distance / Ulp(want, dtype) : std::numeric_limits<double>::infinity();
}

// One value against its bound: whether it holds, and the error in units of the bound, or in the last place where bits
// count.
struct Verdict {
  bool ok = true;
  double error = 0;
};

Verdict ExactVerdict(double got, double want, DType dtype) { return {SameBits(got, want), Distance(got, want, dtype)}; }

Verdict Judge(double got, DType dtype, const BoundedValues& want, std::size_t i) {
  if (!want.may_overflow.empty() && want.may_overflow[i] != 0 && !std::isfinite(got)) return {};
  if (want.bound.empty()) return ExactVerdict(got, Round(want.high[i], dtype), dtype);
  const DoubleDouble exact = {want.high[i], want.low.empty() ? 0 : want.low[i]};
  if (!std::isfinite(exact.high)) return ExactVerdict(got, exact.high, dtype);
  const double bound = want.bound[i];
  const double lowest = Round((exact - bound).high, dtype);
  const double highest = Round((exact + bound).high, dtype);
  const bool ok = lowest <= got && got <= highest;
  if (!std::isfinite(got)) return {ok, ok ? 0 : std::numeric_limits<double>::infinity()};
  const double error = std::fabs((got - exact.high) - exact.low);
  return {ok, error / (bound + Ulp(exact.high, dtype) / 2)};
}

}  // namespace

Comparison CompareBits(const ConstTensorView& got, const ConstTensorView& want) {
  Comparison result;
  if (Count(got.shape) == 0) return result;
  Indices index(got.shape.size(), 0);
  do {
    const double a = Load(Address(got.data, got.dtype, Offset(index, got.strides)), got.dtype);
    const double b = Load(Address(want.data, want.dtype, Offset(index, want.strides)), want.dtype);
    if (SameBits(a, b)) continue;
    result.ok = false;
    result.worst = std::max(result.worst, Distance(a, b, want.dtype));
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

Comparison CompareBounded(const ConstTensorView& got, const BoundedValues& want) {
  Comparison result;
  if (Count(got.shape) == 0) return result;
  Indices index(got.shape.size(), 0);
  double worst_mismatch = -1;
  std::size_t i = 0;
  do {
    const double value = Load(Address(got.data, got.dtype, Offset(index, got.strides)), got.dtype);
    const Verdict verdict = Judge(value, got.dtype, want, i);
    result.worst = std::max(result.worst, verdict.error);
    if (!verdict.ok) ++result.mismatches;
    if (!verdict.ok && verdict.error > worst_mismatch) {
      worst_mismatch = verdict.error;
      std::ostringstream out;
      out.precision(17);
      out << "at " << Describe(index) << " got " << value << ", exact " << want.high[i] << ", bound "
          << (want.bound.empty() ? 0 : want.bound[i]) << ", error " << verdict.error << " bounds";
      result.message = out.str();
    }
    ++i;
  } while (Advance(index, got.shape));
  result.ok = result.mismatches == 0;
  return result;
}

}  // namespace gyrograd::reference
