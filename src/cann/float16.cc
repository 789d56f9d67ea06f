// The scalar helpers of acl_base.h: half-precision conversions that saturate as CANN's do, and the sizes of types.
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

size_t aclDataTypeSize(aclDataType dataType) {
  switch (dataType) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0: return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16: return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32: return 4;
    case ACL_DOUBLE:
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_COMPLEX64: return 8;
    case ACL_COMPLEX128: return 16;
    case ACL_DT_UNDEFINED:
    case ACL_STRING:
    case ACL_INT4:
    case ACL_UINT1:
    case ACL_FLOAT6_E3M2:
    case ACL_FLOAT6_E2M3:
    case ACL_FLOAT4_E2M1:
    case ACL_FLOAT4_E1M2: return 0;
  }
  return 0;
}

}  // extern "C"
