// gyrograd._core: the operators for Python. It converts arguments and results and computes nothing itself. The
// functions with signatures and documentation are in gyrograd/_rotary.py and _norm_rope.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "calls.h"
#include "cann/message.h"
#include "core/guard.h"
#include "explain.h"
#include "gyrograd/gyrograd.h"
#include "jax_module.h"
#include "norm_rope_module.h"
#include "ops/rotary/run.h"
#include "ops/rotary/validate.h"
#include "options.h"

namespace gyrograd::python {
namespace {

using namespace nb::literals;

constexpr const char* kBackward = "rotary_backward";
constexpr const char* kForward = "rotary";
constexpr std::array<const char*, 3> kResults = {"dx", "dcos", "dsin"};
// What messages call an array of out=.
constexpr const char* kOut = "out";
constexpr const char* kOutAlone = "out (dx)";
constexpr std::array<const char*, 3> kOutItems = {"out[0] (dx)", "out[1] (dcos)", "out[2] (dsin)"};

using Results = std::array<Result, 3>;

void TakeGiven(const char* name, nb::handle object, Result* result) {
  if (object.is_none()) return;
  result->wanted = true;
  result->given = name;
  ReadOutput({kBackward, name}, object, &result->array);
}

// out=: dx, or a tuple in the order of the results.
void ParseOut(nb::handle out, bool has_x, Results* results) {
  if (!PyTuple_Check(out.ptr()) && !PyList_Check(out.ptr())) return TakeGiven(kOutAlone, out, &(*results)[0]);
  const nb::sequence items = nb::borrow<nb::sequence>(out);
  const std::size_t count = nb::len(items);
  if (count != 3 && !(count == 1 && !has_x)) {
    RaiseMessage(
        PyExc_ValueError, kBackward,
        "out has " + std::to_string(count) + " items; it must be dx or (dx, dcos, dsin), None where not wanted");
  }
  for (std::size_t i = 0; i < count; ++i) TakeGiven(kOutItems[i], items[i], &(*results)[i]);
}

void ParseWanted(nb::handle outputs, nb::handle out, bool has_x, Results* results) {
  for (std::size_t i = 0; i < kResults.size(); ++i) (*results)[i].name = kResults[i];
  if (!out.is_none()) ParseOut(out, has_x, results);
  if (!outputs.is_none()) ParseOutputs(kBackward, outputs, *results);
  if (!outputs.is_none() || !out.is_none()) return;
  for (std::size_t i = 0; i < kResults.size(); ++i) (*results)[i].wanted = i == 0 || has_x;
}

// How Python writes a table with the axes that it lacks: "cos[None, :, None, :]".
std::string Indexed(const std::vector<bool>& own) {
  std::string text;
  for (const bool is_own : own) text += (text.empty() ? "cos[" : ", ") + std::string(is_own ? ":" : "None");
  return text + "]";
}

// What a call of Python knows beyond the library: the names of arrays in out=, and how to write a hint.
struct Refusals {
  const Array& in;
  const Array& cos;
  std::vector<cann::Rename> names;

