// Reading arrays of NumPy, PyTorch, JAX and any DLPack producer, and making results of the caller's kind.
#include "arrays.h"

#include <nanobind/stl/string.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "dlpack_abi.h"

namespace gyrograd::python {
namespace {

// What NumPy's __array_struct__ capsule holds (the array interface, version 3).
struct ArrayStruct {
  int two;
  int rank;
  char kind;
  int item_size;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // in bytes
  void* data;
  PyObject* descr;
};
constexpr int kNotSwapped = 0x200;
constexpr int kWriteable = 0x400;

constexpr std::array<DType, 4> kDTypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
constexpr std::array<const char*, 4> kDTypeNames = {"float64", "float32", "float16", "bfloat16"};
constexpr const char* kTypesTaken = "; it must be float64, float32, float16 or bfloat16";

// Python objects that every call uses, looked up once and kept for the life of the process.
struct Python {
  nb::object ndarray;
  nb::object memmap;
  nb::object empty;
  nb::object bfloat16;
  std::array<nb::object, 4> dtypes;  // NumPy's, by DType
  nb::object no_arguments;
  nb::object max_version;  // {"max_version": (1, 0)}
  PyObject* array_struct = PyUnicode_InternFromString("__array_struct__");
  PyObject* dlpack = PyUnicode_InternFromString("__dlpack__");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* numpy_ma = PyUnicode_InternFromString("numpy.ma");
  PyObject* torch = PyUnicode_InternFromString("torch");
  PyObject* jax = PyUnicode_InternFromString("jax");
};
const Python* python = nullptr;  // set when the module is imported, never changed

// The same of PyTorch, which this module does not import.
struct Torch {
  nb::object tensor;
  nb::object parameter;
  nb::object is_grad_enabled;
  nb::object empty;
  nb::object empty_like;
  std::array<nb::object, 4> dtypes;  // by DType
  const dlpack::Exchange* exchange;  // null where this PyTorch has none
  nb::object empty_keywords = nb::make_tuple("dtype", "device");
  nb::object cpu = nb::str("cpu");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_conj = PyUnicode_InternFromString("is_conj");
};

nb::object Call(nb::handle function, nb::handle arguments, nb::handle keywords = {}) {
  nb::object result = nb::steal(PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()));
  if (!result) throw nb::python_error();
  return result;
}

// The result of a method without arguments; an empty object, and Python's error set, where it raises.
nb::object TryMethod(nb::handle object, PyObject* name) {
  PyObject* const arguments[] = {object.ptr()};
  return nb::steal(PyObject_VectorcallMethod(name, arguments, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

nb::object Attribute(nb::handle object, PyObject* name) {
  nb::object result = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!result) throw nb::python_error();
  return result;
}

// A module that somebody has imported already; an empty object otherwise.
nb::object LoadedModule(PyObject* name) {
  nb::object module = nb::steal(PyImport_GetModule(name));
  PyErr_Clear();
  return module;
}

// The functions of a type that offers DLPack's exchange; null where it offers none that is understood.
const dlpack::Exchange* ExchangeOf(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::object());
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), dlpack::Exchange::kName)) return nullptr;
  const auto* exchange =
      static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::Exchange::kName));
  while (exchange != nullptr && exchange->major != 1) exchange = exchange->older;
  return exchange != nullptr && exchange->view != nullptr ? exchange : nullptr;
}

// PyTorch's objects, once somebody has imported it (to the end); null before. They are kept for the life of the
// process.
const Torch* LoadedTorch() {
  static const Torch* loaded = nullptr;  // written once, under the GIL
  if (loaded != nullptr) return loaded;
  const nb::object module = LoadedModule(python->torch);
  if (!module.is_valid() || !nb::hasattr(module, "nn")) return nullptr;
  const nb::object parameter = nb::getattr(module.attr("nn"), "Parameter", nb::object());
  if (!parameter.is_valid() || !PyType_Check(parameter.ptr())) return nullptr;  // half imported, or no PyTorch
  auto torch = std::make_unique<Torch>();
  torch->tensor = module.attr("Tensor");
  torch->parameter = parameter;
  torch->exchange = ExchangeOf(torch->tensor);
  torch->is_grad_enabled = module.attr("is_grad_enabled");
  torch->empty = module.attr("empty");
  torch->empty_like = module.attr("empty_like");
  for (std::size_t i = 0; i < kDTypeNames.size(); ++i) torch->dtypes[i] = module.attr(kDTypeNames[i]);
  loaded = torch.release();
  return loaded;
}

