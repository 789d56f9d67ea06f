// The rotary kernels: table rows prepared, the rows under them rotated, their sums finished, block by block of a plan.
#include <span>

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotary.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "cpu/dispatch-inl.h"
#include "cpu/rotary_kernels-inl.h"
#include "cpu/stage-inl.h"
#include "ops/rotary/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// A panel's values: coefficients, runs and totals, each where it is needed. The plan sees to it that they take no more
// than 36 KiB (kPanelPairs of plan.cc).
inline constexpr std::size_t kScratchBytes = 45056;
// Rows are staged, or laid out anew, at its end: the latter, of several segments, while none is in work.
inline constexpr std::size_t kShuffleSegmentBytes = 8192;
static_assert(kStageBytes + 36 * 1024 <= kScratchBytes);
static_assert(kStackRowElements * sizeof(double) <= kScratchBytes);

// ---- the chunks' totals

// Where they stand in the workspace.
struct PartialSums {
  explicit PartialSums(const RotaryRun& run)
      : has_errors(run.plan->type == DType::kF64),
        members(run.plan->per_pair_tables ? 1 : 2),
        line(run.plan->pairs * (has_errors ? 2 : 1)),
        chunk(run.plan->table_rows * 2 * members * line),
        first(run.partials) {}

  double* Of(std::int64_t chunk_index, std::int64_t table_row, bool of_sin) const {
    return first + chunk_index * chunk + (2 * table_row + of_sin) * members * line;
  }

  bool has_errors;
  std::int64_t members;  // of a pair: one has the sum of both per pair
  std::int64_t line;     // from one member's to the next
  std::int64_t chunk;    // from one chunk's to the next
  double* first;
};

// ---- blocks

// What all blocks of one run of T elements and TableT tables share.
template <class T, class TableT>
class BlockRunner {
  using C = Arithmetic<T>;
  using Places = std::array<std::int64_t, kRotaryOperands>;
  using Walk = AxisWalk<kRotaryOperands>;
  static constexpr std::int64_t kMaxPieces = 32;
  static constexpr std::int64_t kSize = sizeof(T);

 public:
  explicit BlockRunner(const RotaryRun& run) : run_(run), plan_(*run.plan) {
    maps_ = plan_.maps;
    rotated_map_ = maps_[run.in_place_shuffle ? kOut : kIn];
    write_out_ = plan_.call.given[kOut];
    sums_ = plan_.call.wants_sums();
    kept_steps_ = Walk(plan_.kept, 0).strides();
    summed_steps_ = Walk(plan_.summed, 0).strides();
    one_run_ = plan_.partials_bytes == 0 && plan_.chunk_rows <= plan_.rows_per_run;
    if (plan_.steps_a_row == 1) {
      table_row_steps_ = kept_steps_;
    } else {
      table_row_steps_ = plan_.kept.size() < 2 ? Places{} : plan_.kept[plan_.kept.size() - 2].strides;
    }
    ChooseKernels();
  }

  void Run(int thread, std::int64_t block) {
    // A tile's chunks follow each other: their totals are added by the thread that made them, mostly.
    const std::int64_t groups = plan_.segments / run_.segments_per_block;
    chunk_ = block % plan_.chunks;
    const std::int64_t first_segment = block / plan_.chunks % groups * run_.segments_per_block;
    const std::int64_t tile_begin = block / plan_.chunks / groups * plan_.tile_rows;
    const std::int64_t tile_end = std::min(tile_begin + plan_.tile_rows, plan_.table_rows);
    chunk_begin_ = chunk_ * plan_.chunk_rows;
    chunk_end_ = std::min(chunk_begin_ + plan_.chunk_rows, plan_.rows_per_table_row);
    HWY_ALIGN unsigned char scratch[kScratchBytes];
    scratch_ = scratch;
    if (run_.stores == StoreWay::kStaged) {
      void* const memory = scratch + kScratchBytes - kStageBytes;
      stage_ = Stage<T>(memory, plan_.row_elements(), summed_steps_[kOut], table_row_steps_[kOut]);
    }
    Walk walk(plan_.kept, tile_begin);
    for (panel_begin_ = tile_begin; panel_begin_ < tile_end; panel_begin_ += panel_rows_) {
      TakePanel(walk, std::min(run_.panel_rows, tile_end - panel_begin_));
      run_.in_place_shuffle ? RunInPlace(thread) : RunSegments(first_segment, write_out_, sums_);
    }
  }

