// The rotation of rows, forward and backward, and the sums of the tables' gradients. Every rotation is
//
//   out0 = a0*in0 + b0*in1        out1 = a1*in1 + b1*in0
//
// with coefficients made once from a table row: backward (a0, b0, a1, b1) = (c0, s1, c1, -s0), forward (c0, -s0, c1,
// s1). Coefficients and running sums are kept by steps of pairs: per step eight (sums: up to eight) vectors, in lane
// order. (Included once for each target.)
#if defined(GYROGRAD_CPU_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_ROTATE_INL_H_
#undef GYROGRAD_CPU_ROTATE_INL_H_
#else
#define GYROGRAD_CPU_ROTATE_INL_H_
#endif

#include "cpu/pairs-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// Four members' worth of values a step: (a0, b0, a1, b1), or sums of (dcos0, dcos1, dsin0, dsin1).
template <class C>
inline constexpr std::int64_t kStepValues = 4 * kStepPairs<C>;

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

// ---- coefficients

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
    C* const to = coefficients + p / kStepPairs<C> * kStepValues<C>;
    StoreValues<C>(c.m0, to, 0);
    StoreValues<C>(forward ? Neg<C>(s.m0) : s.m1, to, 1);
    StoreValues<C>(c.m1, to, 2);
    StoreValues<C>(forward ? s.m1 : Neg<C>(s.m0), to, 3);
  });
}

// ---- rows

inline constexpr std::int64_t kLineBytes = 64;

// Rows at equal distances, each with its table row (or all with one: step 0): its coefficients, or cos and sin
// themselves. Distances and strides in elements.
template <class T>
struct RowGroup {
  const T* in;
  T* out;
  const Arithmetic<T>* coefficients;
  const T* cos;
  const T* sin;
  const T* soon;  // rows that are read next, to be fetched meanwhile; null: none
  std::int64_t rows;
  std::int64_t in_step, out_step, coefficient_step, cos_step, sin_step, soon_step;
  std::int64_t begin, pairs;  // the segment: pairs begin .. begin + pairs - 1 of each row
  std::int64_t in_pair_stride, in_member_stride;
  std::int64_t out_pair_stride, out_member_stride;
  std::int64_t cos_member_stride, sin_member_stride;
  bool forward;
  bool stream;
};

// Asks for a step's share of a row that is read soon: its pairs p .. p + count - 1, were they side by side.
template <class T>
HWY_INLINE void Fetch(const T* row, std::int64_t p, std::int64_t count) {
  const char* const from = reinterpret_cast<const char*>(row + 2 * p);
  const std::int64_t bytes = 2 * count * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) hwy::Prefetch(from + i);
}

// Coefficients of one step, made once by MakeCoefficients: for table rows that serve many rows.
template <class T>
struct Prepared {
  using C = Arithmetic<T>;
  const C* values;

  explicit Prepared(const RowGroup<T>& group) : values(group.coefficients) {}
  void NextRow(const RowGroup<T>& group) { values += group.coefficient_step; }

  template <bool kFull>
  HWY_INLINE Pairs<C> Rotate(const Pairs<C>& in, std::int64_t p, std::int64_t) const {
    const C* const a = values + p / kStepPairs<C> * kStepValues<C>;
    return {Add<C>(Mul<C>(LoadValues(a, 0), in.m0), Mul<C>(LoadValues(a, 1), in.m1)),
            Add<C>(Mul<C>(LoadValues(a, 2), in.m1), Mul<C>(LoadValues(a, 3), in.m0))};
  }
};

// Coefficients read from cos and sin where they are used: for table rows that serve one row, or lie beside each other
// as the rows do.
template <class T, Layout kLayout, Order kOrder>
struct Direct {
  using C = Arithmetic<T>;
  PairRow<const T> cos;
  PairRow<const T> sin;
  std::int64_t begin;
  bool forward;

  explicit Direct(const RowGroup<T>& group)
      : cos{group.cos, 1, group.cos_member_stride},
        sin{group.sin, 1, group.sin_member_stride},
        begin(group.begin),
        forward(group.forward) {}
  void NextRow(const RowGroup<T>& group) {
    cos.row += group.cos_step;
    sin.row += group.sin_step;
  }

