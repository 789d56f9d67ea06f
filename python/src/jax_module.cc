// The operators as custom calls of XLA, in the C interface of xla_ffi_abi.h: buffers and numbers become the library's
// arguments, its refusals XLA's errors. No Python runs here. What must hold of the arguments was checked when the
// program was traced; which tensors are there is a number whose bits stand for the names in the order of gyrograd/jax.
#include "jax_module.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gyrograd/gyrograd.h"
#include "norm_rope_arguments.h"
#include "xla_ffi_abi.h"

namespace gyrograd::python {
namespace {

using Index = std::int64_t;
using Inputs = std::initializer_list<std::optional<ConstTensorView>*>;
using Outputs = std::initializer_list<std::optional<TensorView>*>;

xla::ErrorCode CodeOf(StatusCode code) {
  if (code == StatusCode::kOutOfMemory) return xla::ErrorCode::kResourceExhausted;
  return code == StatusCode::kInternal ? xla::ErrorCode::kInternal : xla::ErrorCode::kInvalidArgument;
}

std::optional<DType> TypeOf(xla::DataType type) {
  switch (type) {
    case xla::DataType::kF64: return DType::kF64;
    case xla::DataType::kF32: return DType::kF32;
    case xla::DataType::kF16: return DType::kF16;
    case xla::DataType::kBF16: return DType::kBF16;
    default: return std::nullopt;
  }
}

// One call: its buffers as views, in order, and its numbers. What is not as the package's own programs have it is
// remembered, and then nothing is computed.
class Call {
 public:
  explicit Call(const xla::CallFrame& frame) : frame_(frame) {
    std::size_t extents = 0;
    for (Index i = 0; i < frame.arguments.count; ++i) extents += RankOf(frame.arguments.values[i]);
    for (Index i = 0; i < frame.results.count; ++i) extents += RankOf(frame.results.values[i]);
    numbers_.reserve(3 * extents + 4 * kStandIn);  // spans of it must stay: strides, exchanged axes, two stand-ins
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  ConstTensorView Input() {
    if (inputs_ == frame_.arguments.count) return Missing("an argument");
    return View(frame_.arguments.values[inputs_++]);
  }

  TensorView Output() {
    const ConstTensorView view = outputs_ == frame_.results.count ? Missing("a result") : NextOutput();
    return {const_cast<void*>(view.data), view.dtype, view.shape, view.strides};
  }

  // Those of them whose bit is set.
  void ReadInputs(const char* bits, Inputs inputs) {
    const Index given = Integer(bits);
    Index bit = 1;
    for (auto* input : inputs) {
      if ((given & bit) != 0) *input = Input();
      bit <<= 1;
    }
  }

  void ReadOutputs(const char* bits, Outputs outputs) {
    const Index wanted = Integer(bits);
    Index bit = 1;
    for (auto* output : outputs) {
      if ((wanted & bit) != 0) *output = Output();
      bit <<= 1;
    }
  }

  // [B, N, S, D] of a view in the order of out_layout.
  template <class View>
  void InOrder(std::optional<View>* view) {
    if (*view && Integer("bsnd") != 0 && (*view)->shape.size() == 4) *view = Exchanged(**view);
  }

  // [B, rows, N, D] for an input of which nothing but its shape is looked at, beside a gradient [B, N, S, D].
  std::optional<ConstTensorView> StandIn(const std::optional<ConstTensorView>& joint, Index rows) {
    if (!joint || rows < 0 || joint->shape.size() != kStandIn) return std::nullopt;
    ConstTensorView view = *joint;
    view.shape = Append({joint->shape[0], rows, joint->shape[1], joint->shape[3]});
    view.strides = Append({0, 0, 0, 0});
    return view;
  }

  Index Integer(const char* name) { return Number<Index>(name, xla::DataType::kS64); }
  double Real(const char* name) { return Number<double>(name, xla::DataType::kF64); }

  RotaryOptions Rotary() {
    RotaryOptions options;
    options.mode = static_cast<RotaryMode>(Integer("mode"));
    options.per_pair_tables = Integer("per_pair_tables") != 0;
    if (const Index width = Integer("rotary_dim"); width >= 0) options.rotary_dim = width;
    options.rotary_offset = Integer("rotary_offset");
    return options;
  }

  bool turns() { return Integer("mode") >= 0; }
  const Status& status() const { return status_; }

 private:
  static constexpr std::size_t kStandIn = 4;

  static std::size_t RankOf(const void* buffer) {
    return static_cast<std::size_t>(static_cast<const xla::Buffer*>(buffer)->rank);
  }

  ConstTensorView NextOutput() { return View(frame_.results.values[outputs_++]); }

  ConstTensorView View(const void* value) {
    const xla::Buffer& buffer = *static_cast<const xla::Buffer*>(value);
    const std::optional<DType> type = TypeOf(buffer.dtype);
    if (!type) return Missing("a type");
    const std::span<const Index> shape(buffer.dims, RankOf(value));
    const std::size_t first = numbers_.size();
    numbers_.resize(first + shape.size());
    Index stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      numbers_[first + i] = stride;
      stride *= shape[i];
    }
    return {buffer.data, *type, shape, std::span<const Index>(numbers_).subspan(first)};
  }

