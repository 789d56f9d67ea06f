// Two vectors' worth of pairs from and to a row, in each layout. (Included once for each target.)
#if defined(GYROGRAD_CPU_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_PAIRS_INL_H_
#undef GYROGRAD_CPU_PAIRS_INL_H_
#else
#define GYROGRAD_CPU_PAIRS_INL_H_
#endif

#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

enum class Layout {
  kSplit,        // each member's elements are contiguous
  kInterleaved,  // the two members of a pair stand side by side
  kStrided,      // anything else
};

// Which lanes the pairs p, p+1, ... of a step lie in. A step is 2 * lanes pairs, in vectors a and b.
enum class Order {
  kNatural,  // the first half in a, the second half in b
  kEvenOdd,  // the even ones in a, the odd ones in b: for bf16 that is one shift and one mask, no shuffle
  kBeside,   // both members of the first half in m0, of the second half in m1, side by side as in interleaved rows
};

// Where member m of pair p stands: row + p * pair_stride + m * member_stride, in elements.
template <class T>
struct PairRow {
  T* row;
  std::int64_t pair_stride;
  std::int64_t member_stride;

  T* At(std::int64_t pair, int member) const { return row + pair * pair_stride + member * member_stride; }
};

template <class C>
inline constexpr std::int64_t kStepPairs = 2 * kLanes<C>;

// One member of a step.
template <class C>
struct Member {
  Vec<C> a;
  Vec<C> b;
};

template <class C>
HWY_INLINE Member<C> ZeroMember() {
  return {hn::Zero(Tag<C>()), hn::Zero(Tag<C>())};
}

template <class C>
struct Pairs {
  Member<C> m0;
  Member<C> m1;
};

// What a lane holds: a member of a pair, counted from the step's first.
struct PairMember {
  std::int64_t pair;
  std::int64_t member;
};

// Of m0 or m1 (`which` 0, 1), vector a or b (`half` 0, 1).
template <class C>
constexpr PairMember MemberOfLane(Order order, std::int64_t which, std::int64_t half, std::int64_t lane) {
  if (order == Order::kBeside) return {which * kLanes<C> + (half * kLanes<C> + lane) / 2, lane % 2};
  return {order == Order::kEvenOdd ? 2 * lane + half : half * kLanes<C> + lane, which};
}

template <class C>
HWY_INLINE Member<C> Deinterleave(Member<C> v) {
  const Tag<C> d;
  return {hn::ConcatEven(d, v.b, v.a), hn::ConcatOdd(d, v.b, v.a)};
}

#if HWY_TARGET <= HWY_AVX3  // one shuffle of two vectors; Highway 1.0 has no name for it

// Of lanes a0, a1, ..., b0, b1, ...: a0, b0, a1, b1, ... in turn, from `first` on.
template <class C>
struct AlternateLanes {
  hn::TFromD<hn::RebindToUnsigned<Tag<C>>> index[kLanes<C>] = {};

  explicit constexpr AlternateLanes(std::int64_t first) {
    for (std::int64_t i = 0; i < kLanes<C>; ++i) {
      index[i] = static_cast<hn::TFromD<hn::RebindToUnsigned<Tag<C>>>>(first + i / 2 + i % 2 * kLanes<C>);
    }
  }
};

HWY_INLINE Vec<float> ShuffleTwo(Vec<float> a, const AlternateLanes<float>& lanes, Vec<float> b) {
  return Vec<float>{_mm512_permutex2var_ps(a.raw, _mm512_load_si512(lanes.index), b.raw)};
}
HWY_INLINE Vec<double> ShuffleTwo(Vec<double> a, const AlternateLanes<double>& lanes, Vec<double> b) {
  return Vec<double>{_mm512_permutex2var_pd(a.raw, _mm512_load_si512(lanes.index), b.raw)};
}

template <class C>
HWY_INLINE Member<C> Interleave(Member<C> v) {
  HWY_ALIGN static constexpr AlternateLanes<C> kLower(0);
  HWY_ALIGN static constexpr AlternateLanes<C> kUpper(kLanes<C> / 2);
  return {ShuffleTwo(v.a, kLower, v.b), ShuffleTwo(v.a, kUpper, v.b)};
}

#else

template <class C>
HWY_INLINE Member<C> Interleave(Member<C> v) {
  const Tag<C> d;
  const auto lower = hn::InterleaveLower(d, v.a, v.b);  // of each 128-bit block
  const auto upper = hn::InterleaveUpper(d, v.a, v.b);
#if HWY_TARGET == HWY_AVX2
  return {hn::ConcatLowerLower(d, upper, lower), hn::ConcatUpperUpper(d, upper, lower)};
#else
  return {lower, upper};
#endif
}

#endif

// ---- 2 * lanes consecutive elements, of which the first `count` are there (all of them where kFull)