bool IsInstanceOf(nb::handle object, nb::handle module, const char* type_name) {
  if (!module.is_valid()) return false;
  nb::object type = nb::steal(PyObject_GetAttrString(module.ptr(), type_name));
  const int is = type ? PyObject_IsInstance(object.ptr(), type.ptr()) : 0;
  PyErr_Clear();
  return is == 1;
}

bool IsOfType(nb::handle object, nb::handle type) {
  return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr()));
}

// A subclass of numpy.ndarray means more than its elements (a mask, a unit, another product), and no result would.
void RequirePlain(const Argument& argument, nb::handle object) {
  if (object.type().is(python->ndarray) || IsOfType(object, python->memmap)) return;
  if (IsInstanceOf(object, LoadedModule(python->numpy_ma), "MaskedArray")) {
    Raise(PyExc_TypeError, argument,
          "is a masked array, and its mask would be dropped; pass it filled, as from filled()");
  }
  Raise(PyExc_TypeError, argument,
        "is a " + nb::cast<std::string>(nb::type_name(object.type())) +
            ", a subclass of numpy.ndarray, and what it adds would be dropped; pass a plain array, as from "
            "numpy.asarray()");
}

// A tensor that means its elements and no more: no subclass but Parameter.
bool IsExactTensor(nb::handle object) {
  const Torch* const torch = LoadedTorch();
  return torch != nullptr && (object.type().is(torch->tensor) || object.type().is(torch->parameter));
}

Kind KindOf(const Argument& argument, nb::handle object) {
  if (IsExactTensor(object)) return Kind::kTorch;
  if (IsOfType(object, python->ndarray)) {
    RequirePlain(argument, object);
    return Kind::kNumpy;
  }
  if (IsInstanceOf(object, LoadedModule(python->torch), "Tensor")) return Kind::kTorch;
  if (IsInstanceOf(object, LoadedModule(python->jax), "Array")) return Kind::kJax;
  if (PyObject_HasAttr(object.ptr(), python->dlpack)) return Kind::kOther;
  Raise(PyExc_TypeError, argument,
        std::string("is a ") + Py_TYPE(object.ptr())->tp_name +
            "; it must be a NumPy array or an array that offers DLPack, such as a PyTorch tensor");
}

