// The second phase, and the calls of acl_meta.h that change an executor.
#include "cann/executor.h"

#include <array>
#include <string>
#include <utility>

#include "cann/outcome.h"
#include "cann/registry.h"
#include "cann/stream.h"

namespace gyrograd::cann {
namespace {

Slot SlotOf(const Tensor& tensor, bool used) {
  if (!tensor.given) return {};
  if (!used) return {nullptr, 0, true, true};
  const bool empty = IsEmpty(tensor);
  const std::int64_t offset = OffsetInBytes(tensor);
  return {empty ? nullptr : AddressIn(tensor.storage, offset), offset, true, empty};
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

Outcome Execute(Operator op, void* workspace, std::uint64_t workspace_size, aclOpExecutor* handle, aclrtStream stream) {
  if (handle == nullptr) return {ACLNN_ERR_PARAM_NULLPTR, "executor is null"};
  Run run;
  bool own = false;
  std::size_t planned = 0;
  // Only the decision is made under the lock; messages are built outside.
  const bool found = Handles<Executor>().Visit(handle, [&](Executor& executor) {
    own = executor.op == op;
    if (!own) return Entry::kKeep;
    planned = executor.workspace_size;
    if (workspace_size < planned || (workspace == nullptr && planned > 0)) return Entry::kKeep;
    run = Take(executor);
    return executor.repeatable ? Entry::kKeep : Entry::kRemove;
  });
  if (!found) return NoHandle<Executor>("executor");
  if (!own) return {ACLNN_ERR_PARAM_INVALID, "executor is another operator's"};
  if (Outcome outcome = CheckWorkspace(workspace, workspace_size, planned); !outcome.ok()) return outcome;
  if (!IsStream(stream)) return NoHandle<Stream>("stream");
  return ToOutcome(op, (*run.function)(Addresses(run.addresses).first(run.num_tensors), workspace, workspace_size));
}

// Which of an executor's slots an index counts.
enum class Among { kInputs, kOutputs, kAll };

aclnnStatus SetAddress(const char* function, Among among, aclOpExecutor* handle, std::size_t index, aclTensor* tensor,
                       void* address) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (tensor == nullptr) return {ACLNN_ERR_INNER_NULLPTR, "tensor is null"};
    if (handle == nullptr) return {ACLNN_ERR_INNER_NULLPTR, "executor is null"};
    if (!Handles<Tensor>().Contains(tensor)) return NoHandle<Tensor>("tensor");
    std::size_t count = 0;
    bool set = false;
    const bool found = Handles<Executor>().Visit(handle, [&](Executor& executor) {
      const std::size_t first = among == Among::kOutputs ? executor.num_inputs : 0;
      count = (among == Among::kInputs ? executor.num_inputs : executor.num_tensors) - first;
      if (index >= count || !executor.slots[first + index].given) return Entry::kKeep;
      Slot& slot = executor.slots[first + index];
      if (!slot.empty) slot.address = AddressIn(address, slot.offset_in_bytes);
      set = true;
      return Entry::kKeep;
    });
    if (!found) return NoHandle<Executor>("executor");
    if (!set) {
      return {ACLNN_ERR_PARAM_INVALID, "index is " + std::to_string(index) + "; it must be below " +
                                           std::to_string(count) + " and name a tensor that the first phase was given"};
    }
    return SetStorage(tensor, address);
  });
}

aclnnStatus ChangeExecutor(const char* function, aclOpExecutor* handle, Entry entry) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (handle == nullptr) return {ACLNN_ERR_INNER_NULLPTR, "executor is null"};
    const bool found = Handles<Executor>().Visit(handle, [&](Executor& executor) {
      executor.repeatable = true;
      return entry;
    });
    return found ? Outcome{} : NoHandle<Executor>("executor");
  });
}

}  // namespace

void Executor::AddInput(const Tensor& tensor, bool used) {
  AddOutput(tensor, used);
  ++num_inputs;
}

void Executor::AddOutput(const Tensor& tensor, bool used) { slots[num_tensors++] = SlotOf(tensor, used); }

std::array<void*, kMaxTensors> Executor::addresses() const {
  std::array<void*, kMaxTensors> addresses{};
  for (std::size_t i = 0; i < num_tensors; ++i) addresses[i] = slots[i].address;
  return addresses;
}

aclOpExecutor* Register(Executor executor) {
  return static_cast<aclOpExecutor*>(Handles<Executor>().Add(std::move(executor)));
}

aclnnStatus RunSecondPhase(const char* function, Operator op, void* workspace, std::uint64_t workspace_size,
                           aclOpExecutor* handle, aclrtStream stream) {
  return Guard(function, kAclnnCodes, [&] { return Execute(op, workspace, workspace_size, handle, stream); });
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
