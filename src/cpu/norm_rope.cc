// Norm + rotary on the CPU: the chunks of a norm piece, the totals of its chunks, and copies.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm_rope.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "cpu/dispatch-inl.h"
#include "cpu/norm_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

using Operand = NormRopeOperand;

// A NaN that bf16 rounding keeps.
template <class C>
C CanonicalScalar(C value) {
  return value == value ? value : std::numeric_limits<C>::quiet_NaN();
}

// One element of any type.
inline double ElementAt(const void* data, DType type, std::int64_t at) {
  switch (type) {
    case DType::kF64: return static_cast<const double*>(data)[at];
    case DType::kF32: return static_cast<const float*>(data)[at];
    case DType::kF16: return ToFloat(static_cast<const Float16*>(data)[at]);
    case DType::kBF16: return ToFloat(static_cast<const BFloat16*>(data)[at]);
  }
  return 0;
}

inline void PutElement(double value, void* data, DType type, std::int64_t at) {
  switch (type) {
    case DType::kF64: static_cast<double*>(data)[at] = value; return;
    case DType::kF32: static_cast<float*>(data)[at] = RoundTo<float>(value); return;
    case DType::kF16: static_cast<Float16*>(data)[at] = RoundTo<Float16>(value); return;
    case DType::kBF16: static_cast<BFloat16*>(data)[at] = RoundTo<BFloat16>(value); return;
  }
}

// Pairs (or channels) stand in lanes of this order wherever the part is kept.
template <class T>
Order KeptOrder(const RowPart& part) {
  return std::is_same_v<T, BFloat16> && part.x.pair_step == 1 && part.y.pair_step == 1 ? Order::kEvenOdd
                                                                                       : Order::kNatural;
}

// Calls use(place among a part's kept values, channel of x) for every channel of a part.
template <class T, class Use>
void ForKept(const RowPart& part, const Use& use) {
  using C = Arithmetic<T>;
  for (std::int64_t first = 0; first < part.count; first += kStepPairs<C>) {
    for (std::int64_t half = 0; half < 2; ++half) {
      for (std::int64_t lane = 0; lane < kLanes<C>; ++lane) {
        const std::int64_t pair = first + MemberOfLane<C>(KeptOrder<T>(part), 0, half, lane).pair;
        if (pair >= part.count) continue;
        for (std::int64_t m = 0; m < part.members(); ++m) {
          use(first * part.members() + m * kStepPairs<C> + half * kLanes<C> + lane,
              part.x.offset + pair * part.x.pair_step + m * part.x.member_step);
        }
      }
    }
  }
}

// What all chunks of one run of T rows share.
template <class T>
class NormRunner {
  using C = Arithmetic<T>;
  static constexpr std::size_t kMaxParts = 4;
  static constexpr std::int64_t kPageBytes = 4096;

 public:
  NormRunner(const NormRun& run, char* scratch) : run_(run), piece_(*run.piece) {
    // Stores that pass the cache by fill whole lines at once, or go through a row in order.
    const bool lines = kStepPairs<C> * static_cast<std::int64_t>(sizeof(T)) >= kCacheLine;
    visit_rows_ = run.stream && !lines ? 1 : piece_.visit_rows;
    Carve(reinterpret_cast<C*>(scratch));
    KeepParameters();
    LayParts();
  }

  void Run(std::int64_t chunk) {
    chunk_ = chunk;
    const std::int64_t begin = chunk * piece_.chunk_positions;
    const std::int64_t end = std::min(begin + piece_.chunk_positions, piece_.positions());
    StartSums();
    for (std::int64_t position = begin; position < end; ++position) {
      RunPosition(position / piece_.sequence, position % piece_.sequence);
    }
    if (piece_.wants_sums() && run_rows_ != 0) AddRunsToTotals();
  }

 private:
  // ---- scratch memory

