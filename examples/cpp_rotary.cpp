// The smallest C++ program: the gradient of a rotary embedding's input for one row of eight channels, in half mode.
#include <array>
#include <cstdint>
#include <cstdio>

#include "gyrograd/gyrograd.h"

int main() {
  const std::array<float, 8> dy = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::array<float, 8> cos = {0, 0, 0, 0, 0, 0, 0, 0};
  const std::array<float, 8> sin = {1, 1, 1, 1, 1, 1, 1, 1};
  std::array<float, 8> dx = {};

  const std::array<std::int64_t, 2> shape = {1, 8};
  const std::array<std::int64_t, 2> strides = {8, 1};
  using gyrograd::DType;
  gyrograd::RotaryBackwardArgs args;
  args.dy = {dy.data(), DType::kF32, shape, strides};
  args.cos = {cos.data(), DType::kF32, shape, strides};
  args.sin = {sin.data(), DType::kF32, shape, strides};
  args.dx = gyrograd::TensorView{dx.data(), DType::kF32, shape, strides};
  args.options.mode = gyrograd::RotaryMode::kHalf;
  const gyrograd::Status status = gyrograd::RotaryBackward(args);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  for (const float value : dx) std::printf("%g ", value);
  std::printf("\n");
  return 0;
}
