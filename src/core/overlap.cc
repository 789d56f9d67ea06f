// Exact overlap of strided views, as a bounded integer equation: sum of stride * index over both views = distance.
#include "core/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

namespace gyrograd::internal {
namespace {

constexpr int kWorkLimit = 20000;  // nodes of the search: well below a millisecond

// A view without axes of extent 1 has at most 62 of them, or its element count would overflow; two views make one
// equation.
constexpr int kMaxTerms = 128;

__extension__ using Wide = __int128;  // views that passed BytesOf stay far inside it

// coefficient * v, 0 <= v <= limit, coefficient > 0.
struct Term {
  std::int64_t coefficient;
  std::int64_t limit;
};

// target <= sum of terms <= target + slack, to be solved in integers.
struct Equation {
  std::array<Term, kMaxTerms> terms;
  int count = 0;
  Wide target = 0;
  Wide slack = 0;

  void Add(std::int64_t coefficient, std::int64_t limit) {
    if (coefficient != 0 && limit > 0) terms[count++] = {coefficient, limit};
  }

  // Adds sign * stride * index for every axis, the index counted from the end where the product would be negative.
  void AddView(const ConstTensorView& view, int sign) {
    const auto size = static_cast<std::int64_t>(SizeOf(view.dtype));
    for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
      const std::int64_t limit = view.shape[axis] - 1;
      if (limit == 0) continue;  // its stride may be anything
      const std::int64_t coefficient = sign * view.strides[axis] * size;
      if (coefficient < 0) target -= Wide{coefficient} * limit;
      Add(coefficient < 0 ? -coefficient : coefficient, limit);
    }
  }

  // Largest coefficients first; a term that continues another (c * limit + c = the next one's coefficient) joins it.
  void Simplify() {
    std::sort(terms.begin(), terms.begin() + count, [](Term a, Term b) { return a.coefficient > b.coefficient; });
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (kept > 0 && Joins(terms[kept - 1], terms[i])) continue;
      terms[kept++] = terms[i];
    }
    count = kept;
  }

 private:
  static bool Joins(Term& outer, const Term& inner) {
    if (outer.coefficient == inner.coefficient) {
      return !__builtin_add_overflow(outer.limit, inner.limit, &outer.limit);
    }
    if (Wide{inner.coefficient} * (Wide{inner.limit} + 1) < outer.coefficient) return false;
    if (outer.coefficient % inner.coefficient != 0) return false;
    // Every multiple of the inner coefficient up to the joint reach is taken: the inner one alone spans a whole step.
    const Wide joint = Wide{outer.coefficient / inner.coefficient} * outer.limit + inner.limit;
    if (joint > INT64_MAX) return false;
    outer = {inner.coefficient, static_cast<std::int64_t>(joint)};
    return true;
  }
};

class Search {
 public:
  explicit Search(Equation& equation) : equation_(equation) {
    equation_.Simplify();
    reach_[equation_.count] = 0;
    divisor_[equation_.count] = 0;
    for (int i = equation_.count - 1; i >= 0; --i) {
      const Term& term = equation_.terms[i];
      reach_[i] = reach_[i + 1] + Wide{term.coefficient} * term.limit;
      divisor_[i] = std::gcd(divisor_[i + 1], term.coefficient);
    }
  }

  Sharing Solve() { return SolveFrom(0, equation_.target, equation_.target + equation_.slack); }

 private:
  static Wide CeilDiv(Wide a, Wide b) { return a <= 0 ? 0 : (a + b - 1) / b; }

  // Is there a solution of low <= terms i, i+1, ... <= high?
  Sharing SolveFrom(int i, Wide low, Wide high) {
    low = std::max<Wide>(low, 0);
    high = std::min(high, reach_[i]);
    if (low > high) return Sharing::kNone;
    if (i == equation_.count) return Sharing::kShared;
    if (CeilDiv(low, divisor_[i]) * divisor_[i] > high) return Sharing::kNone;
    const Term term = equation_.terms[i];
    const Wide first = CeilDiv(low - reach_[i + 1], term.coefficient);
    const Wide last = std::min<Wide>(term.limit, high / term.coefficient);
    for (Wide v = last; v >= first; --v) {
      if (++work_ > kWorkLimit) return Sharing::kUndecided;
      const Wide taken = v * term.coefficient;
      const Sharing found = SolveFrom(i + 1, low - taken, high - taken);
      if (found != Sharing::kNone) return found;
    }
    return Sharing::kNone;
  }

