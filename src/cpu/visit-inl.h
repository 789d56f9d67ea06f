// The kernel: rows under table rows, rotated, and their products added to the sums of the tables' gradients, in one
// pass. (Included once for each target.)
#if defined(GYROGRAD_CPU_VISIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_VISIT_INL_H_
#undef GYROGRAD_CPU_VISIT_INL_H_
#else
#define GYROGRAD_CPU_VISIT_INL_H_
#endif

#include "core/machine.h"
#include "cpu/sums-inl.h"
#include "hwy/cache_control.h"
#include "ops/rotary/plan.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

inline constexpr std::int64_t kAheadBytes = 8192;  // of all that is read: far enough for memory to answer

// `rows` rows under each of `table_rows` table rows, both at equal distances. Rows under one table row are in the order
// of their terms. Pointers are those of the first table row and of its first row; steps in elements.
template <class T>
struct RowGroup {
  using C = Arithmetic<T>;
  using Steps = std::array<std::int64_t, kRotaryOperands>;

  PairRow<const T> in;
  PairRow<const T> x;
  PairRow<T> out;
  PairRow<const T> cos, sin;  // FromTables
  const C* coefficients;      // Prepared
  C* runs;                    // running sums
  PairRow<T> dcos, dsin;      // single terms; their rows are null where not wanted
  std::int64_t table_rows, rows;
  Steps table_steps;               // from one table row to the next
  Steps row_steps;                 // from one row under a table row to the next
  std::int64_t row_values;         // coefficients, and running sums, of a table row
  std::int64_t begin, pairs;       // the segment: pairs begin .. begin + pairs - 1 of each row
  std::int64_t in_ahead, x_ahead;  // from a row to the one that is read soon and fetched meanwhile; 0: none
  bool forward;
  bool stream;       // stores to out pass the cache by
  bool stream_sums;  // so do those of single terms

  // Leaves out the first ones.
  HWY_INLINE void Skip(std::int64_t skipped_table_rows, std::int64_t skipped_rows) {
    in.row += skipped_table_rows * table_steps[kIn] + skipped_rows * row_steps[kIn];
    x.row += skipped_table_rows * table_steps[kX] + skipped_rows * row_steps[kX];
    out.row += skipped_table_rows * table_steps[kOut] + skipped_rows * row_steps[kOut];
    if (cos.row != nullptr) cos.row += skipped_table_rows * table_steps[kCos];
    if (sin.row != nullptr) sin.row += skipped_table_rows * table_steps[kSin];
    if (dcos.row != nullptr) dcos.row += skipped_table_rows * table_steps[kDcos];
    if (dsin.row != nullptr) dsin.row += skipped_table_rows * table_steps[kDsin];
    coefficients += skipped_table_rows * row_values;
    runs += skipped_table_rows * row_values;
  }
};

// Past the cache, but for the lines that are not whole.
inline void StreamBytes(const unsigned char* from, unsigned char* to, std::int64_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto into_line = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % kCacheLine);
  const std::int64_t first = std::min(bytes, (kCacheLine - into_line) % kCacheLine);
  const std::int64_t last = first + (bytes - first) / kCacheLine * kCacheLine;
  std::memcpy(to, from, static_cast<std::size_t>(first));
  for (std::int64_t i = first; i < last; i += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
  std::memcpy(to + last, from + last, static_cast<std::size_t>(bytes - last));
}

HWY_INLINE void FetchBytes(const void* from, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(from) + i, 0, 1);
}

// Asks for what a step reads of the row `ahead` elements on, into the second-level cache: the first level's few misses
// in flight are for what is needed now.
template <class T, Layout kLayout>
HWY_INLINE void Fetch(const PairRow<const T>& row, std::int64_t ahead, std::int64_t p, std::int64_t count) {
  if constexpr (kLayout == Layout::kStrided) return;
  constexpr std::int64_t members = kLayout == Layout::kInterleaved ? 1 : 2;  // apart
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T)) * 2 / members;
  for (std::int64_t member = 0; member < members; ++member) {
    FetchBytes(row.At(p, static_cast<int>(member)) + ahead, bytes);
  }
}

