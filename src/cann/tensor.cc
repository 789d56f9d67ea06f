// Rules on the tensors of an operator's argument list, and views of them.
#include "cann/tensor.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "cann/registry.h"

namespace gyrograd::cann {
namespace {

using Extents = std::span<const std::int64_t>;

std::string ToString(Extents values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

bool IsPlain(int format) {
  switch (format) {
    case ACL_FORMAT_UNDEFINED:
    case ACL_FORMAT_NCHW:
    case ACL_FORMAT_NHWC:
    case ACL_FORMAT_ND:
    case ACL_FORMAT_NDHWC:
    case ACL_FORMAT_NCDHW:
    case ACL_FORMAT_NC:
    case ACL_FORMAT_NCL: return true;
    default: return false;
  }
}

std::optional<DType> ToDType(int type) {
  switch (type) {
    case ACL_FLOAT: return DType::kF32;
    case ACL_FLOAT16: return DType::kF16;
    case ACL_BF16: return DType::kBF16;
    default: return std::nullopt;
  }
}

// False where an intermediate value overflows.
bool AddProduct(std::int64_t a, std::int64_t b, std::int64_t* sum) {
  std::int64_t product = 0;
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*sum, product, sum);
}

// Nothing where an extent is negative or the product overflows.
std::optional<std::int64_t> ElementCount(Extents shape) {
  if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; })) return std::nullopt;
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

struct Range {
  std::int64_t first;
  std::int64_t last;
};

bool FitsBytes(std::int64_t count, const Tensor& tensor) {
  return count <= std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(SizeOf(DTypeOf(tensor)));
}

// The storage elements that a view with elements spans; nothing where that overflows.
std::optional<Range> ElementsOf(const Tensor& tensor) {
  Range range{tensor->offset, tensor->offset};
  for (std::size_t i = 0; i < tensor->view_shape.size(); ++i) {
    const std::int64_t stride = tensor->view_strides[i];
    if (!AddProduct(tensor->view_shape[i] - 1, stride, stride < 0 ? &range.first : &range.last)) return std::nullopt;
  }
  return range;
}

// Why the storage does not hold the view; nothing where it does.
std::string StorageError(const Argument& argument) {
  const Tensor& tensor = *argument.tensor;
  const std::string name = argument.name;
  const std::optional<std::int64_t> count = ElementCount(tensor->view_shape);
  if (!count) {
    return name + " has shape " + ToString(tensor->view_shape) +
           "; extents must not be negative and their product must fit 64 bits";
  }
  const std::optional<std::int64_t> stored = ElementCount(tensor->storage_shape);
  if (!stored || !FitsBytes(*stored, tensor)) {
    return name + " has storage shape " + ToString(tensor->storage_shape) +
           "; extents must not be negative and their bytes must fit 64 bits";
  }
  if (*count == 0) return {};
  const std::optional<Range> range = ElementsOf(tensor);
  if (!range || range->first < 0 || range->last >= *stored) {
    return name + " is a view of shape " + ToString(tensor->view_shape) + ", strides " +
           ToString(tensor->view_strides) + " and offset " + std::to_string(tensor->offset) +
           "; it must lie in its storage of " + std::to_string(*stored) + " elements";
  }
  return {};
}

}  // namespace

std::size_t SizeOfType(int type) {
  switch (type) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0: return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16: return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32: return 4;
    case ACL_DOUBLE:
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_COMPLEX64: return 8;
    case ACL_COMPLEX128: return 16;
    default: return 0;  // strings, and types of less than a byte
  }
}

Tensor LookUp(const aclTensor* handle) {
  if (handle == nullptr) return {};
  return Handles<Tensor>().Find(handle).value_or(Tensor{.given = true});
}

Outcome SetStorage(const aclTensor* handle, void* storage) {
  const bool found = Handles<Tensor>().Visit(handle, [&](Tensor& tensor) {
    tensor.storage = storage;
    return Entry::kKeep;
  });
  return found ? Outcome{} : NoHandle<Tensor>("tensor");
}