 private:
  // Table rows (or rows) at equal distances.
  struct Piece {
    Places at;
    std::int64_t first;  // of the panel's rows
    std::int64_t count;
  };

  void TakePanel(Walk& walk, std::int64_t rows) {
    panel_rows_ = 0;
    pieces_count_ = 0;
    while (panel_rows_ < rows && pieces_count_ < kMaxPieces) {
      Piece& piece = pieces_[pieces_count_++];
      piece.at = walk.offsets();
      piece.first = panel_rows_;
      piece.count = walk.Take(rows - panel_rows_);
      panel_rows_ += piece.count;
    }
  }

  std::span<const Piece> pieces() const { return {pieces_, static_cast<std::size_t>(pieces_count_)}; }

  // Calls use(place, row) for every table row of the panel, or for every `step`th one.
  template <class Use>
  void ForTableRows(const Use& use, std::int64_t step = 1) const {
    for (const Piece& piece : pieces()) {
      Places place = piece.at;
      for (std::int64_t i = 0; i < piece.count; i += step) {
        use(place, piece.first + i);
        for (int k = 0; k < kRotaryOperands; ++k) place[k] += step * kept_steps_[k];
      }
    }
  }

  // Interleave-half in place adds, moves and rotates its rows one after the other; all others do it in one visit.
  void ChooseKernels() {
    const bool apart = run_.in_place_shuffle;
    // It has then moved its rows away from the places that its tables stand in.
    direct_ = plan_.reads_tables() && !apart;
    single_ = plan_.ways.sums == SumWay::kSingleTerms && !apart;
    const Source source = direct_ ? Source::kFromTables : Source::kPrepared;
    const Sums sums = single_ ? Sums::kSingle : plan_.per_pair_tables ? Sums::kPerPair : Sums::kPerChannel;
    const Sums sums_beside = apart || !sums_ ? Sums::kNone : sums;  // the rotation
    const LayoutPair rotated = RowLayouts(write_out_, sums_ && !apart);
    const LayoutPair summed = RowLayouts(write_out_ && !apart, sums_);
    if (write_out_) rotate_ = ChooseRowKernel<T>(rotated, source, sums_beside);
    if (sums_) add_terms_ = apart || !write_out_ ? ChooseRowKernel<T>(summed, Source::kUnrotated, sums) : rotate_;
    sums_order_ = OrderFor<T>(summed.read, summed.write, sums);
    ChooseTables(OrderFor<T>(rotated.read, rotated.write, sums_beside));
  }

  void ChooseTables(Order rotated) {
    const Layout cos = LayoutOf(maps_[kCos]);
    const Layout tables = LayoutOf(maps_[kSin]) == cos ? cos : Layout::kStrided;
    read_table_ = ChooseTableKernels<T, TableT>(tables, rotated).make;
    write_dcos_ = ChooseTableKernels<T, TableT>(LayoutOf(maps_[kDcos]), sums_order_).write;
    write_dsin_ = ChooseTableKernels<T, TableT>(LayoutOf(maps_[kDsin]), sums_order_).write;
  }

  // x and dx have the same pairs, so that they differ at most in being strided; and one strided row makes all strided.
  LayoutPair RowLayouts(bool rotates, bool adds) const {
    LayoutPair layouts{LayoutOf(rotates ? rotated_map_ : maps_[kIn]), LayoutOf(maps_[rotates ? kOut : kX])};
    const bool strided =
        layouts.read == Layout::kStrided || layouts.write == Layout::kStrided || (adds && maps_[kX].IsStrided());
    return strided ? LayoutPair{Layout::kStrided, Layout::kStrided} : layouts;
  }

  template <class E>
  E* Place(int operand, const Places& place) const {
    return static_cast<std::remove_const_t<E>*>(const_cast<void*>(run_.data[operand])) + place[operand];
  }

