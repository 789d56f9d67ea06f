// Legal lists of segments, of everything that a segment may have, for tests to change.
#ifndef GYROGRAD_TESTS_OPS_NORM_ROPE_LISTS_H_
#define GYROGRAD_TESTS_OPS_NORM_ROPE_LISTS_H_

#include <vector>

#include "gyrograd/norm_rope.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {

struct BackwardList {
  std::vector<NormRopeBackwardSegment> segments;
  Execution execution = {};

  NormRopeBackwardSegment& operator[](std::size_t i) { return segments[i]; }
  NormRopeBackwardArgs args() const { return {segments, execution}; }
};

struct ForwardList {
  std::vector<NormRopeSegment> segments;
  Execution execution = {};

  NormRopeSegment& operator[](std::size_t i) { return segments[i]; }
  NormRopeArgs args() const { return {segments, execution}; }
};

inline constexpr DType kListType = DType::kBF16;

// Segment 0: B 2, N 3, S 5, D 8, layer_affine, rotated from position 1 by tables of 4 rows. Segment 1: B 1, N 2, S 4,
// D 7, rms_affine. Segment 2: no norm, dx alone. Weights are f32 beside bf16.
inline BackwardList ExampleBackwardList(TensorStore& store) {
  const auto stats = [&](const Shape& shape) { return store.In(DType::kF32, shape); };
  const auto weight = [&](std::int64_t width) { return store.In(DType::kF32, {width}); };
  const auto weight_out = [&](std::int64_t width) { return store.Out(DType::kF32, {width}); };
  BackwardList list;
  list.segments.push_back(
      {.dy = store.In(kListType, {2, 3, 5, 8}),
       .x = store.In(kListType, {2, 5, 3, 8}),
       .norm_type = NormType::kLayerAffine,
       .weight = weight(8),
       .mean = stats({2, 5, 3, 1}),
       .rstd = stats({2, 5, 3, 1}),
       .rotation = NormRopeRotation{store.In(kListType, {2, 1, 4, 8}), store.In(kListType, {2, 1, 4, 8}), 1, {}},
       .dx = store.Out(kListType, {2, 5, 3, 8}),
       .dweight = weight_out(8),
       .dbias = weight_out(8)});
  list.segments.push_back({.dy = store.In(kListType, {1, 2, 4, 7}),
                           .x = store.In(kListType, {1, 4, 2, 7}),
                           .norm_type = NormType::kRmsAffine,
                           .weight = weight(7),
                           .rstd = stats({1, 4, 2, 1}),
                           .dx = store.Out(kListType, {1, 4, 2, 7}),
                           .dweight = weight_out(7)});
  list.segments.push_back({.dy = store.In(kListType, {1, 1, 2, 5}), .dx = store.Out(kListType, {1, 2, 1, 5})});
  return list;
}

// The forward of the same segments 0 and 1.
inline ForwardList ExampleForwardList(TensorStore& store) {
  ForwardList list;
  list.segments.push_back(
      {.x = store.In(kListType, {2, 5, 3, 8}),
       .norm_type = NormType::kLayerAffine,
       .weight = store.In(DType::kF32, {8}),
       .bias = store.In(DType::kF32, {8}),
       .rotation = NormRopeRotation{store.In(kListType, {2, 1, 4, 8}), store.In(kListType, {2, 1, 4, 8}), 1, {}},
       .y = store.Out(kListType, {2, 3, 5, 8}),
       .mean = store.Out(DType::kF32, {2, 5, 3, 1}),
       .rstd = store.Out(DType::kF32, {2, 5, 3, 1})});
  list.segments.push_back({.x = store.In(kListType, {1, 4, 2, 7}),
                           .norm_type = NormType::kRmsAffine,
                           .weight = store.In(DType::kF32, {7}),
                           .y = store.Out(kListType, {1, 2, 4, 7}),
                           .rstd = store.Out(DType::kF32, {1, 4, 2, 1})});
  return list;
}

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_OPS_NORM_ROPE_LISTS_H_
