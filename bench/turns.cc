// Turns.
#include "bench/turns.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace gyrograd::bench {
namespace {

constexpr double kLeastTurnSeconds = 0.5e-3;

template <class Work>
double Seconds(int repeats, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

template <class Work>
double Turn(int repeats, const Work& work) {
  if (repeats > 1) work();
  return Seconds(repeats, work);
}

}  // namespace

Status TakeTurns(std::span<const Contestant> contestants, int rounds, int threads, std::vector<Times>* times) {
  std::vector<int> repeats;
  for (const Contestant& each : contestants) {
    for (int warm = 0; warm < 2; ++warm) {
      if (Status status = each.run(); !status.ok()) return status;
    }
    const double once = Seconds(1, [&] { static_cast<void>(each.run()); });
    repeats.push_back(std::max(1, static_cast<int>(kLeastTurnSeconds / once)));
    for (const Roof roof : kRoofs) MoveBytes(roof, each.traffic, threads);
  }
  times->assign(contestants.size(), {});
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const Contestant& each = contestants[i];
      (*times)[i].run.push_back(Turn(repeats[i], [&] { static_cast<void>(each.run()); }));
      for (std::size_t roof = 0; roof < std::size(kRoofs); ++roof) {
        const auto move = [&] { MoveBytes(kRoofs[roof], each.traffic, threads); };
        (*times)[i].roofs[roof].push_back(Turn(repeats[i], move));
      }
    }
  }
  return Status();
}

}  // namespace gyrograd::bench
