// What depends on the addresses of a run: whole cache lines, sharing, pieces of the workspace. And the way to threads.
#include "ops/rotary/run.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "core/machine.h"
#include "core/parallel.h"
#include "core/partition.h"
#include "core/zeros.h"
#include "ops/plan_rules.h"

namespace gyrograd::internal {
namespace {

bool StartsLine(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kCacheLine == 0; }

// The plan's way, or the next one that the addresses allow. Lines that are read, too, are in the cache.
StoreWay StoresTo(const RotaryPlanData& plan, const RotaryAddresses& data) {
  if (data[kOut] == data[kIn] || data[kOut] == data[kX]) return StoreWay::kCached;
  if (plan.ways.stores == StoreWay::kCached || StartsLine(data[kOut])) return plan.ways.stores;
  return MayStage(plan) ? StoreWay::kStaged : StoreWay::kCached;
}

// Whether stores to a table's gradient may pass the cache by: it is absent, or not read as well and made of whole
// lines.
bool MayStreamSums(const RotaryPlanData& plan, const RotaryAddresses& data, int operand, int table) {
  return data[operand] == nullptr ||
         (data[operand] != data[table] && StartsLine(data[operand]) && RowsAreWholeLines(plan, operand));
}

// Whether there is anything for kernels to do; what there is without them is done.
bool HasRows(const RotaryPlanData& plan, const RotaryAddresses& data) {
  if (!plan.empty) return plan.call.given[kOut] || plan.call.wants_sums();
  for (const int i : {kDcos, kDsin}) {
    if (plan.call.given[i]) WriteZeros(plan.call.views[i], const_cast<void*>(data[i]));
  }
  return false;
}

// The first of a run's blocks for an item, where all runs are cut into as many items.
std::int64_t FirstBlock(const RotaryRun& run, std::int64_t item, std::int64_t items) {
  const std::int64_t blocks = run.blocks();
  return blocks / items * item + blocks % items * item / items;
}

// As many as the largest run wants, and no more than any has scratch memory for.
int ThreadsOf(std::span<const RotaryRun> runs) {
  int wanted = 1, most = std::numeric_limits<int>::max();
  for (const RotaryRun& run : runs) {
    wanted = std::max(wanted, run.plan->num_threads);
    if (run.plan->row_buffer_bytes > 0) most = std::min(most, run.plan->num_threads);
  }
  return std::min(wanted, most);
}

void Execute(std::span<const RotaryRun> runs) {
  std::int64_t items = 0;
  for (const RotaryRun& run : runs) items = std::max(items, run.blocks());
  ParallelFor(items, ThreadsOf(runs), [runs, items](int thread, std::int64_t begin, std::int64_t end) {
    for (const RotaryRun& run : runs) {
      run.plan->kernels->run_blocks(run, thread, FirstBlock(run, begin, items), FirstBlock(run, end, items));
    }
  });
  for (const RotaryRun& run : runs) {
    if (run.plan->partials_bytes == 0) continue;
    ParallelFor(run.plan->table_rows, run.plan->num_threads,
                [&run](int, std::int64_t begin, std::int64_t end) { run.plan->kernels->add_chunks(run, begin, end); });
  }
}

// Of the rows that calls other than this one read and write.
std::int64_t BytesBeside(std::span<const RotaryCall> calls, const RotaryCall& own) {
  std::int64_t bytes = 0;
  for (const RotaryCall& call : calls) {
    if (&call == &own) continue;
    for (const int operand : {kIn, kX, kOut}) {
      if (call.given[operand]) bytes = SaturatingAdd(bytes, ElementBytes(call.views[operand]));
    }
  }
  return bytes;
}

}  // namespace

RotaryRun PrepareRun(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace) {
  RotaryRun run;
  run.plan = &plan;
  run.data = data;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  char* const aligned = static_cast<char*>(workspace) + (alignof(double) - address % alignof(double)) % alignof(double);
  run.partials = reinterpret_cast<double*>(aligned);
  run.row_buffers = aligned + plan.partials_bytes;
  run.stores = StoresTo(plan, data);
  run.stream_sums = plan.large_output && plan.kernels->streams && MayStreamSums(plan, data, kDcos, kCos) &&
                    MayStreamSums(plan, data, kDsin, kSin);
  run.in_place_shuffle =
      data[kOut] != nullptr && data[kOut] == data[kIn] && plan.call.options.mode == RotaryMode::kInterleaveHalf;
  run.segments_per_block = run.in_place_shuffle ? plan.segments : 1;
  run.panel_rows = run.in_place_shuffle ? plan.prepared_panel_rows : plan.panel_rows;
  return run;
}

Status RunChecked(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace,
                  std::size_t workspace_size) {
  if (Status status = ValidateNull(plan.call, data); !status.ok()) return status;
  if (Status status = ValidateMemory(plan.call, data); !status.ok()) return status;
  if (Status status = ValidateWorkspace(plan.call.name(), plan.workspace_bytes(), workspace, workspace_size);
      !status.ok()) {
    return status;
  }
  if (!HasRows(plan, data)) return Status();
  Execute(std::array{PrepareRun(plan, data, workspace)});
  return Status();
}

template <std::size_t count>
void RunOnce(const std::array<RotaryCall, count>& calls) {
  std::array<std::shared_ptr<const RotaryPlanData>, count> plans;
  std::array<std::unique_ptr<char[]>, count> workspaces;
  for (std::size_t i = 0; i < count; ++i) {
    plans[i] = MakeRotaryPlan(calls[i], BytesBeside(calls, calls[i]));
    if (const std::size_t bytes = plans[i]->workspace_bytes(); bytes > 0) workspaces[i].reset(new char[bytes]);
  }
  std::array<RotaryRun, count> runs;
  std::size_t with_rows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const RotaryAddresses data = AddressesOf(calls[i]);
    if (HasRows(*plans[i], data)) runs[with_rows++] = PrepareRun(*plans[i], data, workspaces[i].get());
  }
  Execute({runs.data(), with_rows});
}

template void RunOnce(const std::array<RotaryCall, 1>& calls);
template void RunOnce(const std::array<RotaryCall, 2>& calls);

std::int64_t RotaryRun::blocks() const { return plan->chunks * plan->tiles * (plan->segments / segments_per_block); }

}  // namespace gyrograd::internal
