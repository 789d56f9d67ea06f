// Tensors as the library sees them: somebody else's memory, a type, a shape and strides.
#ifndef GYROGRAD_TENSOR_VIEW_H_
#define GYROGRAD_TENSOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "gyrograd/api.h"

namespace gyrograd {

// IEEE binary64, binary32, binary16, and bfloat16 (the upper half of a binary32).
enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16 };

// "f64", "f32", "f16", "bf16".
GYROGRAD_API const char* Name(DType dtype);

// Bytes an element takes: 8, 4, 2, 2.
GYROGRAD_API std::size_t SizeOf(DType dtype);

// A view of rank shape.size(). Strides are in elements and of any sign; 0 is legal on inputs, and on outputs where the
// extent is at most 1. The spans refer to the caller's arrays, which must outlive the call (a plan copies what it
// needs). `data` is the address of element (0, ..., 0), aligned to the element's size; null only for a view without
// elements.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;
};

using TensorView = BasicTensorView<void*>;             // an output
using ConstTensorView = BasicTensorView<const void*>;  // an input

}  // namespace gyrograd

#endif  // GYROGRAD_TENSOR_VIEW_H_
