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
#include "cann/registry.h"
#include "cann/tensor.h"

namespace gyrograd::cann {
namespace {

struct Scalar {
  static constexpr const char* kNone = " is no scalar: it was never made, or was destroyed";

  std::vector<unsigned char> bytes;
  int data_type;
};

// An array that was handed in; nothing reads it.
template <class Element>
struct ArrayOf {
  static constexpr const char* kNone = " is no array of this type: it was never made, or was destroyed";

  std::vector<Element> values;
};
using IntArray = ArrayOf<std::int64_t>;
using FloatArray = ArrayOf<float>;
using BoolArray = ArrayOf<bool>;

struct TensorList {
  static constexpr const char* kNone = " is no list of tensors: it was never made, or was destroyed";

  std::vector<const aclTensor*> tensors;
};

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

// A handle for what `describe` (a Kind, of the caller's arguments) makes; null where `check` (an Outcome) refuses.
template <class Kind, class Object, class Check, class Describe>
Object* Create(const char* function, const Check& check, const Describe& describe) {
  return GuardCreate<Object>(function, [&](Object** object) {
    Outcome outcome = check();
    if (outcome.ok()) *object = static_cast<Object*>(Handles<Kind>().Add(describe()));
    return outcome;
  });
}

template <class Kind, class Object, class T>
Object* CreateArray(const char* function, const T* value, std::uint64_t size) {
  return Create<Kind, Object>(
      function, [&] { return value == nullptr && size > 0 ? NullError("value") : Outcome{}; },
      [&] { return Kind{Copy(value, size)}; });
}

template <class Kind>
aclnnStatus Destroy(const char* function, const char* name, const void* handle) {
  return Guard(function, kAclnnCodes,
               [&] { return handle == nullptr || Handles<Kind>().Remove(handle) ? Outcome{} : NoHandle<Kind>(name); });
}

std::string Element(std::size_t i) { return "value[" + std::to_string(i) + "]"; }

Outcome CheckList(const aclTensor* const* value, std::uint64_t size) {
  if (value == nullptr && size > 0) return NullError("value");
  for (std::size_t i = 0; i < size; ++i) {
    if (value[i] != nullptr && !Handles<Tensor>().Contains(value[i])) return NoHandle<Tensor>(Element(i));
  }
  return {};
}

// All of its tensors go, those that were destroyed before are told.
Outcome DestroyList(const aclTensorList* handle) {
  if (handle == nullptr) return {};
  std::vector<const aclTensor*> tensors;
  const bool found = Handles<TensorList>().Visit(handle, [&](TensorList& list) {
    tensors.swap(list.tensors);
    return Entry::kRemove;
  });
  if (!found) return NoHandle<TensorList>("array");
  std::size_t gone = tensors.size();
  for (std::size_t i = tensors.size(); i-- > 0;) {
    if (tensors[i] != nullptr && !Handles<Tensor>().Remove(tensors[i])) gone = i;
  }
  return gone == tensors.size() ? Outcome{} : NoHandle<Tensor>("array's " + Element(gone));
}

// Calls answer(tensor), once there is one and somewhere to answer to.
template <class Answer>
aclnnStatus Ask(const char* function, const aclTensor* handle, bool has_output, const Answer& answer) {
  return Guard(function, kAclnnCodes, [&]() -> Outcome {
    if (handle == nullptr) return NullError("tensor");
    if (!has_output) return NullError("an output pointer");
    const Tensor tensor = LookUp(handle);
    if (!tensor) return NoHandle<Tensor>("tensor");
    answer(tensor);
    return {};
  });
}

using Extents = std::vector<std::int64_t>;

aclnnStatus AskExtents(const char* function, const aclTensor* handle, Extents TensorDescription::* extents,
                       std::int64_t** array, std::uint64_t* size) {
  return Ask(function, handle, array != nullptr && size != nullptr, [&](const Tensor& tensor) {
    const Extents& source = (*tensor.description).*extents;
    auto copy = std::make_unique<std::int64_t[]>(source.size());
    std::copy(source.begin(), source.end(), copy.get());
    *array = copy.release();
    *size = source.size();
  });
}

template <class Member, class Value>
aclnnStatus AskValue(const char* function, const aclTensor* handle, Member TensorDescription::* member, Value* value) {
  return Ask(function, handle, value != nullptr, [&](const Tensor& tensor) {
    static_assert(sizeof(Member) == sizeof(Value));
    std::memcpy(value, &((*tensor.description).*member), sizeof(Value));  // an enumeration may hold any number
  });
}

}  // namespace
}  // namespace gyrograd::cann

