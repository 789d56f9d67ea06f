// Rotary, forward and backward: any shapes, strides, types, options, subsets of outputs, aliases and ways to run, right
// and wrong. The first byte says which.
#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/bytes.h"
#include "fuzz/call.h"
#include "fuzz/memory.h"
#include "gyrograd/rotary.h"
#include "reference/rotary.h"
#include "tests/support/problem.h"

namespace gyrograd::fuzz {
namespace {

// Calls body(name, view, group) for each given view.
template <class Args, class Body>
void ForEachGiven(Args& args, const Body& body) {
  if constexpr (requires { args.dy; }) {
    body("dy", args.dy, 1);
    if (args.x) body("x", *args.x, 1);
    body("cos", args.cos, 2);
    body("sin", args.sin, 3);
    if (args.dx) body("dx", *args.dx, 1);
    if (args.dcos) body("dcos", *args.dcos, 2);
    if (args.dsin) body("dsin", *args.dsin, 3);
  } else {
    body("x", args.x, 1);
    body("cos", args.cos, 2);
    body("sin", args.sin, 3);
    body("y", args.y, 1);
  }
}

struct Backward {
  using Plan = RotaryBackwardPlan;
  static constexpr const char* kName = "rotary_backward";
  static constexpr const char* kModel = "dy";
  RotaryBackwardArgs args;

  const ConstTensorView& model() const { return args.dy; }
  Status Validate() const { return ValidateRotaryBackward(args); }
  Status Compute() const { return RotaryBackward(args); }
  Status Create(Plan* plan) const { return Plan::Create(args, plan); }
  Status Run(const Plan& plan, void* workspace, std::size_t size) const {
    const auto data = [](const auto& view) { return view ? view->data : nullptr; };
    return plan.Run({.dy = args.dy.data,
                     .cos = args.cos.data,
                     .sin = args.sin.data,
                     .x = data(args.x),
                     .dx = data(args.dx),
                     .dcos = data(args.dcos),
                     .dsin = data(args.dsin)},
                    workspace, size);
  }
};

struct Forward {
  using Plan = RotaryPlan;
  static constexpr const char* kName = "rotary";
  static constexpr const char* kModel = "x";
  RotaryArgs args;

  const ConstTensorView& model() const { return args.x; }
  Status Validate() const { return ValidateRotary(args); }
  Status Compute() const { return Rotary(args); }
  Status Create(Plan* plan) const { return Plan::Create(args, plan); }
  Status Run(const Plan& plan, void* workspace, std::size_t size) const {
    return plan.Run({args.x.data, args.cos.data, args.sin.data, args.y.data}, workspace, size);
  }
};

template <class Direction>
struct RotaryTrialCall : Direction {
  std::string Words() const { return fuzz::Words(this->args.options) + ", " + fuzz::Words(this->args.execution); }
  Execution& execution() { return this->args.execution; }
  bool IsModel(const std::string& name) const { return name == Direction::kModel; }

  template <class Body>
  void ForEachView(const Body& body) {
    ForEachGiven(this->args, [&](const std::string& name, auto& view, int) { body(name, view); });
  }

