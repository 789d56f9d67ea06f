// The rotary operators of the C interface: first phases check, plan and register; second phases run.
#include "gyrograd/rotary.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "cann/executor.h"
#include "cann/first_phase.h"
#include "cann/guard.h"
#include "cann/outcome.h"
#include "cann/profiles.h"
#include "cann/tensor.h"

namespace gyrograd::cann {
namespace {

Outcome CheckMode(std::int64_t mode) {
  if (mode >= 0 && mode <= 3) return {};
  return {
      ACLNN_ERR_INNER_TILING_ERROR,
      "mode is " + std::to_string(mode) + "; it must be 0 (half), 1 (interleave), 2 (quarter) or 3 (interleave-half)"};
}

// The rules on the leading tensor's shape that this interface adds to the C++ one's.
Outcome CheckLeadingShape(const Argument& argument) {
  const std::vector<std::int64_t>& shape = (*argument.tensor)->view_shape;
  if (shape.size() != 3 && shape.size() != 4) {
    return {ACLNN_ERR_INNER_TILING_ERROR,
            std::string(argument.name) + " has rank " + std::to_string(shape.size()) + "; it must be 3 or 4"};
  }
  if (shape.back() == 0) {
    return {ACLNN_ERR_INNER_TILING_ERROR, std::string(argument.name) + "'s last extent is 0; it must be positive"};
  }
  return {};
}

// Everything before the plan. `arguments` are the tensors that take part, the leading one first.
Outcome CheckArguments(Arguments arguments, std::int64_t mode, Profile* profile) {
  Outcome outcome = CheckData(arguments);
  if (outcome.ok()) outcome = CheckFormats(arguments);
  if (outcome.ok()) outcome = CheckOneType(arguments);
  if (outcome.ok()) outcome = ReadProfile(profile);
  if (outcome.ok()) outcome = CheckMode(mode);
  if (outcome.ok()) outcome = CheckLeadingShape(arguments.front());
  if (outcome.ok()) outcome = CheckStorage(arguments);
  return outcome;
}

Outcome CheckProfile(Operator op, Profile profile, const RotaryProblem& problem) {
  if (profile == Profile::kNative) return {};
  const ProfileVerdict verdict = ExplainRotary(problem, profile);
  if (verdict.accepted) return {};
  return ToOutcome(op, Status(StatusCode::kInvalidShape, "product profile " + verdict.product + ": " + verdict.rule));
}

RotaryProblem ProblemOf(const Tensor& leading, const Tensor& cos, std::int64_t mode) {
  RotaryProblem problem;
  problem.x = leading->view_shape;
  problem.cos = cos->view_shape;
  problem.mode = mode;
  problem.dtype = DTypeOf(leading);
  return problem;
}

struct GradTensors {
  Tensor dy;
  Tensor cos;
  Tensor sin;
  Tensor x;
  Tensor dx;
  Tensor dcos;
  Tensor dsin;

