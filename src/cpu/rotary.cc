// The rotary kernels: one table row prepared, its rows rotated, its sums finished, block by block of a plan.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotary.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "cpu/rotate-inl.h"
#include "hwy/cache_control.h"
#include "ops/rotary/kernels.h"
#include "ops/rotary/plan.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// A block's values, in the first-level cache: coefficients alone, or coefficients, runs and totals.
inline constexpr std::size_t kScratchBytes = 32768;

inline Layout LayoutOf(const PairMap& map) {
  return map.IsSplit() ? Layout::kSplit : map.IsInterleaved() ? Layout::kInterleaved : Layout::kStrided;
}

// ---- choice of the row kernel

template <class T, Layout kIn, Layout kOut, Order kOrder>
RotateRows<T> ChooseSums(Sums sums, bool write_out) {
  switch (sums) {
    case Sums::kNone: return RotateVisit<T, kIn, kOut, kOrder, Sums::kNone, true>;
    case Sums::kPerChannel:
      return write_out ? RotateVisit<T, kIn, kOut, kOrder, Sums::kPerChannel, true>
                       : RotateVisit<T, kIn, kOut, kOrder, Sums::kPerChannel, false>;
    case Sums::kPerPair: break;
  }
  return write_out ? RotateVisit<T, kIn, kOut, kOrder, Sums::kPerPair, true>
                   : RotateVisit<T, kIn, kOut, kOrder, Sums::kPerPair, false>;
}

// The layouts of a plan's rows: what is read (dy, or the forward's x), and what is in x's places.
struct RowLayouts {
  Layout in;
  Layout out;
  Order order;
};

template <class T>
RowLayouts LayoutsOf(const RotaryPlanData& plan, const PairMap& in_map) {
  RowLayouts layouts{LayoutOf(in_map), Layout::kStrided, Order::kNatural};
  const bool writes = plan.call.given[kOut];
  layouts.out = LayoutOf(plan.maps[writes ? kOut : kX]);
  if (writes && plan.call.wants_sums() && LayoutOf(plan.maps[kX]) != layouts.out) layouts.out = Layout::kStrided;
  if (layouts.in == Layout::kStrided) layouts.out = Layout::kStrided;
  if (layouts.out == Layout::kStrided) layouts.in = Layout::kStrided;
  const bool split = layouts.in == Layout::kSplit && layouts.out == Layout::kSplit;
  if (std::is_same_v<T, BFloat16> && split) layouts.order = Order::kEvenOdd;
  return layouts;
}

template <class T>
RotateRows<T> ChooseRotate(const RowLayouts& layouts, Sums sums, bool write_out) {
  constexpr Order kSplitOrder = std::is_same_v<T, BFloat16> ? Order::kEvenOdd : Order::kNatural;
  constexpr Order kNatural = Order::kNatural;
  if (layouts.in == Layout::kStrided) {
    return ChooseSums<T, Layout::kStrided, Layout::kStrided, kNatural>(sums, write_out);
  }
  if (layouts.in == Layout::kSplit && layouts.out == Layout::kSplit) {
    return ChooseSums<T, Layout::kSplit, Layout::kSplit, kSplitOrder>(sums, write_out);
  }
  if (layouts.in == Layout::kSplit) {
    return ChooseSums<T, Layout::kSplit, Layout::kInterleaved, kNatural>(sums, write_out);
  }
  if (layouts.out == Layout::kInterleaved) {
    return ChooseSums<T, Layout::kInterleaved, Layout::kInterleaved, kNatural>(sums, write_out);
  }
  // Read in pairs, written in halves: interleave-half's forward, which has no sums.
  return RotateVisit<T, Layout::kInterleaved, Layout::kSplit, kNatural, Sums::kNone, true>;
}

// ---- choice of the table kernels

template <class T, class TableT>
struct TableKernels {
  decltype(&MakeCoefficients<T, TableT, Layout::kSplit, Order::kNatural>) make;
  decltype(&WriteSums<T, TableT, Layout::kSplit, Order::kNatural>) write;
};

template <class T, class TableT, Layout kLayout, Order kOrder>
constexpr TableKernels<T, TableT> TableKernelsFor() {
  return {MakeCoefficients<T, TableT, kLayout, kOrder>, WriteSums<T, TableT, kLayout, kOrder>};
}

