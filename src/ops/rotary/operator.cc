// The public calls: validate -> plan -> kernels.
#include <new>

#include "core/guard.h"
#include "core/parallel.h"
#include "core/zeros.h"
#include "gyrograd/rotary.h"
#include "ops/plan_rules.h"
#include "ops/rotary/kernels.h"
#include "ops/rotary/plan.h"
#include "ops/rotary/run.h"
#include "ops/rotary/validate.h"

namespace gyrograd {
namespace internal {
namespace {

void Execute(const RotaryPlanData& plan, const RotaryAddresses& data, void* workspace) {
  if (plan.empty) {
    for (const int i : {kDcos, kDsin}) {
      if (plan.call.given[i]) WriteZeros(plan.call.views[i], const_cast<void*>(data[i]));
    }
    return;
  }
  if (!plan.call.given[kOut] && !plan.call.wants_sums()) return;
  const RotaryRun run = PrepareRun(plan, data, workspace);
  ParallelFor(run.blocks(), plan.num_threads, [&run](int thread, std::int64_t begin, std::int64_t end) {
    run.plan->kernels->run_blocks(run, thread, begin, end);
  });
  if (plan.partials_bytes == 0) return;
  ParallelFor(plan.table_rows, plan.num_threads,
              [&run](int, std::int64_t begin, std::int64_t end) { run.plan->kernels->add_chunks(run, begin, end); });
}

Status Run(const char* name, const RotaryPlanData* plan, const RotaryAddresses& given, void* workspace,
           std::size_t workspace_size) {
  if (Status status = ValidatePlanMade(name, plan); !status.ok()) return status;
  RotaryAddresses data = {};
  for (int i = 0; i < kRotaryOperands; ++i) data[i] = plan->call.given[i] ? given[i] : nullptr;
  if (Status status = ValidateNull(plan->call, data); !status.ok()) return status;
  if (Status status = ValidateMemory(plan->call, data); !status.ok()) return status;
  if (Status status = ValidateWorkspace(name, plan->workspace_bytes(), workspace, workspace_size); !status.ok()) {
    return status;
  }
  Execute(*plan, data, workspace);
  return Status();
}

Status RunOnce(const RotaryCall& call) {
  if (Status status = Validate(call); !status.ok()) return status;
  const auto plan = MakeRotaryPlan(call);
  const std::size_t bytes = plan->workspace_bytes();
  const std::unique_ptr<char[]> workspace(bytes == 0 ? nullptr : new char[bytes]);
  Execute(*plan, AddressesOf(call), workspace.get());
  return Status();
}

Status CreatePlan(const RotaryCall& call, std::shared_ptr<const RotaryPlanData>* plan) {
  if (Status status = ValidatePlanGiven(call.name(), plan); !status.ok()) return status;
  if (Status status = ValidateViews(call); !status.ok()) return status;
  *plan = MakeRotaryPlan(call);
  return Status();
}

std::string DescribePlan(const RotaryPlanData* plan) {
  return GuardWords([&] { return plan != nullptr ? Describe(*plan) : std::string(); });
}

}  // namespace

}  // namespace internal

using internal::Guard;
using internal::RotaryCall;

const char* Name(RotaryMode mode) {
  switch (mode) {
    case RotaryMode::kHalf: return "half";
    case RotaryMode::kInterleave: return "interleave";
    case RotaryMode::kQuarter: return "quarter";
    case RotaryMode::kInterleaveHalf: return "interleave-half";
  }
  return "unknown";
}

Status ValidateRotaryBackward(const RotaryBackwardArgs& args) {
  return Guard([&] { return internal::Validate(RotaryCall::From(args)); });
}

Status ValidateRotary(const RotaryArgs& args) {
  return Guard([&] { return internal::Validate(RotaryCall::From(args)); });
}

Status RotaryBackward(const RotaryBackwardArgs& args) {
  return Guard([&] { return internal::RunOnce(RotaryCall::From(args)); });
}

Status Rotary(const RotaryArgs& args) {
  return Guard([&] { return internal::RunOnce(RotaryCall::From(args)); });
}

Status RotaryBackwardPlan::Create(const RotaryBackwardArgs& args, RotaryBackwardPlan* plan) {
  return Guard([&] { return internal::CreatePlan(RotaryCall::From(args), plan == nullptr ? nullptr : &plan->data_); });
}

Status RotaryPlan::Create(const RotaryArgs& args, RotaryPlan* plan) {
  return Guard([&] { return internal::CreatePlan(RotaryCall::From(args), plan == nullptr ? nullptr : &plan->data_); });
}

std::size_t RotaryBackwardPlan::workspace_size() const { return data_ ? data_->workspace_bytes() : 0; }

std::size_t RotaryPlan::workspace_size() const { return data_ ? data_->workspace_bytes() : 0; }

Status RotaryBackwardPlan::Run(const RotaryBackwardPointers& p, void* workspace, std::size_t workspace_size) const {
  return Guard([&] {
    return internal::Run(internal::kRotaryBackward, data_.get(), {p.dy, p.x, p.cos, p.sin, p.dx, p.dcos, p.dsin},
                         workspace, workspace_size);
  });
}

Status RotaryPlan::Run(const RotaryPointers& p, void* workspace, std::size_t workspace_size) const {
  return Guard([&] {
    return internal::Run(internal::kRotary, data_.get(), {p.x, nullptr, p.cos, p.sin, p.y, nullptr, nullptr}, workspace,
                         workspace_size);
  });
}

std::string RotaryBackwardPlan::Describe() const { return internal::DescribePlan(data_.get()); }

std::string RotaryPlan::Describe() const { return internal::DescribePlan(data_.get()); }

}  // namespace gyrograd