  template <class E>
  PairRow<E> TableRow(int operand, const Places& place) const {
    return {Place<E>(operand, place), maps_[operand].pair_stride, maps_[operand].member_stride};
  }

  void RunSegments(std::int64_t first, bool rotates, bool adds) {
    for (std::int64_t s = first; s < first + run_.segments_per_block; ++s) {
      StartSegment(s, rotates, adds);
      Visit(s == 0, rotates, adds);
      if (adds) FinishSums();
    }
  }

  // The terms need dy and x where they are; then every row is laid out anew, and rotated where it stands. Sums may be
  // written over cos and sin, so coefficients come before them.
  void RunInPlace(int thread) {
    if (plan_.segments > 1) {
      if (sums_) RunSegments(0, false, true);
      ShuffleRows(thread);
      RunSegments(0, true, false);
      return;
    }
    StartSegment(0, true, sums_);
    if (sums_) Visit(true, false, true);
    ShuffleRows(thread);
    Visit(true, true, false);
    if (sums_) FinishSums();
  }

  void StartSegment(std::int64_t segment, bool rotates, bool adds) {
    begin_ = segment * plan_.segment_pairs;
    pairs_ = std::min(plan_.segment_pairs, plan_.pairs - begin_);
    row_values_ = (pairs_ + kStepPairs<C> - 1) / kStepPairs<C> * kStepValues<C>;
    CarveScratch();
    if (rotates && !direct_) {
      ForTableRows([this](const Places& place, std::int64_t row) {
        read_table_(TableRow<const TableT>(kCos, place), TableRow<const TableT>(kSin, place), begin_, pairs_,
                    plan_.call.forward, coefficients_ + row * row_values_);
      });
    }
    if (adds && !single_) StartSums();
  }

  void CarveScratch() {
    const std::int64_t values = panel_rows_ * row_values_;
    coefficients_ = reinterpret_cast<C*>(scratch_);
    runs_ = direct_ ? coefficients_ : coefficients_ + values;
    totals_ = reinterpret_cast<double*>(runs_ + values);
    errors_ = totals_ + values;
  }

  void StartSums() {
    const std::int64_t values = panel_rows_ * row_values_;
    std::fill_n(runs_, values, C{-0.0});
    if (one_run_) return;
    std::fill_n(totals_, values, -0.0);
    if (std::is_same_v<C, double>) std::fill_n(errors_, values, 0.0);
  }

  // All rows of the chunk under the table rows of the panel. Near rows: stretch by stretch of the innermost summed
  // axis, one table row after the other. Far rows: few rows at a time, under all table rows.
  void Visit(bool first_segment, bool rotates, bool adds) {
    kernel_ = rotates ? rotate_ : add_terms_;
    in_map_ = rotates ? rotated_map_ : maps_[kIn];
    PrepareGroup();
    keeps_runs_ = adds && !one_run_ && !single_;
    staged_ = rotates && run_.stores == StoreWay::kStaged;
    const bool pass = first_segment && rotates && !staged_ && plan_.passes() && run_.data[kOut] != run_.data[kIn];
    Walk walk(plan_.summed, chunk_begin_);
    run_rows_ = 0;
    for (std::int64_t left = chunk_end_ - chunk_begin_; left > 0;) {
      const std::int64_t most =
          plan_.is_near() ? left : std::min({left, plan_.visit_rows, plan_.rows_per_run - run_rows_});
      Piece rows{walk.offsets(), 0, walk.Take(most)};
      left -= rows.count;
      if (plan_.is_near()) {
        VisitNear(rows);
      } else {
        VisitFar(rows, left > 0 ? walk.offsets() : rows.at);
      }
      run_rows_ = (run_rows_ + rows.count) % plan_.rows_per_run;
      if (pass) PassChannels(rows);
    }
    if (keeps_runs_ && run_rows_ != 0) AddRunsOf(0, panel_rows_);
  }

