// The choice of the operator.
#include "problems/problem.h"

#include "problems/fields.h"

namespace gyrograd::problems {

std::optional<Problem> ParseProblem(std::string_view text, std::string* error) {
  if (NameOf(text) == kNormRopeConcatName) return ParseNormRopeConcatProblem(text, error);
  return ParseRotaryProblem(text, error);
}

}  // namespace gyrograd::problems
