// Zeros in every element of a view.
#include "core/zeros.h"

#include <cstring>
#include <vector>

#include "core/axes.h"

namespace gyrograd::internal {

void WriteZeros(const ConstTensorView& view, void* data) {
  const std::size_t size = SizeOf(view.dtype);
  std::vector<Axis<1>> axes;
  std::int64_t count = 1;
  for (std::size_t a = 0; a < view.shape.size(); ++a) {
    axes.push_back({view.shape[a], {view.strides[a]}});
    count *= view.shape[a];
  }
  if (count == 0) return;
  MergeAxes(axes);
  AxisWalk<1> walk(axes, 0);
  for (std::int64_t i = 0; i < count; ++i, walk.Take(1)) {
    std::memset(static_cast<char*>(data) + walk.offsets()[0] * static_cast<std::int64_t>(size), 0, size);
  }
}

}  // namespace gyrograd::internal
