// Steps of a row between norm and rotary: loads, row sums, and the norm's forward and backward. (Included once for each
// target.)
//
// A row is parts (RowPart): pairs, of two members a step, or channels, of one. Row sums go over 16 virtual lanes (f64:
// 8), whatever the vectors' width: each target adds the same terms to the same lane in the same order. Backward, a lane
// takes at most 64 terms of a part in the arithmetic type; then the lanes are added in f64 (f64: with compensation) to
// the row's total. Forward, the lanes are f64, and are added once, at the end of the row.
#if defined(GYROGRAD_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_NORM_INL_H_
#undef GYROGRAD_CPU_NORM_INL_H_
#else
#define GYROGRAD_CPU_NORM_INL_H_
#endif

#include "cpu/sums-inl.h"
#include "cpu/visit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// How a part's rows are read and written. kMembers: 2 for pairs, 1 for channels (kRead and kWrite are kSplit or
// kStrided then).
template <Layout kReadLayout, Layout kWriteLayout, Order kLaneOrder, int kMemberCount, bool kTurns>
struct PartShape {
  static constexpr Layout kRead = kReadLayout;
  static constexpr Layout kWrite = kWriteLayout;
  static constexpr Order kOrder = kLaneOrder;
  static constexpr int kMembers = kMemberCount;
  static constexpr bool kRotates = kTurns;
};

// All members of a step.
template <class C, int kMembers>
struct Step {
  Member<C> m[kMembers];
};

// The step of member(0), member(1).
template <class C, int kMembers, class MakeMember>
HWY_INLINE Step<C, kMembers> MakeStep(const MakeMember& member) {
  if constexpr (kMembers == 1) {
    return {{member(0)}};
  } else {
    return {{member(0), member(1)}};
  }
}

template <class T, Layout kLayout, Order kOrder, int kMembers, bool kFull>
HWY_INLINE Step<Arithmetic<T>, kMembers> LoadStep(const PairRow<const T>& row, std::int64_t p, std::int64_t count) {
  using C = Arithmetic<T>;
  if constexpr (kMembers == 2) {
    const Pairs<C> pairs = LoadPairs<T, kLayout, kOrder, kFull>(row, p, count);
    return {{pairs.m0, pairs.m1}};
  } else if constexpr (kLayout == Layout::kSplit) {
    return {{LoadMember<T, kOrder, kFull>(row.row + p, count)}};
  } else {
    T gathered[kStepPairs<C>] = {};
    for (std::int64_t i = 0; i < count; ++i) gathered[i] = *row.At(p + i, 0);
    return {{LoadMember<T, kOrder, true>(gathered, count)}};
  }
}

template <class T, Layout kLayout, Order kOrder, int kMembers, bool kFull>
HWY_INLINE void StoreStep(const Step<Arithmetic<T>, kMembers>& v, const PairRow<T>& row, std::int64_t p,
                          std::int64_t count, bool stream) {
  using C = Arithmetic<T>;
  if constexpr (kMembers == 2) {
    StorePairs<T, kLayout, kOrder, kFull>(Pairs<C>{v.m[0], v.m[1]}, row, p, count, stream);
  } else if constexpr (kLayout == Layout::kSplit) {
    StoreMember<T, kOrder, kFull>(v.m[0], row.row + p, count, stream);
  } else {
    T scattered[kStepPairs<C>];
    StoreMember<T, kOrder, true>(v.m[0], scattered, count, false);
    for (std::int64_t i = 0; i < count; ++i) *row.At(p + i, 0) = scattered[i];
  }
}

template <class T, Layout kLayout, int kMembers>
HWY_INLINE void FetchStep(const PairRow<const T>& row, std::int64_t ahead, std::int64_t p, std::int64_t count) {
  // Channels are the pairs of half as many, side by side.
  constexpr Layout kLie = kMembers == 2 || kLayout == Layout::kStrided ? kLayout : Layout::kInterleaved;
  if constexpr (kMembers == 2) return Fetch<T, kLie>(row, ahead, p, count);
  Fetch<T, kLie>({row.row + p, 2, 1}, ahead, 0, (count + 1) / 2);
}

// Values kept for a part, one for each of its channels, by steps.
template <class C, int kMembers>
inline constexpr std::int64_t kStepRoom = kMembers * kStepPairs<C>;

