// The loops of the yardstick. All streams advance together; a stream that is shorter than the longest advances slower.
#include "bench/roof.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#define GYROGRAD_AVX2 __attribute__((target("avx2")))
#else
#define GYROGRAD_AVX2
#endif

namespace gyrograd::bench {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kBlock = 128 * 1024;  // bytes of the longest stream between two steps of the shorter ones
constexpr std::size_t kMaxReads = 5;
constexpr std::size_t kMaxWrites = 3;

// Moves `bytes` (whole lines) from kReads streams to kWrites streams of that length.
using LineLoop = void (*)(const std::byte* const* from, std::byte* const* to, std::size_t bytes);

// One cache line, mixed from several by exclusive or.
#if defined(__x86_64__)
struct AvxLine {
  using Part = __m256i;
  GYROGRAD_AVX2 static Part Zero() { return _mm256_setzero_si256(); }
  GYROGRAD_AVX2 static Part Mix(Part a, const std::byte* from) {
    return _mm256_xor_si256(a, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  GYROGRAD_AVX2 static Part Both(Part a, Part b) { return _mm256_xor_si256(a, b); }
  GYROGRAD_AVX2 static void Store(Part part, std::byte* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), part);
  }
  GYROGRAD_AVX2 static void Stream(Part part, std::byte* to) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), part);
  }
  static void Fence() { _mm_sfence(); }
};
using Line = AvxLine;
#else
struct WordLine {
  using Part = std::uint64_t;
  static Part Zero() { return 0; }
  static Part Mix(Part a, const std::byte* from) {
    Part b;
    std::memcpy(&b, from, sizeof b);
    return a ^ b;
  }
  static Part Both(Part a, Part b) { return a ^ b; }
  static void Store(Part part, std::byte* to) { std::memcpy(to, &part, sizeof part); }
  static void Stream(Part part, std::byte* to) { Store(part, to); }
  static void Fence() {}
};
using Line = WordLine;
#endif

template <std::size_t kReads, std::size_t kWrites, bool kStream>
GYROGRAD_AVX2 void MoveLines(const std::byte* const* from, std::byte* const* to, std::size_t bytes) {
  Line::Part kept = Line::Zero();
  for (std::size_t at = 0; at < bytes; at += sizeof(Line::Part)) {
    Line::Part part = Line::Zero();
    for (std::size_t i = 0; i < kReads; ++i) part = Line::Mix(part, from[i] + at);
    if constexpr (kWrites == 0) kept = Line::Both(kept, part);
    for (std::size_t i = 0; i < kWrites; ++i) {
      if constexpr (kStream) {
        Line::Stream(part, to[i] + at);
      } else {
        Line::Store(part, to[i] + at);
      }
    }
  }
  asm volatile("" : : "r"(&kept) : "memory");  // as if somebody looked at what was read
  if constexpr (kStream) Line::Fence();
}

template <bool kStream, std::size_t... kIndex>
constexpr auto MakeLoops(std::index_sequence<kIndex...>) {
  return std::array<LineLoop, sizeof...(kIndex)>{
      &MoveLines<kIndex / (kMaxWrites + 1), kIndex % (kMaxWrites + 1), kStream>...};
}

using AllLoops = std::make_index_sequence<(kMaxReads + 1) * (kMaxWrites + 1)>;
constexpr auto kPlainLoops = MakeLoops<false>(AllLoops());
constexpr auto kStreamLoops = MakeLoops<true>(AllLoops());

LineLoop LoopFor(std::size_t reads, std::size_t writes, bool stream) {
  const std::size_t index = reads * (kMaxWrites + 1) + writes;
  return stream ? kStreamLoops[index] : kPlainLoops[index];
}

// Part `index` of `parts` of a stream, in whole lines.
template <class Byte>
std::span<Byte> Slice(std::span<Byte> stream, std::size_t index, std::size_t parts) {
  const std::size_t lines = stream.size() / kLine;
  const std::size_t begin = lines * index / parts;
  const std::size_t end = lines * (index + 1) / parts;
  return stream.subspan(begin * kLine, (end - begin) * kLine);
}

