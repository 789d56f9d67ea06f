// Rows on their way past the cache: a batch is put together in near memory and streamed from there, whole lines of what
// lies side by side in the output; the ends that are none go through the cache. (Included once for each target.)
#if defined(GYROGRAD_CPU_STAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_STAGE_INL_H_
#undef GYROGRAD_CPU_STAGE_INL_H_
#else
#define GYROGRAD_CPU_STAGE_INL_H_
#endif

#include "cpu/visit-inl.h"
#include "ops/rotary/plan.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// Some rows under some table rows, of `length` elements each, at equal distances in the output.
template <class T>
class Stage {
  static constexpr std::int64_t kElements = kStageBytes / static_cast<std::int64_t>(sizeof(T));

 public:
  Stage() = default;
  // `memory`: kStageBytes, aligned as vectors are.
  Stage(void* memory, std::int64_t length, std::int64_t out_row_step, std::int64_t out_table_step)
      : memory_(static_cast<T*>(memory)),
        length_(length),
        out_row_step_(out_row_step),
        out_table_step_(out_table_step) {}

  // How many of them make a batch: all rows, if there is room, then as many table rows as there is room for. What
  // adjoins in the output is written at once; where that is rows of several table rows, at least four of them.
  void Fit(std::int64_t rows, std::int64_t table_rows) {
    rows_adjoin_ = rows > 1 && out_row_step_ == length_;
    tables_adjoin_ = !rows_adjoin_ && out_table_step_ == length_;
    const std::int64_t at_once = tables_adjoin_ ? std::min<std::int64_t>(table_rows, 4) : 1;
    rows_ = std::clamp<std::int64_t>(kElements / (at_once * length_), 1, rows);
    table_rows_ = std::min(table_rows, kElements / (rows_ * length_));
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t table_rows() const { return table_rows_; }
  std::int64_t row_step() const { return tables_adjoin_ ? table_rows_ * length_ : length_; }
  std::int64_t table_step() const { return tables_adjoin_ ? length_ : rows_ * length_; }
  T* data() const { return memory_; }

  void Write(std::int64_t rows, std::int64_t table_rows, T* out) const {
    const std::int64_t rows_at_once = rows_adjoin_ ? rows : 1;
    const std::int64_t table_rows_at_once = tables_adjoin_ ? table_rows : 1;
    for (std::int64_t t = 0; t < table_rows; t += table_rows_at_once) {
      for (std::int64_t r = 0; r < rows; r += rows_at_once) {
        StreamBytes(reinterpret_cast<const unsigned char*>(memory_ + r * row_step() + t * table_step()),
                    reinterpret_cast<unsigned char*>(out + r * out_row_step_ + t * out_table_step_),
                    rows_at_once * table_rows_at_once * length_ * static_cast<std::int64_t>(sizeof(T)));
      }
    }
  }

 private:
  T* memory_ = nullptr;
  std::int64_t length_ = 0, out_row_step_ = 0, out_table_step_ = 0;
  std::int64_t rows_ = 1, table_rows_ = 1;  // of a batch
  bool rows_adjoin_ = false, tables_adjoin_ = false;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
