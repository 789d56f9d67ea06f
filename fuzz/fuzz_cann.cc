// The C interface as a program that does everything in the wrong order: handles of every kind are created, asked,
// destroyed, destroyed twice, exchanged, invented; first phases get them; second phases run what they gave, again, of
// another operator, with too small a workspace; profiles change. Every call must return a status; what is known of it
// is checked: a live handle is served, any other one refused, a failure leaves a message and writes nothing.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"
#include "aclnn/opdev/op_errno.h"
#include "aclnnop/aclnn_norm_rope_concat.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "fuzz/bytes.h"
#include "fuzz/memory.h"

namespace gyrograd::fuzz {
namespace {

enum class Kind { kTensor, kExecutor, kStream, kEvent, kContext, kMemory, kScalar, kInts, kFloats, kBools, kList };
constexpr Kind kKinds[] = {Kind::kTensor, Kind::kExecutor, Kind::kStream, Kind::kEvent, Kind::kContext, Kind::kMemory,
                           Kind::kScalar, Kind::kInts,     Kind::kFloats, Kind::kBools, Kind::kList};

enum class Operator { kRotary, kRotaryGrad, kNormRope, kNormRopeGrad };
constexpr Operator kOperators[] = {Operator::kRotary, Operator::kRotaryGrad, Operator::kNormRope,
                                   Operator::kNormRopeGrad};

struct Handle {
  Kind kind;
  void* value;
  bool live = true;
  // Of executors.
  Operator op = Operator::kRotary;
  std::uint64_t workspace_size = 0;
  bool repeatable = false;
  bool moved = false;  // its addresses are not those of the first phase
  // Of tensors: claims more storage than there is, so that its address stays null.
  bool huge = false;
  // Of lists.
  std::vector<void*> tensors = {};
};

constexpr aclDataType kTypes[] = {ACL_FLOAT,  ACL_FLOAT16,      ACL_BF16, ACL_DOUBLE,    ACL_INT8,
                                  ACL_STRING, ACL_DT_UNDEFINED, ACL_INT4, ACL_COMPLEX128};
constexpr aclFormat kFormats[] = {ACL_FORMAT_ND,   ACL_FORMAT_NCHW,    ACL_FORMAT_NCL,
                                  ACL_FORMAT_NHWC, ACL_FORMAT_NC1HWC0, ACL_FORMAT_FRACTAL_NZ};
constexpr std::int64_t kRoom = 1 << 13;  // bytes that any tensor's storage fits in
constexpr int kSteps = 60;

std::int64_t Product(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

// One input's program and all it has made.
class Program {
 public:
  explicit Program(Bytes& bytes) : bytes_(bytes), memory_(bytes.Byte()) {
    scratch_ = Block(8 * kRoom);
    unsetenv("GYROGRAD_PROFILE");
    aclGetRecentErrMsg();
  }

  void Run();
  void End();

 private:
  // ---- what is known of a status

  // After every call of the interface.
  int Returned(const char* call, int status) {
    const char* const message = aclGetRecentErrMsg();
    last_call_ = std::string(call) + ": " + (message == nullptr ? "no message" : message);
    if (status == ACLNN_ERR_INNER || status == ACL_ERROR_INTERNAL_ERROR) Fail("an internal error");
    const bool said = message != nullptr && *message != '\0';
    if (said != (status != 0)) Fail(status != 0 ? "a failure without a message" : "a message without a failure");
    if (status != 0 && memory_.ChangedBeside({})) Fail("a failed call has written");
    return status;
  }
  // The same of a call that takes a handle.
  void Served(const char* call, int status, bool right) {
    Returned(call, status);
    if ((status == 0) != right) Fail(right ? "a right call is refused" : "a wrong call is served");
  }
  [[noreturn]] void Fail(const std::string& what) const { Report(what + " (" + last_call_ + ")"); }

  // ---- handles

  Handle& Keep(Kind kind, void* value) { return handles_.emplace_back(Handle{kind, value}); }
  Handle* Find(const void* value, Kind kind) {
    for (Handle& handle : handles_) {
      if (handle.live && handle.kind == kind && handle.value == value) return &handle;
    }
    return nullptr;
  }
  bool IsLive(const void* value, Kind kind) { return Find(value, kind) != nullptr; }
  // A handle of the kind, in most cases; null, an invented one, or one of any kind.
  void* Pick(Kind kind) {
    const std::uint8_t choice = bytes_.Byte();
    if (choice % 16 == 15) return nullptr;
    if (choice % 16 == 14) return reinterpret_cast<void*>(bytes_.Word());
    std::vector<void*> values;
    for (const Handle& handle : handles_) {
      if (handle.kind == kind || choice % 16 == 13) values.push_back(handle.value);
    }
    return values.empty() ? nullptr : values[(choice / 16 + bytes_.Byte()) % values.size()];
  }
  template <class Type>
  Type* PickAs(Kind kind) {
    return static_cast<Type*>(Pick(kind));
  }

  // ---- memory

  void* Block(std::int64_t size) { return memory_.Make(DType::kF16, {(size + 1) / 2}, {1}).data; }
  // Room enough for any tensor, aligned or not; or null.
  void* Address() {
    if (bytes_.OneIn(8)) return nullptr;
    return static_cast<std::byte*>(scratch_) + bytes_.Between(0, 6) * kRoom + (bytes_.OneIn(8) ? 1 : 0);
  }

  aclTensor* Tensor(const Shape& shape, aclDataType type) {
    const auto rank = static_cast<std::uint64_t>(shape.size());
    void* const data = Block(Product(shape) * static_cast<std::int64_t>(aclDataTypeSize(type)));
    aclTensor* const tensor =
        aclCreateTensor(shape.data(), rank, type, nullptr, 0, ACL_FORMAT_ND, shape.data(), rank, data);
    Returned("aclCreateTensor", tensor == nullptr);
    Keep(Kind::kTensor, tensor);
    return tensor;
  }

  // ---- steps

  void CreateTensor();
  void AskTensor();
  void CreateOther();
  void Destroy(Kind kind, void* value);
  void Plan();
  void PlanRotary(Operator op);
  void PlanNormRope(bool backward);
  // A right first phase's, in its order.
  std::vector<aclTensor*> NormRopeTensors(bool backward);
  void Planned(const char* call, Operator op, int status, bool right, std::uint64_t size, aclOpExecutor* executor,
               bool asked);
  void Execute();
  void ChangeExecutor();
  void UseStream();
  void UseMemory();
  void SetProfile();

  // One of the tensors may be another handle.
  std::vector<aclTensor*> Replaced(std::vector<aclTensor*> tensors, bool* right);

  Bytes& bytes_;
  Memory memory_;
  std::vector<Handle> handles_;
  void* scratch_ = nullptr;
  std::string last_call_;  // and what it has left to say
  bool native_ = true;
  bool initialised_ = false;
};

void Program::CreateTensor() {
  Shape dims, strides, storage;
  const std::int64_t rank = bytes_.Between(0, 5);
  const bool huge = bytes_.OneIn(16);
  for (std::int64_t axis = 0; axis < rank; ++axis) {
    dims.push_back(huge ? static_cast<std::int64_t>(bytes_.Word()) : bytes_.Between(0, 3));
    strides.push_back(huge ? static_cast<std::int64_t>(bytes_.Word()) : bytes_.Between(-2, 9));
  }
  const aclDataType type = bytes_.Of(kTypes);
  const bool with_strides = bytes_.OneIn(2);
  storage = bytes_.OneIn(2) ? Shape{bytes_.Between(0, 255)} : dims;
  const std::int64_t offset = bytes_.OneIn(4) ? bytes_.Between(-1, 8) : 0;
  void* data = nullptr;
  if (!huge && !bytes_.OneIn(8)) data = Block(Product(storage) * static_cast<std::int64_t>(aclDataTypeSize(type)));
  const bool no_dims = bytes_.OneIn(32) && rank > 0;
  aclTensor* const tensor =
      aclCreateTensor(no_dims ? nullptr : dims.data(), dims.size(), type, with_strides ? strides.data() : nullptr,
                      offset, bytes_.Of(kFormats), storage.data(), storage.size(), data);
  Returned("aclCreateTensor", tensor == nullptr);
  if (tensor != nullptr) Keep(Kind::kTensor, tensor).huge = huge;
}

void Program::AskTensor() {
  auto* const tensor = PickAs<aclTensor>(Kind::kTensor);
  const bool live = IsLive(tensor, Kind::kTensor), no_place = bytes_.OneIn(8);
  std::int64_t* values = nullptr;
  std::uint64_t count = 0;
  const auto got = [&](const char* call, int status) {
    Served(call, status, live && !no_place);
    delete[] values;
    values = nullptr;
  };
  std::int64_t** const to = no_place ? nullptr : &values;
  got("aclGetViewShape", aclGetViewShape(tensor, to, &count));
  got("aclGetViewStrides", aclGetViewStrides(tensor, to, &count));
  got("aclGetStorageShape", aclGetStorageShape(tensor, to, &count));
  std::int64_t offset;
  aclDataType type;
  aclFormat format;
  void* address;
  got("aclGetViewOffset", aclGetViewOffset(tensor, no_place ? nullptr : &offset));
  got("aclGetDataType", aclGetDataType(tensor, no_place ? nullptr : &type));
  got("aclGetFormat", aclGetFormat(tensor, no_place ? nullptr : &format));
  got("aclGetRawTensorAddr", aclGetRawTensorAddr(tensor, no_place ? nullptr : &address));
  if (live && Find(tensor, Kind::kTensor)->huge) return;
  Served("aclSetRawTensorAddr", aclSetRawTensorAddr(tensor, Address()), live);
}

void Program::CreateOther() {
  std::int64_t ints[] = {3, -1, 2};
  const float floats[] = {1.5F, -2};
  const bool bools[] = {true, false};
  const bool none = bytes_.OneIn(8);
  const auto keep = [this](Kind kind, const char* call, void* value) {
    Returned(call, value == nullptr);
    if (value != nullptr) Keep(kind, value);
  };
  void* handle = nullptr;
  const auto got = [&](Kind kind, const char* call, int status) {
    if (Returned(call, status) == 0) Keep(kind, handle);
  };
  void** const to = none ? nullptr : &handle;
  switch (bytes_.Between(0, 7)) {
    case 0: return keep(Kind::kScalar, "aclCreateScalar", aclCreateScalar(none ? nullptr : ints, bytes_.Of(kTypes)));
    case 1: return keep(Kind::kInts, "aclCreateIntArray", aclCreateIntArray(none ? nullptr : ints, 3));
    case 2: return keep(Kind::kFloats, "aclCreateFloatArray", aclCreateFloatArray(none ? nullptr : floats, 2));
    case 3: return keep(Kind::kBools, "aclCreateBoolArray", aclCreateBoolArray(none ? nullptr : bools, 2));
    case 4: return got(Kind::kStream, "aclrtCreateStream", aclrtCreateStream(to));
    case 5: return got(Kind::kEvent, "aclrtCreateEvent", aclrtCreateEvent(to));
    case 6: {
      const std::int32_t device = bytes_.OneIn(4) ? 1 : 0;
      return got(Kind::kContext, "aclrtCreateContext", aclrtCreateContext(to, device));
    }
    default: {
      const aclTensor* const tensors[] = {PickAs<aclTensor>(Kind::kTensor), PickAs<aclTensor>(Kind::kTensor)};
      aclTensorList* const list = aclCreateTensorList(none ? nullptr : tensors, 2);
      Returned("aclCreateTensorList", list == nullptr);
      if (list == nullptr) return;
      Handle& kept = Keep(Kind::kList, list);
      for (const aclTensor* tensor : tensors) kept.tensors.push_back(const_cast<aclTensor*>(tensor));
      return;
    }
  }
}

void Program::Destroy(Kind kind, void* value) {
  Handle* const handle = Find(value, kind);
  const bool live = handle != nullptr;
  const auto served = [&](const char* call, int status, bool null_succeeds) {
    Served(call, status, live || (value == nullptr && null_succeeds));
    if (live) handle->live = false;
  };
  switch (kind) {
    case Kind::kTensor: return served("aclDestroyTensor", aclDestroyTensor(static_cast<aclTensor*>(value)), true);
    case Kind::kScalar: return served("aclDestroyScalar", aclDestroyScalar(static_cast<aclScalar*>(value)), true);
    case Kind::kInts: return served("aclDestroyIntArray", aclDestroyIntArray(static_cast<aclIntArray*>(value)), true);
    case Kind::kFloats:
      return served("aclDestroyFloatArray", aclDestroyFloatArray(static_cast<aclFloatArray*>(value)), true);
    case Kind::kBools:
      return served("aclDestroyBoolArray", aclDestroyBoolArray(static_cast<aclBoolArray*>(value)), true);
    case Kind::kExecutor:
      return served("aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(static_cast<aclOpExecutor*>(value)), false);
    case Kind::kStream: return served("aclrtDestroyStream", aclrtDestroyStream(value), false);
    case Kind::kEvent: return served("aclrtDestroyEvent", aclrtDestroyEvent(value), false);
    case Kind::kContext: return served("aclrtDestroyContext", aclrtDestroyContext(value), false);
    case Kind::kMemory: return served("aclrtFree", aclrtFree(value), false);
    case Kind::kList: break;
  }
  // A list destroys its tensors; one that is there no more is told.
  bool right = live || value == nullptr;
  if (live) {
    for (void* const tensor : handle->tensors) {
      Handle* const own = Find(tensor, Kind::kTensor);
      right = right && (tensor == nullptr || own != nullptr);
      if (own != nullptr) own->live = false;
    }
    handle->live = false;
  }
  Served("aclDestroyTensorList", aclDestroyTensorList(static_cast<aclTensorList*>(value)), right);
}

std::vector<aclTensor*> Program::Replaced(std::vector<aclTensor*> tensors, bool* right) {
  if (!bytes_.OneIn(3)) return tensors;
  *right = false;
  tensors[bytes_.Byte() % tensors.size()] = PickAs<aclTensor>(Kind::kTensor);
  return tensors;
}

void Program::Planned(const char* call, Operator op, int status, bool right, std::uint64_t size,
                      aclOpExecutor* executor, bool asked) {
  Returned(call, status);
  if (status != 0 && executor != nullptr) Fail("a failed first phase gives an executor");
  if (status != 0 && right && asked && native_) Fail("a right first phase is refused");
  if (status == 0 && (executor == nullptr || !asked)) Fail("a first phase gives no executor");
  if (status != 0) return;
  Handle& kept = Keep(Kind::kExecutor, executor);
  kept.op = op;
  kept.workspace_size = size;
}

void Program::PlanRotary(Operator op) {
  const bool backward = op == Operator::kRotaryGrad;
  const aclDataType type = kTypes[bytes_.Between(0, 2)];
  Shape rows, tables;
  for (std::int64_t axis = bytes_.OneIn(2) ? 2 : 3; axis > 0; --axis) {
    rows.push_back(bytes_.Between(1, 4));
    tables.push_back(bytes_.OneIn(2) ? 1 : rows.back());
  }
  rows.push_back(4 * bytes_.Between(1, 6));
  tables.push_back(rows.back());
  std::int64_t mode = bytes_.Between(0, 3);
  bool right = true;
  std::vector<aclTensor*> t = {Tensor(rows, type), Tensor(tables, type), Tensor(tables, type)};
  const bool with_x = backward && !bytes_.OneIn(4);
  if (backward) t.push_back(with_x ? Tensor(rows, type) : nullptr);
  t.push_back(bytes_.OneIn(4) ? t[0] : Tensor(rows, type));  // in place, or not
  if (backward) t.insert(t.end(), {Tensor(tables, type), Tensor(tables, type)});
  t = Replaced(std::move(t), &right);
  if (bytes_.OneIn(16)) {
    mode = bytes_.Between(4, 256);
    right = false;
  }
  std::uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const bool asked = !bytes_.OneIn(16);
  std::uint64_t* const size_to = asked || bytes_.OneIn(2) ? &size : nullptr;
  aclOpExecutor** const executor_to = asked || size_to != nullptr ? (asked ? &executor : nullptr) : &executor;
  const int status =
      backward ? aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(t[0], t[1], t[2], t[3], mode, t[4], t[5], t[6],
                                                                  size_to, executor_to)
               : aclnnRotaryPositionEmbeddingGetWorkspaceSize(t[0], t[1], t[2], mode, t[3], size_to, executor_to);
  Planned("a rotary first phase", op, status, right, size, executor, asked);
}

std::vector<aclTensor*> Program::NormRopeTensors(bool backward) {
  const aclDataType type = kTypes[bytes_.Between(0, 2)];
  const std::int64_t b = bytes_.Between(1, 2), n = bytes_.Between(1, 3), d = 2 * bytes_.Between(1, 6);
  const std::int64_t s = bytes_.Between(1, 3), e = bytes_.OneIn(2) ? bytes_.Between(0, 2) : -1;  // -1: no encoder
  const std::int64_t all = s + std::max<std::int64_t>(e, 0), turned = bytes_.Between(1, all);
  std::vector<aclTensor*> tensors;
  const auto add = [&](int count, const auto& make) {
    for (int i = 0; i < count; ++i) tensors.push_back(make());
  };
  const auto joint = [&] { return Tensor({b, n, all, d}, type); };
  const auto stream = [&] { return Tensor({b, s, n, d}, type); };
  const auto encoder = [&] { return e < 0 ? nullptr : Tensor({b, e, n, d}, type); };
  const auto weight = [&] { return Tensor({d}, type); };
  const auto table = [&] { return Tensor({turned, d}, type); };
  const auto statistic = [&](std::int64_t rows) { return rows < 0 ? nullptr : Tensor({b, rows, n, 1}, ACL_FLOAT); };
  if (backward) {
    add(3, joint);
    add(2, stream);
    add(2, encoder);
    for (const std::int64_t rows : {s, s, e, e}) {
      add(1, weight);
      add(2, [&] { return statistic(rows); });
    }
    add(2, table);
    add(3, stream);
    add(3, encoder);
    add(8, weight);
  } else {
    add(3, stream);
    add(3, encoder);
    add(8, weight);
    add(2, table);
    add(3, joint);
    for (const std::int64_t rows : {s, s, e, e}) add(2, [&] { return statistic(rows); });
  }
  return tensors;
}

void Program::PlanNormRope(bool backward) {
  bool right = true;
  const std::vector<aclTensor*> t = Replaced(NormRopeTensors(backward), &right);
  std::int64_t norm = bytes_.Between(0, 2), added = bytes_.Between(0, 2), rope = bytes_.Between(0, 2);
  std::int64_t order = bytes_.Between(0, 1);
  if (bytes_.OneIn(16)) {
    std::int64_t* const attributes[] = {&norm, &added, &rope, &order};
    *bytes_.Of(attributes) = bytes_.Between(3, 255);
    right = false;
  }
  std::uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const bool asked = !bytes_.OneIn(16), training = bytes_.OneIn(2);
  aclOpExecutor** const to = asked ? &executor : nullptr;
  const int status =
      backward ? aclnnNormRopeConcatBackwardGetWorkspaceSize(
                     t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12], t[13], t[14],
                     t[15], t[16], t[17], t[18], t[19], t[20], norm, added, rope, order, t[21], t[22], t[23], t[24],
                     t[25], t[26], t[27], t[28], t[29], t[30], t[31], t[32], t[33], t[34], &size, to)
               : aclnnNormRopeConcatGetWorkspaceSize(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10],
                                                     t[11], t[12], t[13], t[14], t[15], norm, added, rope, order, 1e-5,
                                                     training, t[16], t[17], t[18], t[19], t[20], t[21], t[22], t[23],
                                                     t[24], t[25], t[26], &size, to);
  Planned("a norm_rope_concat first phase", backward ? Operator::kNormRopeGrad : Operator::kNormRope, status, right,
          size, executor, asked);
}

void Program::Plan() {
  switch (bytes_.Between(0, 3)) {
    case 0: return PlanRotary(Operator::kRotaryGrad);
    case 1: return PlanRotary(Operator::kRotary);
    case 2: return PlanNormRope(true);
    default: return PlanNormRope(false);
  }
}

void Program::Execute() {
  void* const value = Pick(Kind::kExecutor);
  Handle* const handle = Find(value, Kind::kExecutor);
  auto* const executor = static_cast<aclOpExecutor*>(value);
  const Operator op = handle == nullptr || bytes_.OneIn(8) ? bytes_.Of(kOperators) : handle->op;
  aclrtStream const stream = bytes_.OneIn(3) ? Pick(Kind::kStream) : nullptr;
  const bool good_stream = stream == nullptr || IsLive(stream, Kind::kStream);
  const std::uint64_t planned = handle == nullptr ? 0 : handle->workspace_size;
  std::uint64_t size = planned + (bytes_.OneIn(4) ? bytes_.Byte() : 0);
  if (bytes_.OneIn(8) && planned > 0) size = bytes_.Between(0, static_cast<std::int64_t>(planned) - 1);
  std::vector<std::byte> workspace(static_cast<std::size_t>(size) + 1);
  void* const address = bytes_.OneIn(8) ? nullptr : workspace.data() + (bytes_.OneIn(2) ? 1 : 0);
  const bool room = size >= planned && (address != nullptr || planned == 0);
  int status = 0;
  switch (op) {
    case Operator::kRotary: status = aclnnRotaryPositionEmbedding(address, size, executor, stream); break;
    case Operator::kRotaryGrad: status = aclnnRotaryPositionEmbeddingGrad(address, size, executor, stream); break;
    case Operator::kNormRope: status = aclnnNormRopeConcat(address, size, executor, stream); break;
    case Operator::kNormRopeGrad: status = aclnnNormRopeConcatBackward(address, size, executor, stream); break;
  }
  const bool taken = handle != nullptr && handle->op == op && room;
  const bool right = taken && good_stream;
  if (right && handle->moved) {
    Returned("a second phase", status);
  } else {
    Served("a second phase", status, right);
  }
  if (taken && !handle->repeatable) handle->live = false;
  memory_.Remember();
}

void Program::ChangeExecutor() {
  void* const value = Pick(Kind::kExecutor);
  Handle* const handle = Find(value, Kind::kExecutor);
  auto* const executor = static_cast<aclOpExecutor*>(value);
  if (bytes_.OneIn(2)) {
    Served("aclSetAclOpExecutorRepeatable", aclSetAclOpExecutorRepeatable(executor), handle != nullptr);
    if (handle != nullptr) handle->repeatable = true;
    return;
  }
  auto* const tensor = PickAs<aclTensor>(Kind::kTensor);
  const Handle* const described = Find(tensor, Kind::kTensor);
  if (described != nullptr && described->huge) return;
  constexpr decltype(&aclSetTensorAddr) kSetters[] = {aclSetTensorAddr, aclSetInputTensorAddr, aclSetOutputTensorAddr,
                                                      AclSetTensorAddr, AclSetInputTensorAddr, AclSetOutputTensorAddr};
  const std::size_t index = bytes_.OneIn(16) ? static_cast<std::size_t>(bytes_.Word()) : bytes_.Byte() % 40U;
  const int status = Returned("aclSetTensorAddr", bytes_.Of(kSetters)(executor, index, tensor, Address()));
  if (status == 0 && (handle == nullptr || described == nullptr)) Fail("a wrong call is served");
  if (status == 0) handle->moved = true;
}

void Program::UseStream() {
  void* const stream = Pick(Kind::kStream);
  void* const event = Pick(Kind::kEvent);
  void* const context = Pick(Kind::kContext);
  const bool good_stream = stream == nullptr || IsLive(stream, Kind::kStream);
  const bool good_event = IsLive(event, Kind::kEvent);
  switch (bytes_.Between(0, 6)) {
    case 0: return Served("aclrtSynchronizeStream", aclrtSynchronizeStream(stream), good_stream);
    case 1:
      return Served("aclrtSynchronizeStreamWithTimeout", aclrtSynchronizeStreamWithTimeout(stream, 5), good_stream);
    case 2: return Served("aclrtRecordEvent", aclrtRecordEvent(event, stream), good_event && good_stream);
    case 3: return Served("aclrtSynchronizeEvent", aclrtSynchronizeEvent(event), good_event);
    case 4: return Served("aclrtStreamWaitEvent", aclrtStreamWaitEvent(stream, event), good_event && good_stream);
    case 5: {
      Returned("aclrtSetCurrentContext", aclrtSetCurrentContext(context));
      void* current = nullptr;
      Returned("aclrtGetCurrentContext", aclrtGetCurrentContext(bytes_.OneIn(8) ? nullptr : &current));
      return;
    }
    default: {
      const int status = Returned("aclInit", aclInit(nullptr));
      if ((status == 0) == initialised_) Fail("aclInit forgets");
      initialised_ = true;
      if (bytes_.OneIn(2)) return;
      Returned("aclFinalize", aclFinalize());
      initialised_ = false;
      return;
    }
  }
}

void Program::UseMemory() {
  void* address = nullptr;
  const std::size_t size = bytes_.Between(0, 300);
  const bool host = bytes_.OneIn(2);
  if (bytes_.OneIn(2)) {
    void** const to = bytes_.OneIn(16) ? nullptr : &address;
    const int status = host ? aclrtMallocHost(to, size) : aclrtMalloc(to, size, ACL_MEM_MALLOC_NORMAL_ONLY);
    Served("aclrtMalloc", status, to != nullptr && size != 0);
    if (status != 0) return;
    Served("aclrtMemset", aclrtMemset(address, size, 1, size), true);
    Served("aclrtFree", host ? aclrtFreeHost(address) : aclrtFree(address), true);
    return;
  }
  auto* const from = static_cast<std::byte*>(scratch_);
  std::array<std::byte, 256> target{};
  const std::size_t most = bytes_.Between(0, 256), count = bytes_.Between(0, 512);
  const auto kind = static_cast<aclrtMemcpyKind>(bytes_.Between(0, 4));
  const int status = aclrtMemcpy(target.data(), most, from, count, kind);
  Served("aclrtMemcpy", status, count <= most);
  if (status == 0 && !std::equal(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(count), from)) {
    Fail("aclrtMemcpy has not copied");
  }
}

void Program::SetProfile() {
  constexpr const char* kProfiles[] = {"native", "atlas-a2", "atlas-a3", "ascend-950", "no such product", ""};
  const char* const profile = bytes_.Of(kProfiles);
  setenv("GYROGRAD_PROFILE", profile, 1);
  native_ = profile == kProfiles[0];
}

void Program::Run() {
  for (int step = 0; step < kSteps && !bytes_.empty(); ++step) {
    switch (bytes_.Between(0, 15)) {
      case 0: CreateTensor(); break;
      case 1: AskTensor(); break;
      case 2: CreateOther(); break;
      case 3: {
        const Kind kind = bytes_.Of(kKinds);
        Destroy(kind, Pick(kind));
        break;
      }
      case 4: UseStream(); break;
      case 5: UseMemory(); break;
      case 6: SetProfile(); break;
      case 7:
      case 8: ChangeExecutor(); break;
      case 9:
      case 10:
      case 11: Execute(); break;
      default: Plan(); break;
    }
  }
}

// Everything that is live is destroyed, so that what is left is a leak.
void Program::End() {
  for (const Kind kind : {Kind::kList, Kind::kExecutor, Kind::kTensor, Kind::kStream, Kind::kEvent, Kind::kContext,
                          Kind::kScalar, Kind::kInts, Kind::kFloats, Kind::kBools}) {
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      if (handles_[i].live && handles_[i].kind == kind) Destroy(kind, handles_[i].value);
    }
  }
  if (initialised_) Served("aclFinalize", aclFinalize(), true);
  unsetenv("GYROGRAD_PROFILE");
}

}  // namespace
}  // namespace gyrograd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gyrograd::fuzz::Bytes bytes(data, size);
  gyrograd::fuzz::Program program(bytes);
  program.Run();
  program.End();
  return 0;
}
