// Google Benchmark: what a small call costs, or what the problems named on the command line take. With --once a
// problem's plan runs once and nothing is timed, for tools that count instructions.
//
//   gyrograd_bench [--benchmark_...] [PROBLEM ...]
//   gyrograd_bench --once PROBLEM
#include <benchmark/benchmark.h>

#include <cstdio>
#include <string>

#include "bench/contestant.h"

namespace gyrograd::bench {
namespace {

constexpr const char* kSmallCall = "rotary:dy=1x16x4x64,tables=1x1x4x64,outputs=dx,threads=1";

void Time(benchmark::State& state, const std::function<Status()>& work, const Traffic& traffic) {
  for (auto _ : state) {
    const Status status = work();
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(traffic.BytesRead() + traffic.BytesWritten()));
}

// False, and a message, where the problem is refused.
bool Make(const std::string& problem, Contestant* contestant) {
  const Status status = MakeContestant(problem, contestant);
  if (!status.ok()) std::fprintf(stderr, "gyrograd_bench: %s: %s\n", problem.c_str(), status.message().c_str());
  return status.ok();
}

bool RunOnce(const std::string& problem) {
  Contestant contestant;
  return Make(problem, &contestant) && contestant.run().ok();
}

// Both ways of a problem.
bool Register(const std::string& problem) {
  Contestant contestant;
  if (!Make(problem, &contestant)) return false;
  const auto add = [&](const char* way, const std::function<Status()>& work) {
    const std::string name = contestant.problem + " " + way;
    benchmark::RegisterBenchmark(name.c_str(), Time, work, contestant.traffic)
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  };
  add("call", contestant.call);
  add("plan", contestant.run);
  return true;
}

}  // namespace
}  // namespace gyrograd::bench

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--once") return gyrograd::bench::RunOnce(argv[2]) ? 0 : 2;
  benchmark::Initialize(&argc, argv);
  bool registered = argc > 1 || gyrograd::bench::Register(gyrograd::bench::kSmallCall);
  for (int i = 1; i < argc && registered; ++i) registered = gyrograd::bench::Register(argv[i]);
  if (!registered) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
