// The fields of a rotary problem.
#include "problems/rotary.h"

#include "problems/fields.h"

namespace gyrograd::problems {
namespace {

template <class Visitor, class Problem>
void VisitFields(Visitor& visit, Problem& problem) {
  const RotaryProblem otherwise;
  visit("mode", problem.mode, otherwise.mode);
  visit("types", problem.types, otherwise.types);
  visit("dy", problem.dy, otherwise.dy);
  visit("tables", problem.tables, otherwise.tables);
  visit("per_pair", problem.per_pair, otherwise.per_pair);
  visit("rotary_dim", problem.rotary_dim, otherwise.rotary_dim);
  visit("rotary_offset", problem.rotary_offset, otherwise.rotary_offset);
  visit("outputs", problem.outputs, otherwise.outputs);
  visit("dy_layout", problem.dy_layout, otherwise.dy_layout);
  visit("x_layout", problem.x_layout, otherwise.x_layout);
  visit("tables_layout", problem.tables_layout, otherwise.tables_layout);
  visit("dx_layout", problem.dx_layout, otherwise.dx_layout);
  visit("table_grads_layout", problem.table_grads_layout, otherwise.table_grads_layout);
  visit("seed", problem.seed, otherwise.seed);
  visit("threads", problem.execution.num_threads, otherwise.execution.num_threads);
  visit("target", problem.execution.cpu_target, otherwise.execution.cpu_target);
}

}  // namespace

std::string ValueText(const Types& types) {
  const std::string rows = Name(types.activations);
  return types.activations == types.tables ? rows : rows + "/" + Name(types.tables);
}

bool ParseValue(std::string_view text, Types* types) {
  const std::size_t slash = text.find('/');
  return ParseValue(text.substr(0, slash), &types->activations) &&
         ParseValue(slash == text.npos ? text : text.substr(slash + 1), &types->tables);
}

std::string Choices(const Types*) {
  return Choices(static_cast<const DType*>(nullptr)) + ", or two of them: rows/tables";
}

std::string Choices(const RotaryOutputs*) { return "; it must be dx, dcos, dsin or tables, joined by +"; }

std::string ValueText(const RotaryOutputs& outputs) {
  std::string text = outputs.dx ? "+dx" : "";
  if (outputs.dcos && outputs.dsin) return (text + "+tables").substr(1);
  if (outputs.dcos) text += "+dcos";
  if (outputs.dsin) text += "+dsin";
  return text.substr(text.empty() ? 0 : 1);
}

bool ParseValue(std::string_view text, RotaryOutputs* outputs) {
  *outputs = {false, false, false};
  for (;;) {
    const std::size_t plus = text.find('+');
    const std::string_view name = text.substr(0, plus);
    if (name != "dx" && name != "dcos" && name != "dsin" && name != "tables") return false;
    outputs->dx |= name == "dx";
    outputs->dcos |= name == "dcos" || name == "tables";
    outputs->dsin |= name == "dsin" || name == "tables";
    if (plus == text.npos) return true;
    text.remove_prefix(plus + 1);
  }
}

std::string ToString(const RotaryProblem& problem) {
  FieldWriter writer(kRotaryName);
  VisitFields(writer, problem);
  return writer.text();
}

std::optional<RotaryProblem> ParseRotaryProblem(std::string_view text, std::string* error) {
  RotaryProblem problem;
  FieldReader reader(text, kRotaryName);
  VisitFields(reader, problem);
  reader.Require("dy", !problem.dy.empty());
  reader.Require("tables", !problem.tables.empty());
  return reader.Finish(error) ? std::optional(problem) : std::nullopt;
}

}  // namespace gyrograd::problems
