// The C boundary: every entry point runs its body here, so that no exception passes and every failure becomes a code
// that is returned and a message that aclGetRecentErrMsg gives.
#ifndef GYROGRAD_CANN_GUARD_H_
#define GYROGRAD_CANN_GUARD_H_

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "acl/acl_base.h"
#include "aclnn/opdev/op_errno.h"

namespace gyrograd::cann {

// What an entry point's body comes to: code 0, or a code of its family (aclError or aclnnStatus) and why.
struct Outcome {
  int code = 0;
  std::string message;

  bool ok() const { return code == 0; }
};

// The codes for failures that no rule names.
struct FailureCodes {
  int out_of_memory;
  int internal;
};
inline constexpr FailureCodes kAclCodes{ACL_ERROR_BAD_ALLOC, ACL_ERROR_INTERNAL_ERROR};
inline constexpr FailureCodes kAclnnCodes{ACLNN_ERR_INNER, ACLNN_ERR_INNER};

// Keeps "function failed with code (name): message" for the calling thread.
void KeepError(const char* function, int code, const char* message) noexcept;

// The thread's kept errors, newest first, and forgets them; null where there are none.
const char* TakeErrors() noexcept;

// body() is an Outcome.
template <class Body>
int Guard(const char* function, const FailureCodes& codes, const Body& body) noexcept {
  try {
    const Outcome outcome = body();
    if (!outcome.ok()) KeepError(function, outcome.code, outcome.message.c_str());
    return outcome.code;
  } catch (const std::bad_alloc&) {
    KeepError(function, codes.out_of_memory, "out of memory");
    return codes.out_of_memory;
  } catch (const std::length_error&) {
    KeepError(function, codes.out_of_memory, "a size is beyond what memory can hold");
    return codes.out_of_memory;
  } catch (const std::exception& error) {
    KeepError(function, codes.internal, error.what());
  } catch (...) {
    KeepError(function, codes.internal, "unknown exception");
  }
  return codes.internal;
}

// body(&object) is an Outcome; null where it failed.
template <class Object, class Body>
Object* GuardCreate(const char* function, const Body& body) noexcept {
  Object* object = nullptr;
  return Guard(function, kAclnnCodes, [&] { return body(&object); }) == 0 ? object : nullptr;
}

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_GUARD_H_
