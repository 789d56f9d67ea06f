// What the first phases of all operators have in common.
#ifndef GYROGRAD_CANN_FIRST_PHASE_H_
#define GYROGRAD_CANN_FIRST_PHASE_H_

#include <cstdint>

#include "aclnn/aclnn_base.h"
#include "cann/executor.h"
#include "cann/guard.h"
#include "cann/outcome.h"
#include "cann/profiles.h"
#include "gyrograd/status.h"

namespace gyrograd::cann {

Outcome CheckPhaseOneOutputs(const std::uint64_t* workspace_size, aclOpExecutor* const* executor);

// GYROGRAD_PROFILE, read anew at each first phase.
Outcome ReadProfile(Profile* profile);

// Makes *plan, in the order of precedence: the operator's own rules on shapes, then those that `check_limits` (an
// Outcome) adds to them, then the addresses'. `rule_code` as for ToOutcome.
template <class Plan, class Args, class Limits>
Outcome MakePlan(Operator op, const Args& args, Status (*validate)(const Args&), int rule_code,
                 const Limits& check_limits, Plan* plan) {
  const Status created = Plan::Create(args, plan);
  if (!created.ok() && created.code() != StatusCode::kInvalidAlias) return ToOutcome(op, created, rule_code);
  const Outcome limits = check_limits();
  if (!limits.ok()) return limits;
  return ToOutcome(op, created.ok() ? validate(args) : created, rule_code);
}

// The end of a first phase that succeeds.
Outcome HandOver(Executor executor, std::uint64_t* workspace_size, aclOpExecutor** handle);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_FIRST_PHASE_H_
