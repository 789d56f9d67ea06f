// Compiled against jaxlib's header: the package's own words for XLA's foreign function interface lie in memory as that
// header's do. Size and place of every member, and every value, are compared.
#include "python/src/xla_ffi_abi.h"

#include <cstddef>

#include "xla/ffi/api/c_api.h"

namespace ours = gyrograd::python::xla;

#define SAME_PLACE(structure, member, theirs, their_member)                                    \
  static_assert(offsetof(ours::structure, member) == offsetof(theirs, their_member), #member); \
  static_assert(sizeof(ours::structure::member) == sizeof(theirs::their_member), #member)
#define SAME_VALUE(value, theirs) static_assert(static_cast<int>(ours::value) == static_cast<int>(theirs), #value)
// Structures that the package makes, or that lie in another one.
#define SAME_SIZE(structure, theirs) static_assert(sizeof(ours::structure) == sizeof(theirs), #structure)

static_assert(ours::kMajor == XLA_FFI_API_MAJOR);
static_assert(ours::kMinor <= XLA_FFI_API_MINOR);

SAME_VALUE(ErrorCode::kInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_VALUE(ErrorCode::kResourceExhausted, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
SAME_VALUE(ErrorCode::kInternal, XLA_FFI_Error_Code_INTERNAL);
SAME_VALUE(DataType::kS64, XLA_FFI_DataType_S64);
SAME_VALUE(DataType::kF16, XLA_FFI_DataType_F16);
SAME_VALUE(DataType::kF32, XLA_FFI_DataType_F32);
SAME_VALUE(DataType::kF64, XLA_FFI_DataType_F64);
SAME_VALUE(DataType::kBF16, XLA_FFI_DataType_BF16);
SAME_VALUE(Stage::kInstantiate, XLA_FFI_ExecutionStage_INSTANTIATE);
SAME_VALUE(Stage::kPrepare, XLA_FFI_ExecutionStage_PREPARE);
SAME_VALUE(Stage::kInitialize, XLA_FFI_ExecutionStage_INITIALIZE);
SAME_VALUE(Stage::kExecute, XLA_FFI_ExecutionStage_EXECUTE);
SAME_VALUE(ExtensionType::kMetadata, XLA_FFI_Extension_Metadata);
SAME_VALUE(ArgumentType::kBuffer, XLA_FFI_ArgType_BUFFER);
SAME_VALUE(ResultType::kBuffer, XLA_FFI_RetType_BUFFER);
SAME_VALUE(AttributeType::kArray, XLA_FFI_AttrType_ARRAY);
SAME_VALUE(AttributeType::kDictionary, XLA_FFI_AttrType_DICTIONARY);
SAME_VALUE(AttributeType::kScalar, XLA_FFI_AttrType_SCALAR);
SAME_VALUE(AttributeType::kString, XLA_FFI_AttrType_STRING);

SAME_PLACE(Extension, size, XLA_FFI_Extension_Base, struct_size);
SAME_PLACE(Extension, type, XLA_FFI_Extension_Base, type);
SAME_PLACE(Extension, next, XLA_FFI_Extension_Base, next);
SAME_SIZE(Extension, XLA_FFI_Extension_Base);

SAME_PLACE(Version, size, XLA_FFI_Api_Version, struct_size);
SAME_PLACE(Version, extensions, XLA_FFI_Api_Version, extension_start);
SAME_PLACE(Version, major, XLA_FFI_Api_Version, major_version);
SAME_PLACE(Version, minor, XLA_FFI_Api_Version, minor_version);
SAME_SIZE(Version, XLA_FFI_Api_Version);

SAME_PLACE(Buffer, size, XLA_FFI_Buffer, struct_size);
SAME_PLACE(Buffer, extensions, XLA_FFI_Buffer, extension_start);
SAME_PLACE(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_PLACE(Buffer, data, XLA_FFI_Buffer, data);
SAME_PLACE(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_PLACE(Buffer, dims, XLA_FFI_Buffer, dims);

SAME_PLACE(Arguments, size, XLA_FFI_Args, struct_size);
SAME_PLACE(Arguments, extensions, XLA_FFI_Args, extension_start);
SAME_PLACE(Arguments, count, XLA_FFI_Args, size);
SAME_PLACE(Arguments, types, XLA_FFI_Args, types);
SAME_PLACE(Arguments, values, XLA_FFI_Args, args);
SAME_SIZE(Arguments, XLA_FFI_Args);

SAME_PLACE(Results, size, XLA_FFI_Rets, struct_size);
SAME_PLACE(Results, extensions, XLA_FFI_Rets, extension_start);
SAME_PLACE(Results, count, XLA_FFI_Rets, size);
SAME_PLACE(Results, types, XLA_FFI_Rets, types);
SAME_PLACE(Results, values, XLA_FFI_Rets, rets);
SAME_SIZE(Results, XLA_FFI_Rets);

SAME_PLACE(Text, data, XLA_FFI_ByteSpan, ptr);
SAME_PLACE(Text, size, XLA_FFI_ByteSpan, len);
SAME_PLACE(Scalar, dtype, XLA_FFI_Scalar, dtype);
SAME_PLACE(Scalar, value, XLA_FFI_Scalar, value);

SAME_PLACE(Attributes, size, XLA_FFI_Attrs, struct_size);
SAME_PLACE(Attributes, extensions, XLA_FFI_Attrs, extension_start);
SAME_PLACE(Attributes, count, XLA_FFI_Attrs, size);
SAME_PLACE(Attributes, types, XLA_FFI_Attrs, types);
SAME_PLACE(Attributes, names, XLA_FFI_Attrs, names);
SAME_PLACE(Attributes, values, XLA_FFI_Attrs, attrs);

SAME_PLACE(ErrorCreate, size, XLA_FFI_Error_Create_Args, struct_size);
SAME_PLACE(ErrorCreate, extensions, XLA_FFI_Error_Create_Args, extension_start);
SAME_PLACE(ErrorCreate, message, XLA_FFI_Error_Create_Args, message);
SAME_PLACE(ErrorCreate, code, XLA_FFI_Error_Create_Args, errc);
SAME_SIZE(ErrorCreate, XLA_FFI_Error_Create_Args);

SAME_PLACE(Api, size, XLA_FFI_Api, struct_size);
SAME_PLACE(Api, extensions, XLA_FFI_Api, extension_start);
SAME_PLACE(Api, version, XLA_FFI_Api, api_version);
SAME_PLACE(Api, internal, XLA_FFI_Api, internal_api);
SAME_PLACE(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);

SAME_PLACE(CallFrame, size, XLA_FFI_CallFrame, struct_size);
SAME_PLACE(CallFrame, extensions, XLA_FFI_CallFrame, extension_start);
SAME_PLACE(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_PLACE(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_PLACE(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_PLACE(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_PLACE(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_PLACE(CallFrame, attributes, XLA_FFI_CallFrame, attrs);

SAME_PLACE(Metadata, size, XLA_FFI_Metadata, struct_size);
SAME_PLACE(Metadata, version, XLA_FFI_Metadata, api_version);
SAME_PLACE(Metadata, traits, XLA_FFI_Metadata, traits);
SAME_PLACE(MetadataExtension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME_PLACE(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
