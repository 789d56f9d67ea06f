// What an aclTensor holds, and what a list of operator arguments must satisfy before the C++ interface sees it.
#ifndef GYROGRAD_CANN_TENSOR_H_
#define GYROGRAD_CANN_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aclnn/acl_meta.h"
#include "cann/guard.h"
#include "gyrograd/tensor_view.h"

struct aclTensor {
  std::vector<std::int64_t> view_shape;
  std::vector<std::int64_t> view_strides;
  std::int64_t offset;
  std::vector<std::int64_t> storage_shape;
  int data_type;  // a value of aclDataType, or any other number
  int format;     // of aclFormat, likewise
  void* storage;
};

namespace gyrograd::cann {

// Bytes of one element of an aclDataType; 0 where that is not a number of whole bytes.
std::size_t SizeOfType(int type);

struct Argument {
  const char* name;
  const aclTensor* tensor;
};
using Arguments = std::span<const Argument>;

// Rules, each the first failure in argument order. Null: handles. Data: a tensor with elements has storage.
Outcome CheckNotNull(Arguments arguments);
Outcome CheckData(Arguments arguments);
// Formats that mean "as the shape says".
Outcome CheckFormats(Arguments arguments);
// One type for all: ACL_FLOAT, ACL_FLOAT16 or ACL_BF16.
Outcome CheckOneType(Arguments arguments);
// ACL_FLOAT for all.
Outcome CheckFloat(Arguments arguments);
// No negative extent; the view's elements lie in its storage. `code` is the operator's for a shape that breaks a rule.
Outcome CheckStorage(Arguments arguments, int code = ACLNN_ERR_INNER_TILING_ERROR);

bool IsEmpty(const aclTensor& tensor);

// Of a tensor that passed CheckOneType or CheckFloat.
DType DTypeOf(const aclTensor& tensor);

// Bytes from the storage's begin to element (0, ..., 0), for a tensor that passed all the checks.
std::int64_t OffsetInBytes(const aclTensor& tensor);

// Where element (0, ..., 0) lies when the storage begins at `storage`; null for a null storage.
void* AddressIn(void* storage, std::int64_t offset_in_bytes);

// A view of a tensor that passed all the checks; it refers to the tensor's arrays. Its data is the tensor's own, or
// element (0, ..., 0) at `address`.
TensorView ViewOf(const aclTensor& tensor);
TensorView ViewOf(const aclTensor& tensor, void* address);
ConstTensorView ConstViewOf(const aclTensor& tensor);
ConstTensorView ConstViewOf(const aclTensor& tensor, const void* address);

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_TENSOR_H_