std::size_t Longest(const Traffic& traffic) {
  std::size_t longest = 0;
  for (const auto& stream : traffic.reads) longest = std::max(longest, stream.size());
  for (const auto& stream : traffic.writes) longest = std::max(longest, stream.size());
  return longest;
}

// One step of all streams: those of full length in one loop, each shorter one by itself.
void MoveStep(const Traffic& traffic, std::size_t index, std::size_t parts, bool stream) {
  const std::size_t longest = Longest(traffic);
  std::array<const std::byte*, kMaxReads> from = {};
  std::array<std::byte*, kMaxWrites> to = {};
  std::size_t reads = 0, writes = 0, bytes = 0;
  for (const auto& each : traffic.reads) {
    const auto piece = Slice(each, index, parts);
    if (each.size() == longest && reads < kMaxReads) {
      from[reads++] = piece.data();
      bytes = piece.size();
    } else {
      const std::byte* const alone[] = {piece.data()};
      LoopFor(1, 0, stream)(alone, nullptr, piece.size());
    }
  }
  for (const auto& each : traffic.writes) {
    const auto piece = Slice(each, index, parts);
    if (each.size() == longest && writes < kMaxWrites) {
      to[writes++] = piece.data();
      bytes = piece.size();
    } else {
      std::byte* const alone[] = {piece.data()};
      LoopFor(0, 1, stream)(nullptr, alone, piece.size());
    }
  }
  LoopFor(reads, writes, stream)(from.data(), to.data(), bytes);
}

// A thread's whole share by memcpy; reads without a partner are read, writes without one are set.
void CopyShare(const Traffic& traffic, std::size_t index, std::size_t parts) {
  // Longest streams first, so that they are each other's partners.
  Traffic sorted = traffic;
  const auto longer = [](const auto& a, const auto& b) { return a.size() > b.size(); };
  std::ranges::sort(sorted.reads, longer);
  std::ranges::sort(sorted.writes, longer);
  for (std::size_t i = 0; i < std::max(sorted.reads.size(), sorted.writes.size()); ++i) {
    std::span<const std::byte> from;
    std::span<std::byte> to;
    if (i < sorted.reads.size()) from = Slice(sorted.reads[i], index, parts);
    if (i < sorted.writes.size()) to = Slice(sorted.writes[i], index, parts);
    const std::size_t both = std::min(from.size(), to.size());
    if (both > 0) std::memcpy(to.data(), from.data(), both);
    const std::byte* const rest[] = {from.data() + both};
    LoopFor(1, 0, false)(rest, nullptr, from.size() - both);
    if (to.size() > both) std::memset(to.data() + both, 1, to.size() - both);
  }
}

void MoveShare(Roof roof, const Traffic& traffic, std::size_t thread, std::size_t threads) {
  if (roof == Roof::kMemcpy) return CopyShare(traffic, thread, threads);
  const std::size_t steps = std::max<std::size_t>(1, Longest(traffic) / threads / kBlock);
  for (std::size_t step = 0; step < steps; ++step) {
    MoveStep(traffic, thread * steps + step, threads * steps, roof == Roof::kStreaming);
  }
}

template <class Streams>
std::size_t TotalBytes(const Streams& streams) {
  return std::accumulate(streams.begin(), streams.end(), std::size_t{0},
                         [](std::size_t sum, const auto& stream) { return sum + stream.size(); });
}

}  // namespace

const char* Name(Roof roof) {
  switch (roof) {
    case Roof::kStreaming: return "streaming";
    case Roof::kPlain: return "plain";
    case Roof::kMemcpy: return "memcpy";
  }
  return "unknown";
}

std::size_t Traffic::BytesRead() const { return TotalBytes(reads); }
std::size_t Traffic::BytesWritten() const { return TotalBytes(writes); }

void MoveBytes(Roof roof, const Traffic& traffic, int num_threads) {
  const std::size_t threads = static_cast<std::size_t>(std::max(1, num_threads));
#pragma omp parallel for num_threads(num_threads) schedule(static, 1)
  for (std::size_t thread = 0; thread < threads; ++thread) MoveShare(roof, traffic, thread, threads);
}

}  // namespace gyrograd::bench
