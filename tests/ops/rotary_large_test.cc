// More elements than 32 bits count, very many short rows, very many heads: run by `make test-large` alone, in about
// 5 GB.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gyrograd/rotary.h"
#include "reference/rotary.h"
#include "tests/support/signs.h"

namespace gyrograd::testing {
namespace {

struct Size {
  const char* name;
  std::int64_t batch, positions, heads, width;

  std::int64_t rows() const { return batch * positions * heads; }
};

void PrintTo(const Size& size, std::ostream* out) { *out << size.name; }

constexpr Size kSizes[] = {{"MoreThan2To31Elements", 21474837, 1, 1, 100},
                           {"RowsOfTwo", std::int64_t{1} << 28, 1, 1, 2},
                           {"RowsOfEight", std::int64_t{1} << 28, 1, 1, 8},
                           {"ManyHeads", 1, 3, std::int64_t{1} << 26, 8}};

std::vector<float> Table(std::int64_t count, float first) {
  std::vector<float> table(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = first + 0.01f * static_cast<float>(i);
  return table;
}

class RotaryLarge : public ::testing::TestWithParam<Size> {};

// dx lies on dy and x: up to 4.3 GB in all. Every term of dcos is 1, so its sums are the numbers of rows.
TEST_P(RotaryLarge, InPlace) {
  const auto [name, batch, positions, heads, width] = GetParam();
  const std::int64_t rows = GetParam().rows();
  std::vector<std::uint16_t> data = Signs(rows * width);
  const std::int64_t shape[] = {batch, positions, heads, width};
  const std::int64_t strides[] = {positions * heads * width, heads * width, width, 1};
  const std::int64_t table_shape[] = {1, positions, 1, width};
  const std::int64_t table_strides[] = {0, width, 0, 1};
  const std::vector<float> cos = Table(positions * width, 0.1f);
  const std::vector<float> sin = Table(positions * width, -0.7f);
  std::vector<float> dcos(cos.size()), dsin(sin.size());
  RotaryBackwardArgs args;
  args.dy = {data.data(), DType::kBF16, shape, strides};
  args.cos = {cos.data(), DType::kF32, table_shape, table_strides};
  args.sin = {sin.data(), DType::kF32, table_shape, table_strides};
  args.x = args.dy;
  args.dx = TensorView{data.data(), DType::kBF16, shape, strides};
  args.dcos = TensorView{dcos.data(), DType::kF32, table_shape, table_strides};
  args.dsin = TensorView{dsin.data(), DType::kF32, table_shape, table_strides};
  const Status status = RotaryBackward(args);
  ASSERT_TRUE(status.ok()) << status.message();

  for (const float sum : dcos) EXPECT_EQ(sum, static_cast<float>(batch * heads));
  // Opposite members of a pair give opposite terms.
  for (std::int64_t i = 0; i < positions * width; ++i) {
    if (i % width < width / 2) {
      EXPECT_EQ(dsin[i], -dsin[i + width / 2]) << i;
    }
  }
  for (const std::int64_t row : RowsToCompare(rows, width)) {
    const std::vector<std::uint16_t> dy = Signs(width, row * width);
    std::vector<std::uint16_t> want(dy.size());
    const std::int64_t row_shape[] = {1, width};
    const std::int64_t position = row / heads % positions;
    RotaryBackwardArgs one;
    one.dy = {dy.data(), DType::kBF16, row_shape, {strides + 2, 2}};
    one.cos = {cos.data() + position * width, DType::kF32, row_shape, {strides + 2, 2}};
    one.sin = {sin.data() + position * width, DType::kF32, row_shape, {strides + 2, 2}};
    one.dx = TensorView{want.data(), DType::kBF16, row_shape, {strides + 2, 2}};
    reference::RotaryBackwardInput(one);
    EXPECT_EQ(std::memcmp(want.data(), data.data() + row * width, want.size() * sizeof(want[0])), 0) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryLarge, ::testing::ValuesIn(kSizes),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace gyrograd::testing