  void Carve(C* at) {
    const auto take = [&at](std::int64_t count) {
      C* const begin = at;
      at += count;
      return begin;
    };
    weight_ = take(piece_.values);
    bias_ = take(piece_.forward ? piece_.values : 0);
    runs_ = take(piece_.wants_sums() ? 2 * piece_.values : 0);
    coefficients_ = take(2 * piece_.turned_values);
    row_copy_ = reinterpret_cast<T*>(at);
  }

  void KeepParameters() {
    std::int64_t at = 0;
    for (const RowPart& part : piece_.parts) {
      std::fill_n(weight_ + at, part.padded(), C{1});
      if (piece_.forward) std::fill_n(bias_ + at, part.padded(), C{-0.0});  // changes no value, not even -0
      ForKept<T>(part, [&](std::int64_t place, std::int64_t channel) {
        Keep(Operand::kWeight, channel * piece_.parameter_strides[0], weight_ + at + place);
        if (piece_.forward) Keep(Operand::kBias, channel * piece_.parameter_strides[1], bias_ + at + place);
      });
      at += part.padded();
    }
  }

  void Keep(int operand, std::int64_t at, C* to) const {
    const void* const data = run_.data[operand];
    if (data != nullptr) *to = CanonicalScalar(static_cast<C>(ElementAt(data, piece_.weight_type, at)));
  }

  void StartSums() {
    run_rows_ = 0;
    if (!piece_.wants_sums()) return;
    std::fill_n(runs_, 2 * piece_.values, C{-0.0});
    const std::int64_t values = piece_.sum_values();
    totals_ = run_.partials + chunk_ * values * (std::is_same_v<C, double> ? 2 : 1);
    std::fill_n(totals_, values, -0.0);
    if (std::is_same_v<C, double>) std::fill_n(totals_ + values, values, 0.0);
  }

  void AddRunsToTotals() {
    C* const wanted = runs_ + (piece_.wants_dweight ? 0 : piece_.values);
    AddRuns(wanted, totals_, totals_ + piece_.sum_values(), piece_.sum_values());
    run_rows_ = 0;
  }

  // ---- parts

  struct Prepared {
    NormPart<T> part;
    NormKernels<T> kernels;
  };

  // Each part twice: as it stands at positions that turn, and at others, where y's channels are x's.
  void LayParts() {
    std::int64_t at = 0, turned_at = 0;
    for (std::size_t i = 0; i < piece_.parts.size(); ++i) {
      const RowPart& part = piece_.parts[i];
      for (const bool turning : {false, true}) Lay(part, turning, at, turned_at, parts_[turning][i]);
      at += part.padded();
      if (part.turns) turned_at += part.padded();
    }
    if (piece_.forward) LayWholeRow();
  }

  void Lay(const RowPart& part, bool turning, std::int64_t at, std::int64_t turned_at, Prepared& to) {
    const ChannelMap& in = piece_.forward || !turning ? part.x : part.y;
    const ChannelMap& out = piece_.forward && turning ? part.y : part.x;
    const PairMap in_map = in.Scaled(turning && run_.copies_rows ? 1 : piece_.in.channels);
    const PairMap x_map = part.x.Scaled(piece_.x.channels);
    const PairMap out_map = out.Scaled(piece_.out.channels);
    to.part.in = {nullptr, in_map.pair_stride, in_map.member_stride};
    to.part.x = {nullptr, x_map.pair_stride, x_map.member_stride};
    to.part.out = {nullptr, out_map.pair_stride, out_map.member_stride};
    to.part.in_offset = in_map.offset;
    to.part.x_offset = x_map.offset;
    to.part.out_offset = out_map.offset;
    to.part.count = part.count;
    to.part.weight = weight_ + at;
    to.part.bias = piece_.forward ? bias_ + at : nullptr;
    to.part.coefficients = coefficients_ + 2 * turned_at;
    to.part.runs = runs_ + at;
    to.part.bias_runs = piece_.values;
    const bool neighbours =
        KeptOrder<T>(part) == Order::kNatural && part.turns && (part.x.pair_step == 2 || part.y.pair_step == 2);
    to.kernels = ChooseNormKernels<T>(part, turning && part.turns, LayoutsOf(part, neighbours, in_map, x_map, out_map),
                                      piece_.forward, piece_.wants_sums());
  }