std::string Text(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

DType NumpyDType(const Argument& argument, nb::handle object, const ArrayStruct& info) {
  const bool native = (info.flags & kNotSwapped) != 0;
  if (native && info.kind == 'f' && info.item_size == 8) return DType::kF64;
  if (native && info.kind == 'f' && info.item_size == 4) return DType::kF32;
  if (native && info.kind == 'f' && info.item_size == 2) return DType::kF16;
  const nb::object dtype = Attribute(object, python->dtype);
  if (!native) Raise(PyExc_TypeError, argument, "has type " + Text(dtype) + "; its byte order must be the machine's");
  if (dtype.is(python->dtypes[3]) || dtype.attr("type").is(python->bfloat16)) return DType::kBF16;
  Raise(PyExc_TypeError, argument, "has type " + Text(dtype) + kTypesTaken);
}

// Bytes to elements. An axis of one element needs no stride that makes sense.
std::int64_t ElementStride(const Argument& argument, const ArrayStruct& info, int axis) {
  const std::int64_t bytes = info.strides[axis];
  if (bytes % info.item_size == 0) return bytes / info.item_size;
  if (info.shape[axis] <= 1) return 0;
  Raise(PyExc_ValueError, argument,
        "has a stride of " + std::to_string(bytes) + " bytes on axis " + std::to_string(axis) +
            "; strides must be whole elements of " + std::to_string(info.item_size) + " bytes");
}

void ReadNumpy(const Argument& argument, nb::handle object, Array* array) {
  array->keeper = Attribute(object, python->array_struct);
  const auto* info = static_cast<const ArrayStruct*>(PyCapsule_GetPointer(array->keeper.ptr(), nullptr));
  if (info == nullptr) throw nb::python_error();
  array->data = info->data;
  array->dtype = NumpyDType(argument, object, *info);
  array->writable = (info->flags & kWriteable) != 0;
  array->rank = info->rank;
  for (int axis = 0; axis < info->rank; ++axis) {
    array->shape[axis] = info->shape[axis];
    array->strides[axis] = ElementStride(argument, *info, axis);
  }
}

void RowMajorStrides(const Argument& argument, Array* array) {
  std::int64_t stride = 1;
  for (int axis = array->rank - 1; axis >= 0; --axis) {
    array->strides[axis] = stride;
    const std::int64_t extent = array->shape[axis] > 1 ? array->shape[axis] : 1;
    if (__builtin_mul_overflow(stride, extent, &stride)) {
      Raise(PyExc_ValueError, argument, "has more than 2^63 elements");
    }
  }
}

std::string DlpackTypeName(const dlpack::DataType& type) {
  constexpr std::array kCodes = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  constexpr std::array kSmall = {"float8_e3m4",     "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
                                 "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                 "float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn"};  // with their bits
  const std::string bits = std::to_string(type.bits);
  const std::size_t small = type.code - kCodes.size();  // wraps for the others
  std::string name = type.code < kCodes.size() ? kCodes[type.code] + bits
                     : small < kSmall.size()   ? kSmall[small]
                                               : "code" + std::to_string(type.code) + "-" + bits;
  if (type.lanes != 1) name.append("x").append(std::to_string(type.lanes));
  return name;
}

DType DlpackDType(const Argument& argument, const dlpack::DataType& type) {
  if (type.lanes == 1) {
    if (type.code == dlpack::kFloat && type.bits == 64) return DType::kF64;
    if (type.code == dlpack::kFloat && type.bits == 32) return DType::kF32;
    if (type.code == dlpack::kFloat && type.bits == 16) return DType::kF16;
    if (type.code == dlpack::kBfloat && type.bits == 16) return DType::kBF16;
  }
  Raise(PyExc_TypeError, argument, "has type " + DlpackTypeName(type) + kTypesTaken);
}

void ReadTensor(const Argument& argument, const dlpack::Tensor& tensor, Array* array) {
  if (tensor.device.type != dlpack::kCpu) {
    Raise(PyExc_ValueError, argument,
          "is on DLPack device type " + std::to_string(tensor.device.type) + "; it must be on the CPU (type 1)");
  }
  if (tensor.rank < 0 || tensor.rank > kMaxRank) {
    Raise(PyExc_ValueError, argument,
          "has rank " + std::to_string(tensor.rank) + "; it must be at most " + std::to_string(kMaxRank));
  }
  array->dtype = DlpackDType(argument, tensor.dtype);
  array->rank = tensor.rank;
  array->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (tensor.data == nullptr) array->data = nullptr;
  for (int axis = 0; axis < tensor.rank; ++axis) array->shape[axis] = tensor.shape[axis];
  if (tensor.strides == nullptr) {
    RowMajorStrides(argument, array);
  } else {
    for (int axis = 0; axis < tensor.rank; ++axis) array->strides[axis] = tensor.strides[axis];
  }
}

// The capsule stays as it is: its own destructor gives the tensor back when the array drops it.
void ReadCapsule(const Argument& argument, Array* array) {
  PyObject* capsule = array->keeper.ptr();
  if (PyCapsule_IsValid(capsule, dlpack::ManagedVersioned::kName)) {
    const auto* managed =
        static_cast<const dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, dlpack::ManagedVersioned::kName));
    if (managed->major != 1) {
      Raise(PyExc_ValueError, argument,
            "comes as DLPack " + std::to_string(managed->major) + "." + std::to_string(managed->minor) +
                "; version 1 is understood");
    }
    array->writable = (managed->flags & (dlpack::kReadOnly | dlpack::kIsCopied)) == 0;
    ReadTensor(argument, managed->tensor, array);
  } else if (PyCapsule_IsValid(capsule, dlpack::Managed::kName)) {
    array->writable = true;
    ReadTensor(argument,
               static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule, dlpack::Managed::kName))->tensor,
               array);
  } else {
    Raise(PyExc_TypeError, argument, "gave no DLPack capsule");
  }
}

