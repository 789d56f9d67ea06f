// Parsing of the keywords that the operators share.
#include "options.h"

#include <nanobind/stl/string.h>

#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "arrays.h"

namespace gyrograd::python {
namespace {

constexpr std::array<RotaryMode, 4> kModes = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                              RotaryMode::kInterleaveHalf};
constexpr std::array<CpuTarget, 5> kTargets = {CpuTarget::kBest, CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon,
                                               CpuTarget::kPortable};

std::string Repr(nb::handle object) { return nb::cast<std::string>(nb::repr(object)); }

// Python's and NumPy's integers; nothing else has __index__.
std::int64_t ParseInteger(const Argument& argument, nb::handle object) {
  if (!PyIndex_Check(object.ptr())) Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be an integer");
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) Raise(PyExc_ValueError, argument, "is " + Repr(object) + "; it must fit 64 bits");
  return value;
}

// Truth as NumPy, too, spells it, but no number, text or array that happens to be true.
bool ParseBool(const Argument& argument, nb::handle object) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  const std::string_view type = Py_TYPE(object.ptr())->tp_name;
  if (type == "numpy.bool" || type == "numpy.bool_") return nb::cast<bool>(object.attr("item")());
  Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be True or False");
}

CpuTarget ParseTarget(const Argument& argument, nb::handle object) {
  if (PyUnicode_Check(object.ptr())) {
    const char* text = PyUnicode_AsUTF8(object.ptr());
    if (text == nullptr) throw nb::python_error();
    for (const CpuTarget target : kTargets) {
      if (std::string_view(text) == Name(target)) return target;
    }
  }
  Raise(PyUnicode_Check(object.ptr()) ? PyExc_ValueError : PyExc_TypeError, argument,
        "is " + Repr(object) + "; it must be 'best', 'avx512', 'avx2', 'neon' or 'portable'");
}

}  // namespace

RotaryMode ParseMode(const char* operation, nb::handle object) {
  const Argument argument{operation, "mode"};
  if (!PyUnicode_Check(object.ptr())) {
    if (!PyIndex_Check(object.ptr())) {
      Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be a name or an integer");
    }
    const std::int64_t value = ParseInteger(argument, object);
    if (value >= 0 && value < static_cast<std::int64_t>(kModes.size())) return kModes[static_cast<std::size_t>(value)];
  } else {
    const char* text = PyUnicode_AsUTF8(object.ptr());
    if (text == nullptr) throw nb::python_error();
    for (const RotaryMode mode : kModes) {
      if (std::string_view(text) == Name(mode)) return mode;
    }
  }
  Raise(PyExc_ValueError, argument,
        "is " + Repr(object) + "; it must be 'half' (0), 'interleave' (1), 'quarter' (2) or 'interleave-half' (3)");
}

RotaryOptions ParseRotaryOptions(const char* operation, const RotaryKeywords& keywords) {
  RotaryOptions options;
  options.mode = ParseMode(operation, keywords.mode);
  options.per_pair_tables = ParseBool({operation, "per_pair_tables"}, keywords.per_pair_tables);
  if (!keywords.rotary_dim.is_none()) {
    options.rotary_dim = ParseInteger({operation, "rotary_dim"}, keywords.rotary_dim);
  }
  options.rotary_offset = ParseInteger({operation, "rotary_offset"}, keywords.rotary_offset);
  return options;
}

Execution ParseExecution(const char* operation, nb::handle threads, nb::handle cpu_target) {
  Execution execution;
  if (!threads.is_none()) {
    const Argument argument{operation, "threads"};
    const std::int64_t count = ParseInteger(argument, threads);
    if (count < 1 || count > std::numeric_limits<int>::max()) {
      Raise(PyExc_ValueError, argument, "is " + std::to_string(count) + "; it must be at least 1");
    }
    execution.num_threads = static_cast<int>(count);
  }
  if (!cpu_target.is_none()) execution.cpu_target = ParseTarget({operation, "cpu_target"}, cpu_target);
  return execution;
}

}  // namespace gyrograd::python
