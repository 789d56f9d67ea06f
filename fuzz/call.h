// What every operator's calls are put through: a call that must be right is compared, output by output, with the bits
// of the same call on copies of its own; one that must be refused is refused with the right code and words; and no byte
// beside an output's elements is read or written. Call is one of a target's structs, with
//   kName                  the operator in messages
//   Plan, Validate(), Compute(), Create(plan*), Run(plan, workspace, size)
//   execution()            to be set
//   ForEachView(body)      body(name, view) for each given view that the call looks at
//   Operands(memory)       what of these may lie on what
//   IsModel(name)          whether others follow the view's type and shape
//   Words()                everything else
// with, beside it,
//   RightResults(full, memory)           computes the call that wants everything, compares it with the witnesses
//   DropSome(bytes, call)                some arguments that it can do without
//   BreakOne(bytes, call, memory)        one fault that is not of a single view, and the answer
#ifndef GYROGRAD_FUZZ_CALL_H_
#define GYROGRAD_FUZZ_CALL_H_

#include <algorithm>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/bytes.h"
#include "fuzz/memory.h"
#include "gyrograd/execution.h"
#include "gyrograd/rotary.h"
#include "gyrograd/status.h"
#include "reference/compare.h"

namespace gyrograd::fuzz {

// An argument of a call.
struct Operand {
  std::string name;  // in messages
  ConstTensorView view;
  bool output = false;
  int group = 0;             // an output may lie exactly on the operands of its group; 0: on none
  bool heads_first = false;  // [B, N, S, D], to be compared with [B, S, N, D]
};

// What a call must answer. Names: one of them stands in the message.
struct Expected {
  StatusCode code = StatusCode::kOk;
  std::vector<std::string> names = {};

  bool ok() const { return code == StatusCode::kOk; }
};

// In [B, S, N, D].
ConstTensorView InOrderOfX(const Operand& operand, Memory& memory);
// What the operands' addresses and their sharing of bytes ask for.
Expected ExpectedOfSharing(const std::vector<Operand>& operands, Memory& memory);
// A place for `output` that has to do with the memory of another operand; as it was where there is none.
TensorView Relocated(Bytes& bytes, const Operand& output, const std::vector<Operand>& operands, Memory& memory);

Execution ChooseExecution(Bytes& bytes);
// Plain ones mostly.
Values ChooseValues(Bytes& bytes);

// How a call is made.
struct Way {
  bool plan = false;
  bool planned_without_data = false;
  std::size_t workspace_shift = 0;
  int rounding = FE_TONEAREST;  // the caller's, which no call may heed or change
};
Way ChooseWay(Bytes& bytes);

// Bytes of the size that a plan asks for, at any address.
class Workspace {
 public:
  Workspace(std::size_t size, std::size_t shift) : bytes_(shift + size, std::byte{0xa5}), shift_(shift) {}
  void* data() { return bytes_.data() + shift_; }
  std::size_t size() const { return bytes_.size() - shift_; }
  bool StartIntact() const {
    return std::ranges::all_of(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(shift_),
                               [](std::byte byte) { return byte == std::byte{0xa5}; });
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t shift_;
};

// ---- faults

// A change of one view after which no call is right, whatever else it holds.
enum class ViewFault {
  kNone,
  kNull,
  kUnknownType,
  kOtherType,
  kMisaligned,
  kStrideMissing,
  kStrideTooMany,
  kNegativeExtent,
  kHugeStride,
  kAxisMissing,
  kOtherExtent,
};

// Changes of shape and strides; false where the call would stay right. `model`: others follow the view's shape.
bool BreakShape(ViewFault fault, bool empty, bool model, Bytes& bytes, Shape& shape, Shape& strides);

// What the call must answer with the view changed; nothing where the change would leave the call right. A `model`,
// whose type and shape others follow, gets no other type and no other extent.
template <class View>
std::optional<Expected> Break(ViewFault fault, const std::string& name, View& view, bool model, Memory& memory,
                              Bytes& bytes) {
  const bool empty = IsEmpty(In(view));
  switch (fault) {
    case ViewFault::kNone: return std::nullopt;
    case ViewFault::kNull:
      if (empty) return std::nullopt;
      view.data = nullptr;
      return Expected{StatusCode::kNullPointer, {name}};
    case ViewFault::kUnknownType:
      view.dtype = static_cast<DType>(bytes.Between(4, 255));
      return Expected{StatusCode::kInvalidType, {name}};
    case ViewFault::kOtherType:
      if (model) return std::nullopt;
      view.dtype = view.dtype == DType::kF64 ? DType::kF32 : DType::kF64;
      return Expected{StatusCode::kInvalidType, {name}};
    case ViewFault::kMisaligned:
      if (empty) return std::nullopt;
      view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) + 1);
      return Expected{StatusCode::kInvalidAlias, {name}};
    default: break;
  }
  Shape shape(view.shape.begin(), view.shape.end()), strides(view.strides.begin(), view.strides.end());
  if (!BreakShape(fault, empty, model, bytes, shape, strides)) return std::nullopt;
  view.shape = memory.Keep(std::move(shape));
  view.strides = memory.Keep(std::move(strides));
  return Expected{StatusCode::kInvalidShape, {name}};
}

