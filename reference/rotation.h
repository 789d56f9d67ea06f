// The rotary formulas on one row: where the members of a pair stand, and what the forward and the backward make of them
// in any arithmetic. Independent of the library.
#ifndef GYROGRAD_REFERENCE_ROTATION_H_
#define GYROGRAD_REFERENCE_ROTATION_H_

#include <vector>

#include "gyrograd/rotary.h"
#include "reference/walk.h"

namespace gyrograd::reference {

struct Rotation {
  RotaryMode mode = RotaryMode::kHalf;
  bool per_pair_tables = false;
  Index first = 0;  // the first channel that turns
  Index width = 0;  // how many turn
  Index pairs() const { return width / 2; }
};

inline Rotation MakeRotation(const RotaryOptions& options, Index head_dim) {
  return {options.mode, options.per_pair_tables, options.rotary_offset, options.rotary_dim.value_or(head_dim)};
}

// Where member m of pair p stands in a row of x (and dx).
inline Index ChannelOfX(const Rotation& rotation, Index p, Index m) {
  const Index half = rotation.width / 2, quarter = rotation.width / 4;
  switch (rotation.mode) {
    case RotaryMode::kHalf: return p + m * half;
    case RotaryMode::kQuarter: return p < quarter ? p + m * quarter : half + (p - quarter) + m * quarter;
    case RotaryMode::kInterleave:
    case RotaryMode::kInterleaveHalf: return 2 * p + m;
  }
  return 0;
}

// Where it stands in a row of y (and dy).
inline Index ChannelOfY(const Rotation& rotation, Index p, Index m) {
  if (rotation.mode == RotaryMode::kInterleaveHalf) return p + m * (rotation.width / 2);
  return ChannelOfX(rotation, p, m);
}

// Where its table values stand: with y's channel, or one place for the pair.
inline Index ChannelOfTable(const Rotation& rotation, Index p, Index m) {
  return rotation.per_pair_tables ? p : ChannelOfY(rotation, p, m);
}

// One row of the rotated width, in the arithmetic of Number: every product and every sum is rounded on its own.
template <class Number>
void ForwardRow(const Rotation& rotation, const std::vector<Number>& x, const std::vector<Number>& cos,
                const std::vector<Number>& sin, std::vector<Number>& y) {
  for (Index p = 0; p < rotation.pairs(); ++p) {
    const Number x0 = x[ChannelOfX(rotation, p, 0)], x1 = x[ChannelOfX(rotation, p, 1)];
    const Index t0 = ChannelOfTable(rotation, p, 0), t1 = ChannelOfTable(rotation, p, 1);
    const Number x0c0 = x0 * cos[t0], x1s0 = x1 * sin[t0];
    const Number x1c1 = x1 * cos[t1], x0s1 = x0 * sin[t1];
    y[ChannelOfY(rotation, p, 0)] = x0c0 - x1s0;
    y[ChannelOfY(rotation, p, 1)] = x1c1 + x0s1;
  }
}

template <class Number>
void BackwardRow(const Rotation& rotation, const std::vector<Number>& dy, const std::vector<Number>& cos,
                 const std::vector<Number>& sin, std::vector<Number>& dx) {
  for (Index p = 0; p < rotation.pairs(); ++p) {
    const Number dy0 = dy[ChannelOfY(rotation, p, 0)], dy1 = dy[ChannelOfY(rotation, p, 1)];
    const Index t0 = ChannelOfTable(rotation, p, 0), t1 = ChannelOfTable(rotation, p, 1);
    const Number c0dy0 = cos[t0] * dy0, s1dy1 = sin[t1] * dy1;
    const Number c1dy1 = cos[t1] * dy1, s0dy0 = sin[t0] * dy0;
    dx[ChannelOfX(rotation, p, 0)] = c0dy0 + s1dy1;
    dx[ChannelOfX(rotation, p, 1)] = c1dy1 - s0dy0;
  }
}

}  // namespace gyrograd::reference

#endif  // GYROGRAD_REFERENCE_ROTATION_H_
