// Vectors of the arithmetic type from and to elements in memory: f64 as it is, all others through f32. Here bf16 and
// f16 are rounded. (Included once for each target.)
#if defined(GYROGRAD_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_CONVERT_INL_H_
#undef GYROGRAD_CPU_CONVERT_INL_H_
#else
#define GYROGRAD_CPU_CONVERT_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The type that elements of T are computed in.
template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class C>
using Tag = hn::ScalableTag<C>;
template <class C>
using Vec = hn::Vec<Tag<C>>;
template <class C>
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag<C>()));

using TagF = Tag<float>;
using TagU = hn::RebindToUnsigned<TagF>;  // the bits of f32
using TagH = hn::Rebind<std::uint16_t, TagF>;
using VecF = Vec<float>;
using VecU = hn::Vec<TagU>;
using VecH = hn::Vec<TagH>;

// ---- elements as they lie in memory: whole vectors, or the first `count` lanes and zeros

template <class D>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const hn::TFromD<D>* from, std::int64_t count) {
#if HWY_TARGET <= HWY_AVX3  // masked lanes are not read
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(count)), d, from);
#else
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())] = {};
  std::memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(lanes[0]));
  return hn::Load(d, lanes);
#endif
}

template <class D>
HWY_INLINE void StoreFirst(hn::Vec<D> v, D d, hn::TFromD<D>* to, std::int64_t count) {
#if HWY_TARGET <= HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(count)), d, to);
#else
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, static_cast<std::size_t>(count) * sizeof(lanes[0]));
#endif
}

// ---- the compiler's own vectors, for the portable target: Highway's are arrays there, often taken apart lane by lane

#if HWY_TARGET == HWY_EMU128

template <class Lane, std::size_t kBytes>
using Native __attribute__((vector_size(kBytes))) = Lane;
template <class C>
using NativeVec = Native<C, sizeof(Vec<C>)>;

// Highway's arrays have room for 16 bytes, whatever they hold.
template <class To, class From>
HWY_INLINE To BytesAs(const From& from) {
  To to;
  std::memcpy(static_cast<void*>(&to), &from, std::min(sizeof(to), sizeof(from)));
  return to;
}

template <class C>
HWY_INLINE NativeVec<C> ToNative(Vec<C> v) {
  return BytesAs<NativeVec<C>>(v);
}

#endif

// ---- bf16: the upper half of an f32

// Rounds to nearest even; the result's upper 16 bits are the bf16's. A NaN must have its lower 16 bits clear: so have
// all that come from bf16 elements, and CanonicalNaN sees to those that come from f32 tables.
HWY_INLINE VecU RoundToUpperHalf(VecF v) {
  const TagU du;
  const VecU bits = hn::BitCast(du, v);
  const VecU last = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), last);
}

// The same for two vectors at once, into the lower and upper halves of 32-bit words. An upper half goes up by the carry
// out of lower half + 0x7fff + its own last bit; the average, (a + b + 1) / 2 in 17 bits, has that carry as its first
// bit.
using TagWords = hn::Repartition<std::uint16_t, TagF>;

HWY_INLINE VecU JoinWords(VecF low, VecF high) {
  const TagU du;
  const TagWords dw;
  const VecU a = hn::BitCast(du, low);
  const VecU b = hn::BitCast(du, high);
  const VecU upper = hn::IfVecThenElse(hn::Set(du, 0xffff0000u), b, hn::ShiftRight<16>(a));
  const VecU lower = hn::IfVecThenElse(hn::Set(du, 0xffff0000u), hn::ShiftLeft<16>(b), a);
  const VecU bias = hn::OrAnd(hn::Set(du, 0x7ffe7ffeu), upper, hn::Set(du, 0x00010001u));
  const auto average = hn::AverageRound(hn::BitCast(dw, lower), hn::BitCast(dw, bias));
  return hn::BitCast(du, hn::Add(hn::BitCast(dw, upper), hn::ShiftRight<15>(average)));
}

