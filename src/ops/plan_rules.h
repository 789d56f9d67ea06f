// The rules of making and running a plan, of any operator.
#ifndef GYROGRAD_OPS_PLAN_RULES_H_
#define GYROGRAD_OPS_PLAN_RULES_H_

#include <cstddef>
#include <string>

#include "gyrograd/status.h"

namespace gyrograd::internal {

// Where a plan is to be put.
inline Status ValidatePlanGiven(const char* operator_name, const void* plan) {
  if (plan != nullptr) return Status();
  return Status(StatusCode::kNullPointer, std::string(operator_name) + ": plan is null");
}

// A plan that is to run.
inline Status ValidatePlanMade(const char* operator_name, const void* data) {
  if (data != nullptr) return Status();
  return Status(StatusCode::kNullPointer, std::string(operator_name) + ": the plan is empty; it must be created first");
}

inline Status ValidateWorkspace(const char* operator_name, std::size_t needed, const void* workspace,
                                std::size_t size) {
  const auto refuse = [&](StatusCode code, const std::string& what) {
    return Status(code, std::string(operator_name) + ": workspace " + what + "; the plan needs " +
                            std::to_string(needed) + " bytes");
  };
  if (needed != 0 && workspace == nullptr) return refuse(StatusCode::kNullPointer, "is null");
  if (size < needed) return refuse(StatusCode::kWorkspaceTooSmall, "has " + std::to_string(size) + " bytes");
  return Status();
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_PLAN_RULES_H_
