// The registry of executors, the second phase, and the calls of acl_meta.h that change an executor.
#include "cann/executor.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "cann/message.h"
#include "cann/registry.h"
#include "ops/rotary/validate.h"

namespace gyrograd::cann {
namespace {

// Never destroyed, so that a program may call to its very end.
Registry<Executor>& Executors() {
  static auto& registry = *new Registry<Executor>;
  return registry;
}

Slot SlotOf(const aclTensor* tensor, bool used) {
  if (tensor == nullptr) return {};
  if (!used) return {nullptr, 0, true, true};
  const bool empty = IsEmpty(*tensor);
  const std::int64_t offset = OffsetInBytes(*tensor);
  return {empty ? nullptr : AddressIn(tensor->storage, offset), offset, true, empty};
}

Outcome NoExecutor() {
  return {ACLNN_ERR_PARAM_INVALID, "executor is none of this operator's: it was never made, has run, or was destroyed"};
}

Outcome CheckWorkspace(const void* workspace, std::uint64_t size, std::size_t planned) {
  if (workspace == nullptr && planned > 0) {
    return {ACLNN_ERR_PARAM_NULLPTR, "workspace is null; " + std::to_string(planned) + " bytes are needed"};
  }
  if (size < planned) {
    return {ACLNN_ERR_PARAM_INVALID,
            "workspaceSize is " + std::to_string(size) + "; it must be at least " + std::to_string(planned)};
  }
  return {};
}

// A run, taken out of an executor: what remains valid whatever happens to the executor meanwhile.
struct Run {
  std::shared_ptr<const RunFunction> function;
  std::array<void*, kMaxTensors> addresses{};
  std::size_t num_tensors = 0;
};

Run Take(const Executor& executor) { return {executor.run, executor.addresses(), executor.num_tensors}; }

Outcome Execute(Operator op, void* workspace, std::uint64_t workspace_size, aclOpExecutor* handle) {
  if (handle == nullptr) return {ACLNN_ERR_PARAM_NULLPTR, "executor is null"};
  Run run;
  bool own = false;
  std::size_t planned = 0;
  // Only the decision is made under the lock; messages are built outside.
  Executors().Visit(handle, [&](Executor& executor) {
    own = executor.op == op;
    if (!own) return Entry::kKeep;
    planned = executor.workspace_size;
    if (workspace_size < planned || (workspace == nullptr && planned > 0)) return Entry::kKeep;
    run = Take(executor);
    return executor.repeatable ? Entry::kKeep : Entry::kRemove;
  });
  if (!own) return NoExecutor();
  if (Outcome outcome = CheckWorkspace(workspace, workspace_size, planned); !outcome.ok()) return outcome;
  return ToOutcome(op, (*run.function)(Addresses(run.addresses).first(run.num_tensors), workspace, workspace_size));
}

constexpr std::array<Rename, 4> kGradNames{
    {{"x", "xOptional"}, {"dx", "dxOut"}, {"dcos", "dcosOut"}, {"dsin", "dsinOut"}}};
constexpr std::array<Rename, 1> kForwardNames{{{"y", "out"}}};

std::string MessageOf(Operator op, const Status& status) {
  std::string_view message = status.message();
  const std::size_t hint = message.find(internal::kHint);
  const std::string_view options = message.substr(std::min(hint, message.size()));
  if (options.find("per_pair_tables") != options.npos || options.find("rotary_dim") != options.npos) {
    message = message.substr(0, hint);
  }
  if (op == Operator::kRotaryPositionEmbedding) return Renamed(message, kForwardNames);
  if (op == Operator::kRotaryPositionEmbeddingGrad) return Renamed(message, kGradNames);
  return std::string(message);
}

// Which of an executor's slots an index counts.
enum class Among { kInputs, kOutputs, kAll };

aclnnStatus SetAddress(const char* function, Among among, aclOpExecutor* handle, std::size_t index, aclTensor* tensor,
                       void* address) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (tensor == nullptr) return {ACLNN_ERR_INNER_NULLPTR, "tensor is null"};
    if (handle == nullptr) return {ACLNN_ERR_INNER_NULLPTR, "executor is null"};
    std::size_t count = 0;
    bool set = false;
    const bool found = Executors().Visit(handle, [&](Executor& executor) {
      const std::size_t first = among == Among::kOutputs ? executor.num_inputs : 0;
      count = (among == Among::kInputs ? executor.num_inputs : executor.num_tensors) - first;
      if (index >= count || !executor.slots[first + index].given) return Entry::kKeep;
      Slot& slot = executor.slots[first + index];
      if (!slot.empty) slot.address = AddressIn(address, slot.offset_in_bytes);
      set = true;
      return Entry::kKeep;
    });
    if (!found) return NoExecutor();
    if (!set) {
      return {ACLNN_ERR_PARAM_INVALID, "index is " + std::to_string(index) + "; it must be below " +
                                           std::to_string(count) + " and name a tensor that the first phase was given"};
    }
    tensor->storage = address;
    return {};
  });
}

