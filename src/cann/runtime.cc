// The runtime subset of acl_rt.h on the host. Events carry no work, as streams do not: whatever is started is done on
// return.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "acl/acl.h"
#include "cann/enum_value.h"
#include "cann/guard.h"
#include "cann/registry.h"
#include "cann/stream.h"

namespace gyrograd::cann {
namespace {

constexpr std::int32_t kDevice = 0;
constexpr std::size_t kAlignment = 64;

struct Event {
  static constexpr const char* kNone = " is no event: it was never made, or was destroyed";
};
struct Context {
  static constexpr const char* kNone = " is no context: it was never made, or was destroyed";
};
// Its handle is its address.
struct Allocation {
  static constexpr const char* kNone = " is no allocation: it was never made here, or was freed";
};

std::atomic<bool> initialized{false};
thread_local aclrtContext current_context = nullptr;

aclrtContext DefaultContext() {
  static const aclrtContext context = Handles<Context>().Add({});
  return context;
}

Outcome ParamError(std::string message) { return {ACL_ERROR_INVALID_PARAM, std::move(message)}; }

Outcome CheckDevice(std::int32_t device) {
  if (device == kDevice) return {};
  return ParamError("deviceId is " + std::to_string(device) + "; the one device is 0");
}

template <class Kind>
Outcome CheckHandle(const char* name, const void* handle) {
  if (handle == nullptr) return ParamError(std::string(name) + " is null");
  return Handles<Kind>().Contains(handle) ? Outcome{} : NoHandle<Kind>(name, ACL_ERROR_INVALID_PARAM);
}

// Takes the handle out of its registry.
template <class Kind>
Outcome RemoveHandle(const char* name, const void* handle) {
  if (handle == nullptr) return ParamError(std::string(name) + " is null");
  return Handles<Kind>().Remove(handle) ? Outcome{} : NoHandle<Kind>(name, ACL_ERROR_INVALID_PARAM);
}

Outcome CheckStream(aclrtStream stream) {
  return IsStream(stream) ? Outcome{} : NoHandle<Stream>("stream", ACL_ERROR_INVALID_PARAM);
}

template <class Kind>
aclError Create(const char* function, void** handle) {
  return Guard(function, kAclCodes, [&]() -> Outcome {
    if (handle == nullptr) return ParamError("the output pointer is null");
    *handle = Handles<Kind>().Add({});
    return {};
  });
}

template <class Kind>
aclError Destroy(const char* function, const char* name, void* handle) {
  return Guard(function, kAclCodes, [&] { return RemoveHandle<Kind>(name, handle); });
}

aclError Allocate(const char* function, void** address, std::size_t size) {
  return Guard(function, kAclCodes, [&]() -> Outcome {
    if (address == nullptr) return ParamError("the output pointer is null");
    if (size == 0) return ParamError("size is 0; it must be positive");
    const Outcome refused{ACL_ERROR_BAD_ALLOC, "the system refused " + std::to_string(size) + " bytes"};
    if (size > std::numeric_limits<std::size_t>::max() - kAlignment) return refused;
    std::unique_ptr<void, decltype(&std::free)> memory(
        std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment), &std::free);
    if (memory == nullptr) return refused;
    Handles<Allocation>().AddAt(memory.get(), {});
    *address = memory.release();
    return {};
  });
}

// The address leaves the registry first: the system may give it out anew at once.
aclError Release(const char* function, const char* name, void* address) {
  return Guard(function, kAclCodes, [&] {
    Outcome outcome = RemoveHandle<Allocation>(name, address);
    if (outcome.ok()) std::free(address);
    return outcome;
  });
}

Outcome CheckCount(std::size_t count, std::size_t limit) {
  if (count <= limit) return {};
  return ParamError("count is " + std::to_string(count) + "; the destination holds " + std::to_string(limit) +
                    " bytes");
}

Outcome CopyBytes(void* dst, std::size_t limit, const void* src, std::size_t count, int kind) {
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_DEFAULT) {
    return ParamError("kind is " + std::to_string(kind) + "; it must be 0, 1, 2, 3 or 4");
  }
  if (Outcome outcome = CheckCount(count, limit); !outcome.ok() || count == 0) return outcome;
  if (dst == nullptr || src == nullptr) return ParamError(dst == nullptr ? "dst is null" : "src is null");
  std::memmove(dst, src, count);
  return {};
}

Outcome SetBytes(void* address, std::size_t limit, std::int32_t value, std::size_t count) {
  if (Outcome outcome = CheckCount(count, limit); !outcome.ok() || count == 0) return outcome;
  if (address == nullptr) return ParamError("devPtr is null");
  std::memset(address, value, count);
  return {};
}

aclError SetOption(const char* function, int option) {
  return Guard(function, kAclCodes, [&]() -> Outcome {
    if (option >= ACL_OPT_DETERMINISTIC && option <= ACL_OPT_ENABLE_KERNEL_EARLY_START) return {};
    return ParamError("opt is " + std::to_string(option) + "; it must be 0, 1, 2 or 3");
  });
}

template <class Value>
aclError Report(const char* function, Value* where, Value value) {
  return Guard(function, kAclCodes, [&]() -> Outcome {
    if (where == nullptr) return ParamError("the output pointer is null");
    *where = value;
    return {};
  });
}

// Runs a check that is all there is to do.
template <class Check>
aclError CheckOnly(const char* function, const Check& check) {
  return Guard(function, kAclCodes, check);
}

}  // namespace
}  // namespace gyrograd::cann

using namespace gyrograd::cann;  // NOLINT: this file defines the C interface over them