  template <bool kFull>
  HWY_INLINE Pairs<C> Rotate(const Pairs<C>& in, std::int64_t p, std::int64_t count) const {
    const Pairs<C> c = LoadPairs<T, kLayout, kOrder, kFull>(cos, begin + p, count);
    const Pairs<C> s = LoadPairs<T, kLayout, kOrder, kFull>(sin, begin + p, count);
    const Member<C> kept0 = Mul<C>(c.m0, in.m0);
    const Member<C> kept1 = Mul<C>(c.m1, in.m1);
    if (forward) return {Sub<C>(kept0, Mul<C>(s.m0, in.m1)), Add<C>(kept1, Mul<C>(s.m1, in.m0))};
    return {Add<C>(kept0, Mul<C>(s.m1, in.m1)), Sub<C>(kept1, Mul<C>(s.m0, in.m0))};
  }
};

template <class T, Layout kIn, Layout kOut, Order kOrder, class Coefficients>
void RotateRows(const RowGroup<T>& group) {
  using C = Arithmetic<T>;
  PairRow<const T> in{group.in, group.in_pair_stride, group.in_member_stride};
  PairRow<T> out{group.out, group.out_pair_stride, group.out_member_stride};
  Coefficients coefficients(group);
  const T* soon = group.soon;
  const std::int64_t begin = group.begin;
  const bool stream = group.stream;
  for (std::int64_t r = group.rows; r > 0; --r) {
    ForSteps<C>(group.pairs, [&](std::int64_t p, std::int64_t count, auto full) {
      if (soon != nullptr) Fetch(soon, begin + p, count);
      const Pairs<C> v = LoadPairs<T, kIn, kOrder, full()>(in, begin + p, count);
      StorePairs<T, kOut, kOrder, full()>(coefficients.template Rotate<full()>(v, p, count), out, begin + p, count,
                                          stream);
    });
    in.row += group.in_step;
    out.row += group.out_step;
    if (soon != nullptr) soon += group.soon_step;
    coefficients.NextRow(group);
  }
}

// ---- terms

enum class Sums {
  kPerChannel,
  kPerPair,  // both members of a pair add to one sum, first member first
};

// Rows at equal distances under one table row, in the order of their terms.
template <class T>
struct TermGroup {
  const T* dy;
  const T* x;
  std::int64_t rows;
  std::int64_t dy_step, x_step;
  std::int64_t begin, pairs;
  std::int64_t dy_pair_stride, dy_member_stride;
  std::int64_t x_pair_stride, x_member_stride;
};

// The running sums of one step.
template <class C, Sums kSums>
struct StepSums {
  Member<C> dcos0, dcos1, dsin0, dsin1;

  HWY_INLINE void Load(const C* values) {
    dcos0 = LoadValues(values, 0);
    dsin0 = LoadValues(values, 2);
    if constexpr (kSums == Sums::kPerPair) return;
    dcos1 = LoadValues(values, 1);
    dsin1 = LoadValues(values, 3);
  }

  HWY_INLINE void AddTerms(const Pairs<C>& dy, const Pairs<C>& x) {
    if constexpr (kSums == Sums::kPerChannel) {
      dcos0 = Add<C>(dcos0, Mul<C>(dy.m0, x.m0));
      dcos1 = Add<C>(dcos1, Mul<C>(dy.m1, x.m1));
      dsin0 = Sub<C>(dsin0, Mul<C>(dy.m0, x.m1));
      dsin1 = Add<C>(dsin1, Mul<C>(dy.m1, x.m0));
    } else {
      dcos0 = Add<C>(Add<C>(dcos0, Mul<C>(dy.m0, x.m0)), Mul<C>(dy.m1, x.m1));
      dsin0 = Add<C>(Sub<C>(dsin0, Mul<C>(dy.m0, x.m1)), Mul<C>(dy.m1, x.m0));
    }
  }

  HWY_INLINE void Store(C* values) const {
    StoreValues(dcos0, values, 0);
    StoreValues(dsin0, values, 2);
    if constexpr (kSums == Sums::kPerPair) return;
    StoreValues(dcos1, values, 1);
    StoreValues(dsin1, values, 3);
  }
};