  void PrepareGroup() {
    group_.in = {nullptr, in_map_.pair_stride, in_map_.member_stride};
    group_.x = RowOf<const T>(kX);
    group_.out = RowOf<T>(kOut);
    group_.cos = RowOf<const T>(kCos);
    group_.sin = RowOf<const T>(kSin);
    group_.dcos = RowOf<T>(kDcos);
    group_.dsin = RowOf<T>(kDsin);
    group_.table_steps = kept_steps_;
    group_.row_steps = summed_steps_;
    group_.row_values = row_values_;
    group_.begin = begin_;
    group_.pairs = pairs_;
    group_.in_ahead = group_.x_ahead = 0;
    group_.forward = plan_.call.forward;
    group_.stream = run_.stores == StoreWay::kStreamed;
    group_.stream_sums = run_.stream_sums;
  }

  template <class E>
  PairRow<E> RowOf(int operand) const {
    return {nullptr, maps_[operand].pair_stride, maps_[operand].member_stride};
  }

  void VisitNear(const Piece& rows) {
    if (rows.count <= std::min(plan_.visit_rows, plan_.rows_per_run - run_rows_)) {
      group_.in_ahead = table_row_steps_[kIn] * std::max<std::int64_t>(1, RowsAhead(kIn) / rows.count);
      group_.x_ahead = table_row_steps_[kX] * std::max<std::int64_t>(1, RowsAhead(kX) / rows.count);
      VisitPieces(rows);
      return;
    }
    group_.table_rows = plan_.steps_a_row;
    const auto visit = [&](const Places& place, std::int64_t row) {
      Places at = rows.at;
      std::int64_t run_rows = run_rows_;
      for (std::int64_t left = rows.count; left > 0; left -= group_.rows) {
        group_.rows = std::min({left, plan_.visit_rows, plan_.rows_per_run - run_rows});
        group_.in_ahead = AheadOf(kIn, left, rows.count);
        group_.x_ahead = AheadOf(kX, left, rows.count);
        VisitGroup(at, place, row);
        for (int k = 0; k < kRotaryOperands; ++k) at[k] += group_.rows * summed_steps_[k];
        run_rows = (run_rows + group_.rows) % plan_.rows_per_run;
        if (keeps_runs_ && run_rows == 0) AddRunsOf(row, group_.table_rows);
      }
    };
    ForTableRows(visit, plan_.steps_a_row);
  }

  // Far enough for memory to answer.
  std::int64_t RowsAhead(int operand) const {
    const std::int64_t elements = kAheadBytes / kSize / (sums_ ? 2 : 1);
    const std::int64_t step = std::abs(summed_steps_[operand]);
    return step == 0 ? 0 : std::max<std::int64_t>(1, elements / step);
  }

  // From one of the last `left` of `count` rows to the row that is RowsAhead on, under the next table row if need be.
  std::int64_t AheadOf(int operand, std::int64_t left, std::int64_t count) const {
    const std::int64_t rows = RowsAhead(operand);
    const std::int64_t ahead = rows * summed_steps_[operand];
    return left > rows ? ahead : ahead + table_row_steps_[operand] - count * summed_steps_[operand];
  }

  // `next`: the rows that follow these, fetched meanwhile.
  void VisitFar(const Piece& rows, const Places& next) {
    group_.in_ahead = next[kIn] - rows.at[kIn];
    group_.x_ahead = next[kX] - rows.at[kX];
    VisitPieces(rows);
  }

  // All of them at once, under every table row of the panel.
  void VisitPieces(const Piece& rows) {
    group_.rows = rows.count;
    for (const Piece& piece : pieces()) {
      group_.table_rows = piece.count;
      VisitGroup(rows.at, piece.at, piece.first);
    }
    if (keeps_runs_ && run_rows_ + rows.count == plan_.rows_per_run) AddRunsOf(0, panel_rows_);
  }

  // Rows from `at` on below the table row at `place`, the panel's `row`, and those after it.
  void VisitGroup(const Places& at, const Places& place, std::int64_t row) {
    group_.in.row = Place<const T>(kIn, at) + place[kIn] + in_map_.offset;
    group_.x.row = Place<const T>(kX, at) + place[kX] + maps_[kX].offset;
    group_.out.row = Place<T>(kOut, at) + place[kOut] + maps_[kOut].offset;
    if (direct_) {
      group_.cos.row = Place<const T>(kCos, place);
      group_.sin.row = Place<const T>(kSin, place);
    }
    group_.coefficients = coefficients_ + row * row_values_;
    group_.runs = runs_ + row * row_values_;
    if (single_) {
      group_.dcos.row = plan_.call.given[kDcos] ? Place<T>(kDcos, place) : nullptr;
      group_.dsin.row = plan_.call.given[kDsin] ? Place<T>(kDsin, place) : nullptr;
    }
    staged_ ? VisitStaged() : kernel_(group_);
  }