// ---- checks

template <class Call>
std::string Describe(const Call& call, Memory& memory) {
  std::string text = call.Words();
  for (const Operand& operand : call.Operands(memory)) text += "\n  " + operand.name + " " + ToString(operand.view);
  return text;
}

template <class Call>
std::vector<ConstTensorView> Views(const Call& call, Memory& memory, bool outputs_alone) {
  std::vector<ConstTensorView> views;
  for (const Operand& operand : call.Operands(memory)) {
    if (operand.output || !outputs_alone) views.push_back(operand.view);
  }
  return views;
}

// A name and a view.
struct Result {
  std::string name;
  ConstTensorView view;
};

template <class Call>
std::vector<Result> Outputs(Call call) {
  std::vector<Result> outputs;
  call.ForEachView([&](const std::string& name, auto& view) {
    if constexpr (std::is_same_v<decltype(view), TensorView&>) outputs.push_back({name, In(view)});
  });
  return outputs;
}

// The same call with all views row-major in memory of their own.
template <class Call>
Call PrivateCopy(const Call& call, Memory& memory) {
  Call copy = call;
  copy.ForEachView([&](const std::string&, auto& view) {
    const TensorView own = memory.Copy(In(view));
    view = {own.data, own.dtype, own.shape, own.strides};
  });
  return copy;
}

// A run and the words about it where it is not as expected.
template <class Call>
class Trial {
 public:
  Trial(const Call& call, const Way& way, Memory& memory) : call_(call), way_(way), memory_(memory) {}

  // `want` holds the right results under the outputs' names, row-major.
  void Expect(const Expected& expected, const std::vector<Result>& want) {
    memory_.Remember();
    CheckStatus(call_.Validate(), expected, "validate");
    CheckUntouched("validate");
    if (!expected.ok()) {
      CheckStatus(Do(), expected, "the call");
      return CheckUntouched("a refused call");
    }
    for (int run = 0; run < 2; ++run) {
      memory_.Restore();
      memory_.Fence(Views(call_, memory_, false));
      const Status status = Do();
      memory_.Unfence();
      const bool undecided = status.message().find("could not be decided") != std::string::npos;
      if (undecided && status.code() == StatusCode::kInvalidAlias) return CheckUntouched("a refused call");
      CheckStatus(status, expected, "the call");
      CheckResults(want);
    }
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    const std::string how = !way_.plan ? "one call" : way_.planned_without_data ? "plan without data" : "plan";
    Report(what + "\n" + how + ", " + Describe(call_, memory_));
  }

  void CheckStatus(const Status& status, const Expected& expected, const std::string& who) const {
    if (status.code() == StatusCode::kInvalidAlias && expected.ok() && who == "validate") return;  // or see Expect
    const std::string answer = std::string(Name(status.code())) + " \"" + status.message() + "\"";
    if (status.code() != expected.code) Fail(who + " answers " + answer + ", not " + Name(expected.code));
    if (expected.ok()) return;
    const std::string& message = status.message();
    if (!message.starts_with(std::string(Call::kName) + ": ")) Fail(who + " does not name the operator: " + answer);
    const bool named = std::ranges::any_of(
        expected.names, [&](const std::string& name) { return message.find(name) != std::string::npos; });
    if (!named) Fail(who + " does not name " + expected.names.front() + ": " + answer);
  }

  void CheckUntouched(const std::string& what) const {
    if (memory_.ChangedBeside({})) Fail(what + " has written");
  }

  void CheckResults(const std::vector<Result>& want) const {
    if (memory_.ChangedBeside(Views(call_, memory_, true))) Fail("bytes beside the outputs have changed");
    for (const Result& result : Outputs(call_)) {
      const auto right = std::ranges::find(want, result.name, &Result::name);
      if (right == want.end()) Fail("there is no right result for " + result.name);
      const reference::Comparison comparison = reference::CompareBits(result.view, right->view);
      if (!comparison.ok) Fail(result.name + " differs from the full call's: " + comparison.message);
    }
  }

  Status Do() {
    std::fesetround(way_.rounding);
    Status status = way_.plan ? RunPlan() : call_.Compute();
    const int rounding = std::fegetround();
    std::fesetround(FE_TONEAREST);
    if (rounding != way_.rounding) Fail("the rounding mode has changed");
    return status;
  }

