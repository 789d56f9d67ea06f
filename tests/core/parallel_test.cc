// How items reach threads: each once, whatever the counts, and none waits for a thread that is held up.
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

namespace gyrograd::internal {
namespace {

TEST(ParallelFor, VisitsEachItemOnce) {
  for (const std::int64_t items : {0, 1, 2, 3, 7, 64, 65, 1000, 100003}) {
    for (const int threads : {1, 2, 3, 7, 64, 256, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(items));
      std::atomic<int> highest_thread{0};
      ParallelFor(items, threads, [&](int thread, std::int64_t begin, std::int64_t end) {
        EXPECT_LT(begin, end);
        for (std::int64_t item = begin; item < end; ++item) ++visits[static_cast<std::size_t>(item)];
        int seen = highest_thread.load();
        while (seen < thread && !highest_thread.compare_exchange_weak(seen, thread)) {
        }
      });
      EXPECT_LT(highest_thread.load(), std::min(threads, 256));
      for (const auto& count : visits) ASSERT_EQ(count.load(), 1) << items << " items, " << threads << " threads";
    }
  }
}

TEST(ParallelFor, CutsMoreItemsThanFitAnInt) {
  const std::int64_t items = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> covered{0};
  ParallelFor(items, 3, [&](int, std::int64_t begin, std::int64_t end) { covered += end - begin; });
  EXPECT_EQ(covered.load(), items);
}

// The first items, few of them, are held until all the others are done: by the other thread.
TEST(ParallelFor, GivesTheItemsOfAThreadThatIsHeldUpToOthers) {
  constexpr std::int64_t kItems = 1000;
  std::atomic<std::int64_t> done{0};
  ParallelFor(kItems, 2, [&](int, std::int64_t begin, std::int64_t end) {
    if (begin == 0) {
      EXPECT_LE(end, kItems / 8);
      for (int i = 0; i < 20000000 && done < kItems - end; ++i) std::this_thread::yield();
      EXPECT_EQ(done.load(), kItems - end);
    }
    done += end - begin;
  });
  EXPECT_EQ(done.load(), kItems);
}

}  // namespace
}  // namespace gyrograd::internal
