// Random integers that are the same everywhere: the golden problems are drawn from them alone.
#ifndef GYROGRAD_TESTS_GOLDEN_NUMBERS_H_
#define GYROGRAD_TESTS_GOLDEN_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace gyrograd::golden {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators": its mixing function.
inline std::uint64_t Mix(std::uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}

inline std::uint64_t HashOf(std::string_view text) {
  std::uint64_t hash = text.size();
  for (const char c : text) hash = Mix(hash ^ static_cast<unsigned char>(c)) + hash;
  return hash;
}

class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15); }
  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>(Next() % static_cast<std::uint64_t>(count));
  }
  std::int64_t Between(std::int64_t least, std::int64_t most) { return least + Below(most - least + 1); }
  bool OneIn(std::int64_t count) { return Below(count) == 0; }
  template <class Choices>
  auto Choose(const Choices& choices) {
    return choices[static_cast<std::size_t>(Below(static_cast<std::int64_t>(std::size(choices))))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace gyrograd::golden

#endif  // GYROGRAD_TESTS_GOLDEN_NUMBERS_H_
