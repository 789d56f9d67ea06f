// Parsing of the keywords that the operators share.
#include "options.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace gyrograd::python {
namespace {

// Truth as NumPy, too, spells it, but no number, text or array that happens to be true.
bool IsBool(nb::handle object) {
  const std::string_view type = Py_TYPE(object.ptr())->tp_name;
  return PyBool_Check(object.ptr()) || type == "numpy.bool" || type == "numpy.bool_";
}

bool ParseBool(const Argument& argument, nb::handle object) {
  if (!IsBool(object)) Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be True or False");
  return PyObject_IsTrue(object.ptr()) == 1;
}

// Python's and NumPy's integers; nothing else has __index__, but for Python's True and False.
bool IsInteger(nb::handle object) { return PyIndex_Check(object.ptr()) && !IsBool(object); }

// One value of a keyword: its name, and the number that stands for it, too.
template <class Value>
struct Choice {
  Value value;
  const char* name;
  std::int64_t number = -1;  // none
};

// "'half' (0), 'interleave' (1) or 'quarter' (2)".
template <class Value>
std::string Listed(std::span<const Choice<Value>> choices) {
  std::string text;
  for (const Choice<Value>& choice : choices) {
    text += text.empty() ? "'" : &choice == &choices.back() ? " or '" : ", '";
    text += std::string(choice.name) + "'";
    if (choice.number >= 0) text += " (" + std::to_string(choice.number) + ")";
  }
  return text;
}

template <class Value>
Value ParseChoice(const Argument& argument, nb::handle object, std::span<const Choice<Value>> choices) {
  const bool is_text = PyUnicode_Check(object.ptr());
  const bool has_numbers = choices.front().number >= 0;
  if (is_text) {
    const auto found = std::ranges::find(choices, TextOf(object), &Choice<Value>::name);
    if (found != choices.end()) return found->value;
  } else if (has_numbers && IsInteger(object)) {
    const std::int64_t number = ParseInteger(argument, object);
    const auto found = std::ranges::find(choices, number, &Choice<Value>::number);
    if (number >= 0 && found != choices.end()) return found->value;
  }
  const bool right_type = is_text || (has_numbers && IsInteger(object));
  Raise(right_type ? PyExc_ValueError : PyExc_TypeError, argument,
        "is " + Repr(object) + "; it must be " + Listed(choices));
}

// The values under their names in the library; numbered as in CANN where `numbered`.
template <class Value, std::size_t count>
std::array<Choice<Value>, count> Choices(const std::array<Value, count>& values, bool numbered) {
  std::array<Choice<Value>, count> choices = {};
  for (std::size_t i = 0; i < count; ++i) {
    choices[i] = {values[i], Name(values[i]), numbered ? static_cast<std::int64_t>(values[i]) : -1};
  }
  return choices;
}

template <class Value, std::size_t count>
Value ParseValue(const Argument& argument, nb::handle object, const std::array<Value, count>& values,
                 bool numbered = true) {
  const auto choices = Choices(values, numbered);
  return ParseChoice(argument, object, std::span<const Choice<Value>>(choices));
}

constexpr std::array kNormTypes = {NormType::kNone, NormType::kLayer, NormType::kLayerAffine, NormType::kRms,
                                   NormType::kRmsAffine};
using RopeType = Choice<std::optional<RotaryMode>>;
constexpr std::array<RopeType, 5> kRopeTypes = {
    RopeType{std::nullopt, "none", 0}, RopeType{RotaryMode::kInterleave, "interleave", 1},
    RopeType{RotaryMode::kHalf, "half", 2}, RopeType{RotaryMode::kQuarter, "quarter"},
    RopeType{RotaryMode::kInterleaveHalf, "interleave-half"}};

}  // namespace

std::int64_t ParseInteger(const Argument& argument, nb::handle object) {
  if (!IsInteger(object)) Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be an integer");
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be an integer");
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) Raise(PyExc_ValueError, argument, "is " + Repr(object) + "; it must fit 64 bits");
  return value;
}

