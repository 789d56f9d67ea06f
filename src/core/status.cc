// Names of the status codes.
#include "gyrograd/status.h"

namespace gyrograd {

const char* Name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "kOk";
    case StatusCode::kNullPointer: return "kNullPointer";
    case StatusCode::kInvalidType: return "kInvalidType";
    case StatusCode::kInvalidAttribute: return "kInvalidAttribute";
    case StatusCode::kMissingArgument: return "kMissingArgument";
    case StatusCode::kInvalidShape: return "kInvalidShape";
    case StatusCode::kInvalidAlias: return "kInvalidAlias";
    case StatusCode::kWorkspaceTooSmall: return "kWorkspaceTooSmall";
    case StatusCode::kOutOfMemory: return "kOutOfMemory";
    case StatusCode::kInternal: return "kInternal";
  }
  return "unknown";
}

}  // namespace gyrograd
