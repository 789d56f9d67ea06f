// Turns, medians, ratios.
#include "bench/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace gyrograd::bench {
namespace {

constexpr double kLeastTurnSeconds = 0.5e-3;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Work>
double Seconds(int repeats, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

}  // namespace

void Fail(const std::string& message) {
  std::fprintf(stderr, "gyrograd_marks: %s\n", message.c_str());
  std::exit(2);
}

Result Measure(const std::string& name, const std::function<Status()>& run, const Traffic& traffic, int rounds,
               int threads) {
  constexpr std::size_t kContestants = 1 + std::size(kRoofs);
  const auto run_checked = [&] {
    const Status status = run();
    if (!status.ok()) Fail(name + ": " + status.message());
  };
  const auto turn = [&](std::size_t who, int repeats) {
    if (who > 0) return Seconds(repeats, [&] { MoveBytes(kRoofs[who - 1], traffic, threads); });
    return Seconds(repeats, run_checked);
  };
  turn(0, 1);
  const double once = turn(0, 1);
  const int repeats = std::max(1, static_cast<int>(kLeastTurnSeconds / once));
  std::array<std::vector<double>, kContestants> seconds;
  for (std::size_t who = 1; who < kContestants; ++who) turn(who, repeats);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t who = 0; who < kContestants; ++who) seconds[who].push_back(turn(who, repeats));
  }

  std::size_t fastest = 1;
  for (std::size_t who = 2; who < kContestants; ++who) {
    if (Median(seconds[who]) < Median(seconds[fastest])) fastest = who;
  }
  std::vector<double> ratios;
  for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
    ratios.push_back(seconds[0][round] / seconds[fastest][round]);
  }
  return {Median(seconds[0]),  Median(seconds[fastest]), Median(ratios),
          kRoofs[fastest - 1], traffic.BytesRead(),      traffic.BytesWritten()};
}

}  // namespace gyrograd::bench
