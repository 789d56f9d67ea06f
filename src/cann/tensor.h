// What an aclTensor holds, and what a list of operator arguments must satisfy before the C++ interface sees it.
#ifndef GYROGRAD_CANN_TENSOR_H_
#define GYROGRAD_CANN_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aclnn/acl_meta.h"
#include "cann/guard.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::cann {

// What aclCreateTensor was told, but for the address. Never changed: whoever reads it shares it.
struct TensorDescription {
  std::vector<std::int64_t> view_shape;
  std::vector<std::int64_t> view_strides;
  std::int64_t offset;
  std::vector<std::int64_t> storage_shape;
  int data_type;  // a value of aclDataType, or any other number
  int format;     // of aclFormat, likewise
};

// What an aclTensor* stands for; false where it is null, or no tensor's handle.
struct Tensor {
  static constexpr const char* kNone = " is no tensor: it was never made, or was destroyed";

  std::shared_ptr<const TensorDescription> description = {};
  void* storage = nullptr;
  bool given = false;  // the handle is not null

  const TensorDescription* operator->() const { return description.get(); }
  explicit operator bool() const { return description != nullptr; }
};

// Bytes of one element of an aclDataType; 0 where that is not a number of whole bytes.
std::size_t SizeOfType(int type);

// What the handle stands for.
Tensor LookUp(const aclTensor* handle);

// Where its storage begins, from now on.
Outcome SetStorage(const aclTensor* handle, void* storage);

struct Argument {
  const char* name;
  const Tensor* tensor;
};
using Arguments = std::span<const Argument>;

// Rules, each the first failure in argument order. Null: handles. Handles: those that are given are tensors'. Data: a
// tensor with elements has storage.
Outcome CheckNotNull(Arguments arguments);
Outcome CheckHandles(Arguments arguments);
Outcome CheckData(Arguments arguments);
// Formats that mean "as the shape says".
Outcome CheckFormats(Arguments arguments);
// One type for all: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16.
Outcome CheckOneType(Arguments arguments);
// ACL_FLOAT for all.
Outcome CheckFloat(Arguments arguments);
// No negative extent; the view's elements lie in its storage. `code` is the operator's for a shape that breaks a rule.
Outcome CheckStorage(Arguments arguments, int code = ACLNN_ERR_INNER_TILING_ERROR);

bool IsEmpty(const Tensor& tensor);

// Of a tensor that passed CheckOneType or CheckFloat.
DType DTypeOf(const Tensor& tensor);

// Bytes from the storage's begin to element (0, ..., 0), for a tensor that passed all the checks.
std::int64_t OffsetInBytes(const Tensor& tensor);

// Where element (0, ..., 0) lies when the storage begins at `storage`; null for a null storage.
void* AddressIn(void* storage, std::int64_t offset_in_bytes);

// A view of a tensor that passed all the checks; it refers to the description's arrays. Its data is the tensor's own,
// or element (0, ..., 0) at `address`.
TensorView ViewOf(const Tensor& tensor);
TensorView ViewOf(const Tensor& tensor, void* address);
ConstTensorView ConstViewOf(const Tensor& tensor);
ConstTensorView ConstViewOf(const Tensor& tensor, const void* address);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_TENSOR_H_