  // The group's rows batch by batch, both steps of a row in one.
  void VisitStaged() {
    const std::int64_t steps = plan_.steps_a_row;
    const std::int64_t table_rows = group_.table_rows / steps;
    stage_.Fit(group_.rows, table_rows);
    for (std::int64_t t = 0; t < table_rows; t += stage_.table_rows()) {
      for (std::int64_t r = 0; r < group_.rows; r += stage_.rows()) {
        RowGroup<T> batch = group_;
        batch.Skip(t * steps, r);
        batch.rows = std::min(group_.rows - r, stage_.rows());
        batch.table_rows = std::min(table_rows - t, stage_.table_rows()) * steps;
        VisitOnStage(batch);
      }
    }
  }

  void VisitOnStage(RowGroup<T>& batch) {
    T* const out = batch.out.row - maps_[kOut].offset;
    batch.out.row = stage_.data() + maps_[kOut].offset;
    batch.row_steps[kOut] = stage_.row_step();
    if (plan_.steps_a_row == 1) batch.table_steps[kOut] = stage_.table_step();
    kernel_(batch);
    const std::int64_t table_rows = batch.table_rows / plan_.steps_a_row;
    if (plan_.passes()) PassOnStage(batch, table_rows);
    stage_.Write(batch.rows, table_rows, out);
  }

  // Where a row has two steps, a batch is one table row's.
  void PassOnStage(const RowGroup<T>& batch, std::int64_t table_rows) const {
    for (std::int64_t t = 0; t < table_rows; ++t) {
      for (std::int64_t r = 0; r < batch.rows; ++r) {
        const T* const in = batch.in.row - in_map_.offset + t * batch.table_steps[kIn] + r * batch.row_steps[kIn];
        T* const staged = stage_.data() + t * batch.table_steps[kOut] + r * batch.row_steps[kOut];
        for (const PassedChannels& passed : plan_.passed) Pass(passed, in, staged);
      }
    }
  }

  void AddRunsOf(std::int64_t row, std::int64_t rows) {
    const std::int64_t at = row * row_values_;
    AddRuns(runs_ + at, totals_ + at, errors_ + at, rows * row_values_);
  }

  void PassChannels(const Piece& rows) const {
    ForTableRows([&](const Places& place, std::int64_t row) {
      if ((panel_begin_ + row) % plan_.steps_a_row != 0) return;
      for (std::int64_t r = 0; r < rows.count; ++r) {
        const T* const in = Place<const T>(kIn, rows.at) + place[kIn] + r * summed_steps_[kIn];
        T* const out = Place<T>(kOut, rows.at) + place[kOut] + r * summed_steps_[kOut];
        for (const PassedChannels& passed : plan_.passed) Pass(passed, in, out);
      }
    });
  }

  void Pass(const PassedChannels& passed, const T* in, T* out) const {
    const std::int64_t in_stride = plan_.channel_strides[kIn];
    const std::int64_t out_stride = plan_.channel_strides[kOut];
    if (in_stride == 1 && out_stride == 1) {
      if (group_.in_ahead != 0) FetchBytes(in + passed.begin + group_.in_ahead, passed.count * kSize);
      std::memcpy(out + passed.begin, in + passed.begin, static_cast<std::size_t>(passed.count * kSize));
      return;
    }
    for (std::int64_t c = passed.begin; c < passed.begin + passed.count; ++c) out[c * out_stride] = in[c * in_stride];
  }

  // ---- sums

