// Tensors of a problem, and its checks against the witnesses.
#include "tests/support/problem.h"

#include <cctype>
#include <sstream>

#include "reference/rotary.h"
#include "tests/support/verdict.h"

namespace gyrograd::testing {

std::ostream& operator<<(std::ostream& out, const Problem& problem) {
  out << problems::ToString(problem);
  if (problem.placement == Placement::kGuarded) return out;
  return out << " " << Name(problem.placement);
}

Problem MakeProblem(RotaryMode mode, Types types, const Shape& dy, const Shape& tables_outer, bool per_pair) {
  Problem problem;
  problem.mode = mode;
  problem.types = types;
  problem.dy = dy;
  problem.tables = tables_outer;
  problem.tables.push_back(per_pair ? dy.back() / 2 : dy.back());
  problem.per_pair = per_pair;
  return problem;
}

BackwardTensors::BackwardTensors(const Problem& given)
    : problem(given),
      dy(given.types.activations, given.dy, given.dy_layout, given.placement),
      cos(given.types.tables, given.tables, given.tables_layout, given.placement),
      sin(given.types.tables, given.tables, given.tables_layout, given.placement),
      x(given.types.activations, given.dy, given.x_layout, given.placement),
      dx(given.types.activations, given.dy, given.dx_layout, given.placement),
      dcos(given.types.tables, given.tables, given.table_grads_layout, given.placement),
      dsin(given.types.tables, given.tables, given.table_grads_layout, given.placement) {
  Random random(given.seed);
  for (Tensor* tensor : {&dy, &cos, &sin, &x}) tensor->FillRandom(random);
}

RotaryBackwardArgs BackwardTensors::Args() const { return Args(true, true, true); }

RotaryBackwardArgs BackwardTensors::Args(bool dx_wanted, bool dcos_wanted, bool dsin_wanted, bool with_x) const {
  RotaryBackwardArgs args;
  args.dy = dy.in();
  args.cos = cos.in();
  args.sin = sin.in();
  if (with_x) args.x = x.in();
  if (dx_wanted) args.dx = dx.out();
  if (dcos_wanted) args.dcos = dcos.out();
  if (dsin_wanted) args.dsin = dsin.out();
  args.options = problem.Options();
  args.execution = problem.execution;
  return args;
}

RotaryBackwardPointers BackwardTensors::Pointers() const {
  return {dy.data(), cos.data(), sin.data(), x.data(), dx.data(), dcos.data(), dsin.data()};
}

::testing::AssertionResult BackwardTensors::Check() const {
  const Tensor want(dx.dtype(), dx.shape());
  RotaryBackwardArgs args = Args();
  args.dx = want.out();
  reference::RotaryBackwardInput(args);
  const reference::TableGradients tables = reference::RotaryBackwardTables(args);
  const DType activations = problem.types.activations;
  return InProblem(FirstFailure({dy.Unchanged("dy"), cos.Unchanged("cos"), sin.Unchanged("sin"), x.Unchanged("x"),
                                 dx.GuardsIntact("dx"), dcos.GuardsIntact("dcos"), dsin.GuardsIntact("dsin"),
                                 Verdict("dx", reference::CompareBits(dx.in(), want.in())),
                                 Verdict("dcos", reference::CompareSums(dcos.in(), tables.dcos, activations)),
                                 Verdict("dsin", reference::CompareSums(dsin.in(), tables.dsin, activations))}),
                   problem);
}

std::vector<std::uint64_t> BackwardTensors::ResultBits() const {
  std::vector<std::uint64_t> bits = dx.Bits();
  for (const Tensor* tensor : {&dcos, &dsin}) {
    const std::vector<std::uint64_t> more = tensor->Bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

ForwardTensors::ForwardTensors(const Problem& given)
    : problem(given),
      x(given.types.activations, given.dy, given.dy_layout, given.placement),
      cos(given.types.tables, given.tables, given.tables_layout, given.placement),
      sin(given.types.tables, given.tables, given.tables_layout, given.placement),
      y(given.types.activations, given.dy, given.dx_layout, given.placement) {
  Random random(given.seed);
  for (Tensor* tensor : {&x, &cos, &sin}) tensor->FillRandom(random);
}

RotaryArgs ForwardTensors::Args() const {
  return {.x = x.in(),
          .cos = cos.in(),
          .sin = sin.in(),
          .y = y.out(),
          .options = problem.Options(),
          .execution = problem.execution};
}

::testing::AssertionResult ForwardTensors::Check() const {
  const Tensor want(y.dtype(), y.shape());
  RotaryArgs args = Args();
  args.y = want.out();
  reference::Rotary(args);
  return InProblem(FirstFailure({x.Unchanged("x"), cos.Unchanged("cos"), sin.Unchanged("sin"), y.GuardsIntact("y"),
                                 Verdict("y", reference::CompareBits(y.in(), want.in()))}),
                   problem);
}

::testing::AssertionResult CheckBackward(const Problem& problem) {
  const BackwardTensors tensors(problem);
  const Status status = RotaryBackward(tensors.Args());
  if (!status.ok()) return ::testing::AssertionFailure() << status.message() << "; problem " << problem;
  return tensors.Check();
}

::testing::AssertionResult CheckForward(const Problem& problem) {
  const ForwardTensors tensors(problem);
  const Status status = Rotary(tensors.Args());
  if (!status.ok()) return ::testing::AssertionFailure() << status.message() << "; problem " << problem;
  return tensors.Check();
}

::testing::AssertionResult Refused(const Status& status, StatusCode code, const std::vector<std::string>& words) {
  if (status.code() != code) {
    return ::testing::AssertionFailure() << "got " << Name(status.code()) << " (" << status.message() << "), want "
                                         << Name(code);
  }
  for (const std::string& word : words) {
    if (status.message().find(word) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << status.message() << "\" does not hold \"" << word << "\"";
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << Name(status.code()) << ": " << status.message();
}

std::ostream& operator<<(std::ostream& out, const ModeAndTypes& parameter) {
  return out << Name(parameter.mode) << " " << Name(parameter.types.activations) << "/" << Name(parameter.types.tables);
}

::testing::internal::ParamGenerator<ModeAndTypes> ModesAndTypes() {
  std::vector<ModeAndTypes> all;
  for (const RotaryMode mode : kModes) {
    for (const Types types : kAllTypes) all.push_back({mode, types});
  }
  return ::testing::ValuesIn(all);
}

std::string ModeAndTypesName(const ::testing::TestParamInfo<ModeAndTypes>& info) {
  std::ostringstream text;
  text << info.param;
  std::string name;
  for (const char c : text.str()) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

}  // namespace gyrograd::testing
