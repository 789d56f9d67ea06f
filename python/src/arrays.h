// Python's arrays as the library's views, and new arrays for results. NumPy comes in through the array interface
// (__array_struct__), everything else through DLPack (plain PyTorch tensors by its C functions); no framework is
// imported for it.
#ifndef GYROGRAD_PYTHON_ARRAYS_H_
#define GYROGRAD_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "gyrograd/status.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::python {

namespace nb = nanobind;

inline constexpr int kMaxRank = 64;  // NumPy's own limit

// Whose array an object is: results are made by the same library.
enum class Kind { kNumpy, kTorch, kJax, kOther };

// The words a message starts with: "rotary_backward: dy ".
struct Argument {
  const char* operation;
  const char* name;
};

// Raises `type` with "operation: name rest".
[[noreturn]] void Raise(PyObject* type, const Argument& argument, const std::string& rest);

// Raises what a status that is not ok stands for: TypeError, MemoryError, RuntimeError (kInternal) or ValueError. With
// a message of its own, or the status's.
void RaiseUnlessOk(const Status& status, std::string_view message = {});

// An array of the caller, or a new one: what a view needs, and what keeps its memory alive.
struct Array {
  Array() {}  // shape and strides stay unset beyond the rank

  ConstTensorView input() const { return {data, dtype, shape_span(), {strides.data(), shape_span().size()}}; }
  TensorView output() const { return {data, dtype, shape_span(), {strides.data(), shape_span().size()}}; }
  std::span<const std::int64_t> shape_span() const { return {shape.data(), static_cast<std::size_t>(rank)}; }

  Kind kind = Kind::kNumpy;
  nb::object object;  // the caller's array, or the result
  nb::object keeper;  // the capsule that `data` lives as long as
  void* data = nullptr;
  DType dtype = DType::kF32;
  bool writable = false;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape;
  std::array<std::int64_t, kMaxRank> strides;
};

// Python's repr. The text of a str; empty where it has none in UTF-8 (lone surrogates).
std::string Repr(nanobind::handle object);
std::string_view TextOf(nanobind::handle text);

// The bytes of its elements.
std::size_t Bytes(const Array& array);

// Looks up what the functions below need of NumPy and ml_dtypes. Called once, when a module is imported.
void InitArrays();

// Registers the class that AllocateResult and FinishResult need, for a module that makes results.
void InitResults(nb::module_& module);

// Whether all are PyTorch tensors that mean their memory on the CPU and no more, or None: no subclasses but Parameter,
// no wrappers, no views that negate.
bool ArePlainTensors(nb::args objects);

// The view of one such object; false, and nothing read, where it is none such. What autograd follows is read, too.
bool ReadPlainTensor(const Argument& argument, nb::handle object, Array* array);

// A view of `object`; TypeError or ValueError where it is no array that the library can read.
void ReadInput(const Argument& argument, nb::handle object, Array* array);

// The same for an array to be written: read-only and JAX arrays are refused.
void ReadOutput(const Argument& argument, nb::handle object, Array* array);

// The shape and type of a result, row-major, without memory.
void ShapeResult(const Argument& argument, std::span<const std::int64_t> shape, DType dtype, Array* array);

// Gives a result of ShapeResult memory: an array of `like`'s library where that can be made before it is filled.
void AllocateResult(const Argument& argument, const Array& like, Array* array);

// The object to return, once the result is filled.
nb::object FinishResult(const Array& like, const Array& array);

// Tells PyTorch that a tensor given in out= has changed, so that autograd does not trust saved values of it.
void MarkWritten(const Array& array);

// "f64", "float32", "bfloat16" ...: both spellings. False for any other text.
bool ParseDType(const std::string& text, DType* dtype);

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_ARRAYS_H_