// Producers older than DLPack 1.0 do not know the keyword.
nb::object ExportCapsule(nb::handle object) {
  const nb::object method = Attribute(object, python->dlpack);
  try {
    return Call(method, python->no_arguments, python->max_version);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return Call(method, python->no_arguments);
}

void ReadDlpack(const Argument& argument, nb::handle object, Array* array) {
  try {
    array->keeper = ExportCapsule(object);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const std::string message = std::string(argument.operation) + ": " + argument.name +
                                " cannot be read through DLPack: " + Text(error.value());
    nb::raise_from(error, PyExc_ValueError, "%s", message.c_str());
  }
  ReadCapsule(argument, array);
}

bool Is(nb::handle tensor, PyObject* question) {
  const nb::object answer = TryMethod(tensor, question);
  if (!answer.is_valid()) throw nb::python_error();
  return answer.ptr() == Py_True;
}

// Views that stand for the negative or the conjugate of what lies in memory.
void RefuseNegated(const Argument& argument, nb::handle tensor, const Torch& torch) {
  if (!Is(tensor, torch.is_neg)) return;
  Raise(PyExc_ValueError, argument,
        "is a view that negates its memory (is_neg()); pass it resolved, as from resolve_neg()");
}
void RefuseConjugated(const Argument& argument, nb::handle tensor, const Torch& torch) {
  if (!Is(tensor, torch.is_conj)) return;
  Raise(PyExc_ValueError, argument,
        "is a view that conjugates its memory (is_conj()); pass it resolved, as from resolve_conj()");
}

void RefuseOtherDevices(const Argument& argument, nb::handle tensor, const Torch& torch) {
  if (Attribute(tensor, torch.is_cpu).ptr() == Py_True) return;
  Raise(PyExc_ValueError, argument,
        "is on device " + Text(Attribute(tensor, torch.device)) + "; it must be on the CPU: move it with .cpu()");
}

// A tensor that autograd follows is refused, since the result would not be: its gradient would be lost without a word.
// False where there is nothing to follow.
bool RequiresGrad(const Argument& argument, nb::handle tensor, const Torch& torch) {
  if (Attribute(tensor, python->requires_grad).ptr() != Py_True) return false;
  if (nb::cast<bool>(torch.is_grad_enabled())) {
    Raise(PyExc_ValueError, argument,
          "requires grad, and no gradient would flow through the result; take the call of gyrograd.torch, which is "
          "differentiable, pass it detached, as from detach(), or call under torch.no_grad()");
  }
  return true;
}

// A view of a tensor that is memory on the CPU and no more, by PyTorch's own C function. False, and no error, for any
// other: subclasses, other devices, tensors without memory.
bool ViewPlain(nb::handle tensor, const Torch& torch, dlpack::Tensor* view) {
  if (torch.exchange == nullptr || !IsExactTensor(tensor)) return false;
  if (torch.exchange->view(tensor.ptr(), view) != 0) {
    PyErr_Clear();
    return false;
  }
  if (view->device.type != dlpack::kCpu) return false;
  return view->data != nullptr || std::any_of(view->shape, view->shape + view->rank, [](auto n) { return n == 0; });
}

// ViewPlain of a tensor that does not negate its memory either.
bool MeansItsMemory(nb::handle tensor, const Torch& torch, dlpack::Tensor* view) {
  return ViewPlain(tensor, torch, view) && !Is(tensor, torch.is_neg);
}

// A subclass that wraps others, such as DTensor, gives no memory.
void RefuseWrapper(const Argument& argument, nb::handle tensor, const Array& array) {
  if (array.data != nullptr || IsExactTensor(tensor) || std::ranges::count(array.shape_span(), 0) != 0) return;
  Raise(PyExc_TypeError, argument,
        "is a " + nb::cast<std::string>(nb::type_name(tensor.type())) +
            ", a subclass of torch.Tensor without memory of its own; take the call of gyrograd.torch, or pass a plain "
            "tensor, as from a DTensor's to_local() or full_tensor()");
}

void ReadTorch(const Argument& argument, nb::handle tensor, Array* array) {
  const Torch* const torch = LoadedTorch();
  if (torch == nullptr) Raise(PyExc_TypeError, argument, "is a tensor of a PyTorch that is still being imported");
  dlpack::Tensor view;
  const bool is_plain = ViewPlain(tensor, *torch, &view);
  if (!is_plain) RefuseOtherDevices(argument, tensor, *torch);
  RefuseNegated(argument, tensor, *torch);
  const bool requires_grad = RequiresGrad(argument, tensor, *torch);
  if (is_plain) {
    array->writable = true;
    return ReadTensor(argument, view, array);
  }
  RefuseConjugated(argument, tensor, *torch);
  ReadDlpack(argument, requires_grad ? tensor.attr("detach")() : nb::borrow(tensor), array);
  RefuseWrapper(argument, tensor, *array);
}

// JAX computes in the background; what it traces has no values to wait for.
void AwaitJax(const Argument& argument, nb::handle object) {
  if (IsInstanceOf(object, LoadedModule(python->jax).attr("core"), "Tracer")) {
    Raise(PyExc_TypeError, argument, "is traced by JAX and has no values yet; call outside jit, grad and vmap");
  }
  object.attr("block_until_ready")();
}

void Read(const Argument& argument, nb::handle object, Array* array) {
  array->object = nb::borrow(object);
  array->kind = KindOf(argument, object);
  switch (array->kind) {
    case Kind::kNumpy: return ReadNumpy(argument, object, array);
    case Kind::kTorch: return ReadTorch(argument, object, array);
    case Kind::kJax: AwaitJax(argument, object); return ReadDlpack(argument, object, array);
    case Kind::kOther: return ReadDlpack(argument, object, array);
  }
}

nb::object ShapeTuple(const Array& array) {
  nb::object tuple = nb::steal(PyTuple_New(array.rank));
  if (!tuple) throw nb::python_error();
  for (int axis = 0; axis < array.rank; ++axis) {
    PyObject* extent = PyLong_FromLongLong(array.shape[axis]);
    if (extent == nullptr) throw nb::python_error();
    PyTuple_SET_ITEM(tuple.ptr(), axis, extent);
  }
  return tuple;
}

// Memory of ours on its way to a library that takes it over through DLPack.
struct Buffer {
  std::shared_ptr<void> memory;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

template <class Managed>
struct Export {
  Managed managed;
  Buffer buffer;
};

template <class Managed>
void DeleteExport(Managed* managed) {
  delete static_cast<Export<Managed>*>(managed->context);
}

template <class Managed>
void DeleteUnused(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, Managed::kName)) return;  // taken over: the taker deletes
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kName));
  managed->deleter(managed);
}

