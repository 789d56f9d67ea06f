// Which kernels a part of a row asks for. (Included once for each target.)
#if defined(GYROGRAD_CPU_NORM_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_NORM_KERNELS_INL_H_
#undef GYROGRAD_CPU_NORM_KERNELS_INL_H_
#else
#define GYROGRAD_CPU_NORM_KERNELS_INL_H_
#endif

#include "cpu/norm-inl.h"
#include "cpu/rotary_kernels-inl.h"
#include "ops/norm_rope/plan.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

template <class T>
struct NormKernels {
  // Backward.
  void (*add_row_sums)(NormRows<T>&, const NormPart<T>&) = nullptr;
  void (*finish)(const NormRows<T>&, const NormPart<T>&) = nullptr;
  // Forward; moments of parts that do not turn alone.
  void (*add_values)(NormRows<T>&, const NormPart<T>&, const double*) = nullptr;
  void (*add_squares)(NormRows<T>&, const NormPart<T>&, const double*) = nullptr;
  void (*write)(const NormRows<T>&, const NormPart<T>&) = nullptr;
};

// How a part's rows are read and written, and the lanes its pairs stand in: by the row's maps alone, so that strides
// change no sum.
struct PartLayout {
  Layout read;
  Layout write;
  bool neighbours;  // some row has the two members of a pair side by side
};

template <class T, Layout kRead, Layout kWrite, Order kOrder, int kMembers, bool kRotates>
NormKernels<T> NormKernelsFor(bool forward, bool sums) {
  using Shape = PartShape<kRead, kWrite, kOrder, kMembers, kRotates>;
  constexpr bool kForwardAlone = kRead == Layout::kInterleaved && kWrite == Layout::kSplit;
  constexpr bool kBackwardAlone = kRead == Layout::kSplit && kWrite == Layout::kInterleaved;
  NormKernels<T> kernels;
  if constexpr (!kForwardAlone) {
    if (!forward) {
      kernels.add_row_sums = AddRowSums<T, Shape>;
      kernels.finish = sums ? FinishRows<T, Shape, true> : FinishRows<T, Shape, false>;
    }
  }
  if constexpr (!kBackwardAlone) {
    if (forward) kernels.write = WriteRows<T, Shape>;
  }
  if constexpr (kMembers == 1) {
    if (forward) kernels.add_values = AddMoments<T, Shape, false>;
    if (forward) kernels.add_squares = AddMoments<T, Shape, true>;
  }
  return kernels;
}

template <class T, int kMembers, bool kRotates>
NormKernels<T> ChooseNormKernels(PartLayout layout, bool forward, bool sums) {
  constexpr Layout kSplit = Layout::kSplit;
  constexpr Layout kInterleaved = Layout::kInterleaved;
  constexpr Layout kStrided = Layout::kStrided;
  constexpr Order kApart = std::is_same_v<T, BFloat16> ? Order::kEvenOdd : Order::kNatural;
  constexpr Order kBeside = Order::kNatural;
  if constexpr (kMembers == 2) {
    if (layout.neighbours) {
      if (layout.read == kStrided) return NormKernelsFor<T, kStrided, kStrided, kBeside, 2, kRotates>(forward, sums);
      if constexpr (kRotates) {
        if (layout.read == kSplit) return NormKernelsFor<T, kSplit, kInterleaved, kBeside, 2, true>(forward, sums);
        if (layout.write == kSplit) return NormKernelsFor<T, kInterleaved, kSplit, kBeside, 2, true>(forward, sums);
      }
      return NormKernelsFor<T, kInterleaved, kInterleaved, kBeside, 2, kRotates>(forward, sums);
    }
  }
  return layout.read == kStrided ? NormKernelsFor<T, kStrided, kStrided, kApart, kMembers, kRotates>(forward, sums)
                                 : NormKernelsFor<T, kSplit, kSplit, kApart, kMembers, kRotates>(forward, sums);
}

template <class T>
NormKernels<T> ChooseNormKernels(const RowPart& part, bool rotates, PartLayout layout, bool forward, bool sums) {
  if (!part.turns) return ChooseNormKernels<T, 1, false>(layout, forward, sums);
  return rotates ? ChooseNormKernels<T, 2, true>(layout, forward, sums)
                 : ChooseNormKernels<T, 2, false>(layout, forward, sums);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
