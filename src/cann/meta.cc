// Creating, destroying and asking the descriptions of acl_meta.h; the sizes of types.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aclnn/aclnn_base.h"
#include "cann/enum_value.h"
#include "cann/guard.h"
#include "cann/tensor.h"

struct aclScalar {
  std::vector<unsigned char> bytes;
  int data_type;
};
struct aclIntArray {
  std::vector<std::int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> values;
};

namespace gyrograd::cann {
namespace {

Outcome NullError(const char* what) { return {ACLNN_ERR_PARAM_NULLPTR, std::string(what) + " is null"}; }

// Row-major. A product that overflows stays wrong: the shape itself is refused before its strides are read.
std::vector<std::int64_t> ContiguousStrides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    if (__builtin_mul_overflow(stride, shape[i], &stride)) stride = 0;
  }
  return strides;
}

template <class T>
std::vector<T> Copy(const T* values, std::uint64_t count) {
  return std::vector<T>(values, values + count);
}

template <class Array, class T>
Array* CreateArray(const char* function, const T* value, std::uint64_t size) {
  return GuardCreate<Array>(function, [&](Array** array) -> Outcome {
    if (value == nullptr && size > 0) return NullError("value");
    *array = new Array{decltype(Array::values)(value, value + size)};
    return {};
  });
}

template <class Object>
aclnnStatus Destroy(const Object* object) {
  delete object;
  return ACLNN_SUCCESS;
}

aclnnStatus HandOut(const char* function, const aclTensor* tensor, std::vector<std::int64_t> aclTensor::* values,
                    std::int64_t** array, std::uint64_t* size) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (tensor == nullptr) return NullError("tensor");
    if (array == nullptr || size == nullptr) return NullError("an output pointer");
    const std::vector<std::int64_t>& source = tensor->*values;
    auto copy = std::make_unique<std::int64_t[]>(source.size());
    std::copy(source.begin(), source.end(), copy.get());
    *array = copy.release();
    *size = source.size();
    return {};
  });
}

template <class Member, class Value>
aclnnStatus Ask(const char* function, const aclTensor* tensor, Member aclTensor::* member, Value* value) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (tensor == nullptr) return NullError("tensor");
    if (value == nullptr) return NullError("the output pointer");
    static_assert(sizeof(Member) == sizeof(Value));
    std::memcpy(value, &(tensor->*member), sizeof(Value));  // an enumeration may hold any number
    return {};
  });
}

}  // namespace
}  // namespace gyrograd::cann

using gyrograd::cann::Outcome;

extern "C" {

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData) {
  using namespace gyrograd::cann;
  return GuardCreate<aclTensor>(__func__, [&](aclTensor** tensor) -> Outcome {
    if (viewDims == nullptr && viewDimsNum > 0) return NullError("viewDims");
    if (storageDims == nullptr && storageDimsNum > 0) return NullError("storageDims");
    std::vector<std::int64_t> shape = Copy(viewDims, viewDimsNum);
    std::vector<std::int64_t> strides = stride == nullptr ? ContiguousStrides(shape) : Copy(stride, viewDimsNum);
    *tensor = new aclTensor{std::move(shape),  std::move(strides), offset,    Copy(storageDims, storageDimsNum),
                            ValueOf(dataType), ValueOf(format),    tensorData};
    return {};
  });
}

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  using namespace gyrograd::cann;
  return GuardCreate<aclScalar>(__func__, [&](aclScalar** scalar) -> Outcome {
    if (value == nullptr) return NullError("value");
    const std::size_t size = SizeOfType(ValueOf(dataType));
    if (size == 0)
      return {ACLNN_ERR_PARAM_INVALID, "data type " + std::to_string(ValueOf(dataType)) + " has no size of bytes"};
    *scalar = new aclScalar{Copy(static_cast<const unsigned char*>(value), size), ValueOf(dataType)};
    return {};
  });
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return gyrograd::cann::CreateArray<aclIntArray>(__func__, value, size);
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return gyrograd::cann::CreateArray<aclFloatArray>(__func__, value, size);
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return gyrograd::cann::CreateArray<aclBoolArray>(__func__, value, size);
}

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return gyrograd::cann::CreateArray<aclTensorList>(__func__, value, size);
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) { return gyrograd::cann::Destroy(tensor); }
aclnnStatus aclDestroyScalar(const aclScalar* scalar) { return gyrograd::cann::Destroy(scalar); }
aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return gyrograd::cann::Destroy(array); }
aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) { return gyrograd::cann::Destroy(array); }
aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return gyrograd::cann::Destroy(array); }

aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  if (array != nullptr) {
    for (const aclTensor* tensor : array->values) delete tensor;
  }
  return gyrograd::cann::Destroy(array);
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return gyrograd::cann::HandOut(__func__, tensor, &aclTensor::view_shape, viewDims, viewDimsNum);
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return gyrograd::cann::HandOut(__func__, tensor, &aclTensor::view_strides, stridesValue, stridesNum);
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims, uint64_t* storageDimsNum) {
  return gyrograd::cann::HandOut(__func__, tensor, &aclTensor::storage_shape, storageDims, storageDimsNum);
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return gyrograd::cann::Ask(__func__, tensor, &aclTensor::offset, offset);
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return gyrograd::cann::Ask(__func__, tensor, &aclTensor::data_type, dataType);
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return gyrograd::cann::Ask(__func__, tensor, &aclTensor::format, format);
}

aclnnStatus aclGetRawTensorAddr(const aclTensor* tensor, void** addr) {
  return gyrograd::cann::Ask(__func__, tensor, &aclTensor::storage, addr);
}

aclnnStatus aclSetRawTensorAddr(aclTensor* tensor, void* addr) {
  using namespace gyrograd::cann;
  return Guard(__func__, kAclnnCodes, [&]() -> Outcome {
    if (tensor == nullptr) return NullError("tensor");
    tensor->storage = addr;
    return {};
  });
}

size_t aclDataTypeSize(aclDataType dataType) { return gyrograd::cann::SizeOfType(gyrograd::cann::ValueOf(dataType)); }

aclnnStatus aclnnInit(const char*) { return ACLNN_SUCCESS; }
aclnnStatus aclnnFinalize(void) { return ACLNN_SUCCESS; }

}  // extern "C"
