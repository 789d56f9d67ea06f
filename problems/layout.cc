// Strides by layout.
#include "problems/layout.h"

#include <algorithm>
#include <cstddef>

namespace gyrograd::problems {
namespace {

// Row-major strides, with `gap` elements after each row and each slice, and `step` along the last axis.
Shape RowMajor(const Shape& shape, std::int64_t step, std::int64_t gap) {
  Shape strides(shape.size());
  std::int64_t stride = step;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride = stride * std::max<std::int64_t>(shape[axis], 1) + gap;
  }
  return strides;
}

Shape Permuted(const Shape& shape, std::size_t reversed_axes) {
  Shape order(shape);
  std::reverse(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(reversed_axes));
  Shape strides = RowMajor(order, 1, 0);
  std::reverse(strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(reversed_axes));
  return strides;
}

Shape Swapped(Shape shape) {
  std::swap(shape[1], shape[2]);
  Shape strides = RowMajor(shape, 1, 0);
  std::swap(strides[1], strides[2]);
  return strides;
}

Shape Packed(const Shape& shape) {
  Shape strides = RowMajor(shape, 1, 0);
  for (std::size_t axis = 0; axis + 2 < shape.size(); ++axis) strides[axis] *= 3;
  return strides;
}

Shape Negated(Shape strides, std::size_t first, std::size_t last) {
  for (std::size_t axis = first; axis < last; ++axis) strides[axis] = -strides[axis];
  return strides;
}

Shape Zeroed(Shape strides, std::size_t first, std::size_t last) {
  std::fill(strides.begin() + static_cast<std::ptrdiff_t>(first), strides.begin() + static_cast<std::ptrdiff_t>(last),
            0);
  return strides;
}

Shape PlainStrides(Layout layout, const Shape& shape) {
  const std::size_t rank = shape.size();
  switch (layout) {
    case Layout::kContiguous:
    case Layout::kOffsetOne: return RowMajor(shape, 1, 0);
    case Layout::kPaddedRows: return RowMajor(shape, 1, 3);
    case Layout::kSwapped: return rank == 4 ? Swapped(shape) : RowMajor(shape, 1, 0);
    case Layout::kTransposed: return Permuted(shape, rank - 1);
    case Layout::kLastSlowest: return Permuted(shape, rank);
    case Layout::kReversedRows: return Negated(RowMajor(shape, 1, 0), 0, rank - 1);
    case Layout::kReversedAll: return Negated(RowMajor(shape, 1, 1), 0, rank);
    case Layout::kLastStride2: return RowMajor(shape, 2, 0);
    case Layout::kLastStride3: return RowMajor(shape, 3, 0);
    case Layout::kLastStride4: return RowMajor(shape, 4, 0);
    case Layout::kPacked: return rank >= 3 ? Packed(shape) : RowMajor(shape, 1, 0);
    case Layout::kExpandedFirst: return Zeroed(RowMajor(shape, 1, 0), 0, 1);
    case Layout::kExpandedOuter: return Zeroed(RowMajor(shape, 1, 0), 0, rank - 1);
    case Layout::kExpandedLast: return Zeroed(RowMajor(shape, 1, 0), rank - 1, rank);
    case Layout::kExpandedAll: return Shape(rank, 0);
  }
  return {};
}

}  // namespace

const char* Name(Layout layout) {
  switch (layout) {
    case Layout::kContiguous: return "contiguous";
    case Layout::kPaddedRows: return "padded_rows";
    case Layout::kTransposed: return "transposed";
    case Layout::kSwapped: return "swapped";
    case Layout::kLastSlowest: return "last_slowest";
    case Layout::kReversedRows: return "reversed_rows";
    case Layout::kReversedAll: return "reversed_all";
    case Layout::kLastStride2: return "last_stride_2";
    case Layout::kLastStride3: return "last_stride_3";
    case Layout::kLastStride4: return "last_stride_4";
    case Layout::kOffsetOne: return "offset_one";
    case Layout::kPacked: return "packed";
    case Layout::kExpandedFirst: return "expanded_first";
    case Layout::kExpandedOuter: return "expanded_outer";
    case Layout::kExpandedLast: return "expanded_last";
    case Layout::kExpandedAll: return "expanded_all";
  }
  return "unknown";
}

Shape StridesOf(Layout layout, const Shape& shape) {
  Shape strides = PlainStrides(layout, shape);
  if (layout == Layout::kContiguous || layout == Layout::kOffsetOne) return strides;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) strides[axis] = axis % 2 == 0 ? std::int64_t{1} << 61 : -7;
  }
  return strides;
}

std::int64_t Count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string ToString(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text;
}

std::pair<std::int64_t, std::int64_t> Reach(const Shape& shape, const Shape& strides) {
  std::int64_t lowest = 0, highest = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    const std::int64_t reach = (shape[axis] - 1) * strides[axis];
    (reach < 0 ? lowest : highest) += reach;
  }
  return {lowest, highest};
}

}  // namespace gyrograd::problems