template <class Managed>
nb::object ExportBuffer(const Buffer& source) {
  auto owner = std::make_unique<Export<Managed>>();
  owner->buffer = source;
  owner->managed = {};
  Managed& managed = owner->managed;
  Buffer& buffer = owner->buffer;
  managed.context = owner.get();
  managed.deleter = DeleteExport<Managed>;
  const bool bf16 = buffer.dtype == DType::kBF16;
  managed.tensor = {
      .data = buffer.memory.get(),
      .device = {dlpack::kCpu, 0},
      .rank = static_cast<std::int32_t>(buffer.shape.size()),
      .dtype = {bf16 ? dlpack::kBfloat : dlpack::kFloat, static_cast<std::uint8_t>(8 * SizeOf(buffer.dtype)), 1},
      .shape = buffer.shape.data(),
      .strides = buffer.strides.data(),
      .byte_offset = 0};
  if constexpr (requires { managed.major; }) managed.major = 1;
  nb::object capsule = nb::steal(PyCapsule_New(&managed, Managed::kName, DeleteUnused<Managed>));
  if (!capsule) throw nb::python_error();
  owner.release();
  return capsule;
}

nb::object BufferDlpack(const Buffer& buffer, nb::kwargs keywords) {
  const bool versioned = keywords.contains("max_version") && !keywords["max_version"].is_none() &&
                         nb::cast<int>(keywords["max_version"][0]) >= 1;
  return versioned ? ExportBuffer<dlpack::ManagedVersioned>(buffer) : ExportBuffer<dlpack::Managed>(buffer);
}

