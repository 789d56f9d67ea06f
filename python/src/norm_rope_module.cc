// The four norm and rotary calls: results are shaped, planned, allocated and computed. Keywords come as a dict; the
// functions with signatures and documentation are in gyrograd/_norm_rope.py.
#include "norm_rope_module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "calls.h"
#include "core/strides.h"
#include "norm_rope_arguments.h"
#include "ops/norm_rope/validate.h"
#include "options.h"

namespace gyrograd::python {
namespace {

using namespace nb::literals;
using Index = std::int64_t;

// Where a result goes in the library's arguments, and what a new one is.
struct Slot {
  std::string library_name;  // in messages
  std::string word;          // what Python's messages call a new array
  std::optional<TensorView>* view;
  bool by_default = false;  // wanted unless the caller says otherwise
  bool needed = false;      // the library writes it although the caller may not want it
  std::vector<Index> shape = {};
  DType dtype = DType::kF32;
  bool in_layout = false;  // in the order of out_layout
};

DType StatisticsType(DType activations) { return activations == DType::kF64 ? DType::kF64 : DType::kF32; }

std::string Phrase(const char* head, const std::string& tail) { return head + tail; }

// The rotation's options as numbers; a mode of -1 where nothing turns.
void AddRotationNumbers(const std::optional<RotaryOptions>& rotary, Index start, nb::dict* numbers) {
  AddRotaryNumbers(rotary.value_or(RotaryOptions{}), numbers);
  if (!rotary) (*numbers)["mode"] = -1;
  (*numbers)["rope_start"] = start;
}

// ---- one segment, backward

class BackwardSegment {
 public:
  static constexpr const char* kOperation = "norm_rope_backward";
  static constexpr std::array<const char*, 3> kNames = {"dx", "dweight", "dbias"};
  using Plan = NormRopeBackwardPlan;

  explicit BackwardSegment(Keywords& keywords) : call_(ReadNormRopeBackward(keywords)) {}

  std::vector<Slot> Slots(Keywords&, std::span<const Result>) {
    NormRopeBackwardSegment& segment = call_.segment;
    const std::span<const Index> dy = segment.dy.shape;
    const DType type = segment.dy.dtype, weights = segment.weight ? segment.weight->dtype : type;
    const NormType norm = segment.norm_type;
    return {{"dx", "dx", &segment.dx, true, false, {dy[0], dy[2], dy[1], dy[3]}, type},
            {"dweight", "dweight", &segment.dweight, internal::IsAffine(norm), false, {dy[3]}, weights},
            {"dbias", "dbias", &segment.dbias, norm == NormType::kLayerAffine, false, {dy[3]}, weights}};
  }

  Status Create(Plan* plan) const { return Plan::Create({{&call_.segment, 1}, call_.execution}, plan); }

  Status Run(const Plan& plan) const {
    const NormRopeBackwardSegment& s = call_.segment;
    const auto data = [](const auto& view) { return view ? view->data : nullptr; };
    const NormRopeBackwardPointers pointers = {.dy = s.dy.data,
                                               .x = data(s.x),
                                               .weight = data(s.weight),
                                               .mean = data(s.mean),
                                               .rstd = data(s.rstd),
                                               .cos = s.rotation ? s.rotation->cos.data : nullptr,
                                               .sin = s.rotation ? s.rotation->sin.data : nullptr,
                                               .dx = data(s.dx),
                                               .dweight = data(s.dweight),
                                               .dbias = data(s.dbias)};
    return RunPlan(kOperation, plan, std::span<const NormRopeBackwardPointers>(&pointers, 1));
  }

  void AddWords(const Keywords&, Words*) const {}

 private:
  NormRopeBackwardCall call_;
};

// ---- one segment, forward

class ForwardSegment {
 public:
  static constexpr const char* kOperation = "norm_rope";
  static constexpr std::array<const char*, 3> kNames = {"y", "mean", "rstd"};
  using Plan = NormRopePlan;