  PartLayout LayoutsOf(const RowPart& part, bool neighbours, const PairMap& in, const PairMap& x,
                       const PairMap& out) const {
    const bool writes = run_.data[Operand::kOut] != nullptr;
    const PairMap& write = piece_.forward ? out : x;
    const auto fits = [&part](const PairMap& map) { return part.turns ? !map.IsStrided() : map.pair_stride == 1; };
    if (!fits(in) || !fits(write) || (writes && !fits(out))) return {Layout::kStrided, Layout::kStrided, neighbours};
    return {LayoutOf(in), LayoutOf(write), neighbours};
  }

  // Moments are those of the row as it lies.
  void LayWholeRow() {
    RowPart row;
    row.count = piece_.head_dim;
    Lay(row, false, 0, 0, whole_);
  }

  // ---- positions

  void RunPosition(std::int64_t b, std::int64_t s) {
    const std::int64_t table_row = s - piece_.rope_first;
    const bool turning = piece_.turned_values > 0 && table_row >= 0 && table_row < piece_.rope_rows;
    const bool shared = !turning || piece_.heads_share_tables;
    const bool alone = turning && (!shared || run_.copies_rows);
    if (turning && shared) MakeTableRow(b, 0, table_row);
    for (std::int64_t n = 0; n < piece_.heads;) {
      std::int64_t most = alone ? 1 : std::min(piece_.heads - n, visit_rows_);
      if (piece_.wants_sums()) most = std::min(most, NormPiece::kRunRows - run_rows_);
      if (turning && !shared) MakeTableRow(b, n, table_row);
      StartRows(b, s, n, most);
      piece_.forward ? VisitForward(turning, b, s, n) : VisitBackward(turning);
      n += most;
      run_rows_ += most;
      if (piece_.wants_sums() && run_rows_ == NormPiece::kRunRows) AddRunsToTotals();
    }
  }

  void MakeTableRow(std::int64_t b, std::int64_t n, std::int64_t row) {
    piece_.table_type == piece_.type ? MakeTableRowOf<T>(b, n, row) : MakeTableRowOf<WideTable>(b, n, row);
  }

  // Tables are of the rows' type, or f32 beside 16-bit rows.
  using WideTable = std::conditional_t<sizeof(T) == 2, float, T>;

  template <class TableT>
  void MakeTableRowOf(std::int64_t b, std::int64_t n, std::int64_t row) {
    const auto at = [&](int operand, const RowStrides& strides) {
      return static_cast<const TableT*>(run_.data[operand]) + b * strides.batch + n * strides.heads +
             row * strides.sequence;
    };
    const TableT* const cos = at(Operand::kCos, piece_.cos);
    const TableT* const sin = at(Operand::kSin, piece_.sin);
    C* to = coefficients_;
    for (const RowPart& part : piece_.parts) {
      if (!part.turns) continue;
      const PairMap cos_map = part.table.Scaled(piece_.cos.channels);
      const PairMap sin_map = part.table.Scaled(piece_.sin.channels);
      const Layout layout = LayoutOf(cos_map) == LayoutOf(sin_map) ? LayoutOf(cos_map) : Layout::kStrided;
      ChooseMake<TableT>(layout, KeptOrder<T>(part))({cos + cos_map.offset, cos_map.pair_stride, cos_map.member_stride},
                                                     {sin + sin_map.offset, sin_map.pair_stride, sin_map.member_stride},
                                                     0, part.count, piece_.forward, to);
      to += 2 * part.padded();
    }
  }

