// Reading of the keywords; what the types do not use is not looked at.
#include "norm_rope_arguments.h"

#include <nanobind/stl/string.h>

#include <initializer_list>

#include "core/strides.h"
#include "ops/norm_rope/validate.h"
#include "options.h"

namespace gyrograd::python {
namespace {

std::string ShapeWords(const std::string& word, const ConstTensorView& view, bool strides) {
  std::string text = word + " has shape " + internal::ToString(view.shape);
  if (strides) text += " and strides " + internal::ToString(view.strides);
  return text;
}

}  // namespace

// ---- keywords

nb::handle Keywords::operator[](const std::string& name) const {
  PyObject* value = PyDict_GetItemString(values_.ptr(), name.c_str());
  if (value == nullptr) Raise(PyExc_TypeError, {operation_, name.c_str()}, "is no keyword that was passed on");
  return value;
}

bool Keywords::IsGiven(const std::string& name) const {
  PyObject* value = PyDict_GetItemString(values_.ptr(), name.c_str());
  return value != nullptr && value != Py_None;
}

void Keywords::ReadLayout() { bsnd_ = ParseLayoutIsBsnd(argument("out_layout"), (*this)["out_layout"]); }

const Array* Keywords::Read(const std::string& name) {
  const nb::handle object = (*this)[name];
  if (object.is_none()) return nullptr;
  Array& array = arrays_.emplace_back();
  if (form_ == ArrayForm::kShape) {
    ReadShape({operation_, name.c_str()}, object, &array);
  } else {
    ReadInput({operation_, name.c_str()}, object, &array);
  }
  return &array;
}

std::optional<ConstTensorView> Keywords::Input(const std::string& name) {
  const Array* const array = Read(name);
  if (array == nullptr) return std::nullopt;
  if (name.ends_with("cos")) tables_[name] = {array->shape_span().begin(), array->shape_span().end()};
  return array->input();
}

std::optional<ConstTensorView> Keywords::JointInput(const std::string& name) {
  const Array* const array = Read(name);
  return array == nullptr ? std::nullopt : std::optional(InOrder(*array, name));
}

ConstTensorView Keywords::InOrder(const Array& array, const std::string& word) {
  return bsnd_ && array.rank == 4 ? Rearranged(array, {0, 2, 1, 3}, word) : array.input();
}

ConstTensorView Keywords::Rearranged(const Array& array, const std::array<int, 4>& axes, const std::string& word) {
  auto &shape = extents_.emplace_back(), &strides = extents_.emplace_back();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    shape[i] = array.shape[static_cast<std::size_t>(axes[i])];
    strides[i] = array.strides[static_cast<std::size_t>(axes[i])];
  }
  ConstTensorView view = array.input();
  view.shape = shape;
  view.strides = strides;
  rearrangements_.push_back({word, view, array.input()});
  return view;
}

void Keywords::AddHintWords(const std::vector<std::string>& in_layout, Words* words) const {
  const std::string layout = std::string("out_layout='") + (bsnd_ ? "BNSD" : "BSND") + "'";
  for (const std::string& name : in_layout) {
    words->Add("exchange axes 1 and 2 of " + name + ", or of x", layout);  // results that follow x
    words->Add("exchange axes 1 and 2 of " + name, layout + " for " + name);
    words->Add(", or of " + name, ", or " + layout + " for " + name);
  }
  for (const char* name : {"cos", "rope_cos", "encoder_rope_cos"}) {
    const auto at = tables_.find(name);
    if (at == tables_.end()) continue;
    const std::vector<std::int64_t>& shape = at->second;
    if (shape.size() == 1)
      words->Add("extents of 1, such as [1, " + std::to_string(shape[0]) + "]",
                 std::string("axes, such as ") + name + "[None, :]");
    if (shape.size() != 3) continue;
    const std::array<std::int64_t, 4> first = {shape[0], 1, shape[1], shape[2]},
                                      second = {1, shape[0], shape[1], shape[2]};
    for (const char* before : {"extents of 1, such as ", " or "}) {
      const std::string after = *before == ' ' ? before : "axes, such as ";
      words->Add(before + internal::ToString(first), after + name + "[:, None, :, :]");
      words->Add(before + internal::ToString(second), after + name + "[None, :, :, :]");
    }
  }
  words->Add("add extents of 1", "add axes");
}

void Keywords::AddShapeWords(Words* words) const {
  for (const Rearrangement& r : rearrangements_) {
    for (const bool with_strides : {true, false}) {
      words->Add(ShapeWords(r.word, r.view, with_strides), ShapeWords(r.word, r.original, with_strides));
    }
  }
}

