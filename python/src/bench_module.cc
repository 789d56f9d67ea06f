// gyrograd._bench: problems as lines of text, and turns of the library with plain copies of the same bytes. Imported by
// `gyrograd bench` and `check` alone.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "bench/contestant.h"
#include "bench/turns.h"
#include "core/machine.h"
#include "problems/problem.h"

namespace nb = nanobind;

namespace gyrograd::python {
namespace {

using namespace nb::literals;

void RequireLoops() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) throw std::runtime_error("the copying loops need a processor with AVX2");
#endif
}

void RaiseUnlessOk(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kOutOfMemory) {
    PyErr_SetString(PyExc_MemoryError, status.message().c_str());
    throw nb::python_error();
  }
  throw nb::value_error(status.message().c_str());
}

nb::dict Facts(const bench::Contestant& contestant, const bench::Times& times) {
  nb::dict roofs;
  for (std::size_t i = 0; i < times.roofs.size(); ++i) roofs[bench::Name(bench::kRoofs[i])] = times.roofs[i];
  nb::dict facts;
  facts["problem"] = contestant.problem;
  facts["bytes_read"] = contestant.traffic.BytesRead();
  facts["bytes_written"] = contestant.traffic.BytesWritten();
  facts["workspace_bytes"] = contestant.workspace_bytes;
  facts["seconds"] = times.run;
  facts["copies"] = roofs;
  return facts;
}

nb::list TakeTurns(const std::vector<std::string>& problems, int rounds, int copy_threads) {
  RequireLoops();
  std::vector<bench::Contestant> contestants(problems.size());
  std::vector<bench::Times> times;
  {
    Status status;
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < problems.size() && status.ok(); ++i) {
      status = bench::MakeContestant(problems[i], &contestants[i]);
    }
    if (status.ok()) status = bench::TakeTurns(contestants, rounds, copy_threads, &times);
    nb::gil_scoped_acquire locked;
    RaiseUnlessOk(status);
  }
  nb::list results;
  for (std::size_t i = 0; i < times.size(); ++i) results.append(Facts(contestants[i], times[i]));
  return results;
}

// ---- a problem's parts

nb::dict PartsOf(const problems::RotaryProblem& problem) {
  nb::dict parts;
  parts["operator"] = problems::kRotaryName;
  parts["mode"] = Name(problem.mode);
  parts["dtype"] = Name(problem.types.activations);
  parts["table_dtype"] = Name(problem.types.tables);
  parts["dy"] = nb::tuple(nb::cast(problem.dy));
  parts["tables"] = nb::tuple(nb::cast(problem.tables));
  parts["per_pair_tables"] = problem.per_pair;
  parts["rotary_dim"] = problem.rotary_dim ? nb::cast(*problem.rotary_dim) : nb::none();
  parts["rotary_offset"] = problem.rotary_offset;
  nb::list outputs;
  if (problem.outputs.dx) outputs.append("dx");
  if (problem.outputs.dcos) outputs.append("dcos");
  if (problem.outputs.dsin) outputs.append("dsin");
  parts["outputs"] = nb::tuple(outputs);
  nb::dict layouts;
  layouts["dy"] = nb::cast(StridesOf(problem.dy_layout, problem.dy));
  layouts["x"] = nb::cast(StridesOf(problem.x_layout, problem.dy));
  layouts["cos"] = layouts["sin"] = nb::cast(StridesOf(problem.tables_layout, problem.tables));
  parts["strides"] = layouts;
  parts["seed"] = problem.seed;
  parts["threads"] = problem.execution.num_threads;
  parts["cpu_target"] = Name(problem.execution.cpu_target);
  return parts;
}

// Whether the problem says nothing that its parts do not: rows and tables of the usual shapes, contiguous.
bool IsPlain(const problems::NormRopeConcatProblem& problem) {
  problems::NormRopeConcatProblem plain = problem;
  if (plain.options.rotary) plain.options.rotary = RotaryOptions{.mode = plain.options.rotary->mode};
  plain.options.rope_start = 0;
  plain.seq_encoder_rope.reset();
  plain.tables_per_batch = plain.tables_per_head = false;
  plain.joint_layout = plain.stream_layout = problems::Layout::kContiguous;
  return ToString(plain) == ToString(problem);
}

nb::dict PartsOf(const problems::NormRopeConcatProblem& problem) {
  const NormRopeConcatOptions& options = problem.options;
  nb::dict parts;
  parts["operator"] = problems::kNormRopeConcatName;
  parts["dtype"] = Name(problem.types.activations);
  parts["weight_dtype"] = Name(problem.types.weights);
  parts["table_dtype"] = Name(problem.types.tables);
  parts["batch"] = problem.batch;
  parts["heads"] = problem.heads;
  parts["key_heads"] = problem.KeyHeads();
  parts["head_dim"] = problem.head_dim;
  parts["seq_query"] = problem.seq_query;
  parts["seq_key"] = problem.seq_key;
  parts["seq_encoder_query"] = problem.seq_encoder_query;
  parts["seq_encoder_key"] = problem.seq_encoder_key;
  parts["seq_rope"] = problem.seq_rope;
  parts["norm_type"] = Name(options.norm_type);
  parts["norm_added_type"] = Name(options.norm_added_type);
  parts["rope_type"] = options.rotary ? Name(options.rotary->mode) : "none";
  parts["concat_order"] = Name(options.concat_order);
  parts["is_plain"] = IsPlain(problem);
  parts["threads"] = problem.execution.num_threads;
  parts["cpu_target"] = Name(problem.execution.cpu_target);
  return parts;
}

nb::dict ParseProblem(const std::string& text) {
  std::string error;
  const auto problem = problems::ParseProblem(text, &error);
  if (!problem) throw nb::value_error(("problem: " + error).c_str());
  return std::visit([](const auto& any) { return PartsOf(any); }, *problem);
}

}  // namespace
}  // namespace gyrograd::python

NB_MODULE(_bench, module) {
  using namespace nb::literals;
  module.def(
      "take_turns", &gyrograd::python::TakeTurns, "problems"_a, "rounds"_a, "copy_threads"_a,
      "Times the problems and three copying loops of each one's bytes, which take turns in each round.\n"
      "\n"
      "Of each: the problem, bytes_read, bytes_written, workspace_bytes, seconds by round, and the same of each\n"
      "loop in copies. ValueError where a problem is refused, MemoryError where there is no memory for it.");
  module.def("last_level_cache_bytes", &gyrograd::internal::LastLevelCacheBytes,
             "The largest cache that a processor core reads through.");
  module.def("parse_problem", &gyrograd::python::ParseProblem, "text"_a,
             "The parts of a problem. ValueError where the text is none.");
}