  void RaiseUnlessOk(const Status& status) const {
    if (status.ok()) return;
    std::string message = cann::Renamed(status.message(), names);
    const std::size_t hint = message.find(internal::kHint);
    if (hint != message.npos && cos.rank < in.rank) {  // the hint of ranks, which come before widths
      const auto placements = internal::TablePlacements(in.shape_span(), cos.shape_span());
      message.erase(hint + internal::kHint.size());
      message += "add axes" + internal::SuchAs(placements, Indexed);
    }
    python::RaiseUnlessOk(status, message);
  }
};

nb::object ResultTuple(const Array& like, const Results& results) {
  nb::object items[3];
  for (std::size_t i = 0; i < results.size(); ++i) {
    items[i] = results[i].wanted ? FinishResult(like, results[i].array) : nb::none();
  }
  return nb::make_tuple(items[0], items[1], items[2]);
}

nb::object RotaryBackwardCall(nb::handle dy_object, nb::handle cos_object, nb::handle sin_object, nb::handle x_object,
                              nb::handle mode, nb::handle per_pair_tables, nb::handle rotary_dim,
                              nb::handle rotary_offset, nb::handle outputs, nb::handle out, nb::handle threads,
                              nb::handle cpu_target) {
  Array dy, cos, sin, x;
  const bool has_x = !x_object.is_none();
  ReadInput({kBackward, "dy"}, dy_object, &dy);
  ReadInput({kBackward, "cos"}, cos_object, &cos);
  ReadInput({kBackward, "sin"}, sin_object, &sin);
  if (has_x) ReadInput({kBackward, "x"}, x_object, &x);
  Results results;
  ParseWanted(outputs, out, has_x, &results);

  RotaryBackwardArgs args;
  args.dy = dy.input();
  args.cos = cos.input();
  args.sin = sin.input();
  if (has_x) args.x = x.input();
  args.options = ParseRotaryOptions(kBackward, {mode, per_pair_tables, rotary_dim, rotary_offset});
  args.execution = ParseExecution(kBackward, threads, cpu_target);
  std::optional<TensorView>* const views[] = {&args.dx, &args.dcos, &args.dsin};
  Refusals refusals{dy, cos, {}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Array& like = i == 0 ? dy : cos;
    Result& result = results[i];
    if (!result.wanted) continue;
    if (!result.given.empty()) {
      refusals.names.push_back({kResults[i], result.given});
    } else {
      ShapeResult({kBackward, kResults[i]}, like.shape_span(), like.dtype, &result.array);
    }
    *views[i] = result.array.output();
  }
  RotaryBackwardPlan plan;
  refusals.RaiseUnlessOk(RotaryBackwardPlan::Create(args, &plan));
  for (std::size_t i = 0; i < results.size(); ++i) {
    Result& result = results[i];
    const Array& like = i > 0 && cos.kind == dy.kind ? cos : dy;
    if (result.wanted && result.given.empty()) AllocateResult({kBackward, kResults[i]}, like, &result.array);
  }
  refusals.RaiseUnlessOk(RunPlan(kBackward, plan,
                                 RotaryBackwardPointers{.dy = dy.data,
                                                        .cos = cos.data,
                                                        .sin = sin.data,
                                                        .x = has_x ? x.data : nullptr,
                                                        .dx = results[0].array.data,
                                                        .dcos = results[1].array.data,
                                                        .dsin = results[2].array.data},
                                 IsShort(Bytes(dy))));
  for (const Result& result : results) {
    if (!result.given.empty()) MarkWritten(result.array);
  }
  if (has_x) return ResultTuple(dy, results);
  return results[0].wanted ? FinishResult(dy, results[0].array) : nb::none();
}

nb::object RotaryCall(nb::handle x_object, nb::handle cos_object, nb::handle sin_object, nb::handle mode,
                      nb::handle per_pair_tables, nb::handle rotary_dim, nb::handle rotary_offset, nb::handle out,
                      nb::handle threads, nb::handle cpu_target) {
  Array x, cos, sin, y;
  ReadInput({kForward, "x"}, x_object, &x);
  ReadInput({kForward, "cos"}, cos_object, &cos);
  ReadInput({kForward, "sin"}, sin_object, &sin);
  const bool given = !out.is_none();
  if (given) {
    ReadOutput({kForward, kOut}, out, &y);
  } else {
    ShapeResult({kForward, "y"}, x.shape_span(), x.dtype, &y);
  }
  RotaryArgs args{.x = x.input(), .cos = cos.input(), .sin = sin.input(), .y = y.output()};
  args.options = ParseRotaryOptions(kForward, {mode, per_pair_tables, rotary_dim, rotary_offset});
  args.execution = ParseExecution(kForward, threads, cpu_target);
  Refusals refusals{x, cos, {}};
  if (given) refusals.names.push_back({"y", kOut});
  RotaryPlan plan;
  refusals.RaiseUnlessOk(RotaryPlan::Create(args, &plan));
  if (!given) AllocateResult({kForward, "y"}, x, &y);
  refusals.RaiseUnlessOk(RunPlan(
      kForward, plan, RotaryPointers{.x = x.data, .cos = cos.data, .sin = sin.data, .y = y.data}, IsShort(Bytes(x))));
  if (given) MarkWritten(y);
  return FinishResult(x, y);
}

RotaryArgs ForwardArgs(const Array& in, const Array& cos, const Array& sin, const Array& out) {
  return {.x = in.input(), .cos = cos.input(), .sin = sin.input(), .y = out.output()};
}

RotaryBackwardArgs BackwardArgs(const Array& in, const Array& cos, const Array& sin, const Array& out) {
  return {.dy = in.input(), .cos = cos.input(), .sin = sin.input(), .dx = out.output()};
}

// Rows of PyTorch's that turn by the same tables.
template <std::size_t count>
struct PlainTensors {
  std::array<Array, count> in;
  Array cos, sin;
  std::array<Array, count> out;
  RotaryOptions options;
  Execution execution;
};

// False where one is no plain tensor, or cannot be read, or an option is refused.
template <std::size_t count>
bool ReadPlain(const std::array<nb::handle, count>& rows, nb::handle cos, nb::handle sin, const nb::tuple& options,
               nb::handle threads, PlainTensors<count>* tensors) {
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (!ReadPlainTensor({kForward, "x"}, rows[i], &tensors->in[i])) return false;
    }
    if (!ReadPlainTensor({kForward, "cos"}, cos, &tensors->cos)) return false;
    if (!ReadPlainTensor({kForward, "sin"}, sin, &tensors->sin)) return false;
    tensors->options = ParseRotaryOptions(kForward, {options[0], options[1], options[2], options[3]});
    tensors->execution = ParseExecution(kForward, threads, nb::none());
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError)) throw;
    return false;
  }
  return true;
}

