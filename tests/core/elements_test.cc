// The witnesses' own conversions, checked by neighbours and midpoints rather than by a second conversion.
#include "reference/elements.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace gyrograd::testing {
namespace {

double FromBits(std::uint16_t bits, DType dtype) { return reference::Load(&bits, dtype); }

std::uint16_t ToBits(double value, DType dtype) {
  std::uint16_t bits = 0;
  reference::Store(value, &bits, dtype);
  return bits;
}

class Elements : public ::testing::TestWithParam<DType> {};

TEST_P(Elements, DecodeIsWhatTheFormatSays) {
  const bool f16 = GetParam() == DType::kF16;
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    const double value = FromBits(static_cast<std::uint16_t>(bits), GetParam());
    const double negative = FromBits(static_cast<std::uint16_t>(bits | 0x8000), GetParam());
    if (!f16) {
      const auto want = std::bit_cast<float>(bits << 16);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(value) && std::isnan(negative));
        continue;
      }
      EXPECT_EQ(value, want);
    } else if (bits > 0x7c00) {
      EXPECT_TRUE(std::isnan(value) && std::isnan(negative));
      continue;
    } else if (bits == 0x7c00) {
      EXPECT_EQ(value, HUGE_VAL);
    } else {
      const int exponent = static_cast<int>(bits >> 10), fraction = static_cast<int>(bits & 0x3ff);
      EXPECT_EQ(value, exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1 + fraction / 1024.0, exponent - 15));
    }
    EXPECT_EQ(negative, -value);
    EXPECT_TRUE(std::signbit(negative));
  }
}

TEST_P(Elements, EncodeRoundsToNearestEven) {
  const DType dtype = GetParam();
  const std::uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const double value = FromBits(bits, dtype);
    // Beyond the largest value stands, for rounding, the number that would follow it.
    const double next = bits + 1 == infinity ? value + reference::Ulp(value, dtype) : FromBits(bits + 1, dtype);
    const double middle = (value + next) / 2;
    const std::uint16_t even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(ToBits(value, dtype), bits);
    EXPECT_EQ(ToBits(middle, dtype), even);
    EXPECT_EQ(ToBits(std::nextafter(middle, 0), dtype), bits);
    EXPECT_EQ(ToBits(std::nextafter(middle, HUGE_VAL), dtype), bits + 1);
    EXPECT_EQ(ToBits(-middle, dtype), even | 0x8000);
    EXPECT_EQ(reference::Ulp(value, dtype), next - value);
  }
  EXPECT_EQ(ToBits(HUGE_VAL, dtype), infinity);
  EXPECT_EQ(ToBits(-1e300, dtype), infinity | 0x8000);
  EXPECT_EQ(ToBits(-1e-300, dtype), 0x8000);
  EXPECT_EQ(ToBits(5e-324, dtype), 0);
  EXPECT_TRUE(std::isnan(FromBits(ToBits(std::nan(""), dtype), dtype)));
}

INSTANTIATE_TEST_SUITE_P(Types, Elements, ::testing::Values(DType::kF16, DType::kBF16));

}  // namespace
}  // namespace gyrograd::testing
