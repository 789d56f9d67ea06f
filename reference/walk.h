// Walking over the elements and rows of views, in the words of shapes and strides. Independent of the library.
#ifndef GYROGRAD_REFERENCE_WALK_H_
#define GYROGRAD_REFERENCE_WALK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gyrograd/tensor_view.h"
#include "reference/elements.h"

namespace gyrograd::reference {

using Index = std::int64_t;
using Indices = std::vector<Index>;

inline const std::byte* Address(const void* data, DType dtype, Index offset) {
  return static_cast<const std::byte*>(data) + offset * static_cast<Index>(ElementSize(dtype));
}

inline std::byte* Address(void* data, DType dtype, Index offset) {
  return static_cast<std::byte*>(data) + offset * static_cast<Index>(ElementSize(dtype));
}

inline Index Count(std::span<const Index> shape) {
  Index count = 1;
  for (const Index extent : shape) count *= extent;
  return count;
}

// Moves to the next index in row-major order; false after the last one.
inline bool Advance(Indices& index, std::span<const Index> shape) {
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (++index[axis] < shape[axis]) return true;
    index[axis] = 0;
  }
  return false;
}

inline Index Offset(std::span<const Index> index, std::span<const Index> strides) {
  Index offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (index[axis] != 0) offset += index[axis] * strides[axis];  // strides of axes of extent 1 may be anything
  }
  return offset;
}

// The same over a table, whose index is 0 along the axes where its extent is 1.
inline Index BroadcastOffset(std::span<const Index> index, std::span<const Index> shape,
                             std::span<const Index> strides) {
  Index offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    if (shape[axis] != 1) offset += index[axis] * strides[axis];
  }
  return offset;
}

inline Indices RowMajorStrides(std::span<const Index> shape) {
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

// Channels first .. first + row.size() - 1 of one row, in Number.
template <class Number>
void LoadRow(const ConstTensorView& view, Index row_offset, Index first, std::vector<Number>& row) {
  const Index stride = view.strides.back();
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Index offset = row_offset + (first + static_cast<Index>(i)) * stride;
    row[i] = static_cast<Number>(Load(Address(view.data, view.dtype, offset), view.dtype));
  }
}

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_WALK_H_
