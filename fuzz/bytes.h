// A fuzzer's input as a source of choices: each call takes some bytes from the front; when none are left, every choice
// is the first one, so that any input means something and a shorter one means something simpler.
#ifndef GYROGRAD_FUZZ_BYTES_H_
#define GYROGRAD_FUZZ_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace gyrograd::fuzz {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  std::uint8_t Byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }

  std::uint64_t Word() {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | Byte();
    return word;
  }

  // From `low` to `high`; takes as many bytes as the range needs.
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    if (high <= low) return low;
    const std::uint64_t choices = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) + 1;
    std::uint64_t number = 0;
    for (std::uint64_t most = choices - 1; most != 0; most >>= 8) number = number << 8 | Byte();
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + (choices == 0 ? number : number % choices));
  }

  // True for one byte in `n`, never for a byte that is not there.
  bool OneIn(int n) { return Byte() % n == n - 1; }

  template <class Choices>
  const auto& Of(const Choices& choices) {
    return std::data(choices)[Between(0, static_cast<std::int64_t>(std::size(choices)) - 1)];
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace gyrograd::fuzz

#endif  // GYROGRAD_FUZZ_BYTES_H_
