// What a status of the C++ interface is in the C one: the code, and the message in the operator's own words.
#ifndef GYROGRAD_CANN_OUTCOME_H_
#define GYROGRAD_CANN_OUTCOME_H_

#include "cann/executor.h"
#include "cann/guard.h"
#include "gyrograd/status.h"

namespace gyrograd::cann {

// Every argument by the name that the operator's own list gives it, and nothing of what this interface does not have:
// the C++ function's name (the C one's stands before each message), hints at options. `rule_code` is the operator's for
// an attribute, a missing tensor or a shape that breaks a rule.
Outcome ToOutcome(Operator op, const Status& status, int rule_code = ACLNN_ERR_INNER_TILING_ERROR);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_OUTCOME_H_
