// How the elements of a problem's tensors lie in memory: shapes, layouts by name, strides.
#ifndef GYROGRAD_PROBLEMS_LAYOUT_H_
#define GYROGRAD_PROBLEMS_LAYOUT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gyrograd::problems {

using Shape = std::vector<std::int64_t>;

// Strides of axes of extent 1 are nonsense where the layout is not contiguous.
enum class Layout {
  kContiguous,
  kPaddedRows,   // gaps after each row and each outer slice
  kTransposed,   // the outer axes in reverse order
  kSwapped,      // rank 4: axes 1 and 2 in reverse order, as [B, N, S, D] of a [B, S, N, D]
  kLastSlowest,  // every axis in reverse order: the last one has the greatest stride
  kReversedRows,
  kReversedAll,  // negative strides, the last axis too
  kLastStride2,
  kLastStride3,
  kLastStride4,
  kOffsetOne,      // contiguous, one element beyond an aligned address
  kPacked,         // rank 3 and more: a third of a packed projection, [..., N, D] of [..., 3, N, D]
  kExpandedFirst,  // inputs only: stride 0 along the first axis
  kExpandedOuter,  // stride 0 along all but the last
  kExpandedLast,   // stride 0 along the last
  kExpandedAll,    // one element for all
};

inline constexpr Layout kOutputLayouts[] = {Layout::kContiguous,  Layout::kPaddedRows,  Layout::kTransposed,
                                            Layout::kSwapped,     Layout::kLastSlowest, Layout::kReversedRows,
                                            Layout::kReversedAll, Layout::kLastStride2, Layout::kLastStride3,
                                            Layout::kLastStride4, Layout::kOffsetOne,   Layout::kPacked};

inline constexpr Layout kInputLayouts[] = {
    Layout::kContiguous,    Layout::kPaddedRows,    Layout::kTransposed,   Layout::kSwapped,
    Layout::kLastSlowest,   Layout::kReversedRows,  Layout::kReversedAll,  Layout::kLastStride2,
    Layout::kLastStride3,   Layout::kLastStride4,   Layout::kOffsetOne,    Layout::kPacked,
    Layout::kExpandedFirst, Layout::kExpandedOuter, Layout::kExpandedLast, Layout::kExpandedAll};

const char* Name(Layout layout);
Shape StridesOf(Layout layout, const Shape& shape);
std::int64_t Count(const Shape& shape);
std::string ToString(const Shape& shape);  // "2x3x4x8"

// The elements [first, last] that a view of at least one element lies in, relative to element (0, ..., 0).
std::pair<std::int64_t, std::int64_t> Reach(const Shape& shape, const Shape& strides);

}  // namespace gyrograd::problems

#endif  // GYROGRAD_PROBLEMS_LAYOUT_H_