  // Plans at the first run.
  Status RunPlan() {
    if (!plan_) {
      Call planned = call_;
      if (way_.planned_without_data) {
        planned.ForEachView([](const std::string&, auto& view) { view.data = nullptr; });
      }
      typename Call::Plan plan;
      if (Status status = planned.Create(&plan); !status.ok()) return status;
      plan_ = plan;
    }
    Workspace workspace(plan_->workspace_size(), way_.workspace_shift);
    if (workspace.size() != 0) {
      const Status status = call_.Run(*plan_, workspace.data(), workspace.size() - 1);
      if (status.ok()) Fail("a workspace is one byte too small, and the plan runs");
    }
    Status status = call_.Run(*plan_, workspace.data(), workspace.size());
    if (!workspace.StartIntact()) Fail("bytes before the workspace have changed");
    return status;
  }

  const Call& call_;
  Way way_;
  Memory& memory_;
  std::optional<typename Call::Plan> plan_;
};

// Puts some of the outputs elsewhere.
template <class Call>
void Relocate(Bytes& bytes, Call& call, Memory& memory) {
  call.ForEachView([&](const std::string& name, auto& view) {
    if constexpr (std::is_same_v<decltype(view), TensorView&>) {
      if (!bytes.OneIn(4)) return;
      const std::vector<Operand> operands = call.Operands(memory);
      const auto found = std::ranges::find(operands, name, &Operand::name);
      if (found == operands.end()) return;
      Operand output = *found;
      output.view = In(view);
      view = Relocated(bytes, output, operands, memory);
    }
  });
}

// Leaves the call as it is, or makes it wrong in one way.
template <class Call>
Expected MaybeBreak(Bytes& bytes, Call& call, Memory& memory) {
  if (!bytes.OneIn(4)) return {};
  if (bytes.OneIn(2)) return BreakOne(bytes, call, memory);
  std::int64_t views = 0;
  call.ForEachView([&](const std::string&, auto&) { ++views; });
  const auto fault = static_cast<ViewFault>(bytes.Between(1, static_cast<int>(ViewFault::kOtherExtent)));
  std::int64_t victim = bytes.Between(0, views - 1);
  Expected expected;
  call.ForEachView([&](const std::string& name, auto& view) {
    if (victim-- != 0) return;
    expected = Break(fault, name, view, call.IsModel(name), memory, bytes).value_or(Expected{});
  });
  return expected;
}

// A call that wants everything, first as it is on memory of its own, then changed.
template <class Call>
void Try(Bytes& bytes, Call call, Memory& memory) {
  Memory own(1);
  Call full = PrivateCopy(call, own);
  full.execution() = ChooseExecution(bytes);
  RightResults(full, own);
  DropSome(bytes, call);
  Relocate(bytes, call, memory);
  call.execution() = ChooseExecution(bytes);
  Expected expected = ExpectedOfSharing(call.Operands(memory), memory);
  if (expected.ok()) expected = MaybeBreak(bytes, call, memory);
  Trial<Call>(call, ChooseWay(bytes), memory).Expect(expected, Outputs(full));
}

// ---- what operators have in common

std::string Words(const RotaryOptions& options);
std::string Words(const Execution& execution);

// Some right options, and how wide a row they turn; and one wrong one of a row that has `width`.
struct Turn {
  RotaryOptions options;
  std::int64_t turned = 0;
  std::int64_t width = 0;  // of the whole row
};
Turn ChooseTurn(Bytes& bytes);
Expected BreakRotaryOptions(Bytes& bytes, RotaryOptions& options, std::int64_t width);
// How far beyond a limit a number lies: by one, or by anything.
std::int64_t Beyond(Bytes& bytes);
Expected BreakExecution(Bytes& bytes, Execution& execution);

// In blocks of their own: inputs may hold an element twice, and outputs do so in vain.
ConstTensorView MakeInput(Bytes& bytes, DType dtype, const Shape& shape, Memory& memory, Values values);
TensorView MakeOutput(Bytes& bytes, DType dtype, const Shape& shape, Memory& memory);

// Reports a result that is not what a witness says.
void Demand(const reference::Comparison& comparison, const std::string& what, const std::string& words);

// Runs the call that wants everything.
template <class Call>
std::string Computed(const Call& full, Memory& memory) {
  std::string words = Describe(full, memory);
  const Status status = full.Compute();
  if (!status.ok()) Report("refused: " + status.message() + "\n" + words);
  return words;
}

}  // namespace gyrograd::fuzz

#endif  // GYROGRAD_FUZZ_CALL_H_