Outcome CheckNotNull(Arguments arguments) {
  for (const Argument& argument : arguments) {
    if (!argument.tensor->given) {
      return {ACLNN_ERR_PARAM_NULLPTR, std::string(argument.name) + " is null; it is required"};
    }
  }
  return {};
}

Outcome CheckHandles(Arguments arguments) {
  for (const Argument& argument : arguments) {
    if (argument.tensor->given && !*argument.tensor) return NoHandle<Tensor>(argument.name);
  }
  return {};
}

Outcome CheckData(Arguments arguments) {
  for (const Argument& argument : arguments) {
    if (argument.tensor->storage == nullptr && !IsEmpty(*argument.tensor)) {
      return {ACLNN_ERR_PARAM_NULLPTR, std::string(argument.name) + " has shape " +
                                           ToString((*argument.tensor)->view_shape) +
                                           " and no data; only a tensor without elements may have none"};
    }
  }
  return {};
}

Outcome CheckFormats(Arguments arguments) {
  for (const Argument& argument : arguments) {
    if (!IsPlain((*argument.tensor)->format)) {
      return {ACLNN_ERR_PARAM_INVALID, std::string(argument.name) + " has format " +
                                           std::to_string((*argument.tensor)->format) +
                                           "; it must be ND, NCHW, NHWC, NCL, NCDHW, NDHWC, NC or UNDEFINED"};
    }
  }
  return {};
}

Outcome CheckOneType(Arguments arguments) {
  const Argument& first = arguments.front();
  if (!ToDType((*first.tensor)->data_type)) {
    return {ACLNN_ERR_PARAM_INVALID, std::string(first.name) + " has data type " +
                                         std::to_string((*first.tensor)->data_type) +
                                         "; it must be ACL_FLOAT (0), ACL_FLOAT16 (1) or ACL_BF16 (27)"};
  }
  for (const Argument& argument : arguments) {
    if ((*argument.tensor)->data_type != (*first.tensor)->data_type) {
      return {ACLNN_ERR_PARAM_INVALID, std::string(argument.name) + " has data type " +
                                           std::to_string((*argument.tensor)->data_type) + "; it must be that of " +
                                           first.name + ", " + std::to_string((*first.tensor)->data_type)};
    }
  }
  return {};
}

Outcome CheckFloat(Arguments arguments) {
  for (const Argument& argument : arguments) {
    if ((*argument.tensor)->data_type != ACL_FLOAT) {
      return {ACLNN_ERR_PARAM_INVALID, std::string(argument.name) + " has data type " +
                                           std::to_string((*argument.tensor)->data_type) +
                                           "; it must be ACL_FLOAT (0)"};
    }
  }
  return {};
}

Outcome CheckStorage(Arguments arguments, int code) {
  for (const Argument& argument : arguments) {
    if (std::string error = StorageError(argument); !error.empty()) return {code, std::move(error)};
  }
  return {};
}

bool IsEmpty(const Tensor& tensor) { return std::ranges::find(tensor->view_shape, 0) != tensor->view_shape.end(); }

DType DTypeOf(const Tensor& tensor) { return *ToDType(tensor->data_type); }

std::int64_t OffsetInBytes(const Tensor& tensor) {
  if (IsEmpty(tensor)) return 0;
  return tensor->offset * static_cast<std::int64_t>(SizeOf(DTypeOf(tensor)));
}

void* AddressIn(void* storage, std::int64_t offset_in_bytes) {
  return storage == nullptr ? nullptr : static_cast<char*>(storage) + offset_in_bytes;
}

TensorView ViewOf(const Tensor& tensor) { return ViewOf(tensor, AddressIn(tensor.storage, OffsetInBytes(tensor))); }

TensorView ViewOf(const Tensor& tensor, void* address) {
  return {address, DTypeOf(tensor), tensor->view_shape, tensor->view_strides};
}

ConstTensorView ConstViewOf(const Tensor& tensor) {
  return ConstViewOf(tensor, AddressIn(tensor.storage, OffsetInBytes(tensor)));
}

ConstTensorView ConstViewOf(const Tensor& tensor, const void* address) {
  return {address, DTypeOf(tensor), tensor->view_shape, tensor->view_strides};
}

}  // namespace gyrograd::cann
