// Both witnesses of the rotary operator, in loops that follow the formulas word by word.
#include "reference/rotary.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "reference/elements.h"
#include "reference/rotation.h"
#include "reference/walk.h"

namespace gyrograd::reference {
namespace {

// ---- formula ----------------------------------------------------------------------------------------------------

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

void Add(Accumulators& sums, Index element, double a, double b) {
  const DoubleDouble term = TwoProduct(a, b);
  sums.Add(element, term, std::fabs(term.high));
}

// How many terms each table element has: the axes it does not vary along, and both members of a pair per pair.
Index TermsOf(std::span<const Index> shape, std::span<const Index> table_shape, const Rotation& rotation) {
  Index terms = rotation.per_pair_tables ? 2 : 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) terms *= table_shape[axis] == 1 ? shape[axis] : 1;
  return terms;
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
      Add(dcos, t0, dy0, x0);
      Add(dcos, t1, dy1, x1);
      Add(dsin, t0, dy0, -x1);
      Add(dsin, t1, dy1, x0);
    }
  });
  return {std::move(dcos).Finish(), std::move(dsin).Finish()};
}

Comparison CompareSums(const ConstTensorView& got, const TableSums& want, DType activations) {
  const bool f64 = activations == DType::kF64;
  BoundedValues values = {want.high, want.low, {}};
  for (double& high : values.high) {
    if (want.terms == 0) high = 0;
    if (want.terms == 1 && !f64) high = static_cast<float>(high);
  }
  if (want.terms > 1) {
    const double c = f64 ? 1e-14 : 1e-6, underflow = std::ldexp(static_cast<double>(want.terms), f64 ? -1073 : -149);
    for (const double magnitude : want.magnitude) {
      values.bound.push_back(c * magnitude + underflow);
      values.may_overflow.push_back(magnitude > Largest(f64 ? DType::kF64 : DType::kF32));
    }
  }
  return CompareBounded(got, values);
}

}  // namespace gyrograd::reference
