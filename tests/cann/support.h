// A rotary problem as a user of the C interface sets it up: memory, handles and the two phases.
#ifndef GYROGRAD_TESTS_CANN_SUPPORT_H_
#define GYROGRAD_TESTS_CANN_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "gyrograd/rotary.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::testing {

using Shape = std::vector<std::int64_t>;
using Random = std::mt19937_64;

aclDataType AclType(DType dtype);
Shape ContiguousStrides(const Shape& shape);

struct TensorDeleter {
  void operator()(const aclTensor* tensor) const { aclDestroyTensor(tensor); }
};
using TensorHandle = std::unique_ptr<aclTensor, TensorDeleter>;

// A handle for a contiguous tensor at `data`.
TensorHandle MakeHandle(const Shape& shape, aclDataType type, void* data, aclFormat format = ACL_FORMAT_ND);

// A contiguous array with random values, and a handle for it.
class Array {
 public:
  Array(DType dtype, const Shape& shape, Random& random);

  aclTensor* handle() const { return handle_.get(); }
  // Replaces the handle.
  void Describe(TensorHandle handle) { handle_ = std::move(handle); }
  // The handle, which leaves a null one.
  TensorHandle Take() { return std::move(handle_); }
  void* data() { return bytes_.data(); }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  ConstTensorView in() const { return {bytes_.data(), dtype_, shape_, strides_}; }
  TensorView out() { return {bytes_.data(), dtype_, shape_, strides_}; }

 private:
  DType dtype_;
  Shape shape_;
  Shape strides_;
  std::vector<std::byte> bytes_;
  TensorHandle handle_;
};

// Replaces an array's handle by one of another shape or type over ample memory, which all such share.
void Redescribe(Array& array, const Shape& shape, aclDataType type = ACL_FLOAT, aclFormat format = ACL_FORMAT_ND);

// The messages that the thread's calls have left.
std::string RecentMessages();

// Success where `code` is `want` and the messages since the last time hold every one of `words`, and no name of the C++
// interface; the messages are gone afterwards.
::testing::AssertionResult Gives(aclnnStatus code, aclnnStatus want, const std::vector<std::string>& words = {});

// Success where a comparison (reference/) found none that differ.
template <class Comparison>
::testing::AssertionResult Matches(const std::string& name, const Comparison& comparison) {
  if (comparison.ok) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << name << ": " << comparison.message;
}

// Both phases of a problem: its Plan() and Run().
template <class Problem>
::testing::AssertionResult PlanAndRunProblem(Problem& problem) {
  if (::testing::AssertionResult planned = Gives(problem.Plan(), 0); !planned) return planned << " (first phase)";
  return Gives(problem.Run(), 0) << " (second phase)";
}

// A second phase, with a workspace of its own, 8 bytes off an aligned address.
template <class SecondPhase>
aclnnStatus RunWithWorkspace(SecondPhase second_phase, std::uint64_t size, aclOpExecutor* executor) {
  std::vector<std::uint64_t> workspace(size / 8 + 3);
  return second_phase(workspace.data() + 1, size, executor, nullptr);
}

// The backward, with the tables' gradients; members are replaced by tests that break a rule.
struct GradProblem {
  explicit GradProblem(DType dtype = DType::kF32, Shape dy_shape = {2, 3, 4, 8}, Shape cos_shape = {1, 3, 1, 8},
                       std::uint64_t seed = 1);

  aclnnStatus Plan();
  aclnnStatus Run();
  ::testing::AssertionResult PlanAndRun();

  // What is wrong with dx, and with dcos and dsin if `tables`, against the witnesses.
  ::testing::AssertionResult Check(bool tables = true);

  Random random;
  Array dy, cos, sin, x, dx, dcos, dsin;
  std::int64_t mode = 0;
  bool with_x = true;
  std::uint64_t workspace_size = ~std::uint64_t{0};
  aclOpExecutor* executor = nullptr;
};

struct ForwardProblem {
  explicit ForwardProblem(DType dtype = DType::kF32, Shape x_shape = {2, 3, 4, 8}, Shape cos_shape = {1, 3, 1, 8},
                          std::uint64_t seed = 1);

  aclnnStatus Plan();
  aclnnStatus Run();
  ::testing::AssertionResult PlanAndRun();
  ::testing::AssertionResult Check();

  Random random;
  Array x, cos, sin, out;
  std::int64_t mode = 0;
  std::uint64_t workspace_size = ~std::uint64_t{0};
  aclOpExecutor* executor = nullptr;
};

// Sets an environment variable for a scope; null unsets it.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value);
  ~ScopedEnvironment();

 private:
  std::string name_;
};

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_CANN_SUPPORT_H_