// ---- what the calls share

namespace {

// A type that is not chosen is none; an array that waits for it would then be ignored unasked.
void RequireNoArray(const Keywords& keywords, const char* type, const std::string& types, const std::string& array) {
  if (!keywords.IsGiven(array)) return;
  Raise(PyExc_ValueError, keywords.argument(array.c_str()),
        std::string("is given without ") + type + "; " + type + " must be " + types);
}

// `prefixes` are those of the norm's parameters and statistics.
NormType NormTypeOf(const Keywords& keywords, const char* name, std::initializer_list<const char*> prefixes) {
  if (keywords.IsGiven(name)) return ParseNormType(keywords.argument(name), keywords[name]);
  for (const std::string prefix : prefixes) {
    for (const char* member : {"weight", "bias", "mean", "rstd"}) {
      RequireNoArray(keywords, name, NormTypeNames(), prefix + member);
    }
  }
  return NormType::kNone;
}

std::optional<RotaryMode> RopeTypeOf(const Keywords& keywords) {
  constexpr const char* kName = "rope_type";
  if (keywords.IsGiven(kName)) return ParseRopeType(keywords.argument(kName), keywords[kName]);
  for (const char* table : {"cos", "sin", "rope_sin", "rope_cos", "encoder_rope_sin", "encoder_rope_cos"}) {
    RequireNoArray(keywords, kName, RopeTypeNames(), table);
  }
  return std::nullopt;
}

std::optional<RotaryOptions> RotaryOf(const Keywords& keywords) {
  const std::optional<RotaryMode> mode = RopeTypeOf(keywords);
  RotaryOptions options = ParseRotaryOptions(
      keywords.operation(), {{}, keywords["per_pair_tables"], keywords["rotary_dim"], keywords["rotary_offset"]});
  if (!mode) return std::nullopt;
  options.mode = *mode;
  return options;
}

Execution ExecutionOf(const Keywords& keywords) {
  return ParseExecution(keywords.operation(), keywords["threads"], keywords["cpu_target"]);
}

std::int64_t RopeStartOf(const Keywords& keywords) {
  return ParseInteger(keywords.argument("rope_start"), keywords["rope_start"]);
}

// The parameters and statistics of a norm, whose keywords begin with `prefix`.
template <class Tensors>
void ReadParameters(Keywords& keywords, const std::string& prefix, NormType type, Tensors* tensors) {
  if (internal::IsAffine(type)) tensors->weight = keywords.Input(prefix + "weight");
  if constexpr (requires { tensors->bias; }) {
    if (type == NormType::kLayerAffine) tensors->bias = keywords.Input(prefix + "bias");
  } else {
    if (internal::IsLayerNorm(type)) tensors->mean = keywords.Input(prefix + "mean");
    if (internal::IsNorm(type)) tensors->rstd = keywords.Input(prefix + "rstd");
  }
}

std::optional<NormRopeRotation> RotationOf(Keywords& keywords) {
  const std::optional<RotaryOptions> options = RotaryOf(keywords);
  const std::int64_t start = RopeStartOf(keywords);
  if (!options) return std::nullopt;
  const std::optional<ConstTensorView> cos = keywords.Input("cos"), sin = keywords.Input("sin");
  for (const auto& [table, name] : {std::pair(&cos, "cos"), std::pair(&sin, "sin")}) {
    if (*table) continue;
    Raise(PyExc_ValueError, keywords.argument(name),
          std::string("is missing; rope_type ") + Name(options->mode) + " needs it");
  }
  return NormRopeRotation{.cos = *cos, .sin = *sin, .first = start, .options = *options};
}

void RequireRank4(const Keywords& keywords, const char* name, const std::optional<ConstTensorView>& view) {
  if (!view || view->shape.size() == 4) return;
  Raise(PyExc_ValueError, keywords.argument(name),
        "has shape " + internal::ToString(view->shape) + "; its rank must be 4");
}

std::optional<ConstTensorView> Needed(const Keywords& keywords, const char* name,
                                      const std::optional<ConstTensorView>& view) {
  if (!view) Raise(PyExc_TypeError, keywords.argument(name), "is missing");
  RequireRank4(keywords, name, view);
  return view;
}

}  // namespace

// ---- one segment

NormRopeBackwardCall ReadNormRopeBackward(Keywords& keywords) {
  keywords.ReadLayout();
  NormRopeBackwardCall call;
  NormRopeBackwardSegment& segment = call.segment;
  segment.dy = *Needed(keywords, "dy", keywords.JointInput("dy"));
  segment.norm_type = NormTypeOf(keywords, "norm_type", {""});
  if (internal::IsNorm(segment.norm_type)) segment.x = keywords.Input("x");
  ReadParameters(keywords, "", segment.norm_type, &segment);
  segment.rotation = RotationOf(keywords);
  call.execution = ExecutionOf(keywords);
  return call;
}

