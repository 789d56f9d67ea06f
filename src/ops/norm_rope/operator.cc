// The public calls on lists of segments: validate -> plan -> run.
#include "core/guard.h"
#include "gyrograd/norm_rope.h"
#include "ops/norm_rope/plan.h"
#include "ops/norm_rope/run.h"
#include "ops/norm_rope/validate.h"
#include "ops/plan_rules.h"

namespace gyrograd {
namespace internal {
namespace {

using PlanPointer = std::shared_ptr<const NormRopePlanData>;

template <class Args>
Status RunCall(const Args& args) {
  return Guard([&] {
    const NormRopeCall call = NormRopeCall::From(args);
    if (Status status = Validate(call); !status.ok()) return status;
    return RunOnce(call);
  });
}

template <class Args>
Status CreatePlan(const Args& args, PlanPointer* plan) {
  return Guard([&] {
    const NormRopeCall call = NormRopeCall::From(args);
    if (Status status = ValidatePlanGiven(call.name, plan); !status.ok()) return status;
    if (Status status = ValidateViews(call); !status.ok()) return status;
    *plan = MakeNormRopePlan(call);
    return Status();
  });
}

template <class Pointers>
Status RunPlan(const char* name, const PlanPointer& plan, std::span<const Pointers> pointers, void* workspace,
               std::size_t workspace_size) {
  return Guard([&] {
    if (Status status = ValidatePlanMade(name, plan.get()); !status.ok()) return status;
    if (Status status = ValidateCount(plan->call, pointers.size()); !status.ok()) return status;
    return RunChecked(*plan, AddressesOf(pointers), workspace, workspace_size);
  });
}

}  // namespace
}  // namespace internal

Status NormRopeBackward(const NormRopeBackwardArgs& args) { return internal::RunCall(args); }

Status NormRope(const NormRopeArgs& args) { return internal::RunCall(args); }

Status NormRopeBackwardPlan::Create(const NormRopeBackwardArgs& args, NormRopeBackwardPlan* plan) {
  return internal::CreatePlan(args, plan == nullptr ? nullptr : &plan->data_);
}

Status NormRopePlan::Create(const NormRopeArgs& args, NormRopePlan* plan) {
  return internal::CreatePlan(args, plan == nullptr ? nullptr : &plan->data_);
}

std::size_t NormRopeBackwardPlan::workspace_size() const { return data_ ? data_->workspace_bytes : 0; }

std::size_t NormRopePlan::workspace_size() const { return data_ ? data_->workspace_bytes : 0; }

Status NormRopeBackwardPlan::Run(std::span<const NormRopeBackwardPointers> pointers, void* workspace,
                                 std::size_t workspace_size) const {
  return internal::RunPlan("norm_rope_backward", data_, pointers, workspace, workspace_size);
}

Status NormRopePlan::Run(std::span<const NormRopePointers> pointers, void* workspace,
                         std::size_t workspace_size) const {
  return internal::RunPlan("norm_rope", data_, pointers, workspace, workspace_size);
}

std::string NormRopeBackwardPlan::Describe() const { return data_ ? internal::Describe(*data_) : std::string(); }

std::string NormRopePlan::Describe() const { return data_ ? internal::Describe(*data_) : std::string(); }

}  // namespace gyrograd
