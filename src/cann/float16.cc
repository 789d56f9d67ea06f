// Half-precision conversions of acl_base.h, which saturate as CANN's do.
#include <bit>
#include <cmath>
#include <cstdint>

#include "acl/acl_base.h"

namespace {

constexpr std::uint16_t kLargest = 0x7BFF;  // 65504

// Rounds a finite, non-negative value below 65520: the spacing of f16 at the value is 2^(exponent - 10), with the
// smallest exponent -14. Scaled by that spacing, the mantissa is an integer after rounding to even; where it reaches
// 2^11 the carry runs into the exponent by itself.
std::uint16_t RoundFinite(float value) {
  int exponent = -14;
  if (value >= 0x1p-14f) exponent = std::ilogb(value);
  const double scaled = std::ldexp(static_cast<double>(value), 10 - exponent);
  const double floor = std::floor(scaled);
  const double rest = scaled - floor;
  auto mantissa = static_cast<std::uint32_t>(floor);
  if (rest > 0.5 || (rest == 0.5 && (mantissa & 1) != 0)) ++mantissa;
  return static_cast<std::uint16_t>(mantissa + (static_cast<std::uint32_t>(exponent + 14) << 10));
}

}  // namespace

extern "C" {

float aclFloat16ToFloat(aclFloat16 value) {
  const int exponent = (value >> 10) & 31;
  const int mantissa = value & 0x3FF;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (value & 0x8000) != 0 ? -magnitude : magnitude;
}

aclFloat16 aclFloatToFloat16(float value) {
  if (std::isnan(value)) return kLargest;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  return sign | (magnitude >= 65504.0f ? kLargest : RoundFinite(magnitude));
}

}  // extern "C"
