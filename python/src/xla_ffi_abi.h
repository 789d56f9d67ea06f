// What XLA hands to a custom call of its foreign function interface, and what a handler hands back, as they lie in
// memory: the part of version 0.3 of the C interface that handlers of this package touch
// (https://github.com/openxla/xla/blob/main/xla/ffi/api/c_api.h). Every structure begins with its size and a list of
// extensions; newer versions add members at the end.
#ifndef GYROGRAD_PYTHON_XLA_FFI_ABI_H_
#define GYROGRAD_PYTHON_XLA_FFI_ABI_H_

#include <cstddef>
#include <cstdint>

namespace gyrograd::python::xla {

inline constexpr int kMajor = 0;
inline constexpr int kMinor = 3;

enum class ErrorCode : int { kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13 };
enum class DataType : int { kS64 = 5, kF16 = 10, kF32 = 11, kF64 = 12, kBF16 = 16 };
enum class Stage : int { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };
enum class ExtensionType : int { kMetadata = 1 };
enum class ArgumentType : int { kBuffer = 1 };
enum class ResultType : int { kBuffer = 1 };
enum class AttributeType : int { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };

struct Error;

struct Extension {
  std::size_t size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  std::size_t size;
  Extension* extensions;
  int major;
  int minor;
};

// Row-major unless the program's layouts say otherwise.
struct Buffer {
  std::size_t size;
  Extension* extensions;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct Arguments {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  ArgumentType* types;
  void** values;
};

struct Results {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  ResultType* types;
  void** values;
};

struct Text {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

// Sorted by name.
struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  AttributeType* types;
  Text** names;
  void** values;
};

// The error belongs to the runtime as soon as a handler returns it. The text is copied.
struct ErrorCreate {
  std::size_t size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

// The runtime's functions; those behind the first are not named here.
struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorCreate*);
};

struct CallFrame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Arguments arguments;
  Results results;
  Attributes attributes;
};

// A frame with this extension asks what the handler is, and nothing else.
struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

using Handler = Error*(CallFrame*);

}  // namespace gyrograd::python::xla

#endif  // GYROGRAD_PYTHON_XLA_FFI_ABI_H_
