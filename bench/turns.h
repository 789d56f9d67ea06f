// Contestants and three copying loops of each one's traffic take turns round by round.
#ifndef GYROGRAD_BENCH_TURNS_H_
#define GYROGRAD_BENCH_TURNS_H_

#include <array>
#include <iterator>
#include <span>
#include <vector>

#include "bench/contestant.h"
#include "bench/roof.h"
#include "gyrograd/status.h"

namespace gyrograd::bench {

// Seconds a call, round by round.
struct Times {
  std::vector<double> run;
  std::array<std::vector<double>, std::size(kRoofs)> roofs;  // in the order of kRoofs
};

// A turn is of half a millisecond at least, as many calls as that takes, after one call that is not timed: what fits
// the caches is in them. The copying loops use `threads` threads. Fails where a run is refused.
Status TakeTurns(std::span<const Contestant> contestants, int rounds, int threads, std::vector<Times>* times);

}  // namespace gyrograd::bench

#endif  // GYROGRAD_BENCH_TURNS_H_