  std::vector<Operand> Operands(Memory&) const {
    std::vector<Operand> operands;
    ForEachGiven(this->args, [&](const std::string& name, const auto& view, int group) {
      operands.push_back({name, In(view), std::is_same_v<decltype(view), const TensorView&>, group});
    });
    return operands;
  }
};

// ---- what a call is made of

struct Problem {
  RotaryOptions options;
  testing::Types types;
  Shape rows, tables;
};

Problem ChooseProblem(Bytes& bytes) {
  Problem problem;
  const Turn turn = ChooseTurn(bytes);
  problem.options = turn.options;
  problem.types = bytes.Of(testing::kAllTypes);
  const auto outer = static_cast<std::size_t>(bytes.Between(0, 4));
  std::int64_t room = std::max<std::int64_t>(1, (bytes.OneIn(8) ? 9000 : 1500) / turn.width);
  for (std::size_t axis = 0; axis < outer; ++axis) {
    const std::int64_t extent = bytes.OneIn(24) ? 0 : bytes.Between(1, std::min<std::int64_t>(room, 70));
    room /= std::max<std::int64_t>(extent, 1);
    problem.rows.push_back(extent);
    problem.tables.push_back(bytes.OneIn(2) ? 1 : extent);
  }
  problem.rows.push_back(turn.width);
  problem.tables.push_back(turn.options.per_pair_tables ? turn.turned / 2 : turn.turned);
  if (bytes.OneIn(40) && !turn.options.rotary_dim) problem.rows.back() = problem.tables.back() = 0;
  return problem;
}

RotaryTrialCall<Backward> MakeBackward(Bytes& bytes, const Problem& problem, Memory& memory) {
  RotaryTrialCall<Backward> call;
  RotaryBackwardArgs& args = call.args;
  const DType rows = problem.types.activations, tables = problem.types.tables;
  args.dy = MakeInput(bytes, rows, problem.rows, memory, ChooseValues(bytes));
  args.x = bytes.OneIn(8) ? args.dy : MakeInput(bytes, rows, problem.rows, memory, ChooseValues(bytes));
  args.cos = MakeInput(bytes, tables, problem.tables, memory, ChooseValues(bytes));
  args.sin = bytes.OneIn(8) ? args.cos : MakeInput(bytes, tables, problem.tables, memory, ChooseValues(bytes));
  args.dx = MakeOutput(bytes, rows, problem.rows, memory);
  args.dcos = MakeOutput(bytes, tables, problem.tables, memory);
  args.dsin = MakeOutput(bytes, tables, problem.tables, memory);
  args.options = problem.options;
  return call;
}

RotaryTrialCall<Forward> MakeForward(Bytes& bytes, const Problem& problem, Memory& memory) {
  RotaryTrialCall<Forward> call;
  RotaryArgs& args = call.args;
  args.x = MakeInput(bytes, problem.types.activations, problem.rows, memory, ChooseValues(bytes));
  args.cos = MakeInput(bytes, problem.types.tables, problem.tables, memory, ChooseValues(bytes));
  args.sin = MakeInput(bytes, problem.types.tables, problem.tables, memory, ChooseValues(bytes));
  args.y = MakeOutput(bytes, problem.types.activations, problem.rows, memory);
  args.options = problem.options;
  return call;
}

// ---- right results

void RightResults(const RotaryTrialCall<Backward>& full, Memory& memory) {
  const std::string words = Computed(full, memory);
  RotaryBackwardArgs args = full.args;
  args.dx = memory.Copy(In(*args.dx));
  reference::RotaryBackwardInput(args);
  const reference::TableGradients tables = reference::RotaryBackwardTables(args);
  Demand(reference::CompareBits(In(*full.args.dx), In(*args.dx)), "dx", words);
  Demand(reference::CompareSums(In(*args.dcos), tables.dcos, args.dy.dtype), "dcos", words);
  Demand(reference::CompareSums(In(*args.dsin), tables.dsin, args.dy.dtype), "dsin", words);
}

void RightResults(const RotaryTrialCall<Forward>& full, Memory& memory) {
  const std::string words = Computed(full, memory);
  RotaryArgs args = full.args;
  args.y = memory.Copy(In(args.y));
  reference::Rotary(args);
  Demand(reference::CompareBits(In(full.args.y), In(args.y)), "y", words);
}

// ---- less of it, and wrong

void DropSome(Bytes& bytes, RotaryTrialCall<Backward>& call) {
  RotaryBackwardArgs& args = call.args;
  if (bytes.OneIn(4)) args.dx.reset();
  if (bytes.OneIn(4)) args.dcos.reset();
  if (bytes.OneIn(4)) args.dsin.reset();
  if (!args.dcos && !args.dsin && bytes.OneIn(2)) args.x.reset();
}

void DropSome(Bytes&, RotaryTrialCall<Forward>&) {}

template <class Direction>
Expected BreakOne(Bytes& bytes, RotaryTrialCall<Direction>& call, Memory&) {
  if constexpr (std::is_same_v<Direction, Backward>) {
    if (bytes.OneIn(4) && (call.args.dcos || call.args.dsin)) {
      call.args.x.reset();
      return {StatusCode::kMissingArgument, {"x"}};
    }
  }
  if (bytes.OneIn(4)) return BreakExecution(bytes, call.args.execution);
  return BreakRotaryOptions(bytes, call.args.options, call.model().shape.back());
}

}  // namespace
}  // namespace gyrograd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gyrograd::fuzz;
  Bytes bytes(data, size);
  const bool forward = bytes.OneIn(4);
  Memory memory(bytes.Between(0, 255));
  const Problem problem = ChooseProblem(bytes);
  if (forward) {
    Try(bytes, MakeForward(bytes, problem, memory), memory);
  } else {
    Try(bytes, MakeBackward(bytes, problem, memory), memory);
  }
  return 0;
}
