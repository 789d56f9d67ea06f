// The backward of norm, rotary and concatenation as a CANN program calls it: device memory, a stream, two phases,
// results copied back. One image row, normalised and rotated, and one text row, which passes. It builds against CANN's
// headers as it does against these:
//
//   c++ cann_norm_rope_concat_grad.cpp $(pkg-config --cflags --libs gyrograd-cann) && ./a.out
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"

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
  std::printf("%-19s =", name);
  for (const float value : tensor.ToHost()) std::printf(" %g", value);
  std::printf("\n");
}

void Backward(aclrtStream stream) {
  const std::vector<int64_t> row = {1, 1, 1, 4};    // [B, S, N, D]
  const std::vector<int64_t> joint = {1, 1, 2, 4};  // [B, N, S of image and text, D]
  const std::vector<int64_t> statistic = {1, 1, 1, 1};
  const std::vector<int64_t> vector = {4};
  const std::vector<int64_t> table = {1, 4};
  const std::vector<float> zeros(4, 0.0f);

  const DeviceTensor grad(joint, {1, 2, 3, 4, 5, 6, 7, 8});
  const DeviceTensor image(row, {1, 3, 1, 3});
  const DeviceTensor text(row, {9, 9, 9, 9});
  const DeviceTensor weight(vector, {1, 2, 1, 2});
  const DeviceTensor mean(statistic, {2});
  const DeviceTensor rstd(statistic, {1});
  const DeviceTensor sin(table, {1, 1, 1, 1});
  const DeviceTensor cos(table, zeros);
  const DeviceTensor query(row, zeros), key(row, zeros), value(row, zeros);
  const DeviceTensor encoder_query(row, zeros), encoder_key(row, zeros), encoder_value(row, zeros);
  const DeviceTensor query_weight(vector, zeros), query_bias(vector, zeros);
  const DeviceTensor key_weight(vector, zeros), key_bias(vector, zeros);

  const int64_t norm_type = 2;        // LayerNorm with weight and bias
  const int64_t norm_added_type = 0;  // the text has no norm: no weight, mean, rstd
  const int64_t rope_type = 2;        // half
  const int64_t concat_order = 0;     // image, then text
  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
  CHECK(aclnnNormRopeConcatBackwardGetWorkspaceSize(
      grad.tensor, grad.tensor, grad.tensor, image.tensor, image.tensor, text.tensor, text.tensor, weight.tensor,
      mean.tensor, rstd.tensor, weight.tensor, mean.tensor, rstd.tensor, nullptr, nullptr, nullptr, nullptr, nullptr,
      nullptr, sin.tensor, cos.tensor, norm_type, norm_added_type, rope_type, concat_order, query.tensor, key.tensor,
      value.tensor, encoder_query.tensor, encoder_key.tensor, encoder_value.tensor, query_weight.tensor,
      query_bias.tensor, key_weight.tensor, key_bias.tensor, nullptr, nullptr, nullptr, nullptr, &workspace_size,
      &executor));
  void* workspace = nullptr;
  if (workspace_size > 0) CHECK(aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  CHECK(aclnnNormRopeConcatBackward(workspace, workspace_size, executor, stream));
  CHECK(aclrtSynchronizeStream(stream));
  if (workspace != nullptr) CHECK(aclrtFree(workspace));

  Print("gradQuery", query);
  Print("gradValue", value);
  Print("gradEncoderQuery", encoder_query);
  Print("gradNormQueryWeight", query_weight);
  Print("gradNormQueryBias", query_bias);
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
