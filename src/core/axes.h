// From shapes to loops: a list of axes, in which those of extent 1 drop out and neighbours that continue each other
// merge. An operator keeps one list for its KEPT axes (the tables vary along them) and one for its SUMMED axes (they do
// not); no layout has a name.
#ifndef GYROGRAD_CORE_AXES_H_
#define GYROGRAD_CORE_AXES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gyrograd::internal {

// A loop over `extent` steps; strides in elements, one for each of N operands.
template <std::size_t N>
struct Axis {
  std::int64_t extent;
  std::array<std::int64_t, N> strides;
};

// Merges in place; axes stand outermost first. A loop over the merged axes visits the same elements in the same order.
template <std::size_t N>
void MergeAxes(std::vector<Axis<N>>& axes) {
  std::size_t kept = 0;
  for (const Axis<N>& axis : axes) {
    if (axis.extent == 1) continue;
    Axis<N>* const outer = kept == 0 ? nullptr : &axes[kept - 1];
    bool merges = outer != nullptr;
    for (std::size_t i = 0; merges && i < N; ++i) merges = outer->strides[i] == axis.strides[i] * axis.extent;
    if (merges) {
      outer->extent *= axis.extent;
      outer->strides = axis.strides;
    } else {
      axes[kept++] = axis;
    }
  }
  axes.resize(kept);
}

// Walks a list of axes in row-major order from any step on, and says where each operand stands.
template <std::size_t N>
class AxisWalk {
 public:
  AxisWalk(const std::vector<Axis<N>>& axes, std::int64_t step) : axes_(axes.data()), count_(axes.size()) {
    offsets_.fill(0);
    for (std::size_t i = count_; i-- > 0;) {
      const std::int64_t index = step % axes_[i].extent;
      step /= axes_[i].extent;
      for (std::size_t k = 0; k < N; ++k) offsets_[k] += index * axes_[i].strides[k];
      index_[i] = index;
    }
  }

  const std::array<std::int64_t, N>& offsets() const { return offsets_; }

  // Moves on by at most `most` steps along the innermost axis, never past its end; returns how many. The steps passed
  // stand at offsets() (as it was before), + strides(), + 2 * strides(), ...
  std::int64_t Take(std::int64_t most) {
    if (count_ == 0) return 1;
    const Axis<N>& inner = axes_[count_ - 1];
    const std::int64_t taken = std::min(most, inner.extent - index_[count_ - 1]);
    Advance(count_ - 1, taken);
    return taken;
  }

  std::array<std::int64_t, N> strides() const {
    return count_ == 0 ? std::array<std::int64_t, N>{} : axes_[count_ - 1].strides;
  }

 private:
  void Advance(std::size_t i, std::int64_t steps) {
    const Axis<N>& axis = axes_[i];
    for (std::size_t k = 0; k < N; ++k) offsets_[k] += steps * axis.strides[k];
    index_[i] += steps;
    if (index_[i] < axis.extent) return;
    index_[i] = 0;
    for (std::size_t k = 0; k < N; ++k) offsets_[k] -= axis.extent * axis.strides[k];
    if (i > 0) Advance(i - 1, 1);
  }

  const Axis<N>* axes_;
  std::size_t count_;
  std::array<std::int64_t, N> offsets_;
  std::array<std::int64_t, 64> index_;  // elements fit 64 bits, so fewer than 63 axes have more than one step
};

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_AXES_H_
