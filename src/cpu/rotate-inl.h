// The rotation of a step of pairs. Every rotation, forward and backward, is
//
//   out0 = a0*in0 + b0*in1        out1 = a1*in1 + b1*in0
//
// with coefficients made from a table row: backward (a0, b0, a1, b1) = (c0, s1, c1, -s0), forward (c0, -s0, c1, s1).
// Coefficients and running sums are kept by steps of pairs: per step eight (sums: up to eight) vectors, in lane order.
// (Included once for each target.)
#if defined(GYROGRAD_CPU_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_ROTATE_INL_H_
#undef GYROGRAD_CPU_ROTATE_INL_H_
#else
#define GYROGRAD_CPU_ROTATE_INL_H_
#endif

#include "cpu/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// Four members' worth of values a step: (a0, b0, a1, b1), or sums of (dcos0, dcos1, dsin0, dsin1).
template <class C>
inline constexpr std::int64_t kStepValues = 4 * kStepPairs<C>;

// Where the values of the step that starts with pair p stand.
template <class C>
constexpr std::int64_t StepOf(std::int64_t p) {
  return p / kStepPairs<C> * kStepValues<C>;
}

template <class C>
HWY_INLINE Member<C> LoadValues(const C* values, int which) {
  const Tag<C> d;
  const C* const from = values + which * kStepPairs<C>;
  return {hn::Load(d, from), hn::Load(d, from + kLanes<C>)};
}

template <class C>
HWY_INLINE void StoreValues(Member<C> v, C* values, int which) {
  const Tag<C> d;
  C* const to = values + which * kStepPairs<C>;
  hn::Store(v.a, d, to);
  hn::Store(v.b, d, to + kLanes<C>);
}

#if HWY_TARGET == HWY_EMU128

template <class C>
HWY_INLINE Member<C> FromNative(NativeVec<C> a, NativeVec<C> b) {
  return {BytesAs<Vec<C>>(a), BytesAs<Vec<C>>(b)};
}
template <class C>
HWY_INLINE Member<C> Mul(Member<C> x, Member<C> y) {
  return FromNative<C>(ToNative<C>(x.a) * ToNative<C>(y.a), ToNative<C>(x.b) * ToNative<C>(y.b));
}
template <class C>
HWY_INLINE Member<C> Add(Member<C> x, Member<C> y) {
  return FromNative<C>(ToNative<C>(x.a) + ToNative<C>(y.a), ToNative<C>(x.b) + ToNative<C>(y.b));
}
template <class C>
HWY_INLINE Member<C> Sub(Member<C> x, Member<C> y) {
  return FromNative<C>(ToNative<C>(x.a) - ToNative<C>(y.a), ToNative<C>(x.b) - ToNative<C>(y.b));
}

#else

template <class C>
HWY_INLINE Member<C> Mul(Member<C> x, Member<C> y) {
  return {hn::Mul(x.a, y.a), hn::Mul(x.b, y.b)};
}
template <class C>
HWY_INLINE Member<C> Add(Member<C> x, Member<C> y) {
  return {hn::Add(x.a, y.a), hn::Add(x.b, y.b)};
}
template <class C>
HWY_INLINE Member<C> Sub(Member<C> x, Member<C> y) {
  return {hn::Sub(x.a, y.a), hn::Sub(x.b, y.b)};
}
#endif

template <class C>
HWY_INLINE Member<C> Neg(Member<C> x) {
  return {hn::Neg(x.a), hn::Neg(x.b)};
}

template <class C>
HWY_INLINE Member<C> Canonical(Member<C> x) {
  if constexpr (std::is_same_v<C, float>) return {CanonicalNaN(x.a), CanonicalNaN(x.b)};
  return x;
}

// Calls step(p, count, full) for the steps that cover `pairs` pairs.
template <class C, class Step>
HWY_INLINE void ForSteps(std::int64_t pairs, const Step& step) {
  std::int64_t p = 0;
  for (; p + kStepPairs<C> <= pairs; p += kStepPairs<C>) step(p, kStepPairs<C>, std::true_type());
  if (p < pairs) step(p, pairs - p, std::false_type());
}