  void FinishSums() {
    if (single_) return;
    if (plan_.partials_bytes > 0) {
      KeepPartials();
      return;
    }
    ForTableRows([this](const Places& place, std::int64_t row) {
      const std::int64_t at = row * row_values_;
      const FinishedSums<C> sums{runs_ + at, one_run_ ? nullptr : totals_ + at, errors_ + at};
      if (plan_.call.given[kDcos]) {
        write_dcos_(sums, 0, plan_.per_pair_tables, TableRow<TableT>(kDcos, place), begin_, pairs_);
      }
      if (plan_.call.given[kDsin]) {
        write_dsin_(sums, 2, plan_.per_pair_tables, TableRow<TableT>(kDsin, place), begin_, pairs_);
      }
    });
  }

  // Totals of this chunk to the workspace, in the order [chunk][table row][dcos, dsin][member][pair] (per pair: one
  // member); f64 has the errors of those pairs behind them.
  void KeepPartials() {
    for (std::int64_t row = 0; row < panel_rows_; ++row) {
      for (const bool of_sin : {false, true}) {
        for (std::int64_t p = 0; p < pairs_; p += kStepPairs<C>) KeepStep(row, of_sin, p);
      }
    }
  }

  void KeepStep(std::int64_t row, bool of_sin, std::int64_t p) {
    const PartialSums partials(run_);
    double* const to = partials.Of(chunk_, panel_begin_ + row, of_sin) + begin_ + p;
    const std::int64_t from = row * row_values_ + StepOf<C>(p) + 2 * of_sin * kStepPairs<C>;
    for (const bool errors : {false, true}) {
      if (errors && !partials.has_errors) break;
      double sums[2][kStepPairs<C>];
      OrderSums<C>(sums_order_, of_sin, (errors ? errors_ : totals_) + from, sums);
      for (std::int64_t member = 0; member < partials.members; ++member) {
        std::copy_n(sums[member], std::min(kStepPairs<C>, pairs_ - p),
                    to + member * partials.line + (errors ? plan_.pairs : 0));
      }
    }
  }

  // ---- interleave-half in place

  // Lays every row of the block out in kOut's places, so that it can be rotated pair by pair where it stands.
  void ShuffleRows(int thread) {
    T* const buffer = reinterpret_cast<T*>(plan_.row_buffer_bytes == 0
                                               ? reinterpret_cast<char*>(scratch_) + kScratchBytes - ShuffleBytes()
                                               : run_.row_buffers + thread * plan_.row_buffer_bytes);
    Walk walk(plan_.summed, chunk_begin_);
    for (std::int64_t r = chunk_begin_; r < chunk_end_; ++r) {
      T* const row = Place<T>(kOut, walk.offsets());
      ForTableRows([&](const Places& place, std::int64_t) { ShuffleRow(row + place[kOut], buffer); });
      walk.Take(1);
    }
  }

  std::size_t ShuffleBytes() const { return plan_.segments == 1 ? kShuffleSegmentBytes : kScratchBytes; }

  void ShuffleRow(T* row, T* buffer) const {
    const PairMap& from = plan_.maps[kIn];
    const PairMap& to = plan_.maps[kOut];
    for (std::int64_t p = 0; p < plan_.pairs; ++p) {
      const T* const pair = row + from.offset + p * from.pair_stride;
      buffer[2 * p] = pair[0];
      buffer[2 * p + 1] = pair[from.member_stride];
    }
    for (std::int64_t p = 0; p < plan_.pairs; ++p) {
      T* const pair = row + to.offset + p * to.pair_stride;
      pair[0] = buffer[2 * p];
      pair[to.member_stride] = buffer[2 * p + 1];
    }
  }

  const RotaryRun& run_;
  const RotaryPlanData& plan_;
  std::array<PairMap, kRotaryOperands> maps_;
  PairMap rotated_map_;  // kIn's when it is rotated: in place, interleave-half moves it to kOut's places first
  bool write_out_;
  bool sums_;
  bool direct_;   // tables are read where they are used
  bool single_;   // sums are written as they are made
  bool one_run_;  // every sum is one run
  Order sums_order_;
  Places kept_steps_, summed_steps_;  // from one row to the next along the innermost axes
  Places table_row_steps_;            // kept_steps_, or those of the next axis where quarter mode's steps are one
  RowKernel<T> rotate_ = nullptr;     // adds, too, but for interleave-half in place
  RowKernel<T> add_terms_ = nullptr;
  decltype(TableKernels<T, TableT>::make) read_table_;
  decltype(TableKernels<T, TableT>::write) write_dcos_;
  decltype(TableKernels<T, TableT>::write) write_dsin_;