  template <class Pointer>
  BasicTensorView<Pointer> Exchanged(const BasicTensorView<Pointer>& view) {
    BasicTensorView<Pointer> result = view;
    result.shape = Append({view.shape[0], view.shape[2], view.shape[1], view.shape[3]});
    result.strides = Append({view.strides[0], view.strides[2], view.strides[1], view.strides[3]});
    return result;
  }

  std::span<const Index> Append(std::array<Index, kStandIn> values) {
    numbers_.insert(numbers_.end(), values.begin(), values.end());
    return std::span<const Index>(numbers_).last(values.size());
  }

  template <class Value>
  Value Number(std::string_view name, xla::DataType type) {
    const xla::Attributes& attributes = frame_.attributes;
    for (Index i = 0; i < attributes.count; ++i) {
      if (std::string_view(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
      const auto* scalar = static_cast<const xla::Scalar*>(attributes.values[i]);
      if (attributes.types[i] != xla::AttributeType::kScalar || scalar->dtype != type) break;
      return *static_cast<const Value*>(scalar->value);
    }
    Missing(std::string(name).c_str());
    return {};
  }

  ConstTensorView Missing(const char* what) {
    if (status_.ok()) status_ = Status(StatusCode::kInternal, std::string("gyrograd: a custom call lacks ") + what);
    return {};
  }

  const xla::CallFrame& frame_;
  Index inputs_ = 0;
  Index outputs_ = 0;
  std::vector<Index> numbers_;
  Status status_;
};

// ---- the operators

Status RunRotary(Call& call) {
  RotaryArgs args;
  args.x = call.Input();
  args.cos = call.Input();
  args.sin = call.Input();
  args.y = call.Output();
  args.options = call.Rotary();
  return call.status().ok() ? Rotary(args) : call.status();
}

Status RunRotaryBackward(Call& call) {
  RotaryBackwardArgs args;
  args.dy = call.Input();
  args.cos = call.Input();
  args.sin = call.Input();
  call.ReadInputs("given", {&args.x});
  call.ReadOutputs("wanted", {&args.dx, &args.dcos, &args.dsin});
  args.options = call.Rotary();
  return call.status().ok() ? RotaryBackward(args) : call.status();
}

std::optional<NormRopeRotation> Rotation(Call& call, const std::optional<ConstTensorView>& cos,
                                         const std::optional<ConstTensorView>& sin) {
  if (!call.turns() || !cos || !sin) return std::nullopt;
  return NormRopeRotation{.cos = *cos, .sin = *sin, .first = call.Integer("rope_start"), .options = call.Rotary()};
}

NormType Norm(Call& call, const char* name) { return static_cast<NormType>(call.Integer(name)); }

Status RunNormRope(Call& call) {
  NormRopeSegment segment;
  std::optional<ConstTensorView> x, cos, sin;
  std::optional<TensorView> y;
  call.ReadInputs("given", {&x, &segment.weight, &segment.bias, &cos, &sin});
  call.ReadOutputs("wanted", {&y, &segment.mean, &segment.rstd});
  call.InOrder(&y);
  segment.x = x.value_or(ConstTensorView{});
  segment.y = y.value_or(TensorView{});
  segment.norm_type = Norm(call, "norm_type");
  segment.eps = call.Real("eps");
  segment.rotation = Rotation(call, cos, sin);
  return call.status().ok() ? NormRope({.segments = {&segment, 1}}) : call.status();
}

Status RunNormRopeBackward(Call& call) {
  NormRopeBackwardSegment segment;
  std::optional<ConstTensorView> dy, cos, sin;
  call.ReadInputs("given", {&dy, &segment.x, &segment.weight, &segment.mean, &segment.rstd, &cos, &sin});
  call.ReadOutputs("wanted", {&segment.dx, &segment.dweight, &segment.dbias});
  call.InOrder(&dy);
  segment.dy = dy.value_or(ConstTensorView{});
  segment.norm_type = Norm(call, "norm_type");
  segment.rotation = Rotation(call, cos, sin);
  return call.status().ok() ? NormRopeBackward({.segments = {&segment, 1}}) : call.status();
}

NormRopeConcatOptions ConcatOptions(Call& call) {
  NormRopeConcatOptions options;
  options.norm_type = Norm(call, "norm_type");
  options.norm_added_type = Norm(call, "norm_added_type");
  if (call.turns()) options.rotary = call.Rotary();
  options.concat_order = static_cast<ConcatOrder>(call.Integer("concat_order"));
  options.rope_start = call.Integer("rope_start");
  return options;
}

Status RunConcat(Call& call) {
  NormRopeConcatArgs args;
  NormTensors &query = args.norm_query, &key = args.norm_key;
  NormTensors &added_query = args.norm_added_query, &added_key = args.norm_added_key;
  call.ReadInputs("given", {&args.query, &args.key, &args.value, &args.encoder_query, &args.encoder_key,
                            &args.encoder_value, &query.weight, &query.bias, &key.weight, &key.bias,
                            &added_query.weight, &added_query.bias, &added_key.weight, &added_key.bias, &args.rope_sin,
                            &args.rope_cos, &args.encoder_rope_sin, &args.encoder_rope_cos});
  call.ReadOutputs("wanted",
                   {&args.query_output, &args.key_output, &args.value_output, &query.mean, &query.rstd, &key.mean,
                    &key.rstd, &added_query.mean, &added_query.rstd, &added_key.mean, &added_key.rstd});
  for (auto* output : {&args.query_output, &args.key_output, &args.value_output}) call.InOrder(output);
  args.eps = call.Real("eps");
  args.options = ConcatOptions(call);
  return call.status().ok() ? NormRopeConcat(args) : call.status();
}

Status RunConcatBackward(Call& call) {
  NormRopeConcatBackwardArgs args;
  NormBackwardTensors &query = args.norm_query, &key = args.norm_key;
  NormBackwardTensors &added_query = args.norm_added_query, &added_key = args.norm_added_key;
  call.ReadInputs("given", {&args.grad_query_output,
                            &args.grad_key_output,
                            &args.grad_value_output,
                            &args.query,
                            &args.key,
                            &args.encoder_query,
                            &args.encoder_key,
                            &query.weight,
                            &query.mean,
                            &query.rstd,
                            &key.weight,
                            &key.mean,
                            &key.rstd,
                            &added_query.weight,
                            &added_query.mean,
                            &added_query.rstd,
                            &added_key.weight,
                            &added_key.mean,
                            &added_key.rstd,
                            &args.rope_sin,
                            &args.rope_cos,
                            &args.encoder_rope_sin,
                            &args.encoder_rope_cos});
  const auto gradients = GradientsOf(args);
  const Index wanted = call.Integer("wanted");
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if ((wanted >> i & 1) != 0) *gradients[i] = call.Output();
  }
  for (auto* joint : {&args.grad_query_output, &args.grad_key_output, &args.grad_value_output}) call.InOrder(joint);
  // Lengths cut the joint gradients: the encoder's are told, what is left is the image's.
  const std::optional<ConstTensorView>& keys = args.grad_key_output ? args.grad_key_output : args.grad_value_output;
  if (!args.encoder_query) {
    args.encoder_query = call.StandIn(args.grad_query_output, call.Integer("encoder_query_rows"));
  }
  if (!args.encoder_key) args.encoder_key = call.StandIn(keys, call.Integer("encoder_key_rows"));
  args.options = ConcatOptions(call);
  return call.status().ok() ? NormRopeConcatBackward(args) : call.status();
}

// ---- handlers

xla::Error* ErrorOf(const xla::CallFrame& frame, xla::ErrorCode code, const char* message) {
  xla::ErrorCreate create = {.size = sizeof(xla::ErrorCreate), .extensions = nullptr, .message = message, .code = code};
  return frame.api->create_error(&create);
}

// Whether the frame only asks what the handler is; answered, then.
bool AnswersMetadata(const xla::CallFrame& frame) {
  for (xla::Extension* extension = frame.extensions; extension != nullptr; extension = extension->next) {
    if (extension->type != xla::ExtensionType::kMetadata) continue;
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(extension)->metadata;
    metadata.version.major = xla::kMajor;
    metadata.version.minor = std::min(xla::kMinor, frame.api->version.minor);
    metadata.traits = 0;
    return true;
  }
  return false;
}

template <Status (*run)(Call&)>
xla::Error* Handle(xla::CallFrame* frame) {
  if (AnswersMetadata(*frame) || frame->stage != xla::Stage::kExecute) return nullptr;
  try {
    Call call(*frame);
    const Status status = run(call);
    return status.ok() ? nullptr : ErrorOf(*frame, CodeOf(status.code()), status.message().c_str());
  } catch (const std::bad_alloc&) {
    return ErrorOf(*frame, xla::ErrorCode::kResourceExhausted, "gyrograd: no memory for a custom call's arguments");
  }
}

template <Status (*run)(Call&)>
nb::capsule HandlerCapsule() {
  xla::Handler* const handler = &Handle<run>;
  return nb::capsule(reinterpret_cast<const void*>(handler));
}

nb::dict XlaHandlers() {
  nb::dict handlers;
  handlers["rotary"] = HandlerCapsule<&RunRotary>();
  handlers["rotary_backward"] = HandlerCapsule<&RunRotaryBackward>();
  handlers["norm_rope"] = HandlerCapsule<&RunNormRope>();
  handlers["norm_rope_backward"] = HandlerCapsule<&RunNormRopeBackward>();
  handlers["norm_rope_concat"] = HandlerCapsule<&RunConcat>();
  handlers["norm_rope_concat_backward"] = HandlerCapsule<&RunConcatBackward>();
  return handlers;
}

}  // namespace

void DefineJax(nb::module_& module) {
  module.def("xla_handlers", &XlaHandlers, "Name -> capsule of the handler of that custom call, for jax.ffi.");
}

}  // namespace gyrograd::python
