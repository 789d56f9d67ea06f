// The messages that failed calls leave, thread by thread.
#include "cann/guard.h"

#include <cstddef>
#include <list>

namespace gyrograd::cann {
namespace {

constexpr std::size_t kKeptErrors = 64;

struct ErrorLog {
  std::list<std::string> kept;  // newest first; an empty list, unlike a deque, takes no memory
  bool lost = false;            // a message found no memory
  std::string given;            // what the last TakeErrors returned
};

ErrorLog& ThisThreadsLog() {
  thread_local ErrorLog log;
  return log;
}

const char* Name(int code) {
  switch (code) {
    case ACLNN_ERR_PARAM_NULLPTR: return "ACLNN_ERR_PARAM_NULLPTR";
    case ACLNN_ERR_PARAM_INVALID: return "ACLNN_ERR_PARAM_INVALID";
    case ACLNN_ERR_RUNTIME_ERROR: return "ACLNN_ERR_RUNTIME_ERROR";
    case ACLNN_ERR_INNER: return "ACLNN_ERR_INNER";
    case ACLNN_ERR_INNER_TILING_ERROR: return "ACLNN_ERR_INNER_TILING_ERROR";
    case ACLNN_ERR_INNER_NULLPTR: return "ACLNN_ERR_INNER_NULLPTR";
    case ACL_ERROR_INVALID_PARAM: return "ACL_ERROR_INVALID_PARAM";
    case ACL_ERROR_UNINITIALIZE: return "ACL_ERROR_UNINITIALIZE";
    case ACL_ERROR_REPEAT_INITIALIZE: return "ACL_ERROR_REPEAT_INITIALIZE";
    case ACL_ERROR_REPEAT_FINALIZE: return "ACL_ERROR_REPEAT_FINALIZE";
    case ACL_ERROR_BAD_ALLOC: return "ACL_ERROR_BAD_ALLOC";
    case ACL_ERROR_INTERNAL_ERROR: return "ACL_ERROR_INTERNAL_ERROR";
    case ACL_ERROR_FAILURE: return "ACL_ERROR_FAILURE";
  }
  return "unknown code";
}

}  // namespace

void KeepError(const char* function, int code, const char* message) noexcept {
  ErrorLog& log = ThisThreadsLog();
  try {
    log.kept.push_front(std::string(function) + " failed with " + std::to_string(code) + " (" + Name(code) +
                        "): " + message);
    if (log.kept.size() > kKeptErrors) log.kept.pop_back();
  } catch (...) {
    log.lost = true;
  }
}

const char* TakeErrors() noexcept {
  ErrorLog& log = ThisThreadsLog();
  if (log.kept.empty() && !log.lost) return nullptr;
  try {
    std::string text;
    for (const std::string& message : log.kept) text += text.empty() ? message : "\n" + message;
    if (log.lost) text += text.empty() ? "out of memory" : "\nout of memory: a message was lost";
    log.given.swap(text);
  } catch (...) {
    return "out of memory: messages were lost";
  }
  log.kept.clear();
  log.lost = false;
  return log.given.c_str();
}

}  // namespace gyrograd::cann
