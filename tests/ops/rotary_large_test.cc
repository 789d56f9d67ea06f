// More elements than 32 bits count: run by `make test-large` alone, in about 5 GB.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gyrograd/rotary.h"
#include "reference/rotary.h"

namespace gyrograd {
namespace {

constexpr std::int64_t kRows = 21474837;
constexpr std::int64_t kWidth = 100;
constexpr std::int64_t kElements = kRows * kWidth;  // 2,147,483,700

// +1 or -1 as bf16, from a hash of the index.
std::uint16_t Sign(std::uint64_t index) {
  index *= 0x9e3779b97f4a7c15u;
  return (index >> 61) & 1 ? 0xbf80 : 0x3f80;
}

std::vector<float> Table(float first) {
  std::vector<float> table(kWidth);
  for (std::int64_t i = 0; i < kWidth; ++i) table[i] = first + 0.01f * static_cast<float>(i);
  return table;
}

// dx lies on dy and x: 4.3 GB in all. Every term of dcos is 1, so its sum is the number of rows.
TEST(RotaryLarge, MoreThan2To31ElementsInPlace) {
  std::vector<std::uint16_t> data(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) data[i] = Sign(static_cast<std::uint64_t>(i));
  const std::int64_t shape[] = {kRows, kWidth};
  const std::int64_t table_shape[] = {1, kWidth};
  const std::int64_t strides[] = {kWidth, 1};
  const std::vector<float> cos = Table(0.1f);
  const std::vector<float> sin = Table(-0.7f);
  std::vector<float> dcos(kWidth);
  std::vector<float> dsin(kWidth);
  RotaryBackwardArgs args;
  args.dy = {data.data(), DType::kBF16, shape, strides};
  args.cos = {cos.data(), DType::kF32, table_shape, strides};
  args.sin = {sin.data(), DType::kF32, table_shape, strides};
  args.x = args.dy;
  args.dx = TensorView{data.data(), DType::kBF16, shape, strides};
  args.dcos = TensorView{dcos.data(), DType::kF32, table_shape, strides};
  args.dsin = TensorView{dsin.data(), DType::kF32, table_shape, strides};
  const Status status = RotaryBackward(args);
  ASSERT_TRUE(status.ok()) << status.message();

  for (const float sum : dcos) EXPECT_EQ(sum, static_cast<float>(kRows));
  // Opposite members of a pair give opposite terms.
  for (std::int64_t p = 0; p < kWidth / 2; ++p) EXPECT_EQ(dsin[p], -dsin[p + kWidth / 2]);

  // The first row, the last one, and those around the 2^31st element.
  for (const std::int64_t row : {std::int64_t{0}, (std::int64_t{1} << 31) / kWidth - 1,
                                 (std::int64_t{1} << 31) / kWidth, kRows / 2, kRows - 1}) {
    std::vector<std::uint16_t> dy(kWidth);
    std::vector<std::uint16_t> want(kWidth);
    for (std::int64_t i = 0; i < kWidth; ++i) dy[i] = Sign(static_cast<std::uint64_t>(row * kWidth + i));
    const std::int64_t row_shape[] = {1, kWidth};
    RotaryBackwardArgs one;
    one.dy = {dy.data(), DType::kBF16, row_shape, strides};
    one.cos = args.cos;
    one.sin = args.sin;
    one.dx = TensorView{want.data(), DType::kBF16, row_shape, strides};
    reference::RotaryBackwardInput(one);
    EXPECT_EQ(std::memcmp(want.data(), data.data() + row * kWidth, kWidth * sizeof(want[0])), 0) << "row " << row;
  }
}

}  // namespace
}  // namespace gyrograd