  bool wants_tables() const { return x.given; }
};

std::vector<Argument> UsedTensors(const GradTensors& t) {
  std::vector<Argument> used = {{"dy", &t.dy}, {"cos", &t.cos}, {"sin", &t.sin}};
  if (t.wants_tables()) used.push_back({"xOptional", &t.x});
  used.push_back({"dxOut", &t.dx});
  if (t.wants_tables()) used.insert(used.end(), {{"dcosOut", &t.dcos}, {"dsinOut", &t.dsin}});
  return used;
}

RotaryBackwardArgs GradArgs(const GradTensors& t, std::int64_t mode) {
  RotaryBackwardArgs args;
  args.dy = ConstViewOf(t.dy);
  args.cos = ConstViewOf(t.cos);
  args.sin = ConstViewOf(t.sin);
  args.dx = ViewOf(t.dx);
  if (t.wants_tables()) {
    args.x = ConstViewOf(t.x);
    args.dcos = ViewOf(t.dcos);
    args.dsin = ViewOf(t.dsin);
  }
  args.options.mode = static_cast<RotaryMode>(mode);
  return args;
}

Executor GradExecutor(const GradTensors& t, const RotaryBackwardPlan& plan) {
  Executor executor;
  executor.op = Operator::kRotaryPositionEmbeddingGrad;
  executor.workspace_size = plan.workspace_size();
  executor.run = std::make_shared<const RunFunction>([plan](Addresses a, void* workspace, std::size_t size) {
    return plan.Run({.dy = a[0], .cos = a[1], .sin = a[2], .x = a[3], .dx = a[4], .dcos = a[5], .dsin = a[6]},
                    workspace, size);
  });
  for (const Tensor* input : {&t.dy, &t.cos, &t.sin, &t.x}) executor.AddInput(*input);
  executor.AddOutput(t.dx);
  for (const Tensor* table : {&t.dcos, &t.dsin}) executor.AddOutput(*table, t.wants_tables());
  return executor;
}

Outcome PlanGrad(const GradTensors& t, std::int64_t mode, std::uint64_t* workspace_size, aclOpExecutor** handle) {
  const Argument all[] = {{"dy", &t.dy},    {"cos", &t.cos},      {"sin", &t.sin},     {"xOptional", &t.x},
                          {"dxOut", &t.dx}, {"dcosOut", &t.dcos}, {"dsinOut", &t.dsin}};
  const Argument required[] = {all[0], all[1], all[2], all[4], all[5], all[6]};
  Outcome outcome = CheckNotNull(required);
  if (outcome.ok()) outcome = CheckPhaseOneOutputs(workspace_size, handle);
  if (outcome.ok()) outcome = CheckHandles(all);
  if (!outcome.ok()) return outcome;
  Profile profile = Profile::kNative;
  if (outcome = CheckArguments(UsedTensors(t), mode, &profile); !outcome.ok()) return outcome;
  RotaryProblem problem = ProblemOf(t.dy, t.cos, mode);
  problem.backward = true;
  problem.table_gradients = t.wants_tables();
  RotaryBackwardPlan plan;
  outcome = MakePlan(
      Operator::kRotaryPositionEmbeddingGrad, GradArgs(t, mode), ValidateRotaryBackward, ACLNN_ERR_INNER_TILING_ERROR,
      [&] { return CheckProfile(Operator::kRotaryPositionEmbeddingGrad, profile, problem); }, &plan);
  if (!outcome.ok()) return outcome;
  return HandOver(GradExecutor(t, plan), workspace_size, handle);
}

struct ForwardTensors {
  Tensor x;
  Tensor cos;
  Tensor sin;
  Tensor out;
};

Executor ForwardExecutor(const ForwardTensors& t, const RotaryPlan& plan) {
  Executor executor;
  executor.op = Operator::kRotaryPositionEmbedding;
  executor.workspace_size = plan.workspace_size();
  executor.run = std::make_shared<const RunFunction>([plan](Addresses a, void* workspace, std::size_t size) {
    return plan.Run({.x = a[0], .cos = a[1], .sin = a[2], .y = a[3]}, workspace, size);
  });
  for (const Tensor* input : {&t.x, &t.cos, &t.sin}) executor.AddInput(*input);
  executor.AddOutput(t.out);
  return executor;
}

Outcome PlanForward(const ForwardTensors& t, std::int64_t mode, std::uint64_t* workspace_size, aclOpExecutor** handle) {
  const Argument arguments[] = {{"x", &t.x}, {"cos", &t.cos}, {"sin", &t.sin}, {"out", &t.out}};
  Outcome outcome = CheckNotNull(arguments);
  if (outcome.ok()) outcome = CheckPhaseOneOutputs(workspace_size, handle);
  if (outcome.ok()) outcome = CheckHandles(arguments);
  Profile profile = Profile::kNative;
  if (outcome.ok()) outcome = CheckArguments(arguments, mode, &profile);
  if (!outcome.ok()) return outcome;
  RotaryArgs args{.x = ConstViewOf(t.x), .cos = ConstViewOf(t.cos), .sin = ConstViewOf(t.sin), .y = ViewOf(t.out)};
  args.options.mode = static_cast<RotaryMode>(mode);
  RotaryPlan plan;
  outcome = MakePlan(
      Operator::kRotaryPositionEmbedding, args, ValidateRotary, ACLNN_ERR_INNER_TILING_ERROR,
      [&] { return CheckProfile(Operator::kRotaryPositionEmbedding, profile, ProblemOf(t.x, t.cos, mode)); }, &plan);
  if (!outcome.ok()) return outcome;
  return HandOver(ForwardExecutor(t, plan), workspace_size, handle);
}

}  // namespace
}  // namespace gyrograd::cann

using namespace gyrograd::cann;  // NOLINT: this file defines the C interface over them

extern "C" {

aclnnStatus aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(const aclTensor* dy, const aclTensor* cos,
                                                             const aclTensor* sin, const aclTensor* xOptional,
                                                             int64_t mode, const aclTensor* dxOut,
                                                             const aclTensor* dcosOut, const aclTensor* dsinOut,
                                                             uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Guard(__func__, kAclnnCodes, [&] {
    const GradTensors tensors{LookUp(dy),    LookUp(cos),     LookUp(sin),    LookUp(xOptional),
                              LookUp(dxOut), LookUp(dcosOut), LookUp(dsinOut)};
    return PlanGrad(tensors, mode, workspaceSize, executor);
  });
}

aclnnStatus aclnnRotaryPositionEmbeddingGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                             aclrtStream stream) {
  return RunSecondPhase(__func__, Operator::kRotaryPositionEmbeddingGrad, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnRotaryPositionEmbeddingGetWorkspaceSize(const aclTensor* x, const aclTensor* cos, const aclTensor* sin,
                                                         int64_t mode, aclTensor* out, uint64_t* workspaceSize,
                                                         aclOpExecutor** executor) {
  return Guard(__func__, kAclnnCodes, [&] {
    return PlanForward({LookUp(x), LookUp(cos), LookUp(sin), LookUp(out)}, mode, workspaceSize, executor);
  });
}

aclnnStatus aclnnRotaryPositionEmbedding(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                         aclrtStream stream) {
  return RunSecondPhase(__func__, Operator::kRotaryPositionEmbedding, workspace, workspaceSize, executor, stream);
}

}  // extern "C"
