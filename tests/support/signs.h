// Data for tests of more elements than 32 bits count: +1 or -1 as bf16, known from the element's index alone, and the
// rows of it worth a look.
#ifndef GYROGRAD_TESTS_SUPPORT_SIGNS_H_
#define GYROGRAD_TESTS_SUPPORT_SIGNS_H_

#include <cstdint>
#include <vector>

namespace gyrograd::testing {

inline bool IsNegative(std::uint64_t index) { return ((index * 0x9e3779b97f4a7c15u) >> 61) & 1; }

// `count` elements, the first of which has the index `first`.
inline std::vector<std::uint16_t> Signs(std::int64_t count, std::int64_t first = 0) {
  std::vector<std::uint16_t> signs(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    signs[static_cast<std::size_t>(i)] = IsNegative(static_cast<std::uint64_t>(first + i)) ? 0xbf80 : 0x3f80;
  }
  return signs;
}

// The first row, the last one, one between, and where there are that many those around the 2^31st element.
inline std::vector<std::int64_t> RowsToCompare(std::int64_t rows, std::int64_t width) {
  std::vector<std::int64_t> chosen = {0, rows / 2, rows - 1};
  for (const std::int64_t row : {(std::int64_t{1} << 31) / width - 1, (std::int64_t{1} << 31) / width}) {
    if (row < rows) chosen.push_back(row);
  }
  return chosen;
}

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_SIGNS_H_
