// Conversions of elements to double and back, in integer arithmetic.
#include "reference/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace gyrograd::reference {
namespace {

// The 16-bit formats: sign, kExponentBits, kFractionBits, with denormals, infinities and NaNs as IEEE has them.
template <int kExponentBits, int kFractionBits>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kMinExponent = 1 - kBias;
  static constexpr std::uint64_t kInfinity = ((std::uint64_t{1} << kExponentBits) - 1) << kFractionBits;

  static double Decode(std::uint16_t bits) {
    const std::uint64_t sign_bit = static_cast<std::uint64_t>(bits >> 15) << 63;
    const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
    const int exponent = (bits >> kFractionBits) & ((1 << kExponentBits) - 1);
    const int fraction = bits & ((1 << kFractionBits) - 1);
    if (exponent == (1 << kExponentBits) - 1) {
      return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(fraction, kMinExponent - kFractionBits);
    return std::bit_cast<double>(sign_bit | static_cast<std::uint64_t>(exponent - kBias + 1023) << 52 |
                                 static_cast<std::uint64_t>(fraction) << (52 - kFractionBits));
  }

  // To nearest, ties to even, in one rounding.
  static std::uint16_t Encode(double value) {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t sign = bits >> 63 << 15;
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | kInfinity | (1 << (kFractionBits - 1)));
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | kInfinity);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
    if (exponent == -1023) return static_cast<std::uint16_t>(sign);  // zero, or far below half the least denormal
    const std::uint64_t significand = (bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
    const int shift = 52 - kFractionBits + (exponent < kMinExponent ? kMinExponent - exponent : 0);
    if (shift > 53) return static_cast<std::uint16_t>(sign);  // below half the least denormal
    std::uint64_t kept = significand >> shift;
    const std::uint64_t rest = significand & ((std::uint64_t{1} << shift) - 1);
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
    // A normal number's leading bit is one step of the exponent; so is a carry out of the fraction.
    if (exponent > kMinExponent) kept += static_cast<std::uint64_t>(exponent - kMinExponent) << kFractionBits;
    return static_cast<std::uint16_t>(sign | (kept < kInfinity ? kept : kInfinity));
  }
};

using Binary16 = SmallFloat<5, 10>;
using BFloat16 = SmallFloat<8, 7>;

template <class T>
T ReadAs(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

}  // namespace

std::size_t ElementSize(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 8;
    case DType::kF32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
  }
  return 0;
}

double Load(const void* address, DType dtype) {
  switch (dtype) {
    case DType::kF64: return ReadAs<double>(address);
    case DType::kF32: return ReadAs<float>(address);
    case DType::kF16: return Binary16::Decode(ReadAs<std::uint16_t>(address));
    case DType::kBF16: return BFloat16::Decode(ReadAs<std::uint16_t>(address));
  }
  return 0;
}

void Store(double value, void* address, DType dtype) {
  switch (dtype) {
    case DType::kF64: std::memcpy(address, &value, sizeof(value)); return;
    case DType::kF32: {
      const float rounded = static_cast<float>(value);
      std::memcpy(address, &rounded, sizeof(rounded));
      return;
    }
    case DType::kF16: {
      const std::uint16_t bits = Binary16::Encode(value);
      std::memcpy(address, &bits, sizeof(bits));
      return;
    }
    case DType::kBF16: {
      const std::uint16_t bits = BFloat16::Encode(value);
      std::memcpy(address, &bits, sizeof(bits));
      return;
    }
  }
}

double Round(double value, DType dtype) {
  double storage = 0;
  Store(value, &storage, dtype);
  return Load(&storage, dtype);
}

double Largest(DType dtype) {
  switch (dtype) {
    case DType::kF64: return std::numeric_limits<double>::max();
    case DType::kF32: return std::numeric_limits<float>::max();
    case DType::kF16: return 65504;
    case DType::kBF16: return BFloat16::Decode(0x7f7f);
  }
  return 0;
}

double Ulp(double value, DType dtype) {
  const bool bf16 = dtype == DType::kBF16, f16 = dtype == DType::kF16, f32 = dtype == DType::kF32;
  const int precision = bf16 ? 8 : f16 ? 11 : f32 ? 24 : 53;
  const int min_exponent = f16 ? -14 : bf16 || f32 ? -126 : -1022;
  const double bounded = std::min(std::fabs(value), Largest(dtype));
  const int exponent = bounded == 0 ? min_exponent : std::max(min_exponent, std::ilogb(bounded));
  return std::ldexp(1.0, exponent - precision + 1);
}

}  // namespace gyrograd::reference
