// Do two strided views share a byte? Does a view hold an element twice? Decided exactly: byte ranges first, then a
// search over the integer solutions of "address of an element = address of another", with a fixed limit on its work.
#ifndef GYROGRAD_CORE_OVERLAP_H_
#define GYROGRAD_CORE_OVERLAP_H_

#include "core/strides.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::internal {

enum class Sharing {
  kNone,
  kShared,
  kUndecided,  // the search reached its limit; to be treated as shared
};

// Whether ranges of bytes, relative to addresses, have a byte in common; ranges that do not hold no elements that
// share.
bool RangesMeet(const void* a, ByteRange range_a, const void* b, ByteRange range_b);

// Views must have passed BytesOf. Empty views share nothing.
Sharing SharesBytes(const ConstTensorView& a, const ConstTensorView& b);

// Whether two elements of the view lie at one place.
Sharing SharesWithItself(const ConstTensorView& view);

// True where both views hold the same elements in the same places: one type, one address, equal shapes, and equal
// strides along every axis with more than one element.
bool SameElements(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_OVERLAP_H_
