// The public calls: validate -> plan -> kernels.
#include <array>

#include "core/guard.h"
#include "gyrograd/rotary.h"
#include "ops/plan_rules.h"
#include "ops/rotary/plan.h"
#include "ops/rotary/run.h"
#include "ops/rotary/validate.h"

namespace gyrograd {
namespace internal {
namespace {

Status Run(const char* name, const RotaryPlanData* plan, const RotaryAddresses& given, void* workspace,
           std::size_t workspace_size) {
  if (Status status = ValidatePlanMade(name, plan); !status.ok()) return status;
  RotaryAddresses data = {};
  for (int i = 0; i < kRotaryOperands; ++i) data[i] = plan->call.given[i] ? given[i] : nullptr;
  return RunChecked(*plan, data, workspace, workspace_size);
}

Status ComputeOnce(const std::array<RotaryCall, 1>& call) {
  if (Status status = Validate(call[0]); !status.ok()) return status;
  RunOnce(call);
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
  return Guard([&] { return internal::ComputeOnce({RotaryCall::From(args)}); });
}

Status Rotary(const RotaryArgs& args) {
  return Guard([&] { return internal::ComputeOnce({RotaryCall::From(args)}); });
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