  template <class TableT>
  static auto ChooseMake(Layout layout, Order order) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (order == Order::kEvenOdd) {
        return layout == Layout::kSplit ? &MakeCoefficients<T, TableT, Layout::kSplit, Order::kEvenOdd>
                                        : &MakeCoefficients<T, TableT, Layout::kStrided, Order::kEvenOdd>;
      }
    }
    return layout == Layout::kSplit         ? &MakeCoefficients<T, TableT, Layout::kSplit, Order::kNatural>
           : layout == Layout::kInterleaved ? &MakeCoefficients<T, TableT, Layout::kInterleaved, Order::kNatural>
                                            : &MakeCoefficients<T, TableT, Layout::kStrided, Order::kNatural>;
  }

  template <class E>
  E* At(int operand, const RowStrides& strides, std::int64_t b, std::int64_t s, std::int64_t n) const {
    auto* const data = static_cast<std::remove_const_t<E>*>(const_cast<void*>(run_.data[operand]));
    return data == nullptr ? nullptr : data + b * strides.batch + s * strides.sequence + n * strides.heads;
  }

  // Rows that follow each other within a page are fetched unasked.
  static bool IsNear(const RowStrides& strides) {
    return std::abs(strides.heads) * static_cast<std::int64_t>(sizeof(T)) <= kPageBytes;
  }

  // What is read soon is that of a later position, far enough for memory to answer.
  std::int64_t Ahead(const RowStrides& strides) const {
    if (IsNear(piece_.in) && IsNear(piece_.x)) return 0;
    const std::int64_t bytes = piece_.heads * piece_.head_dim * static_cast<std::int64_t>(sizeof(T));
    return strides.sequence * std::max<std::int64_t>(1, kAheadBytes / 2 / std::max<std::int64_t>(1, bytes));
  }

  void StartRows(std::int64_t b, std::int64_t s, std::int64_t n, std::int64_t rows) {
    rows_.in = At<const T>(Operand::kIn, piece_.in, b, s, n);
    rows_.x = piece_.forward ? rows_.in : At<const T>(Operand::kX, piece_.x, b, s, n);
    rows_.out = At<T>(Operand::kOut, piece_.out, b, s, n);
    rows_.rows = rows;
    rows_.in_step = piece_.in.heads;
    rows_.x_step = piece_.x.heads;
    rows_.out_step = piece_.out.heads;
    rows_.in_ahead = Ahead(piece_.in);
    rows_.x_ahead = Ahead(piece_.x);
    rows_.stream = run_.stream;
    for (std::int64_t r = 0; r < rows; ++r) {
      rows_.totals[r][0] = rows_.totals[r][1] = CompensatedSum();
      if (piece_.forward) continue;
      const C* const mean = At<const C>(Operand::kMean, piece_.mean, b, s, n + r);
      const C* const rstd = At<const C>(Operand::kRstd, piece_.rstd, b, s, n + r);
      rows_.mean[r] = mean == nullptr ? C{0} : CanonicalScalar(*mean);
      rows_.rstd[r] = CanonicalScalar(*rstd);
    }
  }

  void VisitBackward(bool turning) {
    const Prepared* const parts = parts_[turning];
    const std::size_t count = piece_.parts.size();
    if (rows_.out != nullptr) {
      if (turning && run_.copies_rows) CopyRow();
      for (std::size_t i = 0; i < count; ++i) parts[i].kernels.add_row_sums(rows_, parts[i].part);
      for (std::int64_t r = 0; r < rows_.rows; ++r) {
        rows_.means[r][0] = piece_.subtracts_mean ? MeanOf(rows_.totals[r][0]) : C{0};
        rows_.means[r][1] = MeanOf(rows_.totals[r][1]);
      }
    }
    for (std::size_t i = 0; i < count; ++i) parts[i].kernels.finish(rows_, parts[i].part);
  }

  C MeanOf(const CompensatedSum& total) const {
    return CanonicalScalar(RoundTo<C>(total.Sum() / static_cast<double>(piece_.head_dim)));
  }

  void VisitForward(bool turning, std::int64_t b, std::int64_t s, std::int64_t n) {
    const double width = static_cast<double>(piece_.head_dim);
    double centers[NormRows<T>::kMost] = {};
    if (piece_.subtracts_mean) {
      whole_.kernels.add_values(rows_, whole_.part, centers);
      for (std::int64_t r = 0; r < rows_.rows; ++r) {
        centers[r] = rows_.totals[r][0].total / width;
        rows_.totals[r][0] = CompensatedSum();
      }
    }
    whole_.kernels.add_squares(rows_, whole_.part, centers);
    for (std::int64_t r = 0; r < rows_.rows; ++r) {
      const double variance = rows_.totals[r][0].total / width;
      rows_.mean[r] = CanonicalScalar(RoundTo<C>(centers[r]));
      rows_.rstd[r] = CanonicalScalar(RoundTo<C>(1 / std::sqrt(variance + piece_.eps)));
      if (C* const mean = At<C>(Operand::kMean, piece_.mean, b, s, n + r)) *mean = rows_.mean[r];
      if (C* const rstd = At<C>(Operand::kRstd, piece_.rstd, b, s, n + r)) *rstd = rows_.rstd[r];
    }
    if (turning && run_.copies_rows) CopyRow();
    for (std::size_t i = 0; i < piece_.parts.size(); ++i)
      parts_[turning][i].kernels.write(rows_, parts_[turning][i].part);
  }

  // Where the output lies on the rows that turn, and their pairs in other channels, a row is copied before it is
  // overwritten.
  void CopyRow() {
    for (std::int64_t c = 0; c < piece_.head_dim; ++c) row_copy_[c] = rows_.in[c * piece_.in.channels];
    rows_.in = row_copy_;
    rows_.in_ahead = 0;
  }

  const NormRun& run_;
  const NormPiece& piece_;
  C* weight_;
  C* bias_;
  C* runs_;
  C* coefficients_;
  T* row_copy_;
  std::int64_t visit_rows_;
  Prepared parts_[2][kMaxParts];  // at positions that do not turn, and that do
  Prepared whole_;                // forward

  std::int64_t chunk_ = 0;
  std::int64_t run_rows_ = 0;  // rows that the current run has
  double* totals_ = nullptr;
  NormRows<T> rows_;
};

