// Google Benchmark: what a small call costs (one thread), and single problems at memory size.
#include <benchmark/benchmark.h>

#include <array>
#include <string>
#include <vector>

#include "bench/problem.h"

namespace gyrograd::bench {
namespace {

Problem SmallProblem() {
  Problem problem;
  problem.shape = {1, 16, 4, 64};
  problem.table_shape = {1, 16, 1, 64};
  return problem;
}

void Call(benchmark::State& state) {
  const Problem problem = SmallProblem();
  Memory memory(Tensors::InputBytes(problem), Tensors::OutputBytes(problem));
  const Tensors tensors(problem, &memory);
  const RotaryBackwardArgs args = tensors.Args(1);
  for (auto _ : state) {
    const Status status = RotaryBackward(args);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
}
BENCHMARK(Call)->Name("call (1,16,4,64) f32 dx: validate, plan, execute")->Unit(benchmark::kNanosecond);

void ReusedPlan(benchmark::State& state) {
  const Problem problem = SmallProblem();
  Memory memory(Tensors::InputBytes(problem), Tensors::OutputBytes(problem));
  const Tensors tensors(problem, &memory);
  RotaryBackwardPlan plan;
  Status status = RotaryBackwardPlan::Create(tensors.Args(1), &plan);
  if (!status.ok()) return state.SkipWithError(status.message().c_str());
  std::vector<std::byte> workspace(plan.workspace_size());
  for (auto _ : state) {
    status = plan.Run(tensors.Pointers(), workspace.data(), workspace.size());
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
}
BENCHMARK(ReusedPlan)->Name("call (1,16,4,64) f32 dx: a plan reused")->Unit(benchmark::kNanosecond);

void OneProblem(benchmark::State& state, const Problem& problem) {
  Memory memory(Tensors::InputBytes(problem), Tensors::OutputBytes(problem));
  const Tensors tensors(problem, &memory);
  const Traffic traffic = tensors.BytesMoved();
  const RotaryBackwardArgs args = tensors.Args(0);
  for (auto _ : state) {
    const Status status = RotaryBackward(args);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(traffic.BytesRead() + traffic.BytesWritten()));
}

void RegisterProblems() {
  constexpr std::array kProblems = {
      std::array<std::string_view, 5>{"half", "bf16", "2x4096x32x128", "1x4096x1x128", "dx"},
      std::array<std::string_view, 5>{"half", "bf16", "2x4096x32x128", "1x4096x1x128", "dx+tables"},
      std::array<std::string_view, 5>{"half", "f32", "2x4096x32x128", "1x4096x1x128", "dx"},
      std::array<std::string_view, 5>{"half", "f32", "2x4096x32x128", "1x4096x1x128", "dx+tables"},
  };
  for (const auto& words : kProblems) {
    const Problem problem = *ParseProblem(words);
    benchmark::RegisterBenchmark(ToString(problem).c_str(), OneProblem, problem)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace
}  // namespace gyrograd::bench

int main(int argc, char** argv) {
  gyrograd::bench::RegisterProblems();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
