// gyrograd._reference: the witnesses of reference/ for Python, used by the commands `gyrograd check` and `accuracy`
// alone. NumPy arrays in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "norm_rope_arguments.h"
#include "options.h"
#include "reference/norm_rope.h"
#include "reference/norm_rope_concat.h"
#include "reference/rotary.h"

namespace gyrograd::python {
namespace {

using namespace nb::literals;
using reference::Comparison;

constexpr const char* kOperation = "check_rotary_backward";

nb::object Verdict(const Comparison& comparison) {
  return nb::make_tuple(comparison.ok, comparison.mismatches, comparison.worst, comparison.message);
}

// dx's bits against the formula.
Comparison CheckInput(RotaryBackwardArgs args, const Array& dx) {
  std::vector<std::uint64_t> memory;  // aligned for every type
  std::size_t count = 1;
  for (const std::int64_t extent : dx.shape_span()) count *= static_cast<std::size_t>(extent);
  memory.resize(count * SizeOf(dx.dtype) / sizeof(std::uint64_t) + 1);
  Array want;
  ShapeResult({kOperation, "dx"}, dx.shape_span(), dx.dtype, &want);
  want.data = memory.data();
  args.dx = want.output();
  nb::gil_scoped_release unlocked;
  reference::RotaryBackwardInput(args);
  return reference::CompareBits(dx.input(), want.input());
}

nb::object CheckRotaryBackward(nb::handle dy_object, nb::handle cos_object, nb::handle sin_object, nb::handle x_object,
                               nb::handle dx_object, nb::handle dcos_object, nb::handle dsin_object, nb::handle mode,
                               nb::handle per_pair_tables, nb::handle rotary_dim, nb::handle rotary_offset) {
  std::array<Array, 7> arrays;
  constexpr std::array<const char*, 7> kNames = {"dy", "cos", "sin", "x", "dx", "dcos", "dsin"};
  const std::array<nb::handle, 7> objects = {dy_object, cos_object,  sin_object, x_object,
                                             dx_object, dcos_object, dsin_object};
  for (std::size_t i = 0; i < arrays.size(); ++i) ReadInput({kOperation, kNames[i]}, objects[i], &arrays[i]);
  const auto& [dy, cos, sin, x, dx, dcos, dsin] = arrays;
  RotaryBackwardArgs args;
  args.dy = dy.input();
  args.cos = cos.input();
  args.sin = sin.input();
  args.x = x.input();
  args.options = ParseRotaryOptions(kOperation, {mode, per_pair_tables, rotary_dim, rotary_offset});
  const Comparison dx_verdict = CheckInput(args, dx);
  Comparison dcos_verdict;
  Comparison dsin_verdict;
  {
    nb::gil_scoped_release unlocked;
    const reference::TableGradients want = reference::RotaryBackwardTables(args);
    dcos_verdict = reference::CompareSums(dcos.input(), want.dcos, dy.dtype);
    dsin_verdict = reference::CompareSums(dsin.input(), want.dsin, dy.dtype);
  }
  return nb::make_tuple(Verdict(dx_verdict), Verdict(dcos_verdict), Verdict(dsin_verdict));
}

// ---- the joint call

constexpr const char* kConcat = "check_norm_rope_concat_backward";

// A result's name and what it comes to.
using NamedComparison = std::pair<std::string, Comparison>;

// "norm_query" for "query", "norm_added_query" for "encoder_query".
std::string NormOf(std::string_view stream) {
  constexpr std::string_view kEncoder = "encoder_";
  if (!stream.starts_with(kEncoder)) return "norm_" + std::string(stream);
  return "norm_added_" + std::string(stream.substr(kEncoder.size()));
}

void CompareStream(const reference::StreamSegment<NormRopeBackwardSegment>& stream, std::vector<NamedComparison>* all) {
  const NormRopeBackwardSegment& segment = stream.segment;
  const reference::NormRopeGradients want = reference::NormRopeBackward(segment);
  const auto compare = [&](const std::string& name, const std::optional<TensorView>& got,
                           const reference::BoundedValues& values) {
    if (!got) return;
    all->emplace_back(name, reference::CompareBounded({got->data, got->dtype, got->shape, got->strides}, values));
  };
  compare(stream.name, segment.dx, want.dx);
  compare(NormOf(stream.name) + "_weight", segment.dweight, want.dweight);
  compare(NormOf(stream.name) + "_bias", segment.dbias, want.dbias);
}

nb::dict CheckConcatBackward(nb::dict values, nb::dict results) {
  Keywords keywords(kConcat, std::move(values));
  NormRopeConcatBackwardArgs args = ReadNormRopeConcatBackward(keywords);
  std::deque<Array> arrays;
  const auto outputs = GradientsOf(args);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const nb::object result = results[kConcatGradients[i]];
    if (result.is_none()) continue;
    ReadInput({kConcat, kConcatGradients[i]}, result, &arrays.emplace_back());
    *outputs[i] = arrays.back().output();
  }
  std::vector<NamedComparison> all;
  {
    nb::gil_scoped_release unlocked;
    const auto segments = reference::SegmentsOf(args);
    for (const auto& stream : segments.streams) CompareStream(stream, &all);
  }
  nb::dict verdicts;
  for (const auto& [name, comparison] : all) verdicts[name.c_str()] = Verdict(comparison);
  return verdicts;
}

void Define(nb::module_& module) {
  InitArrays();
  module.def(
      "check_rotary_backward", &CheckRotaryBackward, "dy"_a, "cos"_a, "sin"_a, "x"_a, "dx"_a, "dcos"_a, "dsin"_a,
      nb::kw_only(), "mode"_a = "half", "per_pair_tables"_a = false, "rotary_dim"_a = nb::none(), "rotary_offset"_a = 0,
      "Compares results of rotary_backward with the witnesses. For dx, dcos and dsin a tuple each: whether all is\n"
      "well, how many elements are not, the worst error (dx: in units in the last place; others: 1 is the bound),\n"
      "and where it is.\n"
      "The arrays must go together; nothing is checked.");
  module.def(
      "check_norm_rope_concat_backward", &CheckConcatBackward, "keywords"_a, "results"_a,
      "The same of norm_rope_concat_backward: a dict of all its keywords, and one of all its results, None where\n"
      "not wanted. A dict of tuples; without a norm a gradient's bits count and errors are in units in the last\n"
      "place, else 1 is the bound.");
}

}  // namespace
}  // namespace gyrograd::python

NB_MODULE(_reference, module) { gyrograd::python::Define(module); }