// y or dx of each. False, and no error, where the registered operator is to say what is wrong.
template <class Args, std::size_t count>
bool TurnPlain(Args (*args_of)(const Array&, const Array&, const Array&, const Array&), PlainTensors<count>* tensors) {
  std::array<internal::RotaryCall, count> calls;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Array& in = tensors->in[i];
    Array& out = tensors->out[i];
    ShapeResult({kForward, "y"}, in.shape_span(), in.dtype, &out);
    Args args = args_of(in, tensors->cos, tensors->sin, out);
    args.options = tensors->options;
    args.execution = tensors->execution;
    calls[i] = internal::RotaryCall::From(args);
    if (!internal::ValidateViews(calls[i]).ok()) return false;
    bytes += Bytes(in);
  }
  for (std::size_t i = 0; i < count; ++i) {
    AllocateResult({kForward, "y"}, tensors->in[i], &tensors->out[i]);
    calls[i].views[internal::kOut].data = tensors->out[i].data;
    const auto data = internal::AddressesOf(calls[i]);
    if (!internal::ValidateNull(calls[i], data).ok() || !internal::ValidateMemory(calls[i], data).ok()) return false;
  }
  std::optional<nb::gil_scoped_release> unlocked;
  if (!IsShort(bytes)) unlocked.emplace();
  const auto run = [&calls] {
    internal::RunOnce(calls);
    return Status();
  };
  return internal::Guard(run).ok();
}

// The calls of gyrograd.torch, whose own autograd follows the tensors: they are read as they are. Called for each small
// step of a model: arguments without names and defaults are parsed fastest.
template <auto args_of>
nb::object TurnOne(nb::handle rows, nb::handle cos, nb::handle sin, const nb::tuple& options, nb::handle threads) {
  PlainTensors<1> tensors;
  if (!ReadPlain<1>({rows}, cos, sin, options, threads, &tensors) || !TurnPlain(args_of, &tensors)) {
    return nb::borrow(Py_NotImplemented);
  }
  return std::move(tensors.out[0].object);
}

template <auto args_of>
nb::object TurnPair(nb::handle q, nb::handle k, nb::handle cos, nb::handle sin, const nb::tuple& options,
                    nb::handle threads) {
  PlainTensors<2> tensors;
  if (!ReadPlain<2>({q, k}, cos, sin, options, threads, &tensors) || !TurnPlain(args_of, &tensors)) {
    return nb::borrow(Py_NotImplemented);
  }
  return nb::make_tuple(tensors.out[0].object, tensors.out[1].object);
}

// What a tracer asks for: the call's refusals, and the options as numbers.
nb::object TraceRotary(nb::handle x_shape, nb::handle cos_shape, nb::handle sin_shape, nb::handle mode,
                       nb::handle per_pair_tables, nb::handle rotary_dim, nb::handle rotary_offset) {
  Array x, cos, sin;
  ReadShape({kForward, "x"}, x_shape, &x);
  ReadShape({kForward, "cos"}, cos_shape, &cos);
  ReadShape({kForward, "sin"}, sin_shape, &sin);
  RotaryArgs args{.x = x.input(), .cos = cos.input(), .sin = sin.input(), .y = x.output()};
  args.options = ParseRotaryOptions(kForward, {mode, per_pair_tables, rotary_dim, rotary_offset});
  RotaryPlan plan;
  Refusals{x, cos, {}}.RaiseUnlessOk(RotaryPlan::Create(args, &plan));
  nb::dict numbers;
  AddRotaryNumbers(args.options, &numbers);
  return numbers;
}