// Asks for large pages where a new result will be written for the first time, as NumPy does for its arrays: faults of
// 4 KiB pages would take several times as long as the kernels. A hint, and nothing else when it is refused.
void AdviseLargePages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kPage = 4096;
  constexpr std::size_t kWorthIt = std::size_t{4} << 20;
  if (bytes < kWorthIt) return;
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) & ~(kPage - 1);
  const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(data) + bytes) & ~(kPage - 1);
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

void AllocateBuffer(const Argument& argument, Array* array) {
  constexpr std::align_val_t kAlignment{64};  // what JAX takes over without a copy
  const std::size_t bytes = Bytes(*array);
  void* memory = ::operator new(bytes > 0 ? bytes : 1, kAlignment, std::nothrow);
  if (memory == nullptr) Raise(PyExc_MemoryError, argument, "needs " + std::to_string(bytes) + " bytes");
  array->data = memory;
  AdviseLargePages(memory, bytes);
  Buffer buffer;
  buffer.memory = std::shared_ptr<void>(memory, [](void* address) { ::operator delete(address, kAlignment); });
  buffer.dtype = array->dtype;
  buffer.shape.assign(array->shape.begin(), array->shape.begin() + array->rank);
  buffer.strides.assign(array->strides.begin(), array->strides.begin() + array->rank);
  array->object = nb::cast(std::move(buffer));
}