aclnnStatus ChangeExecutor(const char* function, aclOpExecutor* handle, Entry entry) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (handle == nullptr) return {ACLNN_ERR_INNER_NULLPTR, "executor is null"};
    const bool found = Executors().Visit(handle, [&](Executor& executor) {
      executor.repeatable = true;
      return entry;
    });
    return found ? Outcome{} : NoExecutor();
  });
}

}  // namespace

void Executor::AddInput(const aclTensor* tensor, bool used) {
  AddOutput(tensor, used);
  ++num_inputs;
}

void Executor::AddOutput(const aclTensor* tensor, bool used) { slots[num_tensors++] = SlotOf(tensor, used); }

std::array<void*, kMaxTensors> Executor::addresses() const {
  std::array<void*, kMaxTensors> addresses{};
  for (std::size_t i = 0; i < num_tensors; ++i) addresses[i] = slots[i].address;
  return addresses;
}

aclOpExecutor* Register(Executor executor) { return static_cast<aclOpExecutor*>(Executors().Add(std::move(executor))); }

aclnnStatus RunSecondPhase(const char* function, Operator op, void* workspace, std::uint64_t workspace_size,
                           aclOpExecutor* handle) {
  return Guard(function, kAclnnCodes, [&] { return Execute(op, workspace, workspace_size, handle); });
}

Outcome ToOutcome(Operator op, const Status& status, int rule_code) {
  switch (status.code()) {
    case StatusCode::kOk: return {};
    case StatusCode::kNullPointer: return {ACLNN_ERR_PARAM_NULLPTR, MessageOf(op, status)};
    case StatusCode::kInvalidType:
    case StatusCode::kInvalidAlias:
    case StatusCode::kWorkspaceTooSmall: return {ACLNN_ERR_PARAM_INVALID, MessageOf(op, status)};
    case StatusCode::kInvalidAttribute:
    case StatusCode::kMissingArgument:
    case StatusCode::kInvalidShape: return {rule_code, MessageOf(op, status)};
    case StatusCode::kOutOfMemory:
    case StatusCode::kInternal: break;
  }
  return {ACLNN_ERR_INNER, status.message()};
}

}  // namespace gyrograd::cann

using gyrograd::cann::Among;
using gyrograd::cann::ChangeExecutor;
using gyrograd::cann::Entry;
using gyrograd::cann::SetAddress;

extern "C" {

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor) {
  return ChangeExecutor(__func__, executor, Entry::kKeep);
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  return ChangeExecutor(__func__, executor, Entry::kRemove);
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return SetAddress(__func__, Among::kInputs, executor, index, tensor, addr);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return SetAddress(__func__, Among::kOutputs, executor, index, tensor, addr);
}

aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return SetAddress(__func__, Among::kAll, executor, index, tensor, addr);
}

aclnnStatus AclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return SetAddress(__func__, Among::kInputs, executor, index, tensor, addr);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return SetAddress(__func__, Among::kOutputs, executor, index, tensor, addr);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor, void* addr) {
  return SetAddress(__func__, Among::kAll, executor, index, tensor, addr);
}

}  // extern "C"
