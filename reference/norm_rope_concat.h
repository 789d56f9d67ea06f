// The segments that a NormRopeConcat call means, made from its views independently of the library: what the witnesses
// of norm_rope.h, applied to each, say about the call. Arguments must be valid; nothing is checked here.
#ifndef GYROGRAD_REFERENCE_NORM_ROPE_CONCAT_H_
#define GYROGRAD_REFERENCE_NORM_ROPE_CONCAT_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"

namespace gyrograd::reference {

template <class Segment>
struct StreamSegment {
  const char* name = "";  // "query", "key", "value", "encoder_query", "encoder_key", "encoder_value"
  Segment segment;
};

// In the order of the names above, those without a wanted output left out. Movable: the views refer to `extents` and to
// the arrays that the call's views refer to.
template <class Segment>
struct StreamSegments {
  std::vector<StreamSegment<Segment>> streams;
  std::deque<std::array<std::int64_t, 4>> extents;  // shapes and strides of views that were sliced

  StreamSegments() = default;
  StreamSegments(StreamSegments&&) = default;
  StreamSegments& operator=(StreamSegments&&) = default;
};

StreamSegments<NormRopeBackwardSegment> SegmentsOf(const NormRopeConcatBackwardArgs& args);
StreamSegments<NormRopeSegment> SegmentsOf(const NormRopeConcatArgs& args);

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_NORM_ROPE_CONCAT_H_
