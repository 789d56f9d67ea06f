// Executors: what a first phase leaves for the second. They live in a registry; an aclOpExecutor* is a handle into it.
#ifndef GYROGRAD_CANN_EXECUTOR_H_
#define GYROGRAD_CANN_EXECUTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "aclnn/aclnn_base.h"
#include "cann/guard.h"
#include "cann/tensor.h"
#include "gyrograd/status.h"

namespace gyrograd::cann {

// The operators of the library: an executor runs in the second phase of its own one alone.
enum class Operator {
  kRotaryPositionEmbedding,
  kRotaryPositionEmbeddingGrad,
  kNormRopeConcat,
  kNormRopeConcatBackward,
};

inline constexpr std::size_t kMaxTensors = 35;  // the longest list of tensors of an operator

// Addresses of elements (0, ..., 0), inputs first, in the order of the first phase's arguments.
using Addresses = std::span<void* const>;

// The plan, bound: runs it on the addresses. Shared by all runs of a repeatable executor.
using RunFunction = std::function<Status(Addresses, void* workspace, std::size_t workspace_size)>;

// One tensor of the argument list.
struct Slot {
  void* address = nullptr;
  std::int64_t offset_in_bytes = 0;
  bool given = false;  // an optional tensor may be missing
  bool empty = false;  // has no elements, or is not used: any address will do
};

struct Executor {
  static constexpr const char* kNone = " is no executor: it was never made, has run, or was destroyed";

  Operator op{};
  std::shared_ptr<const RunFunction> run;
  std::size_t workspace_size = 0;
  std::array<Slot, kMaxTensors> slots{};
  std::size_t num_inputs = 0;
  std::size_t num_tensors = 0;
  bool repeatable = false;

  // Appends a tensor of the argument list, which need not be given. Inputs come first. Of one that is not used nothing
  // but whether it was given counts.
  void AddInput(const Tensor& tensor, bool used = true);
  void AddOutput(const Tensor& tensor, bool used = true);

  std::array<void*, kMaxTensors> addresses() const;
};

aclOpExecutor* Register(Executor executor);

// The second phase of every operator.
aclnnStatus RunSecondPhase(const char* function, Operator op, void* workspace, std::uint64_t workspace_size,
                           aclOpExecutor* handle, aclrtStream stream);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_EXECUTOR_H_