// ---- rotations

// The other member of each pair, in this one's place.
template <class C, Order kOrder>
HWY_INLINE Pairs<C> Partners(const Pairs<C>& x) {
  if constexpr (kOrder != Order::kBeside) return {x.m1, x.m0};
  const Tag<C> d;
  return {{hn::Reverse2(d, x.m0.a), hn::Reverse2(d, x.m0.b)}, {hn::Reverse2(d, x.m1.a), hn::Reverse2(d, x.m1.b)}};
}

// The first (member 0) or the second members with their signs turned.
template <class C, Order kOrder>
HWY_INLINE Pairs<C> NegateMember(const Pairs<C>& x, int member) {
  if constexpr (kOrder != Order::kBeside) {
    return member == 0 ? Pairs<C>{Neg<C>(x.m0), x.m1} : Pairs<C>{x.m0, Neg<C>(x.m1)};
  }
  const Tag<C> d;
  const auto zero = hn::Zero(d);
  const auto sign = hn::SignBit(d);
  const auto turn = member == 0 ? hn::OddEven(zero, sign) : hn::OddEven(sign, zero);
  return {{hn::Xor(x.m0.a, turn), hn::Xor(x.m0.b, turn)}, {hn::Xor(x.m1.a, turn), hn::Xor(x.m1.b, turn)}};
}

// The coefficients of one step.
template <class C, Order kOrder>
struct Rotation {
  Member<C> a0, b0, a1, b1;

  HWY_INLINE Pairs<C> operator()(const Pairs<C>& in) const {
    const Pairs<C> partners = Partners<C, kOrder>(in);
    return {Add<C>(Mul<C>(a0, in.m0), Mul<C>(b0, partners.m0)), Add<C>(Mul<C>(a1, in.m1), Mul<C>(b1, partners.m1))};
  }
};

template <class C, Order kOrder>
HWY_INLINE Rotation<C, kOrder> MakeRotation(const Pairs<C>& cos, const Pairs<C>& sin, bool forward) {
  const Pairs<C> b = forward ? NegateMember<C, kOrder>(sin, 0) : NegateMember<C, kOrder>(Partners<C, kOrder>(sin), 1);
  return {cos.m0, b.m0, cos.m1, b.m1};
}

// Coefficients of pairs begin .. begin + pairs - 1 of a table row, made once where many rows turn by them.
template <class T, class TableT, Layout kLayout, Order kOrder>
void MakeCoefficients(const PairRow<const TableT>& cos, const PairRow<const TableT>& sin, std::int64_t begin,
                      std::int64_t pairs, bool forward, Arithmetic<T>* coefficients) {
  using C = Arithmetic<T>;
  ForSteps<C>(pairs, [&](std::int64_t p, std::int64_t count, auto full) {
    Pairs<C> c = LoadPairs<TableT, kLayout, kOrder, full()>(cos, begin + p, count);
    Pairs<C> s = LoadPairs<TableT, kLayout, kOrder, full()>(sin, begin + p, count);
    if constexpr (!std::is_same_v<T, TableT>) {
      c = {Canonical<C>(c.m0), Canonical<C>(c.m1)};
      s = {Canonical<C>(s.m0), Canonical<C>(s.m1)};
    }
    const Rotation<C, kOrder> rotation = MakeRotation<C, kOrder>(c, s, forward);
    C* const to = coefficients + StepOf<C>(p);
    StoreValues<C>(rotation.a0, to, 0);
    StoreValues<C>(rotation.b0, to, 1);
    StoreValues<C>(rotation.a1, to, 2);
    StoreValues<C>(rotation.b1, to, 3);
  });
}

template <class C, Order kOrder>
HWY_INLINE Rotation<C, kOrder> LoadRotation(const C* coefficients) {
  return {LoadValues(coefficients, 0), LoadValues(coefficients, 1), LoadValues(coefficients, 2),
          LoadValues(coefficients, 3)};
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