  explicit ForwardSegment(Keywords& keywords) : call_(ReadNormRope(keywords)) {}

  std::vector<Slot> Slots(Keywords& keywords, std::span<const Result>) {
    NormRopeSegment& segment = call_.segment;
    const std::span<const Index> x = segment.x.shape;
    const std::vector<Index> rows = {x[0], x[1], x[2], 1};
    std::vector<Index> y = {x[0], x[2], x[1], x[3]};
    if (keywords.bsnd()) std::swap(y[1], y[2]);
    const DType type = segment.x.dtype, statistics = StatisticsType(type);
    const NormType norm = segment.norm_type;
    return {{"y", "y", &y_, true, true, y, type, true},
            {"mean", "mean", &segment.mean, internal::IsLayerNorm(norm), false, rows, statistics},
            {"rstd", "rstd", &segment.rstd, internal::IsNorm(norm), false, rows, statistics}};
  }

  Status Create(Plan* plan) {
    call_.segment.y = *y_;
    return Plan::Create({{&call_.segment, 1}, call_.execution}, plan);
  }

  Status Run(const Plan& plan) const {
    const NormRopeSegment& s = call_.segment;
    const auto data = [](const auto& view) { return view ? view->data : nullptr; };
    const NormRopePointers pointers = {.x = s.x.data,
                                       .weight = data(s.weight),
                                       .bias = data(s.bias),
                                       .cos = s.rotation ? s.rotation->cos.data : nullptr,
                                       .sin = s.rotation ? s.rotation->sin.data : nullptr,
                                       .y = y_->data,
                                       .mean = data(s.mean),
                                       .rstd = data(s.rstd)};
    return RunPlan(kOperation, plan, std::span<const NormRopePointers>(&pointers, 1));
  }

  void AddNumbers(nb::dict* numbers) const {
    const NormRopeSegment& s = call_.segment;
    (*numbers)["norm_type"] = static_cast<int>(s.norm_type);
    (*numbers)["eps"] = s.eps;
    AddRotationNumbers(s.rotation ? std::optional(s.rotation->options) : std::nullopt,
                       s.rotation ? s.rotation->first : 0, numbers);
  }

  // What y must be, in the order in which the caller sees it.
  void AddWords(const Keywords& keywords, Words* words) const {
    if (!keywords.bsnd()) return;
    const std::span<const Index> x = call_.segment.x.shape;
    const std::array<Index, 4> turned = {x[0], x[2], x[1], x[3]};
    words->Add("[B, N, S, D] of x, " + internal::ToString(turned), "[B, S, N, D] of x, " + internal::ToString(x));
  }

 private:
  NormRopeForwardCall call_;
  std::optional<TensorView> y_;
};

// ---- the joint calls

constexpr std::size_t kImages = 3;  // query, key, value; then the encoder's

// The words in which the two joint calls' messages differ from Python's.
void AddConcatWords(const std::optional<RotaryOptions>& rotary, Words* words) {
  for (const char* norm : kNorms) {
    for (const char* member : {"weight", "bias", "mean", "rstd"}) {
      words->Add(Phrase(norm, std::string(".") + member), Phrase(norm, std::string("_") + member));
    }
  }
  for (const char* option : {"rotary_dim", "rotary_offset"}) words->Add(Phrase("rotary.", option), option);
  if (rotary) words->Add("rotary needs it", std::string("rope_type ") + Name(rotary->mode) + " needs it");
}

// The type of all weights: that of the first one given.
template <class Args>
DType WeightsType(const Args& args, DType activations) {
  for (const auto* norm : {&args.norm_query, &args.norm_key, &args.norm_added_query, &args.norm_added_key}) {
    if (norm->weight) return norm->weight->dtype;
  }
  return activations;
}

// The rows of a stream, by the first [B, S, N, D] view or array that tells.
std::optional<Index> RowsOf(std::initializer_list<const std::optional<ConstTensorView>*> views,
                            std::initializer_list<const Result*> results) {
  for (const auto* view : views) {
    if (*view && (*view)->shape.size() == 4) return (*view)->shape[1];
  }
  for (const Result* result : results) {
    if (!result->given.empty() && result->array.rank == 4) return result->array.shape[1];
  }
  return std::nullopt;
}

class ConcatBackward {
 public:
  static constexpr const char* kOperation = "norm_rope_concat_backward";
  static constexpr auto kNames = kConcatGradients;
  using Plan = NormRopeConcatBackwardPlan;