  // The current panel: some table rows of a block, in pieces; and the chunk of the rows under them.
  std::int64_t panel_begin_, panel_rows_, pieces_count_;
  Piece pieces_[kMaxPieces];
  std::int64_t chunk_, chunk_begin_, chunk_end_;
  std::int64_t begin_, pairs_;  // the current segment
  std::int64_t row_values_;     // coefficients of one table row, and sums

  // The current visit.
  RowKernel<T> kernel_;
  PairMap in_map_;
  RowGroup<T> group_;
  bool staged_;            // rows are written by way of the stage
  bool keeps_runs_;        // runs are added to totals
  std::int64_t run_rows_;  // rows that the current run has
  unsigned char* scratch_;
  C* coefficients_;
  C* runs_;
  double* totals_;
  double* errors_;
  Stage<T> stage_;
};

template <class T, class TableT>
void RunBlocksOf(const RotaryRun& run, int thread, std::int64_t begin, std::int64_t end) {
  BlockRunner<T, TableT> runner(run);
  for (std::int64_t block = begin; block < end; ++block) runner.Run(thread, block);
  if (run.stores != StoreWay::kCached || run.stream_sums) hwy::FlushStream();
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

// One table row's sums of pairs p .. p + count - 1, a step or less.
template <class TableT>
void AddStep(const RotaryRun& run, std::int64_t row, bool of_sin, const PairRow<TableT>& to, std::int64_t p,
             std::int64_t count) {
  using C = Arithmetic<TableT>;
  constexpr std::int64_t kStep = kStepPairs<C>;
  const PartialSums partials(run);
  HWY_ALIGN double totals[2 * kStep], errors[2 * kStep];
  if (count < kStep) std::fill_n(totals, 2 * kStep, 0.0);
  if (count < kStep && partials.has_errors) std::fill_n(errors, 2 * kStep, 0.0);
  const double* from = partials.Of(0, row, of_sin) + p;
  for (std::int64_t member = 0; member < partials.members; ++member, from += partials.line) {
    AddPartials(from, partials.has_errors ? from + run.plan->pairs : nullptr, run.plan->chunks, partials.chunk, count,
                totals + member * kStep, errors + member * kStep);
  }
  const Layout layout = LayoutOf(run.plan->maps[of_sin ? kDsin : kDcos]);
  ChooseTableKernels<TableT, TableT>(layout, Order::kNatural)
      .write({nullptr, totals, errors}, 0, run.plan->per_pair_tables, to, p, count);
}

template <class TableT>
void AddChunksOf(const RotaryRun& run, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kStep = kStepPairs<Arithmetic<TableT>>;
  const RotaryPlanData& plan = *run.plan;
  AxisWalk<kRotaryOperands> walk(plan.kept, begin);
  for (std::int64_t row = begin; row < end; ++row, walk.Take(1)) {
    for (const int operand : {kDcos, kDsin}) {
      if (!plan.call.given[operand]) continue;
      const PairMap& map = plan.maps[operand];
      const PairRow<TableT> to{static_cast<TableT*>(const_cast<void*>(run.data[operand])) + walk.offsets()[operand],
                               map.pair_stride, map.member_stride};
      for (std::int64_t p = 0; p < plan.pairs; p += kStep) {
        AddStep<TableT>(run, row, operand == kDsin, to, p, std::min(kStep, plan.pairs - p));
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

const RotaryKernels* RotaryKernelTable() {
  static constexpr RotaryKernels kKernels = {TargetName(), kStepPairs<float> * std::int64_t{sizeof(float)},
                                             HWY_TARGET != HWY_EMU128, RunBlocks, AddChunks};
  return &kKernels;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gyrograd::internal {

const RotaryKernels* FindRotaryKernels(CpuTarget target) {
  return FindKernels<RotaryKernels>(target, [](CpuTarget compiled) -> const RotaryKernels* (*)() {
    return GYROGRAD_COMPILED(compiled, RotaryKernelTable);
  });
}

}  // namespace gyrograd::internal
#endif  // HWY_ONCE
