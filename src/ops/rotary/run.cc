// What depends on the addresses of a run: whole cache lines, sharing, pieces of the workspace.
#include "ops/rotary/run.h"

namespace gyrograd::internal {
namespace {

// Whole cache lines, or the processor would read what it is to pass by.
bool LinesAligned(const RotaryPlanData& plan, const RotaryAddresses& data, int operand) {
  const auto size = static_cast<std::int64_t>(SizeOf(plan.call.views[operand].dtype));
  const auto aligned = [size](std::int64_t elements) { return elements * size % kCacheLine == 0; };
  const PairMap& map = plan.maps[operand];
  const bool split = map.IsSplit() && aligned(map.member_stride) && aligned(plan.pairs);
  const bool interleaved = map.IsInterleaved() && aligned(2 * plan.pairs);
  bool all = (split || interleaved) && aligned(map.offset);
  for (const RotaryAxis& axis : plan.kept) all = all && aligned(axis.strides[operand]);
  for (const RotaryAxis& axis : plan.summed) all = all && aligned(axis.strides[operand]);
  return all && reinterpret_cast<std::uintptr_t>(data[operand]) % kCacheLine == 0;
}

// Whether stores to an output may pass the cache by: it is absent, or not read as well and made of whole lines.
bool MayStream(const RotaryPlanData& plan, const RotaryAddresses& data, int operand, int input) {
  return data[operand] == nullptr || (data[operand] != data[input] && LinesAligned(plan, data, operand));
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
  run.stream = plan.large_output && data[kOut] != data[kX] && MayStream(plan, data, kOut, kIn);
  run.stream_sums = plan.large_output && MayStream(plan, data, kDcos, kCos) && MayStream(plan, data, kDsin, kSin);
  run.in_place_shuffle =
      data[kOut] != nullptr && data[kOut] == data[kIn] && plan.call.options.mode == RotaryMode::kInterleaveHalf;
  run.segments_per_block = run.in_place_shuffle ? plan.segments : 1;
  run.panel_rows = run.in_place_shuffle ? plan.prepared_panel_rows : plan.panel_rows;
  return run;
}

std::int64_t RotaryRun::blocks() const { return plan->chunks * plan->tiles * (plan->segments / segments_per_block); }

}  // namespace gyrograd::internal