// Where the coefficients of a table row come from.
struct Unrotated {  // there is nothing to rotate
  template <class T, Layout, Order, bool>
  static Unrotated Load(const RowGroup<T>&, std::int64_t, std::int64_t) {
    return {};
  }
};

struct Prepared {
  template <class T, Layout, Order kOrder, bool kFull>
  static HWY_INLINE Rotation<Arithmetic<T>, kOrder> Load(const RowGroup<T>& group, std::int64_t p, std::int64_t) {
    using C = Arithmetic<T>;
    return LoadRotation<C, kOrder>(group.coefficients + StepOf<C>(p));
  }
};

struct FromTables {
  template <class T, Layout kTable, Order kOrder, bool kFull>
  static HWY_INLINE Rotation<Arithmetic<T>, kOrder> Load(const RowGroup<T>& group, std::int64_t p, std::int64_t count) {
    return MakeRotation<Arithmetic<T>, kOrder>(LoadPairs<T, kTable, kOrder, kFull>(group.cos, group.begin + p, count),
                                               LoadPairs<T, kTable, kOrder, kFull>(group.sin, group.begin + p, count),
                                               group.forward);
  }
};

// The layout in which tables that are read where rows are, or written, stand beside such rows.
constexpr Layout TableLayoutFor(Layout in, Layout out) {
  return in == Layout::kInterleaved && out == Layout::kInterleaved ? Layout::kInterleaved : Layout::kSplit;
}

// bf16 is converted two by two wherever no row is interleaved. Other types stay side by side where both rows are, but a
// pair's one sum needs its members apart.
template <class T>
constexpr Order OrderFor(Layout in, Layout out, Sums sums) {
  const bool both = in == Layout::kInterleaved && out == Layout::kInterleaved;
  const bool any = in == Layout::kInterleaved || out == Layout::kInterleaved;
  if (std::is_same_v<T, BFloat16>) return any ? Order::kNatural : Order::kEvenOdd;
  return both && sums != Sums::kPerPair ? Order::kBeside : Order::kNatural;
}

// Of a step, so many rows are read before the first is written: rows often lie a multiple of 4 KiB apart, and so do
// input and output, where a read that follows a write in the low 12 bits of its address waits for it.
// Sums leave no registers for that, nor do 16 registers, unless whole lines are written.
template <Layout kRead, Layout kWrite, Sums kSums, bool kFull>
constexpr int BatchRows() {
  constexpr bool kMany = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON;
  constexpr bool kPays = kMany || (HWY_TARGET == HWY_AVX2 && kWrite == Layout::kInterleaved);
  return kPays && kFull && kRead != Layout::kStrided && kSums == Sums::kNone ? 4 : 1;
}

// Where the next row of each operand stands.
template <class T>
struct RowPlaces {
  PairRow<const T> in, x;
  PairRow<T> out;
};

