// Parsing of outputs= and out=, and the rewording of messages.
#include "calls.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string_view>

namespace gyrograd::python {
namespace {

// The result of this name; TypeError or ValueError, in the words of `verb`, where there is none.
Result& FindResult(const char* operation, const char* verb, nb::handle name, std::span<Result> results) {
  const bool is_text = PyUnicode_Check(name.ptr());
  for (Result& result : results) {
    if (is_text && TextOf(name) == result.name) return result;
  }
  RaiseMessage(is_text ? PyExc_ValueError : PyExc_TypeError, operation,
               std::string(verb) + " names " + Repr(name) + "; it may name " + NamesOf(results));
}

bool IsWordPart(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Whether text[at .. at + size) begins and ends where words do.
bool IsWhole(std::string_view text, std::size_t at, std::size_t size) {
  const std::size_t end = at + size;
  const bool starts = at == 0 || !IsWordPart(text[at]) || !IsWordPart(text[at - 1]);
  return starts && (end == text.size() || !IsWordPart(text[end - 1]) || !IsWordPart(text[end]));
}

}  // namespace

bool IsShort(std::size_t bytes) { return bytes <= std::size_t{1} << 16; }

void RaiseMessage(PyObject* type, const char* operation, const std::string& message) {
  PyErr_SetString(type, (std::string(operation) + ": " + message).c_str());
  throw nb::python_error();
}

std::string NamesOf(std::span<const Result> results) {
  std::string text;
  for (const Result& result : results) text += (text.empty() ? "'" : ", '") + std::string(result.name) + "'";
  return text;
}

void ParseOutputs(const char* operation, nb::handle outputs, std::span<Result> results) {
  const auto want = [&](nb::handle name) { FindResult(operation, "outputs", name, results).wanted = true; };
  if (PyUnicode_Check(outputs.ptr())) return want(outputs);
  const nb::object iterator = nb::steal(PyObject_GetIter(outputs.ptr()));
  if (!iterator) {
    PyErr_Clear();
    RaiseMessage(PyExc_TypeError, operation,
                 "outputs is " + Repr(outputs) + "; it must be a collection of " + NamesOf(results));
  }
  while (nb::object name = nb::steal(PyIter_Next(iterator.ptr()))) want(name);
  if (PyErr_Occurred()) throw nb::python_error();
}

void ParseOutDict(const char* operation, nb::handle out, std::span<Result> results) {
  if (!PyDict_Check(out.ptr())) {
    RaiseMessage(
        PyExc_TypeError, operation,
        std::string("out is a ") + Py_TYPE(out.ptr())->tp_name + "; it must be a dict from results' names to arrays");
  }
  for (const auto& [name, object] : nb::borrow<nb::dict>(out)) {
    Result& result = FindResult(operation, "out", name, results);
    if (object.is_none()) continue;
    result.wanted = true;
    result.given = std::string("out['") + result.name + "']";
    ReadOutput({operation, result.given.c_str()}, object, &result.array);
  }
}

std::string WordFor(const Result& result, const char* otherwise) {
  return result.given.empty() ? otherwise : result.given;
}

DType DTypeNamed(const Argument& argument, const std::string& text) {
  DType dtype = DType::kF32;
  if (!ParseDType(text, &dtype)) Raise(PyExc_TypeError, argument, "is '" + text + "'");
  return dtype;
}

void ReadShape(const Argument& argument, nb::handle object, Array* array) {
  const auto [shape, type] = nb::cast<std::pair<nb::object, nb::object>>(object);
  const auto extents = nb::cast<std::vector<std::int64_t>>(shape);
  const DType dtype = DTypeNamed(argument, nb::cast<std::string>(type));
  if (extents.size() > kMaxRank) Raise(PyExc_ValueError, argument, "has a rank above 64");
  ShapeResult(argument, extents, dtype, array);
}

std::string Words::Say(std::string message) const {
  for (const auto& [from, to] : phrases_) {
    for (std::size_t at = message.find(from); at != message.npos; at = message.find(from, at)) {
      const bool whole = IsWhole(message, at, from.size());
      if (whole) message.replace(at, from.size(), to);
      at += whole ? to.size() : 1;
    }
  }
  return message;
}

}  // namespace gyrograd::python
