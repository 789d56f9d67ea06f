// The keywords that the operators share, from Python objects to the library's options.
#ifndef GYROGRAD_PYTHON_OPTIONS_H_
#define GYROGRAD_PYTHON_OPTIONS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>

#include "arrays.h"
#include "gyrograd/execution.h"
#include "gyrograd/norm_rope_concat.h"
#include "gyrograd/rotary.h"

namespace gyrograd::python {

// Every keyword as the caller gave it; None where it was not given.
struct RotaryKeywords {
  nanobind::handle mode;
  nanobind::handle per_pair_tables;
  nanobind::handle rotary_dim;
  nanobind::handle rotary_offset;
};

// TypeError or ValueError where a keyword is not what it must be, and True and False are no numbers; ranges are the
// library's to check.
std::int64_t ParseInteger(const Argument& argument, nanobind::handle object);
double ParseReal(const Argument& argument, nanobind::handle object);
RotaryMode ParseMode(const char* operation, nanobind::handle mode);
RotaryOptions ParseRotaryOptions(const char* operation, const RotaryKeywords& keywords);
// The options under their keywords, as numbers; -1 for a rotary_dim that is not given.
void AddRotaryNumbers(const RotaryOptions& options, nanobind::dict* numbers);
Execution ParseExecution(const char* operation, nanobind::handle threads, nanobind::handle cpu_target);
NormType ParseNormType(const Argument& argument, nanobind::handle type);
// Nothing for "none".
std::optional<RotaryMode> ParseRopeType(const Argument& argument, nanobind::handle type);
// Their values, as messages list them.
std::string NormTypeNames();
std::string RopeTypeNames();
ConcatOrder ParseConcatOrder(const Argument& argument, nanobind::handle order);
// Whether the layout is BSND, not BNSD.
bool ParseLayoutIsBsnd(const Argument& argument, nanobind::handle layout);

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_OPTIONS_H_
