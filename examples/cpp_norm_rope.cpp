// An LLM's QK-norm and rotary embedding, forward and backward: one segment of one position, one head, four channels.
#include <array>
#include <cstdint>
#include <cstdio>

#include "gyrograd/gyrograd.h"

int main() {
  using Row = std::array<float, 4>;
  const Row x = {1, -1, 1, -1}, cos = {0, 0, 0, 0}, sin = {1, 1, 1, 1}, dy = {1, 2, 3, 4};
  Row y = {}, dx = {};
  float rstd = 0;

  using gyrograd::DType;
  const std::array<std::int64_t, 4> shape = {1, 1, 1, 4};  // [B, S, N, D] and, with one of each, [B, N, S, D]
  const std::array<std::int64_t, 4> strides = {4, 4, 4, 1};
  const std::array<std::int64_t, 4> ones = {1, 1, 1, 1};
  const auto read = [&](const Row& row) { return gyrograd::ConstTensorView{row.data(), DType::kF32, shape, strides}; };
  const auto write = [&](Row& row) { return gyrograd::TensorView{row.data(), DType::kF32, shape, strides}; };

  gyrograd::NormRopeSegment forward;
  forward.x = read(x);
  forward.y = write(y);
  forward.norm_type = gyrograd::NormType::kRms;
  forward.eps = 0;
  forward.rstd = gyrograd::TensorView{&rstd, DType::kF32, ones, ones};
  forward.rotation = gyrograd::NormRopeRotation{.cos = read(cos), .sin = read(sin)};
  gyrograd::Status status = gyrograd::NormRope({.segments = {&forward, 1}});

  gyrograd::NormRopeBackwardSegment backward;
  backward.dy = read(dy);
  backward.x = read(x);
  backward.dx = write(dx);
  backward.norm_type = gyrograd::NormType::kRms;
  backward.rstd = gyrograd::ConstTensorView{&rstd, DType::kF32, ones, ones};
  backward.rotation = forward.rotation;
  if (status.ok()) status = gyrograd::NormRopeBackward({.segments = {&backward, 1}});
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  for (const float value : y) std::printf("%g ", value);
  std::printf("\n");
  for (const float value : dx) std::printf("%g ", value);
  std::printf("\n");
  return 0;
}
