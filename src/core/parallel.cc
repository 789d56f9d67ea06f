// OpenMP behind ParallelFor.
#include "core/parallel.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "core/fp_environment.h"
#include "gyrograd/execution.h"

namespace gyrograd {

int DefaultNumThreads() { return std::max(1, omp_get_max_threads()); }

namespace internal {
namespace {

// The process that called first; a forked child finds its parent's number here.
std::atomic<pid_t> first_process{0};

bool InForkedChild() {
  const pid_t process = getpid();
  pid_t expected = 0;
  if (first_process.compare_exchange_strong(expected, process, std::memory_order_relaxed)) return false;
  return expected != process;
}

void NoteProcess() {
  if (first_process.load(std::memory_order_relaxed) == 0) InForkedChild();
}

constexpr int kMaxThreads = 256;

// Items in a contiguous share for each thread, so that what a thread touched in one call is in its caches for the next.
// A share goes piece by piece: its own thread takes the front one, and threads that have none left the back ones.
class Shares {
  static constexpr std::int64_t kMostPieces = 32;    // of a share
  static constexpr std::int64_t kItemsOfAPiece = 4;  // at least, where a share has as many

 public:
  Shares(std::int64_t items, int threads) : items_(items), threads_(threads) {
    pieces_ = threads_ * std::clamp<std::int64_t>(items / (threads_ * kItemsOfAPiece), 1, kMostPieces);
    pieces_ = std::min(pieces_, items);
    for (int thread = 0; thread < threads_; ++thread) {
      LeftOf(thread).value.store(Pack(pieces_ * thread / threads_, pieces_ * (thread + 1) / threads_),
                                 std::memory_order_relaxed);
    }
  }

  int threads() const { return threads_; }

  // The next piece for a thread, as items [*begin, *end); false where all are taken.
  bool Take(int thread, std::int64_t* begin, std::int64_t* end) {
    for (int i = 0; i < threads_; ++i) {
      const std::int64_t piece = TakePiece((thread + i) % threads_, i == 0);
      if (piece < 0) continue;
      *begin = FirstItem(piece);
      *end = FirstItem(piece + 1);
      return true;
    }
    return false;
  }

 private:
  struct alignas(16) Left {  // the pieces [first, last) that nobody has taken
    std::atomic<std::uint64_t> value;
  };

  // As far apart as there is room for: threads that share a cache line would wait for each other.
  Left& LeftOf(int share) { return pieces_left_[share * (kMaxThreads / threads_)]; }

  static std::uint64_t Pack(std::int64_t first, std::int64_t last) {
    return static_cast<std::uint64_t>(first) << 32 | static_cast<std::uint64_t>(last);
  }

  // items_ * piece / pieces_, which may not fit.
  std::int64_t FirstItem(std::int64_t piece) const {
    return items_ / pieces_ * piece + std::min(piece, items_ % pieces_);
  }

  // -1 where the share is empty.
  std::int64_t TakePiece(int share, bool front) {
    std::atomic<std::uint64_t>& left = LeftOf(share).value;
    std::uint64_t seen = left.load(std::memory_order_relaxed);
    for (;;) {
      const auto first = static_cast<std::int64_t>(seen >> 32), last = static_cast<std::int64_t>(seen & 0xffffffffu);
      if (first >= last) return -1;
      const std::uint64_t after = front ? Pack(first + 1, last) : Pack(first, last - 1);
      if (left.compare_exchange_weak(seen, after, std::memory_order_relaxed)) return front ? first : last - 1;
    }
  }

  const std::int64_t items_;
  const int threads_;
  std::int64_t pieces_;
  Left pieces_left_[kMaxThreads];
};

// How many of `threads`, the calling one among them, the system starts. OpenMP ends the process where it is refused
// one, so they are tried first: once for each calling thread, for which OpenMP keeps its threads.
int StartableThreads(int threads) {
  static thread_local int most_started = 1;
  if (threads <= most_started) return threads;
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<std::size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) others.emplace_back([&done] { done.wait(false); });
  } catch (...) {  // no thread, or no memory for one
  }
  done.store(true);
  done.notify_all();
  for (std::thread& other : others) other.join();
  const int started = static_cast<int>(others.size()) + 1;
  most_started = std::max(most_started, started);
  return started;
}

// Apart from work on one thread, which OpenMP, and the memory that it takes to start, has no part in.
[[gnu::noinline]] void RunShares(Shares& shares, RangeBody body, const void* context) {
#pragma omp parallel num_threads(shares.threads())
  {
    const FpEnvironment environment;
    const int thread = omp_get_thread_num();
    std::int64_t begin, end;
    while (shares.Take(thread, &begin, &end)) body(context, thread, begin, end);
  }
}

}  // namespace

void ParallelRanges(std::int64_t items, int num_threads, RangeBody body, const void* context) {
  if (items <= 0) return;
  const int wanted = static_cast<int>(std::min<std::int64_t>({num_threads, items, kMaxThreads}));
  const int threads = wanted <= 1 || InForkedChild() ? 1 : StartableThreads(wanted);
  if (threads == 1) {
    NoteProcess();
    const FpEnvironment environment;
    body(context, 0, 0, items);
    return;
  }
  Shares shares(items, threads);
  RunShares(shares, body, context);
}

}  // namespace internal
}  // namespace gyrograd