HWY_INLINE VecF CanonicalNaN(VecF v) {
  const TagF df;
  const VecF nan = hn::BitCast(df, hn::Set(TagU(), 0x7fc00000u));
  return hn::IfThenElse(hn::Eq(v, v), v, nan);
}

// ---- f16

#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON  // the processor's conversions: nearest even, denormals kept

HWY_INLINE VecF FromHalf(VecH h) { return hn::PromoteTo(TagF(), hn::BitCast(hn::Rebind<hwy::float16_t, TagF>(), h)); }

HWY_INLINE VecH ToHalf(VecF v) { return hn::BitCast(TagH(), hn::DemoteTo(hn::Rebind<hwy::float16_t, TagF>(), v)); }

#else

using Words = Native<std::int32_t, sizeof(VecF)>;
using Halves = Native<std::uint16_t, sizeof(VecF) / 2>;

HWY_INLINE VecF FromHalf(VecH h) {
  const Words bits = __builtin_convertvector(BytesAs<Halves>(h), Words);
  const Words magnitude = (bits & 0x7fff) << 13;
  const Words scaled = (Words)((NativeVec<float>)magnitude * 0x1p112f);  // exact
  const Words special = (magnitude >= (0x7c00 << 13)) & 0x7f800000;      // infinity, NaN
  return BytesAs<VecF>(((bits & 0x8000) << 16) | scaled | special);
}

HWY_INLINE VecH ToHalf(VecF v) {
  const Words bits = BytesAs<Words>(v);
  const Words magnitude = bits & 0x7fffffff;
  // Normal results: to 10 fraction bits, nearest even, the exponent's bias from 127 to 15.
  const Words normal = (magnitude - (0x38000000 - 0xfff) + ((magnitude >> 13) & 1)) >> 13;
  // Denormal ones: adding 0.5 leaves multiples of 2^-24.
  const Words denormal = (Words)((NativeVec<float>)magnitude + 0.5f) - 0x3f000000;
  const Words special = 0x7c00 | ((magnitude > 0x7f800000) & 0x0200);
  const Words finite = magnitude < 0x38800000 ? denormal : normal;
  const Words half = magnitude > 0x477fffff ? special : finite;
  return BytesAs<VecH>(__builtin_convertvector(half | ((bits ^ magnitude) >> 16), Halves));
}

#endif

// ---- one vector of consecutive elements of T

template <class T>
struct Elements;

template <class C>
struct RawElements {  // f32 and f64
  using V = Vec<C>;
  static HWY_INLINE V Load(const C* from) { return hn::LoadU(Tag<C>(), from); }
  static HWY_INLINE V LoadSome(const C* from, std::int64_t count) { return LoadFirst(Tag<C>(), from, count); }
  static HWY_INLINE void Store(V v, C* to) { hn::StoreU(v, Tag<C>(), to); }
  static HWY_INLINE void Stream(V v, C* to) { hn::Stream(v, Tag<C>(), to); }
  static HWY_INLINE void StoreSome(V v, C* to, std::int64_t count) { StoreFirst(v, Tag<C>(), to, count); }
};

template <>
struct Elements<double> : RawElements<double> {};
template <>
struct Elements<float> : RawElements<float> {};

template <class T, class Codec>
struct HalfElements {
  static HWY_INLINE const std::uint16_t* Bits(const T* p) { return reinterpret_cast<const std::uint16_t*>(p); }
  static HWY_INLINE std::uint16_t* Bits(T* p) { return reinterpret_cast<std::uint16_t*>(p); }
  static HWY_INLINE VecF Load(const T* from) { return Codec::Decode(hn::LoadU(TagH(), Bits(from))); }
  static HWY_INLINE VecF LoadSome(const T* from, std::int64_t count) {
    return Codec::Decode(LoadFirst(TagH(), Bits(from), count));
  }
  static HWY_INLINE void Store(VecF v, T* to) { hn::StoreU(Codec::Encode(v), TagH(), Bits(to)); }
  static HWY_INLINE void Stream(VecF v, T* to) { hn::Stream(Codec::Encode(v), TagH(), Bits(to)); }
  static HWY_INLINE void StoreSome(VecF v, T* to, std::int64_t count) {
    StoreFirst(Codec::Encode(v), TagH(), Bits(to), count);
  }
};