  explicit ConcatBackward(Keywords& keywords) : args_(ReadNormRopeConcatBackward(keywords)) {
    if (args_.grad_query_output || args_.grad_key_output || args_.grad_value_output) return;
    RaiseMessage(PyExc_ValueError, kOperation, "grad_query_output is missing, and so are the other gradients");
  }

  std::vector<Slot> Slots(Keywords&, std::span<const Result> results) {
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < kStreams.size(); ++i) slots.push_back(StreamSlot(i, results));
    for (std::size_t norm = 0; norm < kNorms.size(); ++norm) {
      slots.push_back(ParameterSlot(norm, false, results));
      slots.push_back(ParameterSlot(norm, true, results));
    }
    return slots;
  }

  Status Create(Plan* plan) const { return Plan::Create(args_, plan); }
  Status Run(const Plan& plan) const { return RunPlan(kOperation, plan, args_); }
  void AddWords(const Keywords&, Words* words) const { AddConcatWords(args_.options.rotary, words); }

 private:
  const std::optional<ConstTensorView>& Joint(std::size_t i) const {
    const std::array joints = {&args_.grad_query_output, &args_.grad_key_output, &args_.grad_value_output};
    return *joints[i % kImages];
  }

  // Value's rows are key's. Nothing where no argument tells.
  std::optional<Index> StatedRows(std::size_t i, std::span<const Result> results) const {
    const std::size_t encoder = i < kImages ? 0 : kImages;
    const auto* query = encoder == 0 ? &args_.query : &args_.encoder_query;
    const auto* key = encoder == 0 ? &args_.key : &args_.encoder_key;
    if (i % kImages == 0) return RowsOf({query}, {&results[encoder]});
    return RowsOf({key}, {&results[encoder + 1], &results[encoder + 2]});
  }

  // An encoder stream that nothing tells of has none; an image stream has what is left.
  Index Rows(std::size_t i, std::span<const Result> results) const {
    const std::optional<Index> stated = StatedRows(i, results);
    if (stated || i >= kImages) return stated.value_or(0);
    const Index joint = std::max<Index>(Joint(i)->shape[2], 0);
    const Index encoder = std::max<Index>(StatedRows(i + kImages, results).value_or(0), 0);
    return std::max<Index>(joint - encoder, 0);
  }

  bool IsThere(std::size_t i, std::span<const Result> results) const {
    return Joint(i) && (i < kImages || StatedRows(i, results));
  }

  DType Type() const {
    for (std::size_t i = 0; i < kImages; ++i) {
      if (Joint(i)) return Joint(i)->dtype;
    }
    return DType::kF32;
  }

  Slot StreamSlot(std::size_t i, std::span<const Result> results) {
    const std::string name = kStreams[i];
    Slot slot = {"d" + name, name + "'s gradient", GradientsOf(args_)[i]};
    slot.by_default = IsThere(i, results);
    slot.dtype = Type();
    slot.shape = {0, 0, 0, 0};  // refused: its joint gradient is missing
    if (!Joint(i)) return slot;
    const std::span<const Index> joint = Joint(i)->shape;
    slot.shape = {joint[0], Rows(i, results), joint[1], joint[3]};
    return slot;
  }