// One step of kRows rows. Everything of them is read before anything is written, so that an output may lie on an input.
template <class T, Layout kRead, Layout kWrite, bool kFull, int kRows, class Rotate, class StepSums>
HWY_INLINE void VisitBatch(const RowGroup<T>& group, const Rotate& rotation, StepSums& sums, RowPlaces<T>& places,
                           std::int64_t at, std::int64_t count) {
  using C = Arithmetic<T>;
  constexpr bool kRotates = !std::is_same_v<Rotate, Unrotated>;
  constexpr Sums kSums = StepSums::kKind;
  constexpr Layout kTable = TableLayoutFor(kRead, kWrite);
  constexpr Order kOrder = OrderFor<T>(kRead, kWrite, kSums);
  Pairs<C> turned[kRows];
  for (int r = 0; r < kRows; ++r) {
    if (group.in_ahead != 0) Fetch<T, kRead>(places.in, group.in_ahead, at, count);
    if (kSums != Sums::kNone && group.x_ahead != 0) Fetch<T, kWrite>(places.x, group.x_ahead, at, count);
    const Pairs<C> dy = LoadPairs<T, kRead, kOrder, kFull>(places.in, at, count);
    if constexpr (kSums != Sums::kNone) {
      const Pairs<C> xs = LoadPairs<T, kWrite, kOrder, kFull>(places.x, at, count);
      sums.AddTerms(dy, xs);
      if constexpr (kSums == Sums::kSingle) {
        if (group.dcos.row != nullptr) {
          StorePairs<T, kTable, kOrder, kFull>(CosTerms<C>(dy, xs), group.dcos, at, count, group.stream_sums);
        }
        if (group.dsin.row != nullptr) {
          StorePairs<T, kTable, kOrder, kFull>(SinTerms<C, kOrder>(dy, xs), group.dsin, at, count, group.stream_sums);
        }
      }
    }
    if constexpr (kRotates) turned[r] = rotation(dy);
    places.in.row += group.row_steps[kIn];
    places.x.row += group.row_steps[kX];
  }
  if constexpr (kRotates) {
    for (int r = 0; r < kRows; ++r) {
      StorePairs<T, kWrite, kOrder, kFull>(turned[r], places.out, at, count, group.stream);
      places.out.row += group.row_steps[kOut];
    }
  }
}

// One step of all rows under the first table row of a group.
template <class T, Layout kRead, Layout kWrite, class Source, Sums kSums, bool kFull>
HWY_INLINE void VisitStep(const RowGroup<T>& group, std::int64_t p, std::int64_t count) {
  using C = Arithmetic<T>;
  constexpr int kBatch = BatchRows<kRead, kWrite, kSums, kFull>();
  constexpr Layout kTable = TableLayoutFor(kRead, kWrite);
  constexpr Order kOrder = OrderFor<T>(kRead, kWrite, kSums);
  const std::int64_t at = group.begin + p;
  const auto rotation = Source::template Load<T, kTable, kOrder, kFull>(group, p, count);
  auto sums = StepSums<C, kOrder, kSums>::Load(group.runs + StepOf<C>(p));
  RowPlaces<T> places{group.in, group.x, group.out};
  std::int64_t left = group.rows;
  for (; left >= kBatch; left -= kBatch) {
    VisitBatch<T, kRead, kWrite, kFull, kBatch>(group, rotation, sums, places, at, count);
  }
  for (; kBatch > 1 && left > 0; --left) {
    VisitBatch<T, kRead, kWrite, kFull, 1>(group, rotation, sums, places, at, count);
  }
  sums.Store(group.runs + StepOf<C>(p));
}

template <class T, Layout kRead, Layout kWrite, class Source, Sums kSums>
void VisitRows(const RowGroup<T>& first) {
  using C = Arithmetic<T>;
  RowGroup<T> group = first;
  for (std::int64_t t = group.table_rows; t > 0; --t) {
    ForSteps<C>(group.pairs, [&group](std::int64_t p, std::int64_t count, auto full) {
      VisitStep<T, kRead, kWrite, Source, kSums, full()>(group, p, count);
    });
    // Skip(1, 0), of what this kernel uses
    group.in.row += group.table_steps[kIn];
    group.out.row += group.table_steps[kOut];
    if constexpr (kSums != Sums::kNone) group.x.row += group.table_steps[kX];
    if constexpr (std::is_same_v<Source, Prepared>) group.coefficients += group.row_values;
    if constexpr (std::is_same_v<Source, FromTables>) {
      group.cos.row += group.table_steps[kCos];
      group.sin.row += group.table_steps[kSin];
    }
    if constexpr (kSums == Sums::kPerChannel || kSums == Sums::kPerPair) group.runs += group.row_values;
    if constexpr (kSums == Sums::kSingle) {
      if (group.dcos.row != nullptr) group.dcos.row += group.table_steps[kDcos];
      if (group.dsin.row != nullptr) group.dsin.row += group.table_steps[kDsin];
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
