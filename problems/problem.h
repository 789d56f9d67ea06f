// A problem of any operator, as one line of text.
#ifndef GYROGRAD_PROBLEMS_PROBLEM_H_
#define GYROGRAD_PROBLEMS_PROBLEM_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "problems/norm_rope_concat.h"
#include "problems/rotary.h"

namespace gyrograd::problems {

using Problem = std::variant<RotaryProblem, NormRopeConcatProblem>;

// The problem of the operator that the text names; nothing, and *error says why, where it is none.
std::optional<Problem> ParseProblem(std::string_view text, std::string* error);

}  // namespace gyrograd::problems

#endif  // GYROGRAD_PROBLEMS_PROBLEM_H_
