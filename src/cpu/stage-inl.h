// Rows on their way past the cache: a batch is put together in near memory and streamed from there, whole lines of what
// lies side by side in the output; the ends that are none go through the cache. (Included once for each target.)
#if defined(GYROGRAD_CPU_STAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GYROGRAD_CPU_STAGE_INL_H_
#undef GYROGRAD_CPU_STAGE_INL_H_
#else
#define GYROGRAD_CPU_STAGE_INL_H_
#endif

#include "cpu/visit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gyrograd::internal {
namespace HWY_NAMESPACE {

// Past the cache, but for the lines that are not whole.
inline void StreamLines(const unsigned char* from, unsigned char* to, std::int64_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto into_line = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % kLineBytes);
  const std::int64_t first = std::min(bytes, (kLineBytes - into_line) % kLineBytes);
  const std::int64_t last = first + (bytes - first) / kLineBytes * kLineBytes;
  std::memcpy(to, from, static_cast<std::size_t>(first));
  for (std::int64_t i = first; i < last; i += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
  std::memcpy(to + last, from + last, static_cast<std::size_t>(bytes - last));
}

// Some rows under some table rows, of `length` elements each, at equal distances in the output.
template <class T>
class Stage {
  static constexpr std::int64_t kElements = kStageBytes / static_cast<std::int64_t>(sizeof(T));

 public:
  Stage() = default;
  Stage(std::int64_t length, std::int64_t out_row_step, std::int64_t out_table_step)
      : length_(length), out_row_step_(out_row_step), out_table_step_(out_table_step) {}

  // How many of them make a batch: all rows, if there is room, then as many table rows as there is room for. What
  // adjoins in the output is written at once.
  void Fit(std::int64_t rows, std::int64_t table_rows) {
    rows_ = std::min(rows, kElements / length_);
    table_rows_ = std::min(table_rows, kElements / (rows_ * length_));
    rows_adjoin_ = rows_ > 1 && out_row_step_ == length_;
    tables_adjoin_ = !rows_adjoin_ && out_table_step_ == length_;
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t table_rows() const { return table_rows_; }
  std::int64_t row_step() const { return tables_adjoin_ ? table_rows_ * length_ : length_; }
  std::int64_t table_step() const { return tables_adjoin_ ? length_ : rows_ * length_; }
  T* data() { return memory_; }

  void Write(std::int64_t rows, std::int64_t table_rows, T* out) const {
    const std::int64_t rows_at_once = rows_adjoin_ ? rows : 1;
    const std::int64_t table_rows_at_once = tables_adjoin_ ? table_rows : 1;
    for (std::int64_t t = 0; t < table_rows; t += table_rows_at_once) {
      for (std::int64_t r = 0; r < rows; r += rows_at_once) {
        StreamLines(reinterpret_cast<const unsigned char*>(memory_ + r * row_step() + t * table_step()),
                    reinterpret_cast<unsigned char*>(out + r * out_row_step_ + t * out_table_step_),
                    rows_at_once * table_rows_at_once * length_ * static_cast<std::int64_t>(sizeof(T)));
      }
    }
  }

 private:
  std::int64_t length_ = 0, out_row_step_ = 0, out_table_step_ = 0;
  std::int64_t rows_ = 1, table_rows_ = 1;  // of a batch
  bool rows_adjoin_ = false, tables_adjoin_ = false;
  HWY_ALIGN T memory_[kElements];
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace gyrograd::internal
HWY_AFTER_NAMESPACE();

#endif
