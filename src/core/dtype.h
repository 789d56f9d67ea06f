// The 16-bit element types and the scalar conversions to and from them, each rounded once, to nearest even.
#ifndef GYROGRAD_CORE_DTYPE_H_
#define GYROGRAD_CORE_DTYPE_H_

#include <bit>
#include <cstdint>
#include <limits>

#include "gyrograd/tensor_view.h"

namespace gyrograd::internal {

struct Float16 {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

inline bool IsDType(DType dtype) { return dtype <= DType::kBF16; }

inline float ToFloat(BFloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline float ToFloat(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  if (magnitude >= 0x7c00u << 13) return std::bit_cast<float>(sign | 0x7f800000u | magnitude);  // infinity, NaN
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f));
}

// f32 rounded towards the value whose last bit is odd: rounding that once more, to fewer bits, gives what rounding the
// f64 directly would.
inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double error = value - static_cast<double>(nearest);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (error == error && error != 0 && (bits & 1) == 0) {
    const bool away = (error > 0) == (bits >> 31 == 0);  // the exact value lies further from zero than `nearest`
    bits = away ? bits + 1 : bits == 0x80000000u ? 1u : bits == 0 ? 0x80000001u : bits - 1;
  }
  return std::bit_cast<float>(bits);
}

// To the element type T: double, float, Float16 or BFloat16.
template <class T>
T RoundTo(double value);

template <>
inline double RoundTo<double>(double value) {
  return value;
}

template <>
inline float RoundTo<float>(double value) {
  return static_cast<float>(value);
}

template <>
inline BFloat16 RoundTo<BFloat16>(double value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(RoundToOdd(value));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

template <>
inline Float16 RoundTo<Float16>(double value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(RoundToOdd(value));
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t rounded;
  if (magnitude > 0x7f800000u) {
    rounded = 0x7e00;
  } else if (magnitude >= 0x47800000u) {  // 2^16 and above
    rounded = 0x7c00;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    rounded = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | rounded)};
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_DTYPE_H_
