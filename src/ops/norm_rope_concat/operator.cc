// The public joint calls: each is a list of segments.
#include "gyrograd/norm_rope_concat.h"
#include "ops/norm_rope/public_calls.h"
#include "ops/norm_rope_concat/validate.h"

namespace gyrograd {
namespace internal {
namespace {

class Request {
 public:
  template <class Args>
  explicit Request(const Args& args) : call_(NormRopeConcatCall::From(args)), list_(ListOf(call_)) {}

  const char* name() const { return call_.name; }
  const NormRopeCall& list() const { return list_; }
  Status Validate() const { return internal::Validate(call_, list_); }
  Status ValidateViews() const { return internal::ValidateViews(call_, list_); }

 private:
  NormRopeConcatCall call_;
  NormRopeCall list_;
};

template <class Args>
Status RunOn(const char* name, const NormRopePlanPointer& plan, const Args& args, void* workspace,
             std::size_t workspace_size) {
  return RunPlan(name, plan, [&](const NormRopePlanData& made) {
    const NormRopeConcatPointers pointers = PointersOf(made.call, NormRopeConcatCall::From(args));
    return RunChecked(made, AddressesOf(std::span<const NormRopePointerRow>(pointers)), workspace, workspace_size);
  });
}

}  // namespace
}  // namespace internal

Status NormRopeConcatBackward(const NormRopeConcatBackwardArgs& args) {
  return internal::RunCall<internal::Request>(args);
}

Status NormRopeConcat(const NormRopeConcatArgs& args) { return internal::RunCall<internal::Request>(args); }

Status NormRopeConcatBackwardPlan::Create(const NormRopeConcatBackwardArgs& args, NormRopeConcatBackwardPlan* plan) {
  return internal::CreatePlan<internal::Request>(args, plan == nullptr ? nullptr : &plan->data_);
}

Status NormRopeConcatPlan::Create(const NormRopeConcatArgs& args, NormRopeConcatPlan* plan) {
  return internal::CreatePlan<internal::Request>(args, plan == nullptr ? nullptr : &plan->data_);
}

std::size_t NormRopeConcatBackwardPlan::workspace_size() const { return internal::WorkspaceSize(data_); }

std::size_t NormRopeConcatPlan::workspace_size() const { return internal::WorkspaceSize(data_); }

Status NormRopeConcatBackwardPlan::Run(const NormRopeConcatBackwardArgs& args, void* workspace,
                                       std::size_t workspace_size) const {
  return internal::RunOn("norm_rope_concat_backward", data_, args, workspace, workspace_size);
}

Status NormRopeConcatPlan::Run(const NormRopeConcatArgs& args, void* workspace, std::size_t workspace_size) const {
  return internal::RunOn("norm_rope_concat", data_, args, workspace, workspace_size);
}

std::string NormRopeConcatBackwardPlan::Describe() const { return internal::Describe(data_); }

std::string NormRopeConcatPlan::Describe() const { return internal::Describe(data_); }

}  // namespace gyrograd