template <class T, class TableT>
TableKernels<T, TableT> ChooseTable(Layout layout, Order order) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (order == Order::kEvenOdd) {
      return layout == Layout::kSplit ? TableKernelsFor<T, TableT, Layout::kSplit, Order::kEvenOdd>()
                                      : TableKernelsFor<T, TableT, Layout::kStrided, Order::kEvenOdd>();
    }
  }
  switch (layout) {
    case Layout::kSplit: return TableKernelsFor<T, TableT, Layout::kSplit, Order::kNatural>();
    case Layout::kInterleaved: return TableKernelsFor<T, TableT, Layout::kInterleaved, Order::kNatural>();
    case Layout::kStrided: break;
  }
  return TableKernelsFor<T, TableT, Layout::kStrided, Order::kNatural>();
}

// ---- blocks

// What all blocks of one run of T elements and TableT tables share.
template <class T, class TableT>
class BlockRunner {
  using C = Arithmetic<T>;
  static constexpr std::int64_t kMaxTileRows = 128;

 public:
  explicit BlockRunner(const RotaryRun& run) : run_(run), plan_(*run.plan) {
    maps_ = plan_.maps;
    if (run.in_place_shuffle) maps_[kIn] = maps_[kOut];
    write_out_ = plan_.call.given[kOut];
    sums_ = !plan_.call.wants_sums() ? Sums::kNone : plan_.per_pair_tables ? Sums::kPerPair : Sums::kPerChannel;
    one_run_ = plan_.chunks == 1 && plan_.chunk_rows <= plan_.rows_per_run;
    layouts_ = LayoutsOf<T>(plan_, maps_[kIn]);
    rotate_ = ChooseRotate<T>(layouts_, sums_, write_out_);
    read_table_ = ChooseTable<T, TableT>(TableLayout(kCos, kSin), layouts_.order).make;
    write_dcos_ = ChooseTable<T, TableT>(TableLayout(kDcos, kDcos), layouts_.order).write;
    write_dsin_ = ChooseTable<T, TableT>(TableLayout(kDsin, kDsin), layouts_.order).write;
  }

  void Run(int thread, std::int64_t block) {
    const std::int64_t groups = plan_.segments / run_.segments_per_block;
    const std::int64_t first_segment = block % groups * run_.segments_per_block;
    const std::int64_t tile = block / groups % plan_.tiles;
    chunk_ = block / groups / plan_.tiles;
    chunk_begin_ = chunk_ * plan_.chunk_rows;
    chunk_end_ = std::min(chunk_begin_ + plan_.chunk_rows, plan_.rows_per_table_row);
    tile_begin_ = tile * plan_.tile_rows;
    tile_rows_ = std::min(plan_.tile_rows, plan_.table_rows - tile_begin_);
    AxisWalk<kRotaryOperands> walk(plan_.kept, tile_begin_);
    for (std::int64_t row = 0; row < tile_rows_; ++row, walk.Next()) places_[row] = walk.offsets();
    if (run_.in_place_shuffle) ShuffleRows(thread);
    for (std::int64_t s = first_segment; s < first_segment + run_.segments_per_block; ++s) RunSegment(s);
  }

 private:
  Layout TableLayout(int first, int second) const {
    const Layout layout = LayoutOf(maps_[first]);
    return LayoutOf(maps_[second]) == layout ? layout : Layout::kStrided;
  }

  template <class E>
  E* Place(int operand, std::int64_t row) const {
    using Bare = std::remove_const_t<E>;
    return static_cast<Bare*>(const_cast<void*>(run_.data[operand])) + places_[row][operand];
  }

  template <class E>
  PairRow<E> TableRow(int operand, std::int64_t row) const {
    return {Place<E>(operand, row), maps_[operand].pair_stride, maps_[operand].member_stride};
  }

  void RunSegment(std::int64_t segment) {
    visit_.begin = segment * plan_.segment_pairs;
    visit_.pairs = std::min(plan_.segment_pairs, plan_.pairs - visit_.begin);
    row_values_ = (visit_.pairs + kStepPairs<C> - 1) / kStepPairs<C> * kStepValues<C>;
    HWY_ALIGN unsigned char scratch[kScratchBytes];
    CarveScratch(scratch);
    for (std::int64_t row = 0; row < tile_rows_ && write_out_; ++row) {
      read_table_(TableRow<const TableT>(kCos, row), TableRow<const TableT>(kSin, row), visit_.begin, visit_.pairs,
                  plan_.call.forward, coefficients_ + row * row_values_);
    }
    if (sums_ != Sums::kNone) StartSums();
    VisitRows(segment == 0);
    if (sums_ != Sums::kNone) FinishSums();
  }

  void CarveScratch(unsigned char* scratch) {
    const std::int64_t values = tile_rows_ * row_values_;
    coefficients_ = reinterpret_cast<C*>(scratch);
    runs_ = coefficients_ + values;
    totals_ = reinterpret_cast<double*>(runs_ + values);
    errors_ = totals_ + values;
  }

