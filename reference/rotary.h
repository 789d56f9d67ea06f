// The two witnesses of the rotary operator: plain loops over strides, independent of the library's kernels.
//   formula  operation by operation in f32 (f64 for f64): what dx and y must equal, bit for bit
//   exact    the exact sum of the exact terms of every table gradient: what dcos and dsin must be close to
// and the comparators against them. Arguments must be valid; nothing is checked here. The caller's floating-point
// environment must be the default one.
#ifndef GYROGRAD_REFERENCE_ROTARY_H_
#define GYROGRAD_REFERENCE_ROTARY_H_

#include "gyrograd/rotary.h"
#include "reference/compare.h"
#include "reference/double_double.h"

namespace gyrograd::reference {

// formula: writes args.y.
void Rotary(const RotaryArgs& args);

// formula: writes args.dx where given; dcos and dsin are left alone.
void RotaryBackwardInput(const RotaryBackwardArgs& args);

// One table's gradient, row-major over the tables' shape.
using TableSums = ExactSums;

struct TableGradients {
  TableSums dcos;
  TableSums dsin;
};

// exact: args.x must be given; the outputs of args are not looked at.
TableGradients RotaryBackwardTables(const RotaryBackwardArgs& args);

// CompareBounded with bound = c * magnitude + terms * underflow; c and underflow are the contract's: 1e-6 and 2^-149
// (f64 activations: 1e-14, 2^-1073). A sum of one term is the term and a sum of none is +0, to the bit. An intermediate
// may overflow where the magnitude overflows the arithmetic's type.
Comparison CompareSums(const ConstTensorView& got, const TableSums& want, DType activations);

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_ROTARY_H_