template <class T>
void RunNormBlocksOf(const NormRun& run, int thread, std::int64_t begin, std::int64_t end) {
  HWY_ALIGN unsigned char stack[kStackScratchBytes];
  char* const scratch =
      run.scratch == nullptr ? reinterpret_cast<char*>(stack) : run.scratch + thread * run.scratch_bytes;
  NormRunner<T> runner(run, scratch);
  for (std::int64_t chunk = begin; chunk < end; ++chunk) runner.Run(chunk);
  if (run.stream) hwy::FlushStream();
}

void RunNormBlocks(const NormRun& run, int thread, std::int64_t begin, std::int64_t end) {
  switch (run.piece->type) {
    case DType::kF64: return RunNormBlocksOf<double>(run, thread, begin, end);
    case DType::kF32: return RunNormBlocksOf<float>(run, thread, begin, end);
    case DType::kF16: return RunNormBlocksOf<Float16>(run, thread, begin, end);
    case DType::kBF16: return RunNormBlocksOf<BFloat16>(run, thread, begin, end);
  }
}

// ---- totals of the chunks

// Adds up the chunks' totals of every kept value, in index order, in the first chunk's place.
void AddNormChunks(const NormPiece& piece, double* partials) {
  const std::int64_t values = piece.sum_values();
  double* const errors = piece.type == DType::kF64 ? partials + values : nullptr;
  AddPartials(partials, errors, piece.chunks, values * (errors == nullptr ? 1 : 2), values, partials, errors);
  for (std::int64_t i = 0; errors != nullptr && i < values; ++i) {
    partials[i] = CompensatedSum{partials[i], errors[i]}.Sum();
  }
}