template <class C, int kMembers>
HWY_INLINE Step<C, kMembers> LoadKept(const C* values, std::int64_t p) {
  return MakeStep<C, kMembers>([&](int m) { return LoadValues(values + p * kMembers, m); });
}

template <class C, int kMembers>
HWY_INLINE void StoreKept(const Step<C, kMembers>& step, C* values, std::int64_t p) {
  for (int m = 0; m < kMembers; ++m) StoreValues(step.m[m], values + p * kMembers, m);
}

template <class C>
HWY_INLINE Member<C> Broadcast(C value) {
  const auto v = hn::Set(Tag<C>(), value);
  return {v, v};
}

// Lanes of a step's end that no pair stands in become 0, whatever was computed in them.
template <class C, Order kOrder>
HWY_INLINE Member<C> KeepFirst(Member<C> v, std::int64_t count) {
  const Tag<C> d;
  constexpr std::int64_t lanes = kLanes<C>;
  const std::int64_t in_a = kOrder == Order::kEvenOdd ? (count + 1) / 2 : std::min(count, lanes);
  const auto a = hn::FirstN(d, static_cast<std::size_t>(in_a));
  const auto b = hn::FirstN(d, static_cast<std::size_t>(count - in_a));
  return {hn::IfThenElseZero(a, v.a), hn::IfThenElseZero(b, v.b)};
}

// ---- row sums

template <class C>
inline constexpr std::int64_t kVirtualLanes = std::is_same_v<C, double> ? 8 : 16;

