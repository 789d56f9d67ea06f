// Sizes of strided views.
#include "core/strides.h"

#include "core/partition.h"

namespace gyrograd::internal {

bool IsEmpty(Extents shape) {
  for (const std::int64_t extent : shape) {
    if (extent == 0) return true;
  }
  return false;
}

std::optional<std::int64_t> ElementCount(Extents shape) {
  if (IsEmpty(shape)) return 0;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

std::int64_t ElementBytes(const ConstTensorView& view) {
  return SaturatingMul(*ElementCount(view.shape), static_cast<std::int64_t>(SizeOf(view.dtype)));
}

std::optional<ByteRange> BytesOf(const ConstTensorView& view) {
  if (IsEmpty(view.shape)) return ByteRange{};
  const auto size = static_cast<std::int64_t>(SizeOf(view.dtype));
  const std::optional<std::int64_t> count = ElementCount(view.shape);
  std::int64_t bytes;
  if (!count || __builtin_mul_overflow(*count, size, &bytes)) return std::nullopt;
  ByteRange range{0, size};
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    std::int64_t reach;
    if (__builtin_mul_overflow(view.shape[axis] - 1, view.strides[axis], &reach)) return std::nullopt;
    if (__builtin_mul_overflow(reach, size, &reach)) return std::nullopt;
    std::int64_t& end = reach < 0 ? range.low : range.high;
    if (__builtin_add_overflow(end, reach, &end)) return std::nullopt;
  }
  std::int64_t length;
  if (__builtin_sub_overflow(range.high, range.low, &length)) return std::nullopt;
  return range;
}

std::string ToString(Extents shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

}  // namespace gyrograd::internal