template <class T>
void WriteParameterSums(const NormRun& run) {
  const NormPiece& piece = *run.piece;
  const int operands[] = {Operand::kDweight, Operand::kDbias};
  const double* from = run.partials;
  for (int which = 0; which < 2; ++which) {
    void* const to = const_cast<void*>(run.data[operands[which]]);
    if (to == nullptr) continue;
    const std::int64_t stride = piece.parameter_strides[2 + which];
    for (const RowPart& part : piece.parts) {
      ForKept<T>(part, [&](std::int64_t place, std::int64_t channel) {
        PutElement(from[place], to, piece.weight_type, channel * stride);
      });
      from += part.padded();
    }
  }
}

void AddChunks(const NormRun& run) {
  AddNormChunks(*run.piece, run.partials);
  switch (run.piece->type) {
    case DType::kF64: return WriteParameterSums<double>(run);
    case DType::kF32: return WriteParameterSums<float>(run);
    case DType::kF16: return WriteParameterSums<Float16>(run);
    case DType::kBF16: return WriteParameterSums<BFloat16>(run);
  }
}

// ---- copies

template <class Element>
void CopyElements(const Axis<2>& row, const Element* in, Element* out) {
  for (std::int64_t i = 0; i < row.extent; ++i) out[i * row.strides[1]] = in[i * row.strides[0]];
}

void CopyRow(const CopyRun& run, const unsigned char* in, unsigned char* out) {
  const Axis<2>& row = run.piece->row;
  if (row.strides[0] == 1 && row.strides[1] == 1) {
    const std::int64_t bytes = row.extent * static_cast<std::int64_t>(run.piece->element_bytes);
    if (run.stream) return StreamBytes(in, out, bytes);
    std::memcpy(out, in, static_cast<std::size_t>(bytes));
    return;
  }
  switch (run.piece->element_bytes) {
    case 2: return CopyElements(row, reinterpret_cast<const std::uint16_t*>(in), reinterpret_cast<std::uint16_t*>(out));
    case 4: return CopyElements(row, reinterpret_cast<const std::uint32_t*>(in), reinterpret_cast<std::uint32_t*>(out));
    default:
      return CopyElements(row, reinterpret_cast<const std::uint64_t*>(in), reinterpret_cast<std::uint64_t*>(out));
  }
}

void CopyRows(const CopyRun& run, std::int64_t begin, std::int64_t end) {
  const CopyPiece& piece = *run.piece;
  const auto size = static_cast<std::int64_t>(piece.element_bytes);
  const std::int64_t row_bytes = piece.row.extent * size;
  AxisWalk<2> walk(piece.outer, begin);
  for (std::int64_t row = begin; row < end; ++row, walk.Take(1)) {
    const auto* const in = static_cast<const unsigned char*>(run.in) + (piece.in_offset + walk.offsets()[0]) * size;
    auto* const out = static_cast<unsigned char*>(run.out) + (piece.out_offset + walk.offsets()[1]) * size;
    if (piece.ahead != 0) FetchBytes(in + piece.ahead * size, row_bytes);
    CopyRow(run, in, out);
  }
  if (run.stream) hwy::FlushStream();
}

const NormRopeKernels* NormRopeKernelTable() {
  static constexpr NormRopeKernels kKernels = {TargetName(), HWY_TARGET != HWY_EMU128, RunNormBlocks, AddChunks,
                                               CopyRows};
  return &kKernels;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gyrograd::internal {

const NormRopeKernels* FindNormRopeKernels(CpuTarget target) {
  return FindKernels<NormRopeKernels>(target, [](CpuTarget compiled) -> const NormRopeKernels* (*)() {
    return GYROGRAD_COMPILED(compiled, NormRopeKernelTable);
  });
}

}  // namespace gyrograd::internal
#endif  // HWY_ONCE