// Python's and NumPy's numbers; no text, and nothing with more than one value.
double ParseReal(const Argument& argument, nb::handle object) {
  const bool is_number = PyFloat_Check(object.ptr()) || IsInteger(object) ||
                         (!IsBool(object) && nb::hasattr(object, "ndim") && nb::hasattr(object, "__float__") &&
                          nb::cast<std::int64_t>(object.attr("ndim")) == 0);
  const double value = is_number ? PyFloat_AsDouble(object.ptr()) : -1;
  if (!is_number || PyErr_Occurred()) {
    PyErr_Clear();
    Raise(PyExc_TypeError, argument, "is " + Repr(object) + "; it must be a number");
  }
  return value;
}

RotaryMode ParseMode(const char* operation, nb::handle object) {
  constexpr std::array kModes = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};
  return ParseValue(Argument{operation, "mode"}, object, kModes);
}

RotaryOptions ParseRotaryOptions(const char* operation, const RotaryKeywords& keywords) {
  RotaryOptions options;
  if (keywords.mode.is_valid()) options.mode = ParseMode(operation, keywords.mode);
  options.per_pair_tables = ParseBool({operation, "per_pair_tables"}, keywords.per_pair_tables);
  if (!keywords.rotary_dim.is_none()) {
    options.rotary_dim = ParseInteger({operation, "rotary_dim"}, keywords.rotary_dim);
  }
  options.rotary_offset = ParseInteger({operation, "rotary_offset"}, keywords.rotary_offset);
  return options;
}

void AddRotaryNumbers(const RotaryOptions& options, nb::dict* numbers) {
  (*numbers)["mode"] = static_cast<int>(options.mode);
  (*numbers)["per_pair_tables"] = static_cast<int>(options.per_pair_tables);
  (*numbers)["rotary_dim"] = options.rotary_dim.value_or(-1);
  (*numbers)["rotary_offset"] = options.rotary_offset;
}

Execution ParseExecution(const char* operation, nb::handle threads, nb::handle cpu_target) {
  constexpr std::array kTargets = {CpuTarget::kBest, CpuTarget::kAvx512, CpuTarget::kAvx2, CpuTarget::kNeon,
                                   CpuTarget::kPortable};
  Execution execution;
  if (!threads.is_none()) {
    const Argument argument{operation, "threads"};
    const std::int64_t count = ParseInteger(argument, threads);
    if (count < 1 || count > std::numeric_limits<int>::max()) {
      Raise(PyExc_ValueError, argument, "is " + std::to_string(count) + "; it must be at least 1");
    }
    execution.num_threads = static_cast<int>(count);
  }
  if (!cpu_target.is_none()) {
    execution.cpu_target = ParseValue(Argument{operation, "cpu_target"}, cpu_target, kTargets, false);
  }
  return execution;
}

NormType ParseNormType(const Argument& argument, nb::handle type) { return ParseValue(argument, type, kNormTypes); }

std::string NormTypeNames() {
  const auto choices = Choices(kNormTypes, true);
  return Listed(std::span<const Choice<NormType>>(choices));
}

std::optional<RotaryMode> ParseRopeType(const Argument& argument, nb::handle type) {
  return ParseChoice(argument, type, std::span<const RopeType>(kRopeTypes));
}

std::string RopeTypeNames() { return Listed(std::span<const RopeType>(kRopeTypes)); }

ConcatOrder ParseConcatOrder(const Argument& argument, nb::handle order) {
  constexpr std::array kOrders = {ConcatOrder::kStreamFirst, ConcatOrder::kEncoderFirst};
  return ParseValue(argument, order, kOrders);
}

bool ParseLayoutIsBsnd(const Argument& argument, nb::handle layout) {
  constexpr std::array<Choice<bool>, 2> kLayouts = {Choice<bool>{false, "BNSD"}, Choice<bool>{true, "BSND"}};
  return ParseChoice(argument, layout, std::span<const Choice<bool>>(kLayouts));
}

}  // namespace gyrograd::python
