// The sums of the tables' gradients: running sums of a step of pairs, totals of runs, and their rounding. (Included
// once for each target.)
#if defined(GYROGRAD_CPU_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_SUMS_INL_H_
#undef GYROGRAD_CPU_SUMS_INL_H_
#else
#define GYROGRAD_CPU_SUMS_INL_H_
#endif

#include "cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

enum class Sums {
  kNone,
  kPerChannel,
  kPerPair,  // both members of a pair add to one sum, first member first
  kSingle,   // one term each: written as it is made
};

// The terms of a step, for sums of one term.
template <class C>
HWY_INLINE Pairs<C> CosTerms(const Pairs<C>& dy, const Pairs<C>& x) {
  return {Mul<C>(dy.m0, x.m0), Mul<C>(dy.m1, x.m1)};
}
template <class C, Order kOrder>
HWY_INLINE Pairs<C> SinTerms(const Pairs<C>& dy, const Pairs<C>& x) {
  const Pairs<C> partners = Partners<C, kOrder>(x);
  return NegateMember<C, kOrder>({Mul<C>(dy.m0, partners.m0), Mul<C>(dy.m1, partners.m1)}, 0);
}

// The running sums of one step; without running sums there is nothing to do.
template <class C, Order kOrder, Sums kSums>
struct StepSums {
  static constexpr Sums kKind = kSums;

  static StepSums Load(const C*) { return {}; }
  void AddTerms(const Pairs<C>&, const Pairs<C>&) {}
  void Store(C*) const {}
};

template <class C, Order kOrder>
struct StepSums<C, kOrder, Sums::kPerChannel> {
  static constexpr Sums kKind = Sums::kPerChannel;
  Member<C> dcos0, dcos1, dsin0, dsin1;

  static HWY_INLINE StepSums Load(const C* values) {
    return {LoadValues(values, 0), LoadValues(values, 1), LoadValues(values, 2), LoadValues(values, 3)};
  }

  HWY_INLINE void AddTerms(const Pairs<C>& dy, const Pairs<C>& x) {
    dcos0 = Add<C>(dcos0, Mul<C>(dy.m0, x.m0));
    dcos1 = Add<C>(dcos1, Mul<C>(dy.m1, x.m1));
    if constexpr (kOrder ==
                  Order::kBeside) {  // dy's partners are there for the rotation; each sum in its partner's place
      const Pairs<C> partners = NegateMember<C, kOrder>(Partners<C, kOrder>(dy), 1);
      dsin0 = Add<C>(dsin0, Mul<C>(partners.m0, x.m0));
      dsin1 = Add<C>(dsin1, Mul<C>(partners.m1, x.m1));
    } else {
      dsin0 = Sub<C>(dsin0, Mul<C>(dy.m0, x.m1));
      dsin1 = Add<C>(dsin1, Mul<C>(dy.m1, x.m0));
    }
  }

  HWY_INLINE void Store(C* values) const {
    StoreValues(dcos0, values, 0);
    StoreValues(dcos1, values, 1);
    StoreValues(dsin0, values, 2);
    StoreValues(dsin1, values, 3);
  }
};

// One sum for both members, in the first one's place.
template <class C, Order kOrder>
struct StepSums<C, kOrder, Sums::kPerPair> {
  static_assert(kOrder != Order::kBeside);
  static constexpr Sums kKind = Sums::kPerPair;
  Member<C> dcos, dsin;

  static HWY_INLINE StepSums Load(const C* values) { return {LoadValues(values, 0), LoadValues(values, 2)}; }

  HWY_INLINE void AddTerms(const Pairs<C>& dy, const Pairs<C>& x) {
    dcos = Add<C>(Add<C>(dcos, Mul<C>(dy.m0, x.m0)), Mul<C>(dy.m1, x.m1));
    dsin = Add<C>(Sub<C>(dsin, Mul<C>(dy.m0, x.m1)), Mul<C>(dy.m1, x.m0));
  }

  HWY_INLINE void Store(C* values) const {
    StoreValues(dcos, values, 0);
    StoreValues(dsin, values, 2);
  }
};

// ---- sums

// One f64 sum, the errors of its additions (Knuth's two-sum) added up beside.
struct CompensatedSum {
  double total = 0;
  double error = 0;

  void Add(double term) {
    const double sum = total + term;
    const double part = sum - total;
    error += (total - (sum - part)) + (term - part);
    total = sum;
  }
  // An infinite total has a NaN for an error; and -0 + 0 would lose the sign.
  double Sum() const {
    const double sum = total + error;
    return sum == sum && error != 0 ? sum : total;
  }
};

// Adds finished runs to the totals and starts new ones. A run starts from -0, which changes no term, not even -0.
HWY_INLINE void AddRuns(float* runs, double* totals, double*, std::int64_t values) {
  const Tag<double> dd;
  const TagHalfF dh;
  for (std::int64_t i = 0; i < values; i += static_cast<std::int64_t>(hn::MaxLanes(dd))) {
    const auto run = hn::PromoteTo(dd, hn::Load(dh, runs + i));
    hn::Store(hn::Add(hn::Load(dd, totals + i), run), dd, totals + i);
    hn::Store(hn::Set(dh, -0.0f), dh, runs + i);
  }
}