  Equation& equation_;
  std::array<Wide, kMaxTerms + 1> reach_;
  std::array<std::int64_t, kMaxTerms + 1> divisor_;
  int work_ = 0;
};

}  // namespace

bool RangesMeet(const void* a, ByteRange range_a, const void* b, ByteRange range_b) {
  const Wide base_a = reinterpret_cast<std::uintptr_t>(a);
  const Wide base_b = reinterpret_cast<std::uintptr_t>(b);
  return base_a + range_a.low < base_b + range_b.high && base_b + range_b.low < base_a + range_a.high;
}

Sharing SharesBytes(const ConstTensorView& a, const ConstTensorView& b) {
  if (IsEmpty(a.shape) || IsEmpty(b.shape) || !RangesMeet(a.data, *BytesOf(a), b.data, *BytesOf(b))) {
    return Sharing::kNone;
  }
  // a + sum(a) + byte = b + sum(b) + byte': the sums differ by no more than the elements are wide.
  Equation equation;
  equation.target = Wide{reinterpret_cast<std::uintptr_t>(b.data)} - Wide{reinterpret_cast<std::uintptr_t>(a.data)};
  equation.AddView(a, 1);
  equation.AddView(b, -1);
  const auto before = static_cast<Wide>(SizeOf(a.dtype)) - 1;
  equation.target -= before;
  equation.slack = before + static_cast<Wide>(SizeOf(b.dtype)) - 1;
  return Search(equation).Solve();
}

Sharing SharesWithItself(const ConstTensorView& view) {
  if (IsEmpty(view.shape)) return Sharing::kNone;
  // Nested strides, the usual case: sorted by size, each step is larger than all that the smaller ones span together.
  std::array<Term, 64> axes;
  int count = 0;
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    const std::int64_t stride = view.strides[axis];
    if (view.shape[axis] == 1) continue;
    if (stride == 0) return Sharing::kShared;
    axes[count++] = {stride < 0 ? -stride : stride, view.shape[axis] - 1};
  }
  std::sort(axes.begin(), axes.begin() + count, [](Term a, Term b) { return a.coefficient < b.coefficient; });
  Wide span = 0;
  bool nested = true;
  for (int i = 0; i < count; ++i) {
    nested = nested && axes[i].coefficient > span;
    span += Wide{axes[i].coefficient} * axes[i].limit;
  }
  if (nested) return Sharing::kNone;
  // Two elements at one place differ first along some axis, by at least one step: shift the view by that step and ask
  // whether it meets itself, with all earlier axes equal.
  for (int differing = 0; differing < count; ++differing) {
    Equation equation;
    Wide target = -Wide{axes[differing].coefficient};
    equation.Add(axes[differing].coefficient, axes[differing].limit - 1);
    for (int i = differing + 1; i < count; ++i) {  // differences -limit .. limit
      target += Wide{axes[i].coefficient} * axes[i].limit;
      std::int64_t range;
      if (__builtin_mul_overflow(axes[i].limit, std::int64_t{2}, &range)) return Sharing::kUndecided;
      equation.Add(axes[i].coefficient, range);
    }
    equation.target = target;
    const Sharing found = Search(equation).Solve();
    if (found != Sharing::kNone) return found;
  }
  return Sharing::kNone;
}

bool SameElements(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.dtype != b.dtype || a.data != b.data || a.shape.size() != b.shape.size()) return false;
  for (std::size_t axis = 0; axis < a.shape.size(); ++axis) {
    if (a.shape[axis] != b.shape[axis]) return false;
    if (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
  }
  return true;
}

}  // namespace gyrograd::internal