  Slot ParameterSlot(std::size_t norm, bool bias, std::span<const Result> results) {
    const std::size_t stream = norm < 2 ? norm : kImages + norm - 2;
    const NormType type = norm < 2 ? args_.options.norm_type : args_.options.norm_added_type;
    const std::string name = kNorms[norm], member = bias ? "bias" : "weight";
    Slot slot = {name + ".d" + member, name + "_" + member + "'s gradient",
                 GradientsOf(args_)[kStreams.size() + 2 * norm + (bias ? 1 : 0)]};
    const bool defined = bias ? type == NormType::kLayerAffine : internal::IsAffine(type);
    slot.by_default = defined && IsThere(stream, results);
    slot.dtype = WeightsType(args_, Type());
    slot.shape = {Joint(stream) ? Joint(stream)->shape[3] : 0};
    return slot;
  }

  NormRopeConcatBackwardArgs args_;
};

class ConcatForward {
 public:
  static constexpr const char* kOperation = "norm_rope_concat";
  static constexpr std::array<const char*, 11> kNames = {"query",
                                                         "key",
                                                         "value",
                                                         "norm_query_mean",
                                                         "norm_query_rstd",
                                                         "norm_key_mean",
                                                         "norm_key_rstd",
                                                         "norm_added_query_mean",
                                                         "norm_added_query_rstd",
                                                         "norm_added_key_mean",
                                                         "norm_added_key_rstd"};
  using Plan = NormRopeConcatPlan;

  explicit ConcatForward(Keywords& keywords) : args_(ReadNormRopeConcat(keywords)) {
    for (std::size_t i = 0; i < kImages; ++i) {
      if (IsThere(i)) return;
    }
    RaiseMessage(PyExc_ValueError, kOperation, "query is missing, and so are the other streams");
  }

  std::vector<Slot> Slots(Keywords& keywords, std::span<const Result> results) {
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < kImages; ++i) slots.push_back(JointSlot(i, keywords.bsnd()));
    for (std::size_t norm = 0; norm < kNorms.size(); ++norm) {
      slots.push_back(StatisticsSlot(norm, false));
      slots.push_back(StatisticsSlot(norm, true));
      for (std::size_t i = slots.size() - 2; i < slots.size(); ++i) {
        const bool wanted = results[i].wanted;
        slots[norm % 2].needed = slots[norm % 2].needed || (wanted && IsThere(norm % 2));
      }
    }
    return slots;
  }

  Status Create(Plan* plan) const { return Plan::Create(args_, plan); }
  Status Run(const Plan& plan) const { return RunPlan(kOperation, plan, args_); }
  void AddWords(const Keywords&, Words* words) const { AddConcatWords(args_.options.rotary, words); }

  void AddNumbers(nb::dict* numbers) const {
    const NormRopeConcatOptions& options = args_.options;
    (*numbers)["norm_type"] = static_cast<int>(options.norm_type);
    (*numbers)["norm_added_type"] = static_cast<int>(options.norm_added_type);
    (*numbers)["concat_order"] = static_cast<int>(options.concat_order);
    (*numbers)["eps"] = args_.eps;
    AddRotationNumbers(options.rotary, options.rope_start, numbers);
  }

 private:
  const std::optional<ConstTensorView>& Stream(std::size_t i) const {
    const std::array streams = {&args_.query,         &args_.key,         &args_.value,
                                &args_.encoder_query, &args_.encoder_key, &args_.encoder_value};
    return *streams[i];
  }

  bool IsThere(std::size_t joint) const { return Stream(joint) || Stream(joint + kImages); }

  // The stream that tells batch, heads and channels of the joint one.
  const ConstTensorView& Model(std::size_t joint) const {
    return Stream(joint) ? *Stream(joint) : *Stream(joint + kImages);
  }

  DType Type() const {
    for (std::size_t i = 0; i < kImages; ++i) {
      if (IsThere(i)) return Model(i).dtype;
    }
    return DType::kF32;
  }

