// Which kernels a plan's layouts and types ask for. (Included once for each target.)
#if defined(GYROGRAD_CPU_ROTARY_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_ROTARY_KERNELS_INL_H_
#undef GYROGRAD_CPU_ROTARY_KERNELS_INL_H_
#else
#define GYROGRAD_CPU_ROTARY_KERNELS_INL_H_
#endif

#include "cpu/visit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

inline Layout LayoutOf(const PairMap& map) {
  return map.IsSplit() ? Layout::kSplit : map.IsInterleaved() ? Layout::kInterleaved : Layout::kStrided;
}

// How one operand is read and another one written, or read, beside it.
struct LayoutPair {
  Layout read;
  Layout write;
};

// Rows whose pairs are split can be taken for strided ones, not the other way round: one strided row makes all strided.
inline LayoutPair LayoutsOf(const PairMap& read, const PairMap& write) {
  const LayoutPair layouts{LayoutOf(read), LayoutOf(write)};
  const bool strided = layouts.read == Layout::kStrided || layouts.write == Layout::kStrided;
  return strided ? LayoutPair{Layout::kStrided, Layout::kStrided} : layouts;
}

enum class Source { kUnrotated, kPrepared, kFromTables };

template <class T>
using RowKernel = void (*)(const RowGroup<T>&);

template <class T, Layout kRead, Layout kWrite>
RowKernel<T> RowKernelFor(Source source, Sums sums) {
  constexpr bool kStrided = kRead == Layout::kStrided;
  // The forward of interleave-half alone reads so, and it has no sums.
  constexpr bool kHasSums = kRead != Layout::kInterleaved || kWrite == Layout::kInterleaved;
  if constexpr (!kStrided) {
    if (source == Source::kFromTables && sums == Sums::kNone) {
      return VisitRows<T, kRead, kWrite, FromTables, Sums::kNone>;
    }
  }
  if (source == Source::kPrepared && sums == Sums::kNone) return VisitRows<T, kRead, kWrite, Prepared, Sums::kNone>;
  if constexpr (kHasSums && !kStrided) {
    if (source == Source::kFromTables) {
      return sums == Sums::kSingle ? VisitRows<T, kRead, kWrite, FromTables, Sums::kSingle>
                                   : VisitRows<T, kRead, kWrite, FromTables, Sums::kPerChannel>;
    }
    if (source == Source::kUnrotated && sums == Sums::kSingle) {
      return VisitRows<T, kRead, kWrite, Unrotated, Sums::kSingle>;
    }
  }
  if constexpr (kHasSums) {
    if (source == Source::kPrepared) {
      return sums == Sums::kPerPair ? VisitRows<T, kRead, kWrite, Prepared, Sums::kPerPair>
                                    : VisitRows<T, kRead, kWrite, Prepared, Sums::kPerChannel>;
    }
    return sums == Sums::kPerPair ? VisitRows<T, kRead, kWrite, Unrotated, Sums::kPerPair>
                                  : VisitRows<T, kRead, kWrite, Unrotated, Sums::kPerChannel>;
  }
  return nullptr;
}

template <class T>
RowKernel<T> ChooseRowKernel(LayoutPair layouts, Source source, Sums sums) {
  constexpr Layout kSplit = Layout::kSplit;
  constexpr Layout kInterleaved = Layout::kInterleaved;
  if (layouts.read == Layout::kStrided) return RowKernelFor<T, Layout::kStrided, Layout::kStrided>(source, sums);
  if (layouts.read == kSplit) {
    return layouts.write == kSplit ? RowKernelFor<T, kSplit, kSplit>(source, sums)
                                   : RowKernelFor<T, kSplit, kInterleaved>(source, sums);
  }
  return layouts.write == kSplit ? RowKernelFor<T, kInterleaved, kSplit>(source, sums)
                                 : RowKernelFor<T, kInterleaved, kInterleaved>(source, sums);
}

// ---- tables

template <class T, class TableT>
struct TableKernels {
  decltype(&MakeCoefficients<T, TableT, Layout::kSplit, Order::kNatural>) make;
  decltype(&WriteSums<T, TableT, Layout::kSplit, Order::kNatural>) write;
};

template <class T, class TableT, Layout kLayout, Order kOrder>
constexpr TableKernels<T, TableT> TableKernelsFor() {
  return {MakeCoefficients<T, TableT, kLayout, kOrder>, WriteSums<T, TableT, kLayout, kOrder>};
}

template <class T, class TableT, Order kOrder>
TableKernels<T, TableT> ChooseTableKernelsOf(Layout layout) {
  switch (layout) {
    case Layout::kSplit: return TableKernelsFor<T, TableT, Layout::kSplit, kOrder>();
    case Layout::kInterleaved:
      if constexpr (kOrder != Order::kEvenOdd) return TableKernelsFor<T, TableT, Layout::kInterleaved, kOrder>();
      break;
    case Layout::kStrided: break;
  }
  return TableKernelsFor<T, TableT, Layout::kStrided, kOrder>();
}

// Of a table of some layout, for rows in some order.
template <class T, class TableT>
TableKernels<T, TableT> ChooseTableKernels(Layout layout, Order order) {
  constexpr Order kOther = std::is_same_v<T, BFloat16> ? Order::kEvenOdd : Order::kBeside;
  return order == kOther ? ChooseTableKernelsOf<T, TableT, kOther>(layout)
                         : ChooseTableKernelsOf<T, TableT, Order::kNatural>(layout);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
