// The tensors of each operator's problems, and their plans.
#include "bench/contestant.h"

#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bench/tensors.h"
#include "ops/norm_rope/call.h"
#include "problems/problem.h"

namespace gyrograd::bench {
namespace {

using problems::NormRopeConcatProblem;
using problems::RotaryProblem;
using problems::Shape;
using Form = Tensors::Form;
using Role = Tensors::Role;

// What the functions of a contestant share.
template <class ArgsType, class PlanType>
struct Match {
  Tensors tensors;
  ArgsType args;
  PlanType plan;
  std::vector<std::byte> workspace;
};

// ---- rotary

using RotaryMatch = Match<RotaryBackwardArgs, RotaryBackwardPlan>;

RotaryBackwardArgs MakeArgs(const RotaryProblem& problem, Tensors* tensors) {
  const Form dy = {problem.types.activations, problem.dy, problem.dy_layout};
  const Form x = {problem.types.activations, problem.dy, problem.x_layout};
  const Form dx = {problem.types.activations, problem.dy, problem.dx_layout};
  const Form table = {problem.types.tables, problem.tables, problem.tables_layout};
  const Form table_grad = {problem.types.tables, problem.tables, problem.table_grads_layout};
  const auto output = [&](bool wanted, const Form& form) {
    return wanted ? std::optional(tensors->Add(Role::kWritten, form)) : std::nullopt;
  };
  RotaryBackwardArgs args;
  args.dy = AsInput(tensors->Add(Role::kRead, dy));
  args.cos = AsInput(tensors->Add(Role::kRead, table));
  args.sin = AsInput(tensors->Add(Role::kRead, table));
  if (problem.outputs.dcos || problem.outputs.dsin) args.x = AsInput(tensors->Add(Role::kRead, x));
  args.dx = output(problem.outputs.dx, dx);
  args.dcos = output(problem.outputs.dcos, table_grad);
  args.dsin = output(problem.outputs.dsin, table_grad);
  args.options = problem.Options();
  args.execution = problem.execution;
  return args;
}

Status Call(const RotaryBackwardArgs& args) { return RotaryBackward(args); }

RotaryBackwardPointers PointersOf(const RotaryBackwardArgs& args) {
  const auto data = [](const auto& view) { return view ? view->data : nullptr; };
  return {.dy = args.dy.data,
          .cos = args.cos.data,
          .sin = args.sin.data,
          .x = data(args.x),
          .dx = data(args.dx),
          .dcos = data(args.dcos),
          .dsin = data(args.dsin)};
}

// ---- norm, rotary and concatenation

using ConcatMatch = Match<NormRopeConcatBackwardArgs, NormRopeConcatBackwardPlan>;

// Query or key: the rows of both streams, and their gradients.
struct Rows {
  std::optional<ConstTensorView> x, encoder_x;
  std::optional<TensorView> dx, encoder_dx;
};

Rows AddRows(const NormRopeConcatProblem& problem, std::int64_t length, std::int64_t encoder_length, std::int64_t heads,
             bool is_read, Tensors* tensors) {
  std::vector<Form> forms;
  for (const std::int64_t each : {length, encoder_length}) {
    const Shape shape = {problem.batch, each, heads, problem.head_dim};
    if (each > 0 || forms.empty()) forms.push_back({problem.types.activations, shape, problem.stream_layout});
  }
  Rows rows;
  const auto written = tensors->AddTogether(Role::kWritten, forms);
  rows.dx = written[0];
  if (written.size() > 1) rows.encoder_dx = written[1];
  if (!is_read) return rows;
  const auto read = tensors->AddTogether(Role::kRead, forms);
  rows.x = AsInput(read[0]);
  if (read.size() > 1) rows.encoder_x = AsInput(read[1]);
  return rows;
}

void AddNorm(const NormRopeConcatProblem& problem, NormType norm, std::int64_t length, std::int64_t heads,
             Tensors* tensors, NormBackwardTensors* into) {
  if (norm == NormType::kNone || length == 0) return;
  const Form statistics = {problem.types.statistics(), {problem.batch, length, heads, 1}};
  const Form weight = {problem.types.weights, {problem.head_dim}};
  if (internal::IsLayerNorm(norm)) into->mean = AsInput(tensors->Add(Role::kRead, statistics));
  into->rstd = AsInput(tensors->Add(Role::kRead, statistics));
  if (!internal::IsAffine(norm)) return;
  into->weight = AsInput(tensors->Add(Role::kRead, weight));
  into->dweight = tensors->Add(Role::kWritten, weight);
  if (norm == NormType::kLayerAffine) into->dbias = tensors->Add(Role::kWritten, weight);
}

void AddNorms(const NormRopeConcatProblem& problem, Tensors* tensors, NormRopeConcatBackwardArgs* args) {
  const NormType norm = problem.options.norm_type, added = problem.options.norm_added_type;
  AddNorm(problem, norm, problem.seq_query, problem.heads, tensors, &args->norm_query);
  AddNorm(problem, norm, problem.seq_key, problem.KeyHeads(), tensors, &args->norm_key);
  AddNorm(problem, added, problem.seq_encoder_query, problem.heads, tensors, &args->norm_added_query);
  AddNorm(problem, added, problem.seq_encoder_key, problem.KeyHeads(), tensors, &args->norm_added_key);
}

void AddTables(const NormRopeConcatProblem& problem, Tensors* tensors, NormRopeConcatBackwardArgs* args) {
  if (!problem.options.rotary) return;
  const auto table = [&](std::int64_t length) {
    return AsInput(tensors->Add(Role::kRead, {problem.types.tables, problem.TablesShape(length)}));
  };
  args->rope_cos = table(problem.seq_rope);
  args->rope_sin = table(problem.seq_rope);
  if (!problem.seq_encoder_rope) return;
  args->encoder_rope_cos = table(*problem.seq_encoder_rope);
  args->encoder_rope_sin = table(*problem.seq_encoder_rope);
}

NormRopeConcatBackwardArgs MakeArgs(const NormRopeConcatProblem& problem, Tensors* tensors) {
  NormRopeConcatBackwardArgs args;
  args.options = problem.options;
  args.execution = problem.execution;
  const std::int64_t queries = problem.seq_query + problem.seq_encoder_query;
  const std::int64_t keys = problem.seq_key + problem.seq_encoder_key;
  const auto joint = [&](std::int64_t heads, std::int64_t length) {
    const Shape shape = {problem.batch, heads, length, problem.head_dim};
    return AsInput(tensors->Add(Role::kRead, {problem.types.activations, shape, problem.joint_layout}));
  };
  args.grad_query_output = joint(problem.heads, queries);
  args.grad_key_output = joint(problem.KeyHeads(), keys);
  args.grad_value_output = joint(problem.KeyHeads(), keys);
  const bool is_read =
      problem.options.norm_type != NormType::kNone || problem.options.norm_added_type != NormType::kNone;
  const auto rows = [&](std::int64_t length, std::int64_t encoder_length, std::int64_t heads, bool read) {
    return AddRows(problem, length, encoder_length, heads, read, tensors);
  };
  const Rows query = rows(problem.seq_query, problem.seq_encoder_query, problem.heads, is_read);
  const Rows key = rows(problem.seq_key, problem.seq_encoder_key, problem.KeyHeads(), is_read);
  const Rows value = rows(problem.seq_key, problem.seq_encoder_key, problem.KeyHeads(), false);
  std::tie(args.query, args.encoder_query) = std::tie(query.x, query.encoder_x);
  std::tie(args.key, args.encoder_key) = std::tie(key.x, key.encoder_x);
  std::tie(args.dquery, args.dencoder_query) = std::tie(query.dx, query.encoder_dx);
  std::tie(args.dkey, args.dencoder_key) = std::tie(key.dx, key.encoder_dx);
  std::tie(args.dvalue, args.dencoder_value) = std::tie(value.dx, value.encoder_dx);
  AddNorms(problem, tensors, &args);
  AddTables(problem, tensors, &args);
  return args;
}

Status Call(const NormRopeConcatBackwardArgs& args) { return NormRopeConcatBackward(args); }

const NormRopeConcatBackwardArgs& PointersOf(const NormRopeConcatBackwardArgs& args) { return args; }

// ---- both

template <class MatchType, class Problem>
Status Make(const Problem& problem, Contestant* contestant) try {
  const auto match = std::make_shared<MatchType>();
  match->args = MakeArgs(problem, &match->tensors);
  const Status created = decltype(match->plan)::Create(match->args, &match->plan);
  if (!created.ok()) return created;
  match->workspace.resize(match->plan.workspace_size());
  contestant->problem = ToString(problem);
  contestant->traffic = match->tensors.traffic();
  contestant->workspace_bytes = match->workspace.size();
  contestant->call = [match] { return Call(match->args); };
  contestant->run = [match] {
    return match->plan.Run(PointersOf(match->args), match->workspace.data(), match->workspace.size());
  };
  return Status();
} catch (const std::bad_alloc&) {
  return Status(StatusCode::kOutOfMemory, "problem: there is no memory for its tensors");
}

}  // namespace

Status MakeContestant(const RotaryProblem& problem, Contestant* contestant) {
  return Make<RotaryMatch>(problem, contestant);
}

Status MakeContestant(const NormRopeConcatProblem& problem, Contestant* contestant) {
  return Make<ConcatMatch>(problem, contestant);
}

Status MakeContestant(std::string_view text, Contestant* contestant) {
  std::string error;
  const auto problem = problems::ParseProblem(text, &error);
  if (!problem) return Status(StatusCode::kInvalidAttribute, "problem: " + error);
  return std::visit([&](const auto& any) { return MakeContestant(any, contestant); }, *problem);
}

}  // namespace gyrograd::bench