extern "C" {

aclError aclInit(const char*) {
  return Guard(__func__, kAclCodes, [&]() -> Outcome {
    if (!initialized.exchange(true)) return {};
    return {ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before, and aclFinalize was not"};
  });
}

aclError aclFinalize(void) {
  return Guard(__func__, kAclCodes, [&]() -> Outcome {
    if (initialized.exchange(false)) return {};
    return {ACL_ERROR_REPEAT_FINALIZE, "aclInit was not called, or aclFinalize was called since"};
  });
}

const char* aclGetRecentErrMsg(void) { return TakeErrors(); }

const char* aclrtGetSocName(void) { return "CPU"; }

aclError aclrtSetDevice(int32_t deviceId) {
  return CheckOnly(__func__, [&] { return CheckDevice(deviceId); });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return CheckOnly(__func__, [&] { return CheckDevice(deviceId); });
}

aclError aclrtGetDevice(int32_t* deviceId) { return Report(__func__, deviceId, kDevice); }

aclError aclrtGetDeviceCount(uint32_t* count) { return Report(__func__, count, std::uint32_t{1}); }

aclError aclrtGetRunMode(aclrtRunMode* runMode) { return Report(__func__, runMode, ACL_HOST); }

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  return Guard(__func__, kAclCodes, [&]() -> Outcome {
    if (free == nullptr || total == nullptr) return ParamError(free == nullptr ? "free is null" : "total is null");
    const long page = sysconf(_SC_PAGESIZE);
    const long available = sysconf(_SC_AVPHYS_PAGES);
    const long all = sysconf(_SC_PHYS_PAGES);
    if (page < 0 || available < 0 || all < 0) return {ACL_ERROR_FAILURE, "the system does not say"};
    *free = static_cast<std::size_t>(available) * static_cast<std::size_t>(page);
    *total = static_cast<std::size_t>(all) * static_cast<std::size_t>(page);
    return {};
  });
}

aclError aclrtSynchronizeDevice(void) { return ACL_SUCCESS; }

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t) { return SetOption(__func__, ValueOf(opt)); }

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t) { return SetOption(__func__, ValueOf(opt)); }

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return Guard(__func__, kAclCodes, [&]() -> Outcome {
    if (context == nullptr) return ParamError("context is null");
    if (Outcome outcome = CheckDevice(deviceId); !outcome.ok()) return outcome;
    *context = current_context = Handles<Context>().Add({});
    return {};
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return Guard(__func__, kAclCodes, [&] {
    if (context == DefaultContext()) return ParamError("context is the device's own; it is not to be destroyed");
    return RemoveHandle<Context>("context", context);
  });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return Guard(__func__, kAclCodes, [&]() -> Outcome {
    if (Outcome outcome = CheckHandle<Context>("context", context); !outcome.ok()) return outcome;
    current_context = context;
    return {};
  });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return Guard(__func__, kAclCodes, [&]() -> Outcome {
    if (context == nullptr) return ParamError("context is null");
    // Another thread may have destroyed it.
    if (!Handles<Context>().Contains(current_context)) current_context = DefaultContext();
    *context = current_context;
    return {};
  });
}

aclError aclrtCreateStream(aclrtStream* stream) { return Create<Stream>(__func__, stream); }

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  return Create<Stream>(__func__, stream);
}

aclError aclrtDestroyStream(aclrtStream stream) { return Destroy<Stream>(__func__, "stream", stream); }

aclError aclrtDestroyStreamForce(aclrtStream stream) { return Destroy<Stream>(__func__, "stream", stream); }

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return CheckOnly(__func__, [&] { return CheckStream(stream); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return CheckOnly(__func__, [&] {
    if (timeout < -1) return ParamError("timeout is " + std::to_string(timeout) + "; it must be at least -1");
    return CheckStream(stream);
  });
}

aclError aclrtCreateEvent(aclrtEvent* event) { return Create<Event>(__func__, event); }

aclError aclrtDestroyEvent(aclrtEvent event) { return Destroy<Event>(__func__, "event", event); }

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return CheckOnly(__func__, [&] {
    Outcome outcome = CheckHandle<Event>("event", event);
    return outcome.ok() ? CheckStream(stream) : outcome;
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return CheckOnly(__func__, [&] { return CheckHandle<Event>("event", event); });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return CheckOnly(__func__, [&] {
    Outcome outcome = CheckStream(stream);
    return outcome.ok() ? CheckHandle<Event>("event", event) : outcome;
  });
}

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) { return Allocate(__func__, devPtr, size); }

aclError aclrtFree(void* devPtr) { return Release(__func__, "devPtr", devPtr); }

aclError aclrtMallocHost(void** hostPtr, size_t size) { return Allocate(__func__, hostPtr, size); }

aclError aclrtFreeHost(void* hostPtr) { return Release(__func__, "hostPtr", hostPtr); }

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return Guard(__func__, kAclCodes, [&] { return CopyBytes(dst, destMax, src, count, ValueOf(kind)); });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return Guard(__func__, kAclCodes, [&] {
    Outcome outcome = CheckStream(stream);
    return outcome.ok() ? CopyBytes(dst, destMax, src, count, ValueOf(kind)) : outcome;
  });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return Guard(__func__, kAclCodes, [&] { return SetBytes(devPtr, maxCount, value, count); });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return Guard(__func__, kAclCodes, [&] {
    Outcome outcome = CheckStream(stream);
    return outcome.ok() ? SetBytes(devPtr, maxCount, value, count) : outcome;
  });
}

}  // extern "C"
