// Comparisons of results with what they must be: to the bit, or within a bound of an exact value.
#ifndef GYROGRAD_REFERENCE_COMPARE_H_
#define GYROGRAD_REFERENCE_COMPARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gyrograd/tensor_view.h"

namespace gyrograd::reference {

struct Comparison {
  bool ok = true;
  std::int64_t mismatches = 0;
  double worst = 0;     // the largest error, in units in the last place where bits count, else of the bound
  std::string message;  // where the first (bits) or worst (bounds) mismatch is and what stands there; empty when ok
};

// Exact values, high + low, and how far from each a result may be, row-major over the result's shape.
struct BoundedValues {
  std::vector<double> high;
  std::vector<double> low;              // empty: zeros
  std::vector<double> bound;            // empty: a result must be high rounded to its type, to the bit
  std::vector<char> may_overflow = {};  // an intermediate may leave the arithmetic's range; empty: none does
};

// Equal bits, element by element; any NaN equals any NaN. The views have one shape and one type.
Comparison CompareBits(const ConstTensorView& got, const ConstTensorView& want);

// got lies between exact - bound and exact + bound, both rounded to got's type. NaN and infinities must appear where
// the exact value is one; where an intermediate may overflow, any infinity or NaN is let pass. A value that is wanted
// to the bit may be any NaN where it is NaN.
Comparison CompareBounded(const ConstTensorView& got, const BoundedValues& want);

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_COMPARE_H_
