// gyrograd._core: the operators for Python. It converts arguments and results and computes nothing itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "calls.h"
#include "cann/message.h"
#include "explain.h"
#include "gyrograd/gyrograd.h"
#include "norm_rope_module.h"
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
  if (!outputs.is_none() && !out.is_none()) return RequireAgreement(kBackward, outputs, *results);
  if (!outputs.is_none()) return ParseOutputs(kBackward, outputs, *results);
  if (!out.is_none()) return;
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
  ReadInput({kBackward, "dy"}, dy_object, &dy);
  ReadInput({kBackward, "cos"}, cos_object, &cos);
  ReadInput({kBackward, "sin"}, sin_object, &sin);
  const bool has_x = !x_object.is_none();
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
    if (result.wanted && result.given.empty()) AllocateResult({kBackward, kResults[i]}, dy, &result.array);
  }
  refusals.RaiseUnlessOk(RunPlan(kBackward, plan,
                                 RotaryBackwardPointers{.dy = dy.data,
                                                        .cos = cos.data,
                                                        .sin = sin.data,
                                                        .x = has_x ? x.data : nullptr,
                                                        .dx = results[0].array.data,
                                                        .dcos = results[1].array.data,
                                                        .dsin = results[2].array.data}));
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
  refusals.RaiseUnlessOk(
      RunPlan(kForward, plan, RotaryPointers{.x = x.data, .cos = cos.data, .sin = sin.data, .y = y.data}));
  if (given) MarkWritten(y);
  return FinishResult(x, y);
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

constexpr const char* kBackwardDoc = R"(Gradients of rotary position embedding.

Args:
  dy: gradient of the rotated tensor, any rank >= 1, channels last.
  cos, sin: the tables; dy's rank, each extent dy's or 1, the last one R (R/2 with per_pair_tables).
  x: the tensor that was rotated, shaped as dy. Needed for dcos and dsin.
  mode: "half" (0), "interleave" (1), "quarter" (2) or "interleave-half" (3): which channels pair.
  per_pair_tables: one table value for both members of a pair; the tables then have width R/2.
  rotary_dim: R, the number of channels that turn (default: all); the others pass. Even; "quarter": a multiple of 4.
  rotary_offset: the first channel that turns.
  outputs: names of the results wanted, out of "dx", "dcos", "dsin". Default: all that the arguments define.
  out: where to write: dx, or (dx, dcos, dsin) with None where not wanted. dx may be dy or x, dcos cos, dsin sin.
  threads: at most so many (default: OpenMP's number). Does not change a bit of the result.
  cpu_target: "best", "avx512", "avx2", "neon" or "portable". Does not change a bit of the result.

Types: dy and x of one type: float64, float32, float16 or bfloat16 (ml_dtypes.bfloat16 in NumPy); the tables of the
same type, or float32 beside float16 and bfloat16. Arrays: NumPy, or anything on the CPU that offers DLPack (PyTorch,
JAX). Any strides; no input is copied or changed. Masked arrays and other subclasses of numpy.ndarray are refused, but
for numpy.memmap.

Returns:
  Without x, dx. With x, (dx, dcos, dsin), None where not wanted. dx has dy's shape and type; dcos and dsin have the
  tables', summed over every axis where the tables have extent 1. The arrays are of dy's library.
  dx equals the formula in float32 (float64 for float64) bit for bit, rounded once at the end. dcos and dsin are within
  1e-6 (float64: 1e-14) times the sum of the terms' magnitudes of the exact sum, then rounded once.

Raises:
  TypeError: an array or its type is not among those above, or types do not go together.
  ValueError: a shape, option or array is refused; an input requires grad while PyTorch records gradients.
  MemoryError: memory for a result or for the workspace was refused.
  Nothing is written where an argument is refused.)";

constexpr const char* kBackwardSignature =
    "def rotary_backward(dy, cos, sin, x=None, *, mode='half', per_pair_tables=False, rotary_dim=None, "
    "rotary_offset=0, outputs=None, out=None, threads=None, cpu_target=None)";
constexpr const char* kForwardSignature =
    "def rotary(x, cos, sin, *, mode='half', per_pair_tables=False, rotary_dim=None, rotary_offset=0, out=None, "
    "threads=None, cpu_target=None)";

constexpr const char* kForwardDoc = R"(Rotary position embedding.

Args:
  x: the tensor to rotate, any rank >= 1, channels last.
  cos, sin: the tables; x's rank, each extent x's or 1, the last one R (R/2 with per_pair_tables).
  out: where to write y; may be x.
  mode, per_pair_tables, rotary_dim, rotary_offset, threads, cpu_target: as in rotary_backward.

Returns:
  y, with x's shape and type, of x's library. It equals the formula in float32 (float64 for float64) bit for bit,
  rounded once at the end.

Raises:
  TypeError, ValueError, MemoryError: as rotary_backward.)";

void Define(nb::module_& module) {
  InitArrays();
  InitResults(module);
  DefineNormRope(module);
  DefineExplain(module);
  module.def("rotary_backward", &RotaryBackwardCall, "dy"_a.none(), "cos"_a.none(), "sin"_a.none(), "x"_a = nb::none(),
             nb::kw_only(), "mode"_a.none() = "half", "per_pair_tables"_a.none() = false, "rotary_dim"_a = nb::none(),
             "rotary_offset"_a.none() = 0, "outputs"_a = nb::none(), "out"_a = nb::none(), "threads"_a = nb::none(),
             "cpu_target"_a = nb::none(), nb::sig(kBackwardSignature), kBackwardDoc);
  module.def("rotary", &RotaryCall, "x"_a.none(), "cos"_a.none(), "sin"_a.none(), nb::kw_only(),
             "mode"_a.none() = "half", "per_pair_tables"_a.none() = false, "rotary_dim"_a = nb::none(),
             "rotary_offset"_a.none() = 0, "out"_a = nb::none(), "threads"_a = nb::none(), "cpu_target"_a = nb::none(),
             nb::sig(kForwardSignature), kForwardDoc);
  module.def("describe_rotary_backward", &DescribeRotaryBackward, "dy_shape"_a, "cos_shape"_a, "dtype"_a,
             "table_dtype"_a, nb::kw_only(), "with_x"_a = true, "outputs"_a = nb::none(), "mode"_a.none() = "half",
             "per_pair_tables"_a.none() = false, "rotary_dim"_a = nb::none(), "rotary_offset"_a.none() = 0,
             "threads"_a = nb::none(), "cpu_target"_a = nb::none(),
             "The plan that rotary_backward would run for contiguous arrays, in words. Raises what the call would.");
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