  void StartSums() {
    const std::int64_t values = tile_rows_ * row_values_;
    std::fill_n(runs_, values, C{-0.0});
    if (one_run_) return;
    std::fill_n(totals_, values, -0.0);
    if (std::is_same_v<C, double>) std::fill_n(errors_, values, 0.0);
  }

  // All rows of the chunk under all table rows of the tile: run by run, and within a run visit by visit.
  void VisitRows(bool pass_channels) {
    visit_.in_pair_stride = maps_[kIn].pair_stride;
    visit_.in_member_stride = maps_[kIn].member_stride;
    visit_.x_pair_stride = maps_[kX].pair_stride;
    visit_.x_member_stride = maps_[kX].member_stride;
    visit_.out_pair_stride = maps_[kOut].pair_stride;
    visit_.out_member_stride = maps_[kOut].member_stride;
    visit_.stream = run_.stream;
    const bool pass = pass_channels && write_out_ && run_.data[kOut] != run_.data[kIn];
    std::array<std::int64_t, kRotaryOperands> steps[kMaxVisitRows];
    AxisWalk<kRotaryOperands> walk(plan_.summed, chunk_begin_);
    for (std::int64_t begin = chunk_begin_; begin < chunk_end_; begin += plan_.rows_per_run) {
      const std::int64_t rows = std::min(plan_.rows_per_run, chunk_end_ - begin);
      for (std::int64_t r = 0; r < rows; ++r, walk.Next()) steps[r] = walk.offsets();
      for (std::int64_t r = 0; r < rows; r += plan_.visit_rows) {
        visit_.rows = static_cast<int>(std::min(plan_.visit_rows, rows - r));
        for (std::int64_t row = 0; row < tile_rows_; ++row) {
          VisitTableRow(row, steps + r);
          if (pass) PassChannels(row, steps + r);
        }
      }
      if (sums_ != Sums::kNone && !one_run_) AddRuns(runs_, totals_, errors_, tile_rows_ * row_values_);
    }
  }

  void VisitTableRow(std::int64_t row, const std::array<std::int64_t, kRotaryOperands>* steps) {
    const T* const in = Place<const T>(kIn, row) + maps_[kIn].offset;
    const T* const x = sums_ == Sums::kNone ? nullptr : Place<const T>(kX, row) + maps_[kX].offset;
    T* const out = write_out_ ? Place<T>(kOut, row) + maps_[kOut].offset : nullptr;
    for (int r = 0; r < visit_.rows; ++r) {
      visit_.in[r] = in + steps[r][kIn];
      visit_.x[r] = x + steps[r][kX];
      visit_.out[r] = out + steps[r][kOut];
    }
    rotate_(visit_, coefficients_ + row * row_values_, runs_ + row * row_values_);
  }

  void PassChannels(std::int64_t row, const std::array<std::int64_t, kRotaryOperands>* steps) const {
    if ((tile_begin_ + row) % plan_.table_rows_per_row != 0) return;
    const std::int64_t in_stride = plan_.channel_strides[kIn];
    const std::int64_t out_stride = plan_.channel_strides[kOut];
    for (int r = 0; r < visit_.rows; ++r) {
      const T* const in = Place<const T>(kIn, row) + steps[r][kIn];
      T* const out = Place<T>(kOut, row) + steps[r][kOut];
      for (const PassedChannels& passed : plan_.passed) {
        if (in_stride == 1 && out_stride == 1) {
          std::memcpy(out + passed.begin, in + passed.begin, static_cast<std::size_t>(passed.count) * sizeof(T));
          continue;
        }
        for (std::int64_t c = passed.begin; c < passed.begin + passed.count; ++c) out[c * out_stride] = in[c * in_stride];
      }
    }
  }

  // ---- sums

  void FinishSums() {
    if (plan_.chunks > 1) {
      KeepPartials();
      return;
    }
    for (std::int64_t row = 0; row < tile_rows_; ++row) {
      const std::int64_t at = row * row_values_;
      const FinishedSums<C> sums{runs_ + at, one_run_ ? nullptr : totals_ + at, errors_ + at};
      if (plan_.call.given[kDcos]) {
        write_dcos_(sums, 0, plan_.per_pair_tables, TableRow<TableT>(kDcos, row), visit_.begin, visit_.pairs);
      }
      if (plan_.call.given[kDsin]) {
        write_dsin_(sums, 2, plan_.per_pair_tables, TableRow<TableT>(kDsin, row), visit_.begin, visit_.pairs);
      }
    }
  }