template <class T, bool kFull>
HWY_INLINE Member<Arithmetic<T>> LoadNatural(const T* from, std::int64_t count) {
  constexpr std::int64_t lanes = kLanes<Arithmetic<T>>;
  if constexpr (kFull) return {Elements<T>::Load(from), Elements<T>::Load(from + lanes)};
  if (count <= lanes) return {Elements<T>::LoadSome(from, count), hn::Zero(Tag<Arithmetic<T>>())};
  return {Elements<T>::Load(from), Elements<T>::LoadSome(from + lanes, count - lanes)};
}

template <class T, bool kFull>
HWY_INLINE void StoreNatural(Member<Arithmetic<T>> v, T* to, std::int64_t count, bool stream) {
  constexpr std::int64_t lanes = kLanes<Arithmetic<T>>;
  if constexpr (kFull) {
    if (stream) {
      Elements<T>::Stream(v.a, to);
      Elements<T>::Stream(v.b, to + lanes);
    } else {
      Elements<T>::Store(v.a, to);
      Elements<T>::Store(v.b, to + lanes);
    }
    return;
  }
  Elements<T>::StoreSome(v.a, to, std::min(count, lanes));
  if (count > lanes) Elements<T>::StoreSome(v.b, to + lanes, count - lanes);
}

// bf16 two by two, as 32-bit words: the lower half is the first of two neighbours.
HWY_INLINE VecF LowerHalves(VecU words) { return hn::BitCast(TagF(), hn::ShiftLeft<16>(words)); }
HWY_INLINE VecF UpperHalves(VecU words) { return hn::BitCast(TagF(), hn::And(words, hn::Set(TagU(), 0xffff0000u))); }

template <bool kFull>
HWY_INLINE VecU LoadWords(const BFloat16* from, std::int64_t count) {
  const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
  const TagWords d;
  return hn::BitCast(TagU(), kFull ? hn::LoadU(d, bits) : LoadFirst(d, bits, count));
}

template <bool kFull>
HWY_INLINE void StoreWords(VecU words, BFloat16* to, std::int64_t count, bool stream) {
  auto* bits = reinterpret_cast<std::uint16_t*>(to);
  const TagWords d;
  const auto v = hn::BitCast(d, words);
  if constexpr (kFull) {
    if (stream) {
      hn::Stream(v, d, bits);
    } else {
      hn::StoreU(v, d, bits);
    }
  } else {
    StoreFirst(v, d, bits, count);
  }
}

// ---- one member of a step, contiguous

template <class T, Order kOrder, bool kFull>
HWY_INLINE Member<Arithmetic<T>> LoadMember(const T* from, std::int64_t count) {
  if constexpr (kOrder == Order::kNatural) {
    return LoadNatural<T, kFull>(from, count);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const VecU words = LoadWords<kFull>(from, count);
    return {LowerHalves(words), UpperHalves(words)};
  } else {
    return Deinterleave<Arithmetic<T>>(LoadNatural<T, kFull>(from, count));
  }
}

template <class T, Order kOrder, bool kFull>
HWY_INLINE void StoreMember(Member<Arithmetic<T>> v, T* to, std::int64_t count, bool stream) {
  if constexpr (kOrder == Order::kNatural) {
    StoreNatural<T, kFull>(v, to, count, stream);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    StoreWords<kFull>(JoinWords(v.a, v.b), to, count, stream);
  } else {
    StoreNatural<T, kFull>(Interleave<Arithmetic<T>>(v), to, count, stream);
  }
}

// ---- a step of side-by-side pairs, as they are: order kBeside

template <class T, bool kFull>
HWY_INLINE Pairs<Arithmetic<T>> LoadBeside(const T* from, std::int64_t pairs) {
  constexpr std::int64_t lanes = kLanes<Arithmetic<T>>;
  const Member<Arithmetic<T>> first = LoadNatural<T, kFull>(from, 2 * std::min(pairs, lanes));
  if (!kFull && pairs <= lanes) return {first, ZeroMember<Arithmetic<T>>()};
  return {first, LoadNatural<T, kFull>(from + 2 * lanes, 2 * (pairs - lanes))};
}

template <class T, bool kFull>
HWY_INLINE void StoreBeside(const Pairs<Arithmetic<T>>& v, T* to, std::int64_t pairs, bool stream) {
  constexpr std::int64_t lanes = kLanes<Arithmetic<T>>;
  StoreNatural<T, kFull>(v.m0, to, 2 * std::min(pairs, lanes), stream);
  if (kFull || pairs > lanes) StoreNatural<T, kFull>(v.m1, to + 2 * lanes, 2 * (pairs - lanes), stream);
}

// Between kNatural and kBeside.
template <class C>
HWY_INLINE Pairs<C> MembersBeside(const Pairs<C>& v) {
  return {Interleave<C>({v.m0.a, v.m1.a}), Interleave<C>({v.m0.b, v.m1.b})};
}