  Slot JointSlot(std::size_t i, bool bsnd) {
    const std::array<std::optional<TensorView>*, kImages> views = {&args_.query_output, &args_.key_output,
                                                                   &args_.value_output};
    const std::string name = kStreams[i];
    Slot slot = {name + "_output", "the " + name + " output", views[i]};
    slot.by_default = IsThere(i);
    slot.dtype = Type();
    slot.in_layout = true;
    slot.shape = {0, 0, 0, 0};
    if (!IsThere(i)) return slot;
    const std::span<const Index> model = Model(i).shape;
    Index rows = Stream(i) ? Stream(i)->shape[1] : 0;
    const Index encoder_rows = Stream(i + kImages) ? Stream(i + kImages)->shape[1] : 0;
    if (__builtin_add_overflow(rows, encoder_rows, &rows)) rows = std::numeric_limits<Index>::max();
    slot.shape = {model[0], model[2], rows, model[3]};
    if (bsnd) std::swap(slot.shape[1], slot.shape[2]);
    return slot;
  }

  Slot StatisticsSlot(std::size_t norm, bool rstd) {
    const std::size_t joint = norm % 2, stream = norm < 2 ? joint : joint + kImages;
    const std::array<NormTensors*, 4> norms = {&args_.norm_query, &args_.norm_key, &args_.norm_added_query,
                                               &args_.norm_added_key};
    const NormType type = norm < 2 ? args_.options.norm_type : args_.options.norm_added_type;
    const std::string name = kNorms[norm], member = rstd ? "rstd" : "mean";
    Slot slot = {name + "." + member, name + "_" + member, rstd ? &norms[norm]->rstd : &norms[norm]->mean};
    slot.by_default = (rstd ? internal::IsNorm(type) : internal::IsLayerNorm(type)) && Stream(stream);
    slot.dtype = StatisticsType(Type());
    slot.shape = {0, 0, 0, 1};
    if (!IsThere(joint)) return slot;
    slot.shape = {Model(joint).shape[0], Stream(stream) ? Stream(stream)->shape[1] : 0, Model(joint).shape[2], 1};
    return slot;
  }

  NormRopeConcatArgs args_;
};

// ---- all calls

// A call with its results: read, shaped, checked and planned; not yet allocated.
template <class Call>
class Prepared {
 public:
  Prepared(nb::dict values, ArrayForm form)
      : keywords_(Call::kOperation, std::move(values), form), call_(keywords_), results_(Call::kNames.size()) {
    for (std::size_t i = 0; i < results_.size(); ++i) results_[i].name = Call::kNames[i];
    const bool asked = ParseAsked();
    slots_ = call_.Slots(keywords_, results_);
    if (!asked) {
      for (std::size_t i = 0; i < results_.size(); ++i) results_[i].wanted = slots_[i].by_default;
    }
    for (std::size_t i = 0; i < results_.size(); ++i) ShapeOne(results_[i], slots_[i]);
    RaiseUnlessOk(call_.Create(&plan_));
  }

  std::string Describe() const { return plan_.Describe(); }

  // The options as numbers, and the shape of each result, None where there is none.
  nb::object Trace() {
    nb::dict numbers;
    call_.AddNumbers(&numbers);
    numbers["bsnd"] = static_cast<int>(keywords_.bsnd());
    nb::list shapes;
    for (const Result& result : results_) {
      const std::span<const Index> shape = result.array.shape_span();
      if (result.wanted) {
        shapes.append(nb::cast(std::vector<Index>(shape.begin(), shape.end())));
      } else {
        shapes.append(nb::none());
      }
    }
    return nb::make_tuple(numbers, shapes);
  }

  nb::object Compute() {
    if (std::ranges::any_of(results_, &Result::wanted)) {
      for (std::size_t i = 0; i < results_.size(); ++i) AllocateOne(results_[i], slots_[i]);
      RaiseUnlessOk(call_.Run(plan_));
    }
    return Finish();
  }

 private:
  // False where neither out= nor outputs= says what is wanted.
  bool ParseAsked() {
    const nb::handle outputs = keywords_["outputs"], out = keywords_["out"];
    if (!out.is_none()) ParseOutDict(Call::kOperation, out, results_);
    if (!outputs.is_none()) ParseOutputs(Call::kOperation, outputs, results_);
    return !outputs.is_none() || !out.is_none();
  }

