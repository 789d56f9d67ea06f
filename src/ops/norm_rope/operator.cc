// The public calls on lists of segments.
#include "gyrograd/norm_rope.h"
#include "ops/norm_rope/public_calls.h"
#include "ops/norm_rope/validate.h"

namespace gyrograd {
namespace internal {
namespace {

class Request {
 public:
  template <class Args>
  explicit Request(const Args& args) : call_(NormRopeCall::From(args)) {}

  const char* name() const { return call_.name; }
  const NormRopeCall& list() const { return call_; }
  Status Validate() const { return internal::Validate(call_); }
  Status ValidateViews() const { return internal::ValidateViews(call_); }

 private:
  NormRopeCall call_;
};

template <class Pointers>
Status RunOn(const char* name, const NormRopePlanPointer& plan, std::span<const Pointers> pointers, void* workspace,
             std::size_t workspace_size) {
  return RunPlan(name, plan, [&](const NormRopePlanData& made) {
    if (Status status = ValidateCount(made.call, pointers.size()); !status.ok()) return status;
    return RunChecked(made, AddressesOf(pointers), workspace, workspace_size);
  });
}

}  // namespace
}  // namespace internal

Status NormRopeBackward(const NormRopeBackwardArgs& args) { return internal::RunCall<internal::Request>(args); }

Status NormRope(const NormRopeArgs& args) { return internal::RunCall<internal::Request>(args); }

Status NormRopeBackwardPlan::Create(const NormRopeBackwardArgs& args, NormRopeBackwardPlan* plan) {
  return internal::CreatePlan<internal::Request>(args, plan == nullptr ? nullptr : &plan->data_);
}

Status NormRopePlan::Create(const NormRopeArgs& args, NormRopePlan* plan) {
  return internal::CreatePlan<internal::Request>(args, plan == nullptr ? nullptr : &plan->data_);
}

std::size_t NormRopeBackwardPlan::workspace_size() const { return internal::WorkspaceSize(data_); }

std::size_t NormRopePlan::workspace_size() const { return internal::WorkspaceSize(data_); }

Status NormRopeBackwardPlan::Run(std::span<const NormRopeBackwardPointers> pointers, void* workspace,
                                 std::size_t workspace_size) const {
  return internal::RunOn("norm_rope_backward", data_, pointers, workspace, workspace_size);
}

Status NormRopePlan::Run(std::span<const NormRopePointers> pointers, void* workspace,
                         std::size_t workspace_size) const {
  return internal::RunOn("norm_rope", data_, pointers, workspace, workspace_size);
}

std::string NormRopeBackwardPlan::Describe() const { return internal::Describe(data_); }

std::string NormRopePlan::Describe() const { return internal::Describe(data_); }

}  // namespace gyrograd
