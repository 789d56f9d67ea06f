// Sizes of strided views, every product and sum checked in 64 bits.
#ifndef GYROGRAD_CORE_STRIDES_H_
#define GYROGRAD_CORE_STRIDES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "gyrograd/tensor_view.h"

namespace gyrograd::internal {

using Extents = std::span<const std::int64_t>;

// True where an extent is 0.
bool IsEmpty(Extents shape);

// The number of elements; nothing where it overflows.
std::optional<std::int64_t> ElementCount(Extents shape);

// The bytes of a view's elements, whose number must not overflow; at most int64's largest.
std::int64_t ElementBytes(const ConstTensorView& view);

// The bytes [low, high) that a view's elements lie in, relative to its data; {0, 0} for an empty view.
struct ByteRange {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

// Nothing where an offset, or the number of elements, overflows.
std::optional<ByteRange> BytesOf(const ConstTensorView& view);

// "[2, 3, 4]".
std::string ToString(Extents shape);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_STRIDES_H_
