// A plan: made once for shapes and strides, run on any memory that is laid out so. Here two gradients, one after the
// other.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gyrograd/gyrograd.h"

int main() {
  const std::array<std::int64_t, 2> shape = {1, 8};
  const std::array<std::int64_t, 2> strides = {8, 1};
  using gyrograd::DType;
  gyrograd::RotaryBackwardArgs args;  // a plan knows no data
  args.dy = args.cos = args.sin = {nullptr, DType::kF32, shape, strides};
  args.dx = gyrograd::TensorView{nullptr, DType::kF32, shape, strides};
  args.options.mode = gyrograd::RotaryMode::kInterleave;
  gyrograd::RotaryBackwardPlan plan;
  gyrograd::Status status = gyrograd::RotaryBackwardPlan::Create(args, &plan);
  std::vector<std::byte> workspace(plan.workspace_size());

  const std::array<float, 8> cos = {0, 0, 0, 0, 0, 0, 0, 0};
  const std::array<float, 8> sin = {1, 1, 1, 1, 1, 1, 1, 1};
  const std::array<float, 8> gradients[] = {{1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}};
  for (const std::array<float, 8>& dy : gradients) {
    std::array<float, 8> dx = {};
    if (status.ok()) {
      status = plan.Run({.dy = dy.data(), .cos = cos.data(), .sin = sin.data(), .dx = dx.data()}, workspace.data(),
                        workspace.size());
    }
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 1;
    }
    for (const float value : dx) std::printf("%g ", value);
    std::printf("\n");
  }
  return 0;
}