  void ShapeOne(Result& result, const Slot& slot) {
    if (!result.wanted && !slot.needed) return;
    if (result.given.empty()) ShapeResult({Call::kOperation, result.name}, slot.shape, slot.dtype, &result.array);
    SetView(result, slot);
  }

  void AllocateOne(Result& result, const Slot& slot) {
    if ((!result.wanted && !slot.needed) || !result.given.empty()) return;
    AllocateResult({Call::kOperation, result.name}, *keywords_.first(), &result.array);
    SetView(result, slot);
  }

  void SetView(const Result& result, const Slot& slot) {
    const Array& array = result.array;
    const ConstTensorView view =
        slot.in_layout ? keywords_.InOrder(array, WordFor(result, slot.word.c_str())) : array.input();
    *slot.view = TensorView{array.data, view.dtype, view.shape, view.strides};
  }

  void RaiseUnlessOk(const Status& status) const {
    if (status.ok()) return;
    Words words;
    words.Add("segments[0].rotation.first", "rope_start");
    for (const char* prefix : {"segments[0].rotation.options.", "segments[0].rotation.", "segments[0]."}) {
      words.Add(prefix, "");
    }
    std::vector<std::string> in_layout = {"dy", "grad_query_output", "grad_key_output", "grad_value_output"};
    for (const Slot& slot : slots_) {
      if (slot.in_layout) in_layout.push_back(slot.library_name);
    }
    keywords_.AddHintWords(in_layout, &words);
    for (std::size_t i = 0; i < results_.size(); ++i) {
      words.Add(slots_[i].library_name, WordFor(results_[i], slots_[i].word.c_str()));
    }
    call_.AddWords(keywords_, &words);
    keywords_.AddShapeWords(&words);
    python::RaiseUnlessOk(status, words.Say(status.message()));
  }

  nb::object Finish() {
    const nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(results_.size())));
    if (!tuple) throw nb::python_error();
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const Result& result = results_[i];
      if (!result.given.empty()) MarkWritten(result.array);
      nb::object item = result.wanted ? FinishResult(*keywords_.first(), result.array) : nb::none();
      PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), item.release().ptr());
    }
    return tuple;
  }

  Keywords keywords_;
  Call call_;
  std::vector<Result> results_;
  std::vector<Slot> slots_;
  typename Call::Plan plan_;
};

template <class Call>
nb::object Compute(nb::dict keywords) {
  return Prepared<Call>(std::move(keywords), ArrayForm::kArray).Compute();
}

template <class Call>
void DefineCall(nb::module_& module) {
  module.def(Call::kOperation, &Compute<Call>, "keywords"_a,
             "The call on a dict of all its keywords; a tuple of its results, in order.");
}

template <class Call>
nb::object Trace(nb::dict keywords) {
  return Prepared<Call>(std::move(keywords), ArrayForm::kShape).Trace();
}

template <class Call>
void DefineTrace(nb::module_& module) {
  const std::string name = std::string("trace_") + Call::kOperation;
  module.def(
      name.c_str(), &Trace<Call>, "keywords"_a,
      "The options as numbers, and the shape of each result, None where there is none; (shape, type) in place of\n"
      "each array. Raises what the call would.");
}

std::string DescribeConcatBackward(nb::dict keywords) {
  return Prepared<ConcatBackward>(std::move(keywords), ArrayForm::kShape).Describe();
}

}  // namespace

void DefineNormRope(nb::module_& module) {
  DefineCall<ForwardSegment>(module);
  DefineCall<BackwardSegment>(module);
  DefineCall<ConcatForward>(module);
  DefineCall<ConcatBackward>(module);
  DefineTrace<ForwardSegment>(module);
  DefineTrace<ConcatForward>(module);
  module.def("describe_norm_rope_concat_backward", &DescribeConcatBackward, "keywords"_a,
             "The plan that the call would run for contiguous arrays, in words; (shape, type) in place of each array.\n"
             "Raises what the call would.");
}

}  // namespace gyrograd::python