struct Float16Codec {
  static HWY_INLINE VecF Decode(VecH h) { return FromHalf(h); }
  static HWY_INLINE VecH Encode(VecF v) { return ToHalf(v); }
};

struct BFloat16Codec {
  static HWY_INLINE VecF Decode(VecH h) { return hn::BitCast(TagF(), hn::ShiftLeft<16>(hn::PromoteTo(TagU(), h))); }
  static HWY_INLINE VecH Encode(VecF v) {
    const hn::RebindToSigned<TagF> di;
    return hn::DemoteTo(TagH(), hn::BitCast(di, hn::ShiftRight<16>(RoundToUpperHalf(v))));
  }
};

template <>
struct Elements<Float16> : HalfElements<Float16, Float16Codec> {};
template <>
struct Elements<BFloat16> : HalfElements<BFloat16, BFloat16Codec> {};

// ---- f64 sums to f32

using TagHalfF = hn::Rebind<float, Tag<double>>;

// To nearest even, to infinity beyond the range (where Highway's portable target stops at the largest finite value).
HWY_INLINE hn::Vec<TagHalfF> DemoteF64(Vec<double> v) {
#if HWY_TARGET == HWY_EMU128
  double wide[kLanes<double>];
  float narrow[kLanes<double>];
  hn::StoreU(v, Tag<double>(), wide);
  std::copy_n(wide, kLanes<double>, narrow);
  return hn::LoadU(TagHalfF(), narrow);
#else
  return hn::DemoteTo(TagHalfF(), v);
#endif
}

// The f32 next to the f64 whose last bit is odd (or the f64 itself where it is an f32): rounding that to bf16 or f16 is
// rounding the f64.
HWY_INLINE hn::Vec<TagHalfF> RoundToOddF32(Vec<double> value) {
  const TagHalfF df;
  const hn::RebindToUnsigned<TagHalfF> du;
  const hn::RebindToSigned<TagHalfF> di;
  const Tag<double> dd;
  const auto nearest = DemoteF64(value);
  // The error's sign is all that counts; an f64 denormal's worth of it is far above f32's range of zero.
  const auto error64 = hn::Sub(value, hn::PromoteTo(dd, nearest));
  const auto sign64 = hn::IfThenElse(hn::Gt(error64, hn::Zero(dd)), hn::Set(dd, 1.0),
                                     hn::IfThenElse(hn::Lt(error64, hn::Zero(dd)), hn::Set(dd, -1.0), hn::Zero(dd)));
  const auto error = DemoteF64(sign64);  // +1, -1 or 0
  const auto bits = hn::BitCast(du, nearest);
  const auto negative = hn::Ne(hn::And(bits, hn::Set(du, 0x80000000u)), hn::Zero(du));
  const auto even = hn::Eq(hn::And(bits, hn::Set(du, 1u)), hn::Zero(du));
  // Towards or away from zero, by one step of the magnitude.
  const auto outward = hn::IfThenElse(hn::RebindMask(df, negative), hn::Neg(error), error);
  const auto step = hn::BitCast(du, hn::ConvertTo(di, outward));
  const auto moved = hn::Add(bits, step);
  // From a zero, either way leads to the smallest denormal of the error's own sign.
  const auto is_zero = hn::Eq(hn::Add(bits, bits), hn::Zero(du));
  const auto inexact = hn::RebindMask(du, hn::Ne(error, hn::Zero(df)));
  const auto error_sign = hn::And(hn::BitCast(du, error), hn::Set(du, 0x80000000u));
  const auto smallest = hn::Or(error_sign, hn::Set(du, 1u));
  const auto fixed = hn::IfThenElse(is_zero, smallest, moved);
  return hn::BitCast(df, hn::IfThenElse(hn::And(inexact, even), fixed, bits));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
