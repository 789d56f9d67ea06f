// What the calls of all operators share: which results are wanted, where they go, running a plan, and the library's
// messages in the words of Python.
#ifndef GYROGRAD_PYTHON_CALLS_H_
#define GYROGRAD_PYTHON_CALLS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "gyrograd/status.h"

namespace gyrograd::python {

// One result: whether it is wanted, and where it goes.
struct Result {
  const char* name = "";
  bool wanted = false;
  std::string given = {};  // in out=: what messages call it; empty: a new array
  Array array = {};
};

// Raises `type` with "operation: message".
[[noreturn]] void RaiseMessage(PyObject* type, const char* operation, const std::string& message);

// "'dx', 'dcos', 'dsin'".
std::string NamesOf(std::span<const Result> results);

// outputs=, a collection of names or one name: those results become wanted, beside those that are already.
void ParseOutputs(const char* operation, nb::handle outputs, std::span<Result> results);

// out=, a dict from names to arrays, whose results become wanted; None where there is no array.
void ParseOutDict(const char* operation, nb::handle out, std::span<Result> results);

// The result as the library's message and Python's call it: "out['query']", or `otherwise` for a new array.
std::string WordFor(const Result& result, const char* otherwise);

// Phrases of the library's messages, and what Python's say instead.
class Words {
 public:
  // Replaces whole words alone; phrases are looked for in the order in which they were added.
  void Add(std::string from, std::string to) { phrases_.emplace_back(std::move(from), std::move(to)); }
  std::string Say(std::string message) const;

 private:
  std::vector<std::pair<std::string, std::string>> phrases_;
};

// The type of this name; TypeError where there is none.
DType DTypeNamed(const Argument& argument, const std::string& text);

// The shape and type of a tuple (shape, type), which stands for an array where nothing is computed.
void ReadShape(const Argument& argument, nb::handle object, Array* array);

// Whether a call on rows of so many bytes takes less than letting go of the GIL may cost.
bool IsShort(std::size_t bytes);

// Runs a plan with a workspace of its own, and the GIL released unless the call is short.
template <class Plan, class Pointers>
Status RunPlan(const char* operation, const Plan& plan, const Pointers& pointers, bool is_short = false) {
  const std::size_t size = plan.workspace_size();
  std::unique_ptr<std::byte[]> workspace;
  if (size > 0) {
    workspace.reset(new (std::nothrow) std::byte[size]);
    if (workspace == nullptr) {
      Raise(PyExc_MemoryError, {operation, "workspace"}, "needs " + std::to_string(size) + " bytes");
    }
  }
  std::optional<nb::gil_scoped_release> unlocked;
  if (!is_short) unlocked.emplace();
  return plan.Run(pointers, workspace.get(), size);
}

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_CALLS_H_