// The sum of the lanes, halves on halves.
HWY_INLINE double AddHalves(hn::Vec<Tag<double>> v) {
  HWY_ALIGN double lanes[kLanes<double>];
  hn::Store(v, Tag<double>(), lanes);
  for (std::int64_t half = kLanes<double> / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The virtual lanes of one sum.
template <class C>
class LaneSums {
  static constexpr std::int64_t kVectors = kVirtualLanes<C> / kLanes<C>;

 public:
  HWY_INLINE LaneSums() {
    for (auto& lane : lanes_) lane = hn::Zero(Tag<C>());
  }

  // The terms of step number `step` of a part, member by member: vectors a, then vectors b.
  template <Order kOrder, int kMembers>
  HWY_INLINE void Add(const Step<C, kMembers>& terms, std::int64_t step) {
    const std::int64_t a = (kOrder == Order::kEvenOdd ? step : 2 * step) % kVectors;
    const std::int64_t b = (kOrder == Order::kEvenOdd ? step : 2 * step + 1) % kVectors;
    for (int m = 0; m < kMembers; ++m) lanes_[a] = hn::Add(lanes_[a], terms.m[m].a);
    for (int m = 0; m < kMembers; ++m) lanes_[b] = hn::Add(lanes_[b], terms.m[m].b);
  }

  // Adds the lanes, halves on halves, to the total.
  HWY_INLINE void AddTo(CompensatedSum& total) const {
    const Tag<double> dd;
    if constexpr (std::is_same_v<C, double>) {
      HWY_ALIGN double lanes[kVirtualLanes<C>];
      for (std::int64_t i = 0; i < kVectors; ++i) hn::Store(lanes_[i], dd, lanes + i * kLanes<C>);
      for (const double lane : lanes) total.Add(lane);
    } else {
      const TagHalfF dh;
      hn::Vec<Tag<double>> wide[2 * kVectors];
      for (std::int64_t i = 0; i < kVectors; ++i) {
        wide[2 * i] = hn::PromoteTo(dd, hn::LowerHalf(dh, lanes_[i]));
        wide[2 * i + 1] = hn::PromoteTo(dd, hn::UpperHalf(dh, lanes_[i]));
      }
      for (std::int64_t half = kVectors; half > 0; half /= 2) {
        for (std::int64_t i = 0; i < half; ++i) wide[i] = hn::Add(wide[i], wide[i + half]);
      }
      total.total += AddHalves(wide[0]);
    }
  }

 private:
  Vec<C> lanes_[kVectors];
};

// A lane takes at most 64 terms of a part between two additions to the total: a pair has two.
template <class C>
inline constexpr std::int64_t kRunPairs = 32 * kVirtualLanes<C>;

// ---- rows

// Rows at equal distances, all under one table row, or under none.
template <class T>
struct NormRows {
  using C = Arithmetic<T>;
  static constexpr std::int64_t kMost = 16;

  const T* in;  // dy; forward: x
  const T* x;
  T* out;  // null: not wanted
  std::int64_t rows;
  std::int64_t in_step, x_step, out_step;
  std::int64_t in_ahead, x_ahead;
  bool stream;
  C mean[kMost], rstd[kMost];
  CompensatedSum totals[kMost][2];
  C means[kMost][2];  // backward: of h, and of h * x_hat
};

// A part of such rows: where its pairs lie, and what is kept of it.
template <class T>
struct NormPart {
  using C = Arithmetic<T>;
  PairRow<const T> in, x;  // rows are offsets from NormRows' addresses: null + offset
  PairRow<T> out;
  std::int64_t in_offset, x_offset, out_offset;
  std::int64_t count;
  const C* weight;
  const C* bias;
  const C* coefficients;
  C* runs;  // of dweight; those of dbias stand `bias_runs` behind
  std::int64_t bias_runs;
};

template <class T>
HWY_INLINE PairRow<const T> RowAt(const PairRow<const T>& lie, const T* row) {
  return {row, lie.pair_stride, lie.member_stride};
}

// Turns a step of pairs; a step of channels stays.
template <class T, class Shape>
HWY_INLINE Step<Arithmetic<T>, Shape::kMembers> Turn(const NormPart<T>& part,
                                                     const Step<Arithmetic<T>, Shape::kMembers>& v, std::int64_t p) {
  using C = Arithmetic<T>;
  if constexpr (Shape::kRotates) {
    const auto rotation = LoadRotation<C, Shape::kOrder>(part.coefficients + StepOf<C>(p));
    const Pairs<C> turned = rotation(Pairs<C>{v.m[0], v.m[1]});
    return {{turned.m0, turned.m1}};
  } else {
    return v;
  }
}

template <class C, int kMembers>
HWY_INLINE Step<C, kMembers> Normalize(const Step<C, kMembers>& x, C mean, C rstd) {
  return MakeStep<C, kMembers>([&](int m) { return Mul<C>(Sub<C>(x.m[m], Broadcast<C>(mean)), Broadcast<C>(rstd)); });
}

template <class C, int kMembers>
HWY_INLINE Step<C, kMembers> Times(const Step<C, kMembers>& a, const Step<C, kMembers>& b) {
  return MakeStep<C, kMembers>([&](int m) { return Mul<C>(a.m[m], b.m[m]); });
}

template <class C, int kMembers>
HWY_INLINE Step<C, kMembers> Plus(const Step<C, kMembers>& a, const Step<C, kMembers>& b) {
  return MakeStep<C, kMembers>([&](int m) { return Add<C>(a.m[m], b.m[m]); });
}

// Calls step(p, count, full) for the steps of `count` pairs, and end() after at most kRunPairs of them.
template <class C, class StepBody, class End>
HWY_INLINE void ForRuns(std::int64_t count, const StepBody& step, const End& end) {
  for (std::int64_t begin = 0; begin < count; begin += kRunPairs<C>) {
    ForSteps<C>(std::min(kRunPairs<C>, count - begin),
                [&](std::int64_t p, std::int64_t n, auto full) { step(begin + p, n, full); });
    end();
  }
}

// ---- backward

// Adds a part's share to the row sums of h and of h * x_hat.
template <class T, class Shape>
void AddRowSums(NormRows<T>& rows, const NormPart<T>& part) {
  using C = Arithmetic<T>;
  constexpr int kMembers = Shape::kMembers;
  const T* in = rows.in + part.in_offset;
  const T* x = rows.x + part.x_offset;
  for (std::int64_t r = 0; r < rows.rows; ++r, in += rows.in_step, x += rows.x_step) {
    const PairRow<const T> in_row = RowAt(part.in, in);
    const PairRow<const T> x_row = RowAt(part.x, x);
    const C mean = rows.mean[r];
    const C rstd = rows.rstd[r];
    LaneSums<C> h_sum, product_sum;
    ForRuns<C>(
        part.count,
        [&](std::int64_t p, std::int64_t count, auto full) {
          if (rows.in_ahead != 0) FetchStep<T, Shape::kRead, kMembers>(in_row, rows.in_ahead, p, count);
          if (rows.x_ahead != 0) FetchStep<T, Shape::kWrite, kMembers>(x_row, rows.x_ahead, p, count);
          const auto dy = LoadStep<T, Shape::kRead, Shape::kOrder, kMembers, full()>(in_row, p, count);
          const auto xs = LoadStep<T, Shape::kWrite, Shape::kOrder, kMembers, full()>(x_row, p, count);
          const auto h = Times<C, kMembers>(Turn<T, Shape>(part, dy, p), LoadKept<C, kMembers>(part.weight, p));
          auto product = Times<C, kMembers>(h, Normalize<C, kMembers>(xs, mean, rstd));
          if constexpr (!full()) {
            for (Member<C>& m : product.m) m = KeepFirst<C, Shape::kOrder>(m, count);
          }
          const std::int64_t number = p / kStepPairs<C>;
          h_sum.template Add<Shape::kOrder>(h, number);
          product_sum.template Add<Shape::kOrder>(product, number);
        },
        [&] {
          h_sum.AddTo(rows.totals[r][0]);
          product_sum.AddTo(rows.totals[r][1]);
          h_sum = product_sum = LaneSums<C>();
        });
  }
}

// Writes a part of dx (where wanted: always, without sums), and adds to the sums of dweight and dbias.
template <class T, class Shape, bool kSums>
void FinishRows(const NormRows<T>& rows, const NormPart<T>& part) {
  using C = Arithmetic<T>;
  constexpr int kMembers = Shape::kMembers;
  ForSteps<C>(part.count, [&](std::int64_t p, std::int64_t count, auto full) {
    const auto weight = LoadKept<C, kMembers>(part.weight, p);
    auto dweight = weight;
    auto dbias = weight;
    if constexpr (kSums) {
      dweight = LoadKept<C, kMembers>(part.runs, p);
      dbias = LoadKept<C, kMembers>(part.runs + part.bias_runs, p);
    }
    const T* in = rows.in + part.in_offset;
    const T* x = rows.x + part.x_offset;
    T* out = rows.out == nullptr ? nullptr : rows.out + part.out_offset;
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const auto dy = LoadStep<T, Shape::kRead, Shape::kOrder, kMembers, full()>(RowAt(part.in, in), p, count);
      const auto xs = LoadStep<T, Shape::kWrite, Shape::kOrder, kMembers, full()>(RowAt(part.x, x), p, count);
      const auto g = Turn<T, Shape>(part, dy, p);
      const auto x_hat = Normalize<C, kMembers>(xs, rows.mean[r], rows.rstd[r]);
      if constexpr (kSums) {
        dweight = Plus<C, kMembers>(dweight, Times<C, kMembers>(g, x_hat));
        dbias = Plus<C, kMembers>(dbias, g);
      }
      if (!kSums || out != nullptr) {
        const auto h = Times<C, kMembers>(g, weight);
        const auto dx = MakeStep<C, kMembers>([&](int m) {
          const Member<C> centered = Sub<C>(h.m[m], Broadcast<C>(rows.means[r][0]));
          const Member<C> projected = Mul<C>(x_hat.m[m], Broadcast<C>(rows.means[r][1]));
          return Mul<C>(Broadcast<C>(rows.rstd[r]), Sub<C>(centered, projected));
        });
        StoreStep<T, Shape::kWrite, Shape::kOrder, kMembers, full()>(
            dx, PairRow<T>{out, part.out.pair_stride, part.out.member_stride}, p, count, rows.stream);
        out += rows.out_step;
      }
      in += rows.in_step;
      x += rows.x_step;
    }
    if constexpr (kSums) {
      StoreKept<C, kMembers>(dweight, part.runs, p);
      StoreKept<C, kMembers>(dbias, part.runs + part.bias_runs, p);
    }
  });
}

// ---- forward

// f64 sums over the virtual lanes of f32 (or f64) steps.
template <class C>
class WideLaneSums {
  static constexpr std::int64_t kWide = kLanes<double>;
  static constexpr std::int64_t kVectors = kVirtualLanes<C> / kWide;

 public:
  HWY_INLINE WideLaneSums() {
    for (auto& lane : lanes_) lane = hn::Zero(Tag<double>());
  }

  // Adds term(lanes in f64) of the first `count` pairs, or channels, of a step.
  template <Order kOrder, bool kFull, int kMembers, class Term>
  HWY_INLINE void Add(const Step<C, kMembers>& v, std::int64_t count, std::int64_t step, const Term& term) {
    const std::int64_t a = kOrder == Order::kEvenOdd ? step : 2 * step;
    const std::int64_t b = kOrder == Order::kEvenOdd ? step : 2 * step + 1;
    const Member<C> there = kFull ? Broadcast<C>(1) : KeepFirst<C, kOrder>(Broadcast<C>(1), count);
    for (int m = 0; m < kMembers; ++m) AddVector<kFull>(v.m[m].a, there.a, a, term);
    for (int m = 0; m < kMembers; ++m) AddVector<kFull>(v.m[m].b, there.b, b, term);
  }

  HWY_INLINE double Sum() const {
    hn::Vec<Tag<double>> wide[kVectors];
    for (std::int64_t i = 0; i < kVectors; ++i) wide[i] = lanes_[i];
    for (std::int64_t half = kVectors / 2; half > 0; half /= 2) {
      for (std::int64_t i = 0; i < half; ++i) wide[i] = hn::Add(wide[i], wide[i + half]);
    }
    return AddHalves(wide[0]);
  }

 private:
  template <bool kFull, class Term>
  HWY_INLINE void AddVector(Vec<C> v, Vec<C> there, std::int64_t number, const Term& term) {
    const std::int64_t first = number * (kLanes<C> / kWide) % kVectors;
    const auto add = [&](std::int64_t i, auto wide, auto wide_there) {
      // Not their product: the term of a lane that no pair stands in may be infinite.
      const auto terms =
          kFull ? term(wide) : hn::IfThenElseZero(hn::Ne(wide_there, hn::Zero(Tag<double>())), term(wide));
      lanes_[i] = hn::Add(lanes_[i], terms);
    };
    if constexpr (std::is_same_v<C, double>) {
      add(first, v, there);
    } else {
      const Tag<double> dd;
      const TagHalfF dh;
      add(first, hn::PromoteTo(dd, hn::LowerHalf(dh, v)), hn::PromoteTo(dd, hn::LowerHalf(dh, there)));
      add(first + 1, hn::PromoteTo(dd, hn::UpperHalf(dh, v)), hn::PromoteTo(dd, hn::UpperHalf(dh, there)));
    }
  }

  hn::Vec<Tag<double>> lanes_[kVectors];
};

// Adds a part's share of sum(x - center), or of its squares, to the rows' totals.
template <class T, class Shape, bool kSquares>
void AddMoments(NormRows<T>& rows, const NormPart<T>& part, const double* centers) {
  using C = Arithmetic<T>;
  const Tag<double> dd;
  const T* x = rows.in + part.in_offset;
  for (std::int64_t r = 0; r < rows.rows; ++r, x += rows.in_step) {
    const auto center = hn::Set(dd, centers[r]);
    WideLaneSums<C> sums;
    ForSteps<C>(part.count, [&](std::int64_t p, std::int64_t count, auto full) {
      const auto xs = LoadStep<T, Shape::kRead, Shape::kOrder, Shape::kMembers, full()>(RowAt(part.in, x), p, count);
      sums.template Add<Shape::kOrder, full()>(xs, count, p / kStepPairs<C>, [&](auto v) {
        const auto difference = hn::Sub(v, center);
        return kSquares ? hn::Mul(difference, difference) : difference;
      });
    });
    rows.totals[r][0].total += sums.Sum();
  }
}

// Writes a part of y.
template <class T, class Shape>
void WriteRows(const NormRows<T>& rows, const NormPart<T>& part) {
  using C = Arithmetic<T>;
  constexpr int kMembers = Shape::kMembers;
  ForSteps<C>(part.count, [&](std::int64_t p, std::int64_t count, auto full) {
    const auto weight = LoadKept<C, kMembers>(part.weight, p);
    const auto bias = LoadKept<C, kMembers>(part.bias, p);
    const T* in = rows.in + part.in_offset;
    T* out = rows.out + part.out_offset;
    for (std::int64_t r = 0; r < rows.rows; ++r, in += rows.in_step, out += rows.out_step) {
      const auto xs = LoadStep<T, Shape::kRead, Shape::kOrder, kMembers, full()>(RowAt(part.in, in), p, count);
      const auto x_hat = Normalize<C, kMembers>(xs, rows.mean[r], rows.rstd[r]);
      const auto y = Turn<T, Shape>(part, Plus<C, kMembers>(Times<C, kMembers>(x_hat, weight), bias), p);
      StoreStep<T, Shape::kWrite, Shape::kOrder, kMembers, full()>(
          y, PairRow<T>{out, part.out.pair_stride, part.out.member_stride}, p, count, rows.stream);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
