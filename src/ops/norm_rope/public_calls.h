// validate -> plan -> run, for both ways to say a list of segments: the list itself, and the joint call. A Request is
// made of a call's arguments and has name(), list(), and the rules Validate() and ValidateViews().
#ifndef GYROGRAD_OPS_NORM_ROPE_PUBLIC_CALLS_H_
#define GYROGRAD_OPS_NORM_ROPE_PUBLIC_CALLS_H_

#include <cstddef>
#include <memory>
#include <string>

#include "core/guard.h"
#include "gyrograd/status.h"
#include "ops/norm_rope/plan.h"
#include "ops/norm_rope/run.h"
#include "ops/plan_rules.h"

namespace gyrograd::internal {

using NormRopePlanPointer = std::shared_ptr<const NormRopePlanData>;

template <class Request, class Args>
Status RunCall(const Args& args) {
  return Guard([&] {
    const Request request(args);
    if (Status status = request.Validate(); !status.ok()) return status;
    return RunOnce(request.list());
  });
}

template <class Request, class Args>
Status CreatePlan(const Args& args, NormRopePlanPointer* plan) {
  return Guard([&] {
    const Request request(args);
    if (Status status = ValidatePlanGiven(request.name(), plan); !status.ok()) return status;
    if (Status status = request.ValidateViews(); !status.ok()) return status;
    *plan = MakeNormRopePlan(request.list());
    return Status();
  });
}

// run(plan), once there is one.
template <class Run>
Status RunPlan(const char* name, const NormRopePlanPointer& plan, const Run& run) {
  return Guard([&] {
    if (Status status = ValidatePlanMade(name, plan.get()); !status.ok()) return status;
    return run(*plan);
  });
}

inline std::size_t WorkspaceSize(const NormRopePlanPointer& plan) { return plan ? plan->workspace_bytes : 0; }

inline std::string Describe(const NormRopePlanPointer& plan) {
  return GuardWords([&] { return plan ? Describe(*plan) : std::string(); });
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_PUBLIC_CALLS_H_
