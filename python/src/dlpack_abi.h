// The structures of DLPack 1, as producers lay them out in memory (https://dmlc.github.io/dlpack/latest/c_api.html).
#ifndef GYROGRAD_PYTHON_DLPACK_ABI_H_
#define GYROGRAD_PYTHON_DLPACK_ABI_H_

#include <cstdint>

namespace gyrograd::python::dlpack {

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;
inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major without gaps
  std::uint64_t byte_offset;
};

// What a capsule named "dltensor" holds.
struct Managed {
  static constexpr const char* kName = "dltensor";
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

// What a capsule named "dltensor_versioned" holds.
struct ManagedVersioned {
  static constexpr const char* kName = "dltensor_versioned";
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

// What a type's capsule __dlpack_c_exchange_api__, named "dlpack_exchange_api", holds (DLPack 1.2): a framework's own
// functions, without Python between.
struct Exchange {
  static constexpr const char* kName = "dlpack_exchange_api";
  std::uint32_t major;
  std::uint32_t minor;
  Exchange* older;
  void (*allocate)();
  void (*export_managed)();
  void (*import_managed)();
  // A view that lives no longer than the object; 0, or -1 and Python's error. May be null.
  int (*view)(void* object, Tensor* tensor);
  void (*current_stream)();
};

}  // namespace gyrograd::python::dlpack

#endif  // GYROGRAD_PYTHON_DLPACK_ABI_H_