template <class C>
HWY_INLINE Pairs<C> MembersApart(const Pairs<C>& v) {
  const Member<C> first = Deinterleave<C>(v.m0);
  const Member<C> second = Deinterleave<C>(v.m1);
  return {{first.a, second.a}, {first.b, second.b}};
}

// ---- the same in natural order; bf16 by words

template <class T, bool kFull>
HWY_INLINE Pairs<Arithmetic<T>> LoadSideBySide(const T* from, std::int64_t pairs) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    constexpr std::int64_t lanes = kLanes<float>;
    const bool more = kFull || pairs > lanes;  // than vectors a hold
    const VecU a = LoadWords<kFull>(from, 2 * std::min(pairs, lanes));
    const VecU b = more ? LoadWords<kFull>(from + 2 * lanes, 2 * (pairs - lanes)) : hn::Zero(TagU());
    return {{LowerHalves(a), LowerHalves(b)}, {UpperHalves(a), UpperHalves(b)}};
  } else {
    return MembersApart<Arithmetic<T>>(LoadBeside<T, kFull>(from, pairs));
  }
}

template <class T, bool kFull>
HWY_INLINE void StoreSideBySide(const Pairs<Arithmetic<T>>& v, T* to, std::int64_t pairs, bool stream) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    constexpr std::int64_t lanes = kLanes<float>;
    StoreWords<kFull>(JoinWords(v.m0.a, v.m1.a), to, 2 * std::min(pairs, lanes), stream);
    if (kFull || pairs > lanes) {
      StoreWords<kFull>(JoinWords(v.m0.b, v.m1.b), to + 2 * lanes, 2 * (pairs - lanes), stream);
    }
  } else {
    StoreBeside<T, kFull>(MembersBeside<Arithmetic<T>>(v), to, pairs, stream);
  }
}

// ---- a step of pairs in any layout: pairs p .. p + count - 1 of a row

template <class T, Layout kLayout, Order kOrder, bool kFull>
HWY_INLINE Pairs<Arithmetic<T>> LoadPairs(const PairRow<const T>& row, std::int64_t p, std::int64_t count) {
  if constexpr (kOrder == Order::kBeside && kLayout != Layout::kInterleaved) {
    return MembersBeside<Arithmetic<T>>(LoadPairs<T, kLayout, Order::kNatural, kFull>(row, p, count));
  } else if constexpr (kLayout == Layout::kSplit) {
    return {LoadMember<T, kOrder, kFull>(row.row + p, count),
            LoadMember<T, kOrder, kFull>(row.row + row.member_stride + p, count)};
  } else if constexpr (kLayout == Layout::kInterleaved) {
    if constexpr (kOrder == Order::kBeside) return LoadBeside<T, kFull>(row.row + 2 * p, count);
    static_assert(kOrder != Order::kEvenOdd);
    return LoadSideBySide<T, kFull>(row.row + 2 * p, count);
  } else {
    T gathered[2][kStepPairs<Arithmetic<T>>] = {};
    for (int member = 0; member < 2; ++member) {
      for (std::int64_t i = 0; i < count; ++i) gathered[member][i] = *row.At(p + i, member);
    }
    return {LoadMember<T, kOrder, true>(gathered[0], count), LoadMember<T, kOrder, true>(gathered[1], count)};
  }
}

template <class T, Layout kLayout, Order kOrder, bool kFull>
HWY_INLINE void StorePairs(const Pairs<Arithmetic<T>>& v, const PairRow<T>& row, std::int64_t p, std::int64_t count,
                           bool stream) {
  if constexpr (kOrder == Order::kBeside && kLayout != Layout::kInterleaved) {
    StorePairs<T, kLayout, Order::kNatural, kFull>(MembersApart<Arithmetic<T>>(v), row, p, count, stream);
  } else if constexpr (kOrder == Order::kBeside) {
    StoreBeside<T, kFull>(v, row.row + 2 * p, count, stream);
  } else if constexpr (kLayout == Layout::kSplit) {
    StoreMember<T, kOrder, kFull>(v.m0, row.row + p, count, stream);
    StoreMember<T, kOrder, kFull>(v.m1, row.row + row.member_stride + p, count, stream);
  } else if constexpr (kLayout == Layout::kInterleaved) {
    static_assert(kOrder == Order::kNatural);
    StoreSideBySide<T, kFull>(v, row.row + 2 * p, count, stream);
  } else {
    T scattered[2][kStepPairs<Arithmetic<T>>];
    StoreMember<T, kOrder, true>(v.m0, scattered[0], count, false);
    StoreMember<T, kOrder, true>(v.m1, scattered[1], count, false);
    for (int member = 0; member < 2; ++member) {
      for (std::int64_t i = 0; i < count; ++i) *row.At(p + i, member) = scattered[member][i];
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