// The plan for contiguous tensors of these shapes, in words; the errors are those of the call.
std::string DescribeRotaryBackward(const std::vector<std::int64_t>& dy_shape,
                                   const std::vector<std::int64_t>& cos_shape, const std::string& dtype,
                                   const std::string& table_dtype, bool with_x, nb::handle outputs, nb::handle mode,
                                   nb::handle per_pair_tables, nb::handle rotary_dim, nb::handle rotary_offset,
                                   nb::handle threads, nb::handle cpu_target) {
  Array dy, table;
  if (dy_shape.size() > kMaxRank || cos_shape.size() > kMaxRank) {
    RaiseMessage(PyExc_ValueError, kBackward, "rank above 64");
  }
  ShapeResult({kBackward, "dy"}, dy_shape, DTypeNamed({kBackward, "dtype"}, dtype), &dy);
  ShapeResult({kBackward, "cos"}, cos_shape, DTypeNamed({kBackward, "table_dtype"}, table_dtype), &table);
  Results results;
  ParseWanted(outputs, nb::none(), with_x, &results);
  RotaryBackwardArgs args;
  args.dy = dy.input();
  args.cos = args.sin = table.input();
  if (with_x) args.x = dy.input();
  if (results[0].wanted) args.dx = dy.output();
  if (results[1].wanted) args.dcos = table.output();
  if (results[2].wanted) args.dsin = table.output();
  args.options = ParseRotaryOptions(kBackward, {mode, per_pair_tables, rotary_dim, rotary_offset});
  args.execution = ParseExecution(kBackward, threads, cpu_target);
  RotaryBackwardPlan plan;
  RaiseUnlessOk(RotaryBackwardPlan::Create(args, &plan));
  return plan.Describe();
}

constexpr const char* kCallDoc = "The call of the same name in gyrograd/_rotary.py, which has its documentation.";
constexpr const char* kPlainDoc =
    "y of (x, cos, sin, options, threads), or dx of (dy, ...), of PyTorch's tensors, whether autograd follows them or\n"
    "not; NotImplemented where one is no plain tensor, or the call is refused. options: mode, per_pair_tables,\n"
    "rotary_dim, rotary_offset.";
constexpr const char* kPlainPairDoc =
    "The same of (q, k, ...) or (dq, dk, ...), side by side: both, or NotImplemented.";

void Define(nb::module_& module) {
  InitArrays();
  InitResults(module);
  DefineNormRope(module);
  DefineExplain(module);
  DefineJax(module);
  module.def("rotary_backward", &RotaryBackwardCall, "dy"_a.none(), "cos"_a.none(), "sin"_a.none(), "x"_a.none(),
             "mode"_a.none(), "per_pair_tables"_a.none(), "rotary_dim"_a.none(), "rotary_offset"_a.none(),
             "outputs"_a.none(), "out"_a.none(), "threads"_a.none(), "cpu_target"_a.none(), kCallDoc);
  module.def("rotary", &RotaryCall, "x"_a.none(), "cos"_a.none(), "sin"_a.none(), "mode"_a.none(),
             "per_pair_tables"_a.none(), "rotary_dim"_a.none(), "rotary_offset"_a.none(), "out"_a.none(),
             "threads"_a.none(), "cpu_target"_a.none(), kCallDoc);
  module.def("plain_rotary", &TurnOne<ForwardArgs>, kPlainDoc);
  module.def("plain_rotary_backward", &TurnOne<BackwardArgs>, kPlainDoc);
  module.def("plain_rotary_qk", &TurnPair<ForwardArgs>, kPlainPairDoc);
  module.def("plain_rotary_qk_backward", &TurnPair<BackwardArgs>, kPlainPairDoc);
  module.def("trace_rotary", &TraceRotary, "x"_a, "cos"_a, "sin"_a, "mode"_a.none(), "per_pair_tables"_a.none(),
             "rotary_dim"_a.none(), "rotary_offset"_a.none(),
             "The options as numbers, for a call on arrays of these (shape, type). Raises what the call would.");
  module.def("describe_rotary_backward", &DescribeRotaryBackward, "dy_shape"_a, "cos_shape"_a, "dtype"_a,
             "table_dtype"_a, nb::kw_only(), "with_x"_a = true, "outputs"_a = nb::none(), "mode"_a.none() = "half",
             "per_pair_tables"_a.none() = false, "rotary_dim"_a = nb::none(), "rotary_offset"_a.none() = 0,
             "threads"_a = nb::none(), "cpu_target"_a = nb::none(),
             "The plan that rotary_backward would run for contiguous arrays, in words. Raises what the call would.");
  module.def("are_plain_tensors", &ArePlainTensors, "objects"_a,
             "Whether all are PyTorch tensors that mean their memory on the CPU and no more, or None.");
  module.def("version", [] { return std::string(Version()); }, "The library's version.");
  module.def("default_threads", &DefaultNumThreads, "How many threads a call uses unless it says otherwise.");
  module.def(
      "cpu_targets",
      [] {
        std::vector<std::string> names;
        for (const CpuTarget target : AvailableCpuTargets()) names.emplace_back(Name(target));
        return names;
      },
      "The CPU targets that this build holds and this processor runs, best first.");
}

}  // namespace
}  // namespace gyrograd::python

NB_MODULE(_core, module) { gyrograd::python::Define(module); }
