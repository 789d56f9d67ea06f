// The two witnesses of the rotary operator: plain loops over strides, independent of the library's kernels.
//   formula  operation by operation in f32 (f64 for f64): what dx and y must equal, bit for bit
//   exact    the exact sum of the exact terms of every table gradient: what dcos and dsin must be close to
// and the comparators against them. Arguments must be valid; nothing is checked here. The caller's floating-point
// environment must be the default one.
#ifndef GYROGRAD_REFERENCE_ROTARY_H_
#define GYROGRAD_REFERENCE_ROTARY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gyrograd/rotary.h"

namespace gyrograd::reference {

// formula: writes args.y.
void Rotary(const RotaryArgs& args);

// formula: writes args.dx where given; dcos and dsin are left alone.
void RotaryBackwardInput(const RotaryBackwardArgs& args);

// One table's gradient, row-major over the tables' shape. The sum is high + low, high being that rounded to double; it
// is exact up to 2^-100 of magnitude for each term. Terms that are infinite or NaN make high what IEEE addition makes.
struct TableSums {
  std::vector<double> high;
  std::vector<double> low;
  std::vector<double> magnitude;  // sum of |term|, of the finite ones
  std::int64_t terms = 0;         // the number of terms of every sum
};

struct TableGradients {
  TableSums dcos;
  TableSums dsin;
};

// exact: args.x must be given; the outputs of args are not looked at.
TableGradients RotaryBackwardTables(const RotaryBackwardArgs& args);

struct Comparison {
  bool ok = true;
  std::int64_t mismatches = 0;
  double worst = 0;  // bits: the largest |difference|; sums: the largest error in units of the bound (1 is the bound)
  std::string message;  // where the first (bits) or worst (sums) mismatch is and what stands there; empty when ok
};

// Equal bits, element by element; any NaN equals any NaN. The views have one shape and one type.
Comparison CompareBits(const ConstTensorView& got, const ConstTensorView& want);

// got lies between exact - bound and exact + bound, both rounded to got's type, where bound = c * magnitude + terms *
// underflow; c and underflow are the contract's: 1e-6 and 2^-149 (f64 activations: 1e-14, 2^-1073). A sum of one term
// is the term and a sum of none is +0, to the bit. NaN and infinities must appear where the exact sum has them; where
// the magnitude overflows the arithmetic's type, any infinity or NaN is let pass, since a partial sum may overflow.
Comparison CompareSums(const ConstTensorView& got, const TableSums& want, DType activations);

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_ROTARY_H_
