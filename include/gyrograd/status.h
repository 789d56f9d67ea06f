// The result of every call: a code and a message. No call of the library throws, aborts or exits.
#ifndef GYROGRAD_STATUS_H_
#define GYROGRAD_STATUS_H_

#include <string>
#include <utility>

#include "gyrograd/api.h"

namespace gyrograd {

// Why a call was refused. Rules are checked in this order, so the first broken one is reported.
enum class StatusCode : int {
  kOk = 0,
  kNullPointer,        // a tensor that has elements has no data
  kInvalidType,        // types outside the table, or types that should agree and do not
  kInvalidAttribute,   // a mode, an offset, a thread count ... outside its range
  kMissingArgument,    // what the wanted outputs need was not given
  kInvalidShape,       // ranks, extents and sizes, 64-bit overflow included
  kInvalidAlias,       // misaligned data, outputs that share bytes against the rules
  kWorkspaceTooSmall,  // Run got fewer bytes than the plan asks for
  kOutOfMemory,        // memory for the plan or its workspace was refused by the system
  kInternal,           // a fault of the library: please report it
};

// The code's name, such as "kInvalidShape".
GYROGRAD_API const char* Name(StatusCode code);

// A code and, unless it is kOk, a message that names the operator, the argument, the rule and the value received.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace gyrograd

#endif  // GYROGRAD_STATUS_H_
