// The parts of a first phase that do not depend on the operator.
#include "cann/first_phase.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace gyrograd::cann {

Outcome CheckPhaseOneOutputs(const std::uint64_t* workspace_size, aclOpExecutor* const* executor) {
  if (workspace_size == nullptr) return {ACLNN_ERR_PARAM_NULLPTR, "workspaceSize is null"};
  if (executor == nullptr) return {ACLNN_ERR_PARAM_NULLPTR, "executor is null"};
  return {};
}

Outcome ReadProfile(Profile* profile) {
  const char* text = std::getenv("GYROGRAD_PROFILE");
  const std::optional<Profile> parsed = text == nullptr ? Profile::kNative : ParseProfile(text);
  if (!parsed) {
    return {ACLNN_ERR_PARAM_INVALID,
            "GYROGRAD_PROFILE is '" + std::string(text) + "'; it must be native, atlas-a2, atlas-a3 or ascend-950"};
  }
  *profile = *parsed;
  return {};
}

Outcome HandOver(Executor executor, std::uint64_t* workspace_size, aclOpExecutor** handle) {
  const std::size_t planned = executor.workspace_size;
  *handle = Register(std::move(executor));
  *workspace_size = planned;
  return {};
}

}  // namespace gyrograd::cann