  // Totals of this chunk to the workspace, in the order [chunk][table row][sum 0..3][pair] (per pair: sums 0 and 2).
  void KeepPartials() {
    const std::int64_t sums = plan_.per_pair_tables ? 2 : 4;
    for (std::int64_t row = 0; row < tile_rows_; ++row) {
      for (std::int64_t sum = 0; sum < sums; ++sum) {
        const std::int64_t which = plan_.per_pair_tables ? 2 * sum : sum;
        const std::int64_t line = ((chunk_ * plan_.table_rows + tile_begin_ + row) * sums + sum) * plan_.pairs;
        for (std::int64_t step = 0; step * kStepPairs<C> < visit_.pairs; ++step) {
          KeepStep(row * row_values_ + step * kStepValues<C> + which * kStepPairs<C>, step * kStepPairs<C>, line);
        }
      }
    }
  }

  void KeepStep(std::int64_t at, std::int64_t first_pair, std::int64_t line) {
    constexpr bool kErrors = std::is_same_v<C, double>;
    for (std::int64_t half = 0; half < 2; ++half) {
      for (std::int64_t lane = 0; lane < kLanes<C>; ++lane) {
        const std::int64_t pair = first_pair + PairOfLane<C>(layouts_.order, half, lane);
        if (pair >= visit_.pairs) continue;
        const std::int64_t from = at + half * kLanes<C> + lane;
        const std::int64_t to = (line + visit_.begin + pair) * (kErrors ? 2 : 1);
        run_.partials[to] = totals_[from];
        if (kErrors) run_.partials[to + 1] = errors_[from];
      }
    }
  }

  // ---- interleave-half in place

  // Lays every row of the block out in kOut's places, so that it can be rotated pair by pair where it stands.
  void ShuffleRows(int thread) {
    HWY_ALIGN T on_stack[kStackRowElements];
    T* const buffer = plan_.row_buffer_bytes == 0
                          ? on_stack
                          : reinterpret_cast<T*>(run_.row_buffers + thread * plan_.row_buffer_bytes);
    const PairMap& from = plan_.maps[kIn];
    const PairMap& to = plan_.maps[kOut];
    AxisWalk<kRotaryOperands> walk(plan_.summed, chunk_begin_);
    for (std::int64_t r = chunk_begin_; r < chunk_end_; ++r, walk.Next()) {
      for (std::int64_t row = 0; row < tile_rows_; ++row) {
        T* const place = Place<T>(kOut, row) + walk.offsets()[kOut];
        for (std::int64_t i = 0; i < 2 * plan_.pairs; ++i) {
          buffer[i] = place[from.offset + (i / 2) * from.pair_stride + (i % 2) * from.member_stride];
        }
        for (std::int64_t i = 0; i < 2 * plan_.pairs; ++i) {
          place[to.offset + (i / 2) * to.pair_stride + (i % 2) * to.member_stride] = buffer[i];
        }
      }
    }
  }

  const RotaryRun& run_;
  const RotaryPlanData& plan_;
  std::array<PairMap, kRotaryOperands> maps_;
  bool write_out_;
  bool one_run_;  // every sum is one run
  Sums sums_;
  RowLayouts layouts_;
  RotateRows<T> rotate_;
  decltype(TableKernels<T, TableT>::make) read_table_;
  decltype(TableKernels<T, TableT>::write) write_dcos_;
  decltype(TableKernels<T, TableT>::write) write_dsin_;

  // The current block.
  std::int64_t chunk_, chunk_begin_, chunk_end_, tile_begin_, tile_rows_, row_values_;
  std::array<std::int64_t, kRotaryOperands> places_[kMaxTileRows];
  Visit<T> visit_;
  C* coefficients_;
  C* runs_;
  double* totals_;
  double* errors_;
};

template <class T, class TableT>
void RunBlocksOf(const RotaryRun& run, int thread, std::int64_t begin, std::int64_t end) {
  BlockRunner<T, TableT> runner(run);
  for (std::int64_t block = begin; block < end; ++block) runner.Run(thread, block);
  if (run.stream) hwy::FlushStream();
}