NormRopeForwardCall ReadNormRope(Keywords& keywords) {
  keywords.ReadLayout();
  NormRopeForwardCall call;
  NormRopeSegment& segment = call.segment;
  segment.x = *Needed(keywords, "x", keywords.Input("x"));
  segment.norm_type = NormTypeOf(keywords, "norm_type", {""});
  segment.eps = ParseReal(keywords.argument("eps"), keywords["eps"]);
  ReadParameters(keywords, "", segment.norm_type, &segment);
  segment.rotation = RotationOf(keywords);
  call.execution = ExecutionOf(keywords);
  return call;
}

// ---- the joint call

namespace {

NormRopeConcatOptions ConcatOptionsOf(const Keywords& keywords) {
  NormRopeConcatOptions options;
  options.norm_type = NormTypeOf(keywords, "norm_type", {"norm_query_", "norm_key_"});
  options.norm_added_type = NormTypeOf(keywords, "norm_added_type", {"norm_added_query_", "norm_added_key_"});
  options.rotary = RotaryOf(keywords);
  options.concat_order = ParseConcatOrder(keywords.argument("concat_order"), keywords["concat_order"]);
  options.rope_start = RopeStartOf(keywords);
  return options;
}

template <class Args>
void ReadShared(Keywords& keywords, Args* args) {
  const NormType norm = args->options.norm_type, added = args->options.norm_added_type;
  ReadParameters(keywords, "norm_query_", norm, &args->norm_query);
  ReadParameters(keywords, "norm_key_", norm, &args->norm_key);
  ReadParameters(keywords, "norm_added_query_", added, &args->norm_added_query);
  ReadParameters(keywords, "norm_added_key_", added, &args->norm_added_key);
  if (args->options.rotary) {
    args->rope_sin = keywords.Input("rope_sin");
    args->rope_cos = keywords.Input("rope_cos");
    args->encoder_rope_sin = keywords.Input("encoder_rope_sin");
    args->encoder_rope_cos = keywords.Input("encoder_rope_cos");
  }
  args->execution = ExecutionOf(keywords);
}

}  // namespace

NormRopeConcatBackwardArgs ReadNormRopeConcatBackward(Keywords& keywords) {
  keywords.ReadLayout();
  NormRopeConcatBackwardArgs args;
  args.options = ConcatOptionsOf(keywords);
  args.grad_query_output = keywords.JointInput("grad_query_output");
  args.grad_key_output = keywords.JointInput("grad_key_output");
  args.grad_value_output = keywords.JointInput("grad_value_output");
  RequireRank4(keywords, "grad_query_output", args.grad_query_output);
  RequireRank4(keywords, "grad_key_output", args.grad_key_output);
  RequireRank4(keywords, "grad_value_output", args.grad_value_output);
  args.query = keywords.Input("query");
  args.key = keywords.Input("key");
  args.encoder_query = keywords.Input("encoder_query");
  args.encoder_key = keywords.Input("encoder_key");
  ReadShared(keywords, &args);
  return args;
}

NormRopeConcatArgs ReadNormRopeConcat(Keywords& keywords) {
  keywords.ReadLayout();
  NormRopeConcatArgs args;
  args.options = ConcatOptionsOf(keywords);
  const std::array<std::optional<ConstTensorView>*, 6> streams = {
      &args.query, &args.key, &args.value, &args.encoder_query, &args.encoder_key, &args.encoder_value};
  for (std::size_t i = 0; i < streams.size(); ++i) {
    *streams[i] = keywords.Input(kStreams[i]);
    RequireRank4(keywords, kStreams[i], *streams[i]);
  }
  args.eps = ParseReal(keywords.argument("eps"), keywords["eps"]);
  ReadShared(keywords, &args);
  return args;
}

std::array<std::optional<TensorView>*, 14> GradientsOf(NormRopeConcatBackwardArgs& args) {
  return {&args.dquery,
          &args.dkey,
          &args.dvalue,
          &args.dencoder_query,
          &args.dencoder_key,
          &args.dencoder_value,
          &args.norm_query.dweight,
          &args.norm_query.dbias,
          &args.norm_key.dweight,
          &args.norm_key.dbias,
          &args.norm_added_query.dweight,
          &args.norm_added_query.dbias,
          &args.norm_added_key.dweight,
          &args.norm_added_key.dbias};
}

}  // namespace gyrograd::python
