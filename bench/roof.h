// The yardstick: plain loops that read and write as many bytes through as many streams as a problem has to.
#ifndef GYROGRAD_BENCH_ROOF_H_
#define GYROGRAD_BENCH_ROOF_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gyrograd::bench {

// The memory that a problem reads and writes, a stream for each tensor.
struct Traffic {
  std::vector<std::span<const std::byte>> reads;
  std::vector<std::span<std::byte>> writes;

  std::size_t BytesRead() const;
  std::size_t BytesWritten() const;
};

enum class Roof : std::uint8_t {
  kStreaming,  // stores that go past the cache (normal ones where the processor has none)
  kPlain,      // normal stores
  kMemcpy,     // memcpy for each pair of a read and a written stream
};

inline constexpr Roof kRoofs[] = {Roof::kStreaming, Roof::kPlain, Roof::kMemcpy};

const char* Name(Roof roof);

// Reads every byte of traffic.reads and writes every byte of traffic.writes, whole cache lines only. What is written is
// a mix of what was read.
void MoveBytes(Roof roof, const Traffic& traffic, int num_threads);

}  // namespace gyrograd::bench

#endif  // GYROGRAD_BENCH_ROOF_H_