using namespace gyrograd::cann;  // NOLINT: this file defines the C interface over them

extern "C" {

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t* stride,
                           int64_t offset, aclFormat format, const int64_t* storageDims, uint64_t storageDimsNum,
                           void* tensorData) {
  const auto check = [&]() -> Outcome {
    if (viewDims == nullptr && viewDimsNum > 0) return NullError("viewDims");
    return storageDims == nullptr && storageDimsNum > 0 ? NullError("storageDims") : Outcome{};
  };
  return Create<Tensor, aclTensor>(__func__, check, [&]() -> Tensor {
    std::vector<std::int64_t> shape = Copy(viewDims, viewDimsNum);
    std::vector<std::int64_t> strides = stride == nullptr ? ContiguousStrides(shape) : Copy(stride, viewDimsNum);
    TensorDescription description{std::move(shape),  std::move(strides), offset, Copy(storageDims, storageDimsNum),
                                  ValueOf(dataType), ValueOf(format)};
    return {std::make_shared<const TensorDescription>(std::move(description)), tensorData, true};
  });
}

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  const std::size_t size = SizeOfType(ValueOf(dataType));
  const auto check = [&]() -> Outcome {
    if (value == nullptr) return NullError("value");
    if (size > 0) return {};
    return {ACLNN_ERR_PARAM_INVALID, "data type " + std::to_string(ValueOf(dataType)) + " has no size of bytes"};
  };
  return Create<Scalar, aclScalar>(__func__, check, [&]() -> Scalar {
    return {Copy(static_cast<const unsigned char*>(value), size), ValueOf(dataType)};
  });
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  return CreateArray<IntArray, aclIntArray>(__func__, value, size);
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  return CreateArray<FloatArray, aclFloatArray>(__func__, value, size);
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  return CreateArray<BoolArray, aclBoolArray>(__func__, value, size);
}

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  return Create<TensorList, aclTensorList>(
      __func__, [&] { return CheckList(value, size); }, [&] { return TensorList{Copy(value, size)}; });
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) { return Destroy<Tensor>(__func__, "tensor", tensor); }
aclnnStatus aclDestroyScalar(const aclScalar* scalar) { return Destroy<Scalar>(__func__, "scalar", scalar); }
aclnnStatus aclDestroyIntArray(const aclIntArray* array) { return Destroy<IntArray>(__func__, "array", array); }
aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) { return Destroy<FloatArray>(__func__, "array", array); }
aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) { return Destroy<BoolArray>(__func__, "array", array); }

aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  return Guard(__func__, kAclnnCodes, [&] { return DestroyList(array); });
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return AskExtents(__func__, tensor, &TensorDescription::view_shape, viewDims, viewDimsNum);
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return AskExtents(__func__, tensor, &TensorDescription::view_strides, stridesValue, stridesNum);
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims, uint64_t* storageDimsNum) {
  return AskExtents(__func__, tensor, &TensorDescription::storage_shape, storageDims, storageDimsNum);
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return AskValue(__func__, tensor, &TensorDescription::offset, offset);
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return AskValue(__func__, tensor, &TensorDescription::data_type, dataType);
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return AskValue(__func__, tensor, &TensorDescription::format, format);
}

aclnnStatus aclGetRawTensorAddr(const aclTensor* tensor, void** addr) {
  return Ask(__func__, tensor, addr != nullptr, [&](const Tensor& found) { *addr = found.storage; });
}

aclnnStatus aclSetRawTensorAddr(aclTensor* tensor, void* addr) {
  return Guard(__func__, kAclnnCodes,
               [&] { return tensor == nullptr ? NullError("tensor") : SetStorage(tensor, addr); });
}

size_t aclDataTypeSize(aclDataType dataType) { return SizeOfType(ValueOf(dataType)); }

aclnnStatus aclnnInit(const char*) { return ACLNN_SUCCESS; }
aclnnStatus aclnnFinalize(void) { return ACLNN_SUCCESS; }

}  // extern "C"