template <class T, Layout kDy, Layout kX, Order kOrder, Sums kSums>
void AddTerms(const TermGroup<T>& group, Arithmetic<T>* runs) {
  using C = Arithmetic<T>;
  ForSteps<C>(group.pairs, [&](std::int64_t p, std::int64_t count, auto full) {
    PairRow<const T> dy{group.dy, group.dy_pair_stride, group.dy_member_stride};
    PairRow<const T> x{group.x, group.x_pair_stride, group.x_member_stride};
    StepSums<C, kSums> step;
    step.Load(runs);
    for (std::int64_t r = group.rows; r > 0; --r) {
      step.AddTerms(LoadPairs<T, kDy, kOrder, full()>(dy, group.begin + p, count),
                    LoadPairs<T, kX, kOrder, full()>(x, group.begin + p, count));
      dy.row += group.dy_step;
      x.row += group.x_step;
    }
    step.Store(runs);
    runs += kStepValues<C>;
  });
}

// Sums of one term each, in the places of cos and sin: for table rows at equal distances, `terms.rows` of them.
template <class T>
struct SingleSums {
  TermGroup<T> terms;
  T* dcos;  // null: not wanted
  T* dsin;
  std::int64_t dcos_step, dsin_step;
  std::int64_t dcos_member_stride, dsin_member_stride;
  bool stream;
};

template <class T, Layout kDy, Layout kX, Layout kTable, Order kOrder>
void WriteTerms(const SingleSums<T>& sums) {
  using C = Arithmetic<T>;
  const TermGroup<T>& terms = sums.terms;
  PairRow<const T> dy_row{terms.dy, terms.dy_pair_stride, terms.dy_member_stride};
  PairRow<const T> x_row{terms.x, terms.x_pair_stride, terms.x_member_stride};
  PairRow<T> dcos{sums.dcos, 1, sums.dcos_member_stride};
  PairRow<T> dsin{sums.dsin, 1, sums.dsin_member_stride};
  for (std::int64_t r = terms.rows; r > 0; --r) {
    ForSteps<C>(terms.pairs, [&](std::int64_t p, std::int64_t count, auto full) {
      const std::int64_t at = terms.begin + p;
      const Pairs<C> dy = LoadPairs<T, kDy, kOrder, full()>(dy_row, at, count);
      const Pairs<C> x = LoadPairs<T, kX, kOrder, full()>(x_row, at, count);
      const Pairs<C> cos_terms{Mul<C>(dy.m0, x.m0), Mul<C>(dy.m1, x.m1)};
      const Pairs<C> sin_terms{Neg<C>(Mul<C>(dy.m0, x.m1)), Mul<C>(dy.m1, x.m0)};
      if (dcos.row != nullptr) StorePairs<T, kTable, kOrder, full()>(cos_terms, dcos, at, count, sums.stream);
      if (dsin.row != nullptr) StorePairs<T, kTable, kOrder, full()>(sin_terms, dsin, at, count, sums.stream);
    });
    dy_row.row += terms.dy_step;
    x_row.row += terms.x_step;
    if (dcos.row != nullptr) dcos.row += sums.dcos_step;
    if (dsin.row != nullptr) dsin.row += sums.dsin_step;
  }
}

// ---- sums

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

// The same for f64: the error of each addition is kept (Knuth's two-sum) and added up beside.
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

template <class TableT>
HWY_INLINE Vec<double> FinishTotals(const double* totals, const double* errors, double) {
  const Tag<double> dd;
  const auto total = hn::Load(dd, totals);
  const auto error = hn::Load(dd, errors);
  const auto sum = hn::Add(total, error);
  // An infinite total has a NaN for an error; and -0 + 0 would lose the sign.
  const auto adds = hn::And(hn::Eq(sum, sum), hn::Ne(error, hn::Zero(dd)));
  return hn::IfThenElse(adds, sum, total);
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
    Pairs<C> v;
    v.m0 = LoadSums<C, TableT>(sums, at);
    v.m1 = per_pair ? v.m0 : LoadSums<C, TableT>(sums, at + kStepPairs<C>);
    if constexpr (std::is_same_v<TableT, BFloat16>) v = {Canonical<C>(v.m0), Canonical<C>(v.m1)};
    StorePairs<TableT, kLayout, kOrder, full()>(v, row, begin + p, count, false);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
