// The rotary backward as a CANN program calls it: device memory, a stream, two phases, results copied back. It builds
// against CANN's headers as it does against these:
//
//   c++ cann_rotary_grad.cpp $(pkg-config --cflags --libs gyrograd-cann) && ./a.out
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"

#define CHECK(call)                                                                   \
  do {                                                                                \
    const int status_ = (call);                                                       \
    if (status_ != ACL_SUCCESS) {                                                     \
      const char* message_ = aclGetRecentErrMsg();                                    \
      std::fprintf(stderr, "%s: %d\n%s\n", #call, status_, message_ ? message_ : ""); \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (false)

// A contiguous tensor in device memory.
struct DeviceTensor {
  DeviceTensor(const std::vector<int64_t>& shape, const std::vector<float>& values)
      : bytes(values.size() * sizeof(float)) {
    CHECK(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(memory, bytes, values.data(), bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    std::vector<int64_t> strides(shape.size(), 1);
    for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
    tensor = aclCreateTensor(shape.data(), shape.size(), aclDataType::ACL_FLOAT, strides.data(), 0,
                             aclFormat::ACL_FORMAT_ND, shape.data(), shape.size(), memory);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  ~DeviceTensor() {
    aclDestroyTensor(tensor);
    aclrtFree(memory);
  }

  std::vector<float> ToHost() const {
    std::vector<float> values(bytes / sizeof(float));
    CHECK(aclrtMemcpy(values.data(), bytes, memory, bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    return values;
  }

  std::size_t bytes;
  void* memory = nullptr;
  aclTensor* tensor = nullptr;
};

void Print(const char* name, const DeviceTensor& tensor) {
  std::printf("%-4s =", name);
  for (const float value : tensor.ToHost()) std::printf(" %g", value);
  std::printf("\n");
}

void Backward(aclrtStream stream) {
  const std::vector<int64_t> shape = {1, 1, 1, 8};
  const std::vector<float> zeros(8, 0.0f);
  const DeviceTensor dy(shape, {1, 2, 3, 4, 5, 6, 7, 8});
  const DeviceTensor cos(shape, zeros);
  const DeviceTensor sin(shape, std::vector<float>(8, 1.0f));
  const DeviceTensor x(shape, {0, 10, 20, 30, 40, 50, 60, 70});
  const DeviceTensor dx(shape, zeros);
  const DeviceTensor dcos(shape, zeros);
  const DeviceTensor dsin(shape, zeros);

  const int64_t mode = 0;  // half
  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(dy.tensor, cos.tensor, sin.tensor, x.tensor, mode, dx.tensor,
                                                         dcos.tensor, dsin.tensor, &workspace_size, &executor));
  void* workspace = nullptr;
  if (workspace_size > 0) CHECK(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclnnRotaryPositionEmbeddingGrad(workspace, workspace_size, executor, stream));
  CHECK(aclrtSynchronizeStream(stream));
  if (workspace != nullptr) CHECK(aclrtFree(workspace));

  Print("dx", dx);
  Print("dcos", dcos);
  Print("dsin", dsin);
}

int main() {
  const int32_t device = 0;
  aclrtStream stream = nullptr;
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(device));
  CHECK(aclrtCreateStream(&stream));
  Backward(stream);
  CHECK(aclrtDestroyStream(stream));
  CHECK(aclrtResetDevice(device));
  CHECK(aclFinalize());
  return 0;
}
