// The public joint calls: a list of segments is made, checked, planned and run.
#include "core/guard.h"
#include "gyrograd/norm_rope_concat.h"
#include "ops/norm_rope/plan.h"
#include "ops/norm_rope/run.h"
#include "ops/norm_rope_concat/validate.h"
#include "ops/plan_rules.h"

namespace gyrograd {
namespace internal {
namespace {

using PlanPointer = std::shared_ptr<const NormRopePlanData>;

template <class Args>
Status RunCall(const Args& args) {
  return Guard([&] {
    const NormRopeConcatCall call = NormRopeConcatCall::From(args);
    const NormRopeCall list = ListOf(call);
    if (Status status = Validate(call, list); !status.ok()) return status;
    return RunOnce(list);
  });
}

template <class Args>
Status CreatePlan(const Args& args, PlanPointer* plan) {
  return Guard([&] {
    const NormRopeConcatCall call = NormRopeConcatCall::From(args);
    if (Status status = ValidatePlanGiven(call.name, plan); !status.ok()) return status;
    const NormRopeCall list = ListOf(call);
    if (Status status = ValidateViews(call, list); !status.ok()) return status;
    *plan = MakeNormRopePlan(list);
    return Status();
  });
}

template <class Args>
Status RunPlan(const char* name, const PlanPointer& plan, const Args& args, void* workspace,
               std::size_t workspace_size) {
  return Guard([&] {
    if (Status status = ValidatePlanMade(name, plan.get()); !status.ok()) return status;
    const NormRopeConcatPointers pointers = PointersOf(plan->call, NormRopeConcatCall::From(args));
    return RunChecked(*plan, AddressesOf(std::span<const NormRopePointerRow>(pointers)), workspace, workspace_size);
  });
}

}  // namespace
}  // namespace internal

Status NormRopeConcatBackward(const NormRopeConcatBackwardArgs& args) { return internal::RunCall(args); }

Status NormRopeConcat(const NormRopeConcatArgs& args) { return internal::RunCall(args); }

Status NormRopeConcatBackwardPlan::Create(const NormRopeConcatBackwardArgs& args, NormRopeConcatBackwardPlan* plan) {
  return internal::CreatePlan(args, plan == nullptr ? nullptr : &plan->data_);
}

Status NormRopeConcatPlan::Create(const NormRopeConcatArgs& args, NormRopeConcatPlan* plan) {
  return internal::CreatePlan(args, plan == nullptr ? nullptr : &plan->data_);
}

std::size_t NormRopeConcatBackwardPlan::workspace_size() const { return data_ ? data_->workspace_bytes : 0; }

std::size_t NormRopeConcatPlan::workspace_size() const { return data_ ? data_->workspace_bytes : 0; }

Status NormRopeConcatBackwardPlan::Run(const NormRopeConcatBackwardArgs& args, void* workspace,
                                       std::size_t workspace_size) const {
  return internal::RunPlan("norm_rope_concat_backward", data_, args, workspace, workspace_size);
}

Status NormRopeConcatPlan::Run(const NormRopeConcatArgs& args, void* workspace, std::size_t workspace_size) const {
  return internal::RunPlan("norm_rope_concat", data_, args, workspace, workspace_size);
}

std::string NormRopeConcatBackwardPlan::Describe() const { return data_ ? internal::Describe(*data_) : std::string(); }

std::string NormRopeConcatPlan::Describe() const { return data_ ? internal::Describe(*data_) : std::string(); }

}  // namespace gyrograd
