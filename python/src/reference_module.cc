// gyrograd._reference: the witnesses of reference/ for Python, used by the command `gyrograd check` alone. NumPy arrays
// in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "options.h"
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

void Define(nb::module_& module) {
  InitArrays();
  module.def(
      "check_rotary_backward", &CheckRotaryBackward, "dy"_a, "cos"_a, "sin"_a, "x"_a, "dx"_a, "dcos"_a, "dsin"_a,
      nb::kw_only(), "mode"_a = "half", "per_pair_tables"_a = false, "rotary_dim"_a = nb::none(), "rotary_offset"_a = 0,
      "Compares results of rotary_backward with the witnesses. For dx, dcos and dsin a tuple each: whether all is\n"
      "well, how many elements are not, the worst error (dx: absolute; others: 1 is the bound), and where it is.\n"
      "The arrays must go together; nothing is checked.");
}

}  // namespace
}  // namespace gyrograd::python

NB_MODULE(_reference, module) { gyrograd::python::Define(module); }
