// The fields of a NormRopeConcat problem.
#include "problems/norm_rope_concat.h"

#include <type_traits>

#include "problems/fields.h"

namespace gyrograd::problems {
namespace {

// The options of a rotation that may not be there.
struct Rotation {
  std::optional<RotaryMode> mode;
  bool per_pair = false;
  std::optional<std::int64_t> rotary_dim;
  std::int64_t rotary_offset = 0;
};

Rotation RotationOf(const std::optional<RotaryOptions>& options) {
  if (!options) return {};
  return {options->mode, options->per_pair_tables, options->rotary_dim, options->rotary_offset};
}

template <class Visitor, class Problem>
void VisitRotation(Visitor& visit, Problem& problem) {
  Rotation rotation = RotationOf(problem.options.rotary);
  visit("rotary", rotation.mode, std::nullopt);
  visit("per_pair", rotation.per_pair, false);
  visit("rotary_dim", rotation.rotary_dim, std::nullopt);
  visit("rotary_offset", rotation.rotary_offset, 0);
  if constexpr (!std::is_const_v<Problem>) {
    if (!rotation.mode) return;
    problem.options.rotary = {*rotation.mode, rotation.per_pair, rotation.rotary_dim, rotation.rotary_offset};
  }
}

template <class Visitor, class Problem>
void VisitFields(Visitor& visit, Problem& problem) {
  const NormRopeConcatProblem otherwise;
  visit("types", problem.types, otherwise.types);
  visit("batch", problem.batch, otherwise.batch);
  visit("heads", problem.heads, otherwise.heads);
  visit("key_heads", problem.key_heads, otherwise.key_heads);
  visit("head_dim", problem.head_dim, otherwise.head_dim);
  visit("query", problem.seq_query, otherwise.seq_query);
  visit("key", problem.seq_key, otherwise.seq_key);
  visit("encoder_query", problem.seq_encoder_query, otherwise.seq_encoder_query);
  visit("encoder_key", problem.seq_encoder_key, otherwise.seq_encoder_key);
  visit("norm", problem.options.norm_type, otherwise.options.norm_type);
  visit("norm_added", problem.options.norm_added_type, otherwise.options.norm_added_type);
  visit("order", problem.options.concat_order, otherwise.options.concat_order);
  VisitRotation(visit, problem);
  visit("rope", problem.seq_rope, otherwise.seq_rope);
  visit("rope_start", problem.options.rope_start, otherwise.options.rope_start);
  visit("encoder_rope", problem.seq_encoder_rope, otherwise.seq_encoder_rope);
  visit("tables_per_batch", problem.tables_per_batch, otherwise.tables_per_batch);
  visit("tables_per_head", problem.tables_per_head, otherwise.tables_per_head);
  visit("joint_layout", problem.joint_layout, otherwise.joint_layout);
  visit("stream_layout", problem.stream_layout, otherwise.stream_layout);
  visit("seed", problem.seed, otherwise.seed);
  visit("threads", problem.execution.num_threads, otherwise.execution.num_threads);
  visit("target", problem.execution.cpu_target, otherwise.execution.cpu_target);
}

}  // namespace

std::string ValueText(const NormRopeTypes& types) {
  const std::string rows = Name(types.activations);
  if (types.weights == types.activations && types.tables == types.activations) return rows;
  return rows + "/" + Name(types.weights) + "/" + Name(types.tables);
}

bool ParseValue(std::string_view text, NormRopeTypes* types) {
  const std::size_t first = text.find('/');
  const bool read = ParseValue(text.substr(0, first), &types->activations);
  types->weights = types->tables = types->activations;
  if (first == text.npos) return read;
  const std::size_t second = text.find('/', first + 1);
  return read && second != text.npos && ParseValue(text.substr(first + 1, second - first - 1), &types->weights) &&
         ParseValue(text.substr(second + 1), &types->tables);
}

Shape NormRopeConcatProblem::TablesShape(std::int64_t length) const {
  const RotaryOptions rotary = options.rotary.value_or(RotaryOptions{});
  const std::int64_t width = rotary.rotary_dim.value_or(head_dim);
  Shape shape = {length, rotary.per_pair_tables ? width / 2 : width};
  if (tables_per_batch || tables_per_head) {
    shape.insert(shape.begin(), {tables_per_batch ? batch : 1, tables_per_head ? heads : 1});
  }
  return shape;
}

std::string ToString(const NormRopeConcatProblem& problem) {
  FieldWriter writer(kNormRopeConcatName);
  VisitFields(writer, problem);
  return writer.text();
}

std::optional<NormRopeConcatProblem> ParseNormRopeConcatProblem(std::string_view text, std::string* error) {
  NormRopeConcatProblem problem;
  FieldReader reader(text, kNormRopeConcatName);
  VisitFields(reader, problem);
  return reader.Finish(error) ? std::optional(problem) : std::nullopt;
}

}  // namespace gyrograd::problems