void AllocateNumpy(const Argument& argument, Array* array) {
  PyObject* arguments[] = {nullptr, ShapeTuple(*array).release().ptr(),
                           python->dtypes[static_cast<std::size_t>(array->dtype)].ptr()};
  const nb::object shape = nb::steal(arguments[1]);
  array->object =
      nb::steal(PyObject_Vectorcall(python->empty.ptr(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!array->object) throw nb::python_error();
  ReadNumpy(argument, array->object, array);
}

bool HasLayoutOf(const Array& array, const Array& like) {
  return array.dtype == like.dtype && std::ranges::equal(array.shape_span(), like.shape_span()) &&
         std::equal(array.strides.begin(), array.strides.begin() + array.rank, like.strides.begin());
}

void AllocateTorch(const Array& like, Array* array) {
  const Torch& torch = *LoadedTorch();
  if (IsExactTensor(like.object) && HasLayoutOf(*array, like)) {  // the cheaper one
    PyObject* const arguments[] = {like.object.ptr()};
    array->object = nb::steal(PyObject_Vectorcall(torch.empty_like.ptr(), arguments, 1, nullptr));
  } else {
    const nb::object shape = ShapeTuple(*array);
    PyObject* const arguments[] = {shape.ptr(), torch.dtypes[static_cast<std::size_t>(array->dtype)].ptr(),
                                   torch.cpu.ptr()};
    array->object = nb::steal(PyObject_Vectorcall(torch.empty.ptr(), arguments, 1, torch.empty_keywords.ptr()));
  }
  if (!array->object) throw nb::python_error();
  const nb::object address = TryMethod(array->object, torch.data_ptr);
  if (!address.is_valid()) throw nb::python_error();
  array->data = PyLong_AsVoidPtr(address.ptr());
  AdviseLargePages(array->data, Bytes(*array));
}

// The function of an array's own library that takes DLPack producers in; an empty object where none is known.
nb::object FromDlpackOf(nb::handle object) {
  nb::object library;
  if (nb::hasattr(object, "__array_namespace__")) {
    library = object.attr("__array_namespace__")();
  } else {
    const std::string module = nb::cast<std::string>(object.type().attr("__module__"));
    const nb::str top(module.substr(0, module.find('.')).c_str());
    library = LoadedModule(top.ptr());
  }
  return library.is_valid() ? nb::getattr(library, "from_dlpack", nb::object()) : nb::object();
}

}  // namespace

std::size_t Bytes(const Array& array) {
  std::size_t bytes = SizeOf(array.dtype);
  for (const std::int64_t extent : array.shape_span()) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

void Raise(PyObject* type, const Argument& argument, const std::string& rest) {
  const std::string message = std::string(argument.operation) + ": " + argument.name + " " + rest;
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

void RaiseUnlessOk(const Status& status, std::string_view message) {
  PyObject* type = PyExc_ValueError;
  switch (status.code()) {
    case StatusCode::kOk: return;
    case StatusCode::kInvalidType: type = PyExc_TypeError; break;
    case StatusCode::kOutOfMemory: type = PyExc_MemoryError; break;
    case StatusCode::kInternal: type = PyExc_RuntimeError; break;
    default: break;
  }
  PyErr_SetString(type, std::string(message.empty() ? status.message() : message).c_str());
  throw nb::python_error();
}

void InitArrays() {
  auto* objects = new Python;
  const nb::module_ numpy = nb::module_::import_("numpy");
  objects->ndarray = numpy.attr("ndarray");
  objects->memmap = numpy.attr("memmap");
  objects->empty = numpy.attr("empty");
  objects->bfloat16 = nb::module_::import_("ml_dtypes").attr("bfloat16");
  for (std::size_t i = 0; i < 3; ++i) objects->dtypes[i] = numpy.attr("dtype")(kDTypeNames[i]);
  objects->dtypes[3] = numpy.attr("dtype")(objects->bfloat16);
  objects->no_arguments = nb::make_tuple();
  nb::dict keywords;
  keywords["max_version"] = nb::make_tuple(1, 0);
  objects->max_version = keywords;
  python = objects;
}

void InitResults(nb::module_& module) {
  nb::class_<Buffer>(module, "_Buffer", "Memory of a result, on its way to an array library through DLPack.")
      .def("__dlpack__", &BufferDlpack)
      .def("__dlpack_device__", [](const Buffer&) { return nb::make_tuple(dlpack::kCpu, 0); });
}

std::string Repr(nb::handle object) { return nb::cast<std::string>(nb::repr(object)); }

std::string_view TextOf(nb::handle text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) PyErr_Clear();
  return {bytes == nullptr ? "" : bytes, static_cast<std::size_t>(size)};
}

bool ArePlainTensors(nb::args objects) {
  const Torch* const torch = LoadedTorch();
  dlpack::Tensor view;
  return torch != nullptr && std::ranges::all_of(objects, [&](nb::handle object) {
           return object.is_none() || MeansItsMemory(object, *torch, &view);
         });
}

bool ReadPlainTensor(const Argument& argument, nb::handle object, Array* array) {
  const Torch* const torch = LoadedTorch();
  dlpack::Tensor view;
  if (torch == nullptr || !MeansItsMemory(object, *torch, &view)) return false;
  array->object = nb::borrow(object);
  array->kind = Kind::kTorch;
  array->writable = true;
  ReadTensor(argument, view, array);
  return true;
}

void ReadInput(const Argument& argument, nb::handle object, Array* array) { Read(argument, object, array); }

void ReadOutput(const Argument& argument, nb::handle object, Array* array) {
  Read(argument, object, array);
  if (array->kind == Kind::kJax) {
    Raise(PyExc_ValueError, argument, "is a JAX array, which never changes; leave it out of out=");
  }
  if (!array->writable) Raise(PyExc_ValueError, argument, "is a read-only array; it must be writable");
}

void ShapeResult(const Argument& argument, std::span<const std::int64_t> shape, DType dtype, Array* array) {
  array->dtype = dtype;
  array->rank = static_cast<int>(shape.size());
  for (int axis = 0; axis < array->rank; ++axis) array->shape[axis] = shape[axis];
  RowMajorStrides(argument, array);
}

void AllocateResult(const Argument& argument, const Array& like, Array* array) {
  if (like.kind == Kind::kTorch) return AllocateTorch(like, array);
  if (like.kind == Kind::kJax) return AllocateBuffer(argument, array);
  if (like.kind == Kind::kOther && FromDlpackOf(like.object).is_valid()) return AllocateBuffer(argument, array);
  AllocateNumpy(argument, array);
}

nb::object FinishResult(const Array& like, const Array& array) {
  if (!nb::isinstance<Buffer>(array.object)) return array.object;
  return FromDlpackOf(like.object)(array.object);
}

void MarkWritten(const Array& array) {
  if (array.kind != Kind::kTorch) return;
  LoadedModule(python->torch).attr("autograd").attr("graph").attr("increment_version")(array.object);
}

bool ParseDType(const std::string& text, DType* dtype) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (text != kDTypeNames[i] && text != Name(kDTypes[i])) continue;
    *dtype = kDTypes[i];
    return true;
  }
  return false;
}

}  // namespace gyrograd::python