void RunBlocks(const RotaryRun& run, int thread, std::int64_t begin, std::int64_t end) {
  const bool wide_tables = run.plan->table_type == DType::kF32;
  switch (run.plan->type) {
    case DType::kF64: return RunBlocksOf<double, double>(run, thread, begin, end);
    case DType::kF32: return RunBlocksOf<float, float>(run, thread, begin, end);
    case DType::kF16:
      return wide_tables ? RunBlocksOf<Float16, float>(run, thread, begin, end)
                         : RunBlocksOf<Float16, Float16>(run, thread, begin, end);
    case DType::kBF16:
      return wide_tables ? RunBlocksOf<BFloat16, float>(run, thread, begin, end)
                         : RunBlocksOf<BFloat16, BFloat16>(run, thread, begin, end);
  }
}

// ---- totals of several chunks

// The sum of one table element over the chunks; f64 carries each chunk's error and that of the additions.
double AddPartials(const double* partials, std::int64_t chunks, std::int64_t stride, bool errors) {
  double total = partials[0];
  double error = errors ? partials[1] : 0;
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
    const double next = partials[chunk * stride];
    const double sum = total + next;
    if (errors) {
      const double part = sum - total;
      error += ((total - (sum - part)) + (next - part)) + partials[chunk * stride + 1];
    }
    total = sum;
  }
  const double sum = errors ? total + error : total;
  return sum == sum ? sum : total;
}

template <class TableT>
void AddChunksOf(const RotaryRun& run, std::int64_t begin, std::int64_t end) {
  const RotaryPlanData& plan = *run.plan;
  const bool errors = plan.type == DType::kF64;
  const std::int64_t members = plan.per_pair_tables ? 1 : 2;
  const std::int64_t width = errors ? 2 : 1;
  const std::int64_t line = plan.pairs * width;  // one sum of all pairs of a table row
  AxisWalk<kRotaryOperands> walk(plan.kept, begin);
  for (std::int64_t row = begin; row < end; ++row, walk.Next()) {
    for (const int operand : {kDcos, kDsin}) {
      if (!plan.call.given[operand]) continue;
      TableT* const to = static_cast<TableT*>(const_cast<void*>(run.data[operand])) + walk.offsets()[operand];
      const PairMap& map = plan.maps[operand];
      for (std::int64_t member = 0; member < members; ++member) {
        const std::int64_t sum = (operand == kDsin ? members : 0) + member;
        const double* const from = run.partials + (row * 2 * members + sum) * line;
        for (std::int64_t p = 0; p < plan.pairs; ++p) {
          const double total = AddPartials(from + p * width, plan.chunks, plan.table_rows * 2 * members * line, errors);
          to[p * map.pair_stride + member * map.member_stride] = RoundTo<TableT>(total);
        }
      }
    }
  }
}

void AddChunks(const RotaryRun& run, std::int64_t begin, std::int64_t end) {
  switch (run.plan->table_type) {
    case DType::kF64: return AddChunksOf<double>(run, begin, end);
    case DType::kF32: return AddChunksOf<float>(run, begin, end);
    case DType::kF16: return AddChunksOf<Float16>(run, begin, end);
    case DType::kBF16: return AddChunksOf<BFloat16>(run, begin, end);
  }
}

const RotaryKernels* Kernels() {
#if HWY_TARGET == HWY_AVX3
  constexpr const char* kName = "avx512";
#elif HWY_TARGET == HWY_AVX2
  constexpr const char* kName = "avx2";
#elif HWY_TARGET == HWY_NEON
  constexpr const char* kName = "neon";
#else
  constexpr const char* kName = "portable";
#endif
  static constexpr RotaryKernels kKernels = {kName, RunBlocks, AddChunks};
  return &kKernels;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gyrograd::internal {
namespace {

using GetKernels = const RotaryKernels* (*)();

// The targets this file was compiled for; null for the others.
GetKernels Compiled(CpuTarget target) {
  switch (target) {
    case CpuTarget::kAvx512: return HWY_CHOOSE_AVX3(Kernels);
    case CpuTarget::kAvx2: return HWY_CHOOSE_AVX2(Kernels);
    case CpuTarget::kNeon: return HWY_CHOOSE_NEON(Kernels);
#if HWY_TARGETS & HWY_EMU128
    case CpuTarget::kPortable: return HWY_CHOOSE_FALLBACK(Kernels);
#endif
    default: return nullptr;
  }
}

}  // namespace

const RotaryKernels* FindRotaryKernels(CpuTarget target) {
  if (target != CpuTarget::kBest) {
    const GetKernels get = Compiled(target);
    return get != nullptr && ProcessorRuns(target) ? get() : nullptr;
  }
  for (const CpuTarget candidate :
       {CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon, CpuTarget::kPortable}) {
    if (const RotaryKernels* kernels = FindRotaryKernels(candidate)) return kernels;
  }
  return nullptr;
}

}  // namespace gyrograd::internal
#endif  // HWY_ONCE
