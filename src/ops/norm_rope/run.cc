// The pieces of a plan on their addresses: blocks of all pieces, numbered one after the other.
#include "ops/norm_rope/run.h"

#include <algorithm>
#include <memory>
#include <string>

#include "core/machine.h"
#include "core/parallel.h"
#include "core/zeros.h"
#include "ops/norm_rope/validate.h"
#include "ops/plan_rules.h"
#include "ops/rotary/run.h"

namespace gyrograd::internal {
namespace {

using Operand = NormRopeOperand;

// A run's plan, addresses and aligned workspace.
class Runner {
 public:
  Runner(const NormRopePlanData& plan, const NormRopeAddresses& data, void* workspace) : plan_(plan), data_(data) {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace);
    workspace_ =
        static_cast<char*>(workspace) + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  }

  void Run() const {
    for (const std::size_t segment : plan_.zero_sums) {
      for (const int operand : {Operand::kDweight, Operand::kDbias}) WriteZeroSums(segment, operand);
    }
    ParallelFor(Blocks(), plan_.num_threads, [this](int thread, std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) RunBlock(thread, block);
    });
    ParallelFor(static_cast<std::int64_t>(plan_.norms.size()), plan_.num_threads,
                [this](int, std::int64_t begin, std::int64_t end) {
                  for (std::int64_t i = begin; i < end; ++i) AddChunks(plan_.norms[static_cast<std::size_t>(i)]);
                });
  }

 private:
  const void* Address(std::size_t segment, int operand) const {
    return plan_.call.segments[segment].given[operand] ? data_(segment, operand) : nullptr;
  }

  void WriteZeroSums(std::size_t segment, int operand) const {
    const SegmentCall& call = plan_.call.segments[segment];
    if (call.given[operand]) WriteZeros(call.views[operand], const_cast<void*>(data_(segment, operand)));
  }

  std::int64_t Blocks() const {
    std::int64_t blocks = 0;
    for (const NormPiece& piece : plan_.norms) blocks += piece.chunks;
    for (const RotaryPiece& piece : plan_.rotaries) blocks += PrepareRotary(piece).blocks();
    for (const CopyPiece& piece : plan_.copies) blocks += piece.blocks();
    return blocks;
  }

  void RunBlock(int thread, std::int64_t block) const {
    for (const NormPiece& piece : plan_.norms) {
      if (block < piece.chunks) return plan_.kernels->run_blocks(PrepareNorm(piece), thread, block, block + 1);
      block -= piece.chunks;
    }
    for (const RotaryPiece& piece : plan_.rotaries) {
      const RotaryRun run = PrepareRotary(piece);
      if (block < run.blocks()) return piece.plan->kernels->run_blocks(run, thread, block, block + 1);
      block -= run.blocks();
    }
    for (const CopyPiece& piece : plan_.copies) {
      if (block < piece.blocks()) return Copy(piece, block);
      block -= piece.blocks();
    }
  }

  // ---- norms

  NormRun PrepareNorm(const NormPiece& piece) const {
    NormRun run;
    run.piece = &piece;
    for (int i = 0; i < kNormRopeOperands; ++i) run.data[i] = Address(piece.segment, i);
    run.partials = reinterpret_cast<double*>(workspace_ + piece.partials_at);
    if (piece.scratch_bytes > kStackScratchBytes) {
      run.scratch = workspace_ + plan_.scratch_at;
      run.scratch_bytes = plan_.scratch_bytes;
    }
    const void* const out = run.data[Operand::kOut];
    const bool on_in = out == run.data[Operand::kIn];
    run.copies_rows = piece.swaps_pairs && on_in;
    run.stream =
        piece.stores == StoreWay::kStreamed && !on_in && out != run.data[Operand::kX] && LinesAligned(piece, out);
    return run;
  }

  // Whole cache lines, or the processor would read what it is to pass by.
  static bool LinesAligned(const NormPiece& piece, const void* out) {
    const auto size = static_cast<std::int64_t>(SizeOf(piece.type));
    const auto aligned = [size](std::int64_t elements) { return elements * size % kCacheLine == 0; };
    bool all = reinterpret_cast<std::uintptr_t>(out) % kCacheLine == 0 && piece.out.channels == 1 &&
               aligned(piece.out.batch) && aligned(piece.out.sequence) && aligned(piece.out.heads);
    for (const RowPart& part : piece.parts) {
      for (const ChannelMap& map : {part.x, part.y}) {
        all = all && aligned(map.offset) && aligned(part.count * map.pair_step) &&
              (map.pair_step == 2 || aligned(map.member_step));
      }
    }
    return all;
  }

  void AddChunks(const NormPiece& piece) const {
    if (piece.wants_sums()) plan_.kernels->add_chunks(PrepareNorm(piece));
  }

  // ---- rotaries

  RotaryRun PrepareRotary(const RotaryPiece& piece) const {
    RotaryAddresses data = {};
    const auto give = [&](int from, int to) {
      data[to] = static_cast<const char*>(Address(piece.segment, from)) + piece.offsets[to];
    };
    give(Operand::kIn, kIn);
    give(Operand::kOut, kOut);
    give(Operand::kCos, kCos);
    give(Operand::kSin, kSin);
    return PrepareRun(*piece.plan, data, workspace_ + piece.workspace_at);
  }

  // ---- copies

  void Copy(const CopyPiece& piece, std::int64_t block) const {
    CopyRun run;
    run.piece = &piece;
    run.in = Address(piece.segment, Operand::kIn);
    run.out = const_cast<void*>(Address(piece.segment, Operand::kOut));
    if (run.in == run.out) return;
    run.stream = piece.stores == StoreWay::kStreamed &&
                 piece.row.extent * static_cast<std::int64_t>(piece.element_bytes) >= kMinStagedRowBytes;
    const std::int64_t begin = block * piece.block_rows;
    plan_.kernels->copy_rows(run, begin, std::min(begin + piece.block_rows, piece.rows));
  }

  const NormRopePlanData& plan_;
  const NormRopeAddresses& data_;
  char* workspace_;
};

}  // namespace

Status RunChecked(const NormRopePlanData& plan, const NormRopeAddresses& data, void* workspace,
                  std::size_t workspace_size) {
  if (Status status = ValidateNull(plan.call, data); !status.ok()) return status;
  if (Status status = ValidateMemory(plan.call, data); !status.ok()) return status;
  if (Status status = ValidateWorkspace(plan.call.name, plan.workspace_bytes, workspace, workspace_size);
      !status.ok()) {
    return status;
  }
  Runner(plan, data, workspace).Run();
  return Status();
}

Status RunOnce(const NormRopeCall& call) {
  const auto plan = MakeNormRopePlan(call);
  const std::unique_ptr<char[]> workspace(plan->workspace_bytes == 0 ? nullptr : new char[plan->workspace_bytes]);
  Runner(*plan, AddressesOf(call), workspace.get()).Run();
  return Status();
}

}  // namespace gyrograd::internal