// The same for f64, as CompensatedSum does it.
HWY_INLINE void AddRuns(double* runs, double* totals, double* errors, std::int64_t values) {
  const Tag<double> dd;
  for (std::int64_t i = 0; i < values; i += kLanes<double>) {
    const auto run = hn::Load(dd, runs + i);
    const auto total = hn::Load(dd, totals + i);
    const auto sum = hn::Add(total, run);
    const auto part = hn::Sub(sum, total);
    const auto error = hn::Add(hn::Sub(total, hn::Sub(sum, part)), hn::Sub(run, part));
    hn::Store(sum, dd, totals + i);
    hn::Store(hn::Add(hn::Load(dd, errors + i), error), dd, errors + i);
    hn::Store(hn::Set(dd, -0.0), dd, runs + i);
  }
}

// One vector of finished sums in the arithmetic type, ready for its rounding to TableT.
template <class TableT>
HWY_INLINE Vec<float> FinishTotals(const double* totals, const double*, float) {
  const Tag<double> dd;
  const auto convert = [&](const double* from) {
    const auto v = hn::Load(dd, from);
    if constexpr (std::is_same_v<TableT, float>) {
      return DemoteF64(v);
    } else {
      return RoundToOddF32(v);
    }
  };
  return hn::Combine(Tag<float>(), convert(totals + kLanes<double>), convert(totals));
}

// As CompensatedSum's Sum.
template <class TableT>
HWY_INLINE Vec<double> FinishTotals(const double* totals, const double* errors, double) {
  const Tag<double> dd;
  const auto total = hn::Load(dd, totals);
  const auto error = hn::Load(dd, errors);
  const auto sum = hn::Add(total, error);
  const auto adds = hn::And(hn::Eq(sum, sum), hn::Ne(error, hn::Zero(dd)));
  return hn::IfThenElse(adds, sum, total);
}

// The sums over chunks, `step` apart, of `count` totals; f64 has the errors of those (else null), too. The results may
// stand where the first chunk's are.
inline void AddPartials(const double* from, const double* from_errors, std::int64_t chunks, std::int64_t step,
                        std::int64_t count, double* totals, double* errors) {
  std::copy_n(from, count, totals);
  if (from_errors == nullptr) {
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
      for (std::int64_t i = 0; i < count; ++i) totals[i] += from[chunk * step + i];
    }
    return;
  }
  std::copy_n(from_errors, count, errors);
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
    for (std::int64_t i = 0; i < count; ++i) {
      CompensatedSum sum{totals[i], errors[i]};
      sum.Add(from[chunk * step + i]);
      totals[i] = sum.total;
      errors[i] = sum.error + from_errors[chunk * step + i];
    }
  }
}

// The sums of one table's step of pairs, from the lanes that AddTerms makes them in, by members and pairs.
template <class C>
void OrderSums(Order order, bool of_sin, const double* lanes, double (&sums)[2][kStepPairs<C>]) {
  if (order == Order::kBeside) {  // sums of sin in their partners' places
    for (std::int64_t i = 0; i < kStepPairs<C>; ++i) {
      sums[of_sin][i] = lanes[2 * i];
      sums[!of_sin][i] = lanes[2 * i + 1];
    }
    return;
  }
  for (int member = 0; member < 2; ++member, lanes += kStepPairs<C>) {
    if (order == Order::kNatural) {
      std::copy_n(lanes, kStepPairs<C>, sums[member]);
      continue;
    }
    for (std::int64_t i = 0; i < kLanes<C>; ++i) {
      sums[member][2 * i] = lanes[i];
      sums[member][2 * i + 1] = lanes[kLanes<C> + i];
    }
  }
}

// Where a block's sums are: in runs alone (one run a sum), or in totals.
template <class C>
struct FinishedSums {
  const C* runs;
  const double* totals;  // null: the runs are the sums
  const double* errors;
};

template <class C, class TableT>
HWY_INLINE Member<C> LoadSums(const FinishedSums<C>& sums, std::int64_t at) {
  const Tag<C> d;
  if (sums.totals == nullptr) return {hn::Load(d, sums.runs + at), hn::Load(d, sums.runs + at + kLanes<C>)};
  const auto finish = [&](std::int64_t i) { return FinishTotals<TableT>(sums.totals + i, sums.errors + i, C()); };
  return {finish(at), finish(at + kLanes<C>)};
}

// Rounds one table's sums (which: 0 dcos, 2 dsin) and writes them to pairs begin .. begin + pairs - 1 of a row.
template <class T, class TableT, Layout kLayout, Order kOrder>
void WriteSums(const FinishedSums<Arithmetic<T>>& sums, int which, bool per_pair, const PairRow<TableT>& row,
               std::int64_t begin, std::int64_t pairs) {
  using C = Arithmetic<T>;
  ForSteps<C>(pairs, [&](std::int64_t p, std::int64_t count, auto full) {
    const std::int64_t at = p / kStepPairs<C> * kStepValues<C> + which * kStepPairs<C>;
    const Member<C> first = LoadSums<C, TableT>(sums, at);
    Pairs<C> v{first, per_pair ? first : LoadSums<C, TableT>(sums, at + kStepPairs<C>)};
    if constexpr (kOrder == Order::kBeside) {
      if (which == 2) v = Partners<C, kOrder>(v);  // as AddTerms has made them
    }
    if constexpr (std::is_same_v<TableT, BFloat16>) v = {Canonical<C>(v.m0), Canonical<C>(v.m1)};
    StorePairs<TableT, kLayout, kOrder, full()>(v, row, begin + p, count, false);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
