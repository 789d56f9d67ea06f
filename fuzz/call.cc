// Where outputs may lie, and the choices that every operator's calls have in common.
#include "fuzz/call.h"

#include <sstream>

#include "tests/support/problem.h"

namespace gyrograd::fuzz {
namespace {

Shape Exchanged(std::span<const std::int64_t> values) {
  Shape exchanged(values.begin(), values.end());
  std::swap(exchanged[1], exchanged[2]);
  return exchanged;
}

// The output's view on exactly the elements of `other`, where the shapes allow it.
std::optional<TensorView> Upon(const Operand& output, const Operand& other, Memory& memory) {
  const ConstTensorView here = InOrderOfX(output, memory), there = InOrderOfX(other, memory);
  if (here.dtype != there.dtype || !std::ranges::equal(here.shape, there.shape)) return std::nullopt;
  TensorView view = Out(output.view);
  view.data = const_cast<void*>(there.data);
  view.strides = output.heads_first ? memory.Keep(Exchanged(there.strides)) : there.strides;
  return view;
}

TensorView Near(Bytes& bytes, const Operand& output, const Operand& other) {
  TensorView view = Out(output.view);
  const std::int64_t shift = bytes.Between(-64, 64) * static_cast<std::int64_t>(SizeOf(view.dtype));
  view.data = static_cast<std::byte*>(const_cast<void*>(other.view.data)) + shift;
  return view;
}

}  // namespace

ConstTensorView InOrderOfX(const Operand& operand, Memory& memory) {
  if (!operand.heads_first) return operand.view;
  ConstTensorView view = operand.view;
  view.shape = memory.Keep(Exchanged(view.shape));
  view.strides = memory.Keep(Exchanged(view.strides));
  return view;
}

Expected ExpectedOfSharing(const std::vector<Operand>& operands, Memory& memory) {
  Expected expected;
  const auto refuse = [&](const std::string& name) {
    expected.code = StatusCode::kInvalidAlias;
    expected.names.push_back(name);
  };
  for (const Operand& output : operands) {  // some lie where another type's elements do
    if (output.output && SharesWithItself(output.view)) refuse(output.name);
    const auto address = reinterpret_cast<std::uintptr_t>(output.view.data);
    if (address % SizeOf(output.view.dtype) != 0 && !IsEmpty(output.view)) refuse(output.name);
  }
  for (const Operand& output : operands) {
    if (!output.output) continue;
    for (const Operand& other : operands) {
      if (&output == &other || !SharesBytes(output.view, other.view)) continue;
      const bool may = output.group != 0 && output.group == other.group && !other.output;
      if (!may || !SameElements(InOrderOfX(output, memory), InOrderOfX(other, memory))) refuse(output.name);
    }
  }
  return expected;
}

TensorView Relocated(Bytes& bytes, const Operand& output, const std::vector<Operand>& operands, Memory& memory) {
  const TensorView here = Out(output.view);
  if (IsEmpty(output.view)) return here;
  const Operand* other = &bytes.Of(std::span(operands));
  std::optional<TensorView> there;
  switch (bytes.Between(0, 3)) {
    case 0:  // where it may lie
      for (const Operand& candidate : operands) {
        if (candidate.group == output.group && !candidate.output && !bytes.OneIn(3)) {
          there = Upon(output, candidate, memory);
        }
      }
      break;
    case 1: there = Upon(output, *other, memory); break;
    case 2: there = Near(bytes, output, *other); break;
    default:
      there = Upon(output, *other, memory);
      if (there)
        there->data = static_cast<std::byte*>(there->data) +
                      bytes.Between(-4, 4) * static_cast<std::int64_t>(SizeOf(there->dtype));
      break;
  }
  if (!there || !memory.Holds(In(*there))) return here;
  return *there;
}

bool BreakShape(ViewFault fault, bool empty, bool model, Bytes& bytes, Shape& shape, Shape& strides) {
  const auto axis = static_cast<std::size_t>(bytes.Between(0, static_cast<std::int64_t>(shape.size()) - 1));
  switch (fault) {
    case ViewFault::kStrideMissing: strides.pop_back(); return true;
    case ViewFault::kStrideTooMany: strides.push_back(1); return true;
    case ViewFault::kNegativeExtent: shape[axis] = -bytes.Between(1, 1 << 20); return true;
    case ViewFault::kHugeStride:
      if (empty || shape[axis] < 2) return false;
      strides[axis] = bytes.OneIn(2) ? std::int64_t{1} << 62 : -(std::int64_t{1} << 62);
      return true;
    case ViewFault::kAxisMissing:
      shape.erase(shape.begin());
      strides.erase(strides.begin());
      return true;
    case ViewFault::kOtherExtent: shape[axis] += 1; return !model;
    default: return false;
  }
}

Execution ChooseExecution(Bytes& bytes) {
  static const std::vector<CpuTarget> targets = AvailableCpuTargets();
  Execution execution;
  execution.num_threads = bytes.OneIn(4) ? static_cast<int>(bytes.Between(0, 5)) : 1;
  execution.cpu_target = bytes.OneIn(3) ? CpuTarget::kBest : bytes.Of(targets);
  return execution;
}

Values ChooseValues(Bytes& bytes) {
  constexpr Values kChoices[] = {Values::kPlain,    Values::kPlain, Values::kWide,
                                 Values::kInfinite, Values::kTiny,  Values::kBits};
  return bytes.Of(kChoices);
}

Way ChooseWay(Bytes& bytes) {
  constexpr int kRoundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  Way way;
  if (bytes.OneIn(4)) way.rounding = bytes.Of(kRoundings);
  way.plan = bytes.OneIn(2);
  if (!way.plan) return way;
  way.planned_without_data = bytes.OneIn(2);
  way.workspace_shift = static_cast<std::size_t>(bytes.Between(0, 63));
  return way;
}

std::string Words(const RotaryOptions& options) {
  std::ostringstream text;
  text << "mode " << static_cast<int>(options.mode) << (options.per_pair_tables ? ", per pair" : "");
  if (options.rotary_dim) text << ", rotary_dim " << *options.rotary_dim;
  text << ", rotary_offset " << options.rotary_offset;
  return std::move(text).str();
}

std::string Words(const Execution& execution) {
  return "threads " + std::to_string(execution.num_threads) + ", target " + Name(execution.cpu_target);
}

namespace {

std::int64_t ChooseTurned(Bytes& bytes, std::int64_t multiple) {
  switch (bytes.Between(0, 3)) {
    case 0: return multiple * bytes.Between(1, 8);
    case 1: return multiple * bytes.Between(1, 40);
    case 2: return 64 * bytes.Between(1, 4);
    default: return multiple * bytes.Between(1, 600);
  }
}

}  // namespace

Turn ChooseTurn(Bytes& bytes) {
  Turn turn;
  turn.options.mode = bytes.Of(testing::kModes);
  turn.options.per_pair_tables = bytes.OneIn(3);
  turn.turned = turn.width = ChooseTurned(bytes, turn.options.mode == RotaryMode::kQuarter ? 4 : 2);
  if (!bytes.OneIn(3)) return turn;
  turn.options.rotary_dim = turn.turned;
  turn.options.rotary_offset = bytes.Between(0, 40);
  turn.width += turn.options.rotary_offset + bytes.Between(0, 40);
  return turn;
}

std::int64_t Beyond(Bytes& bytes) { return bytes.OneIn(2) ? bytes.Between(1, std::int64_t{1} << 40) : 1; }

Expected BreakRotaryOptions(Bytes& bytes, RotaryOptions& options, std::int64_t width) {
  constexpr int kModes[] = {4, -1, 256};
  const auto naming = [](const char* name) { return Expected{StatusCode::kInvalidAttribute, {name}}; };
  switch (bytes.Between(0, 4)) {
    case 0: options.mode = static_cast<RotaryMode>(bytes.Of(kModes)); return naming("mode");
    case 1: options.rotary_dim = bytes.Between(0, 60) * 2 + 1; return naming("rotary_dim");
    case 2: options.rotary_dim = -bytes.Between(1, 1 << 20) * 4; return naming("rotary_dim");
    case 3:
      options.rotary_dim = width / 4 * 4 + 4 * Beyond(bytes);
      return {StatusCode::kInvalidAttribute, {"rotary_dim", "rotary_offset"}};  // their sum is refused
    default:
      options.rotary_offset =
          bytes.OneIn(2) ? -Beyond(bytes) : width - options.rotary_dim.value_or(width) + Beyond(bytes);
      return naming("rotary_offset");
  }
}

Expected BreakExecution(Bytes& bytes, Execution& execution) {
#if defined(__aarch64__)
  constexpr CpuTarget kForeign = CpuTarget::kAvx2;
#else
  constexpr CpuTarget kForeign = CpuTarget::kNeon;
#endif
  if (bytes.OneIn(2)) {
    execution.num_threads = -1 - bytes.Byte();
    return {StatusCode::kInvalidAttribute, {"num_threads"}};
  }
  execution.cpu_target = bytes.OneIn(2) ? kForeign : static_cast<CpuTarget>(bytes.Between(5, 255));
  return {StatusCode::kInvalidAttribute, {"cpu_target"}};
}

ConstTensorView MakeInput(Bytes& bytes, DType dtype, const Shape& shape, Memory& memory, Values values) {
  const std::int64_t choice = bytes.Between(0, 3);
  const Shape strides = choice == 1   ? FreeStrides(bytes, shape)
                        : choice == 2 ? DistinctStrides(bytes, shape)
                                      : ContiguousStrides(shape);
  const ConstTensorView view = In(memory.Make(dtype, shape, strides, bytes.OneIn(4) ? bytes.Between(0, 31) : 0));
  const bool beyond = dtype == DType::kF64 && values == Values::kBits;  // the f64 witness's own range
  Fill(view, beyond ? Values::kWide : values, memory.random());
  return view;
}

TensorView MakeOutput(Bytes& bytes, DType dtype, const Shape& shape, Memory& memory) {
  const std::int64_t choice = bytes.Between(0, 15);
  const Shape strides = choice == 1  ? FreeStrides(bytes, shape)
                        : choice > 8 ? DistinctStrides(bytes, shape)
                                     : ContiguousStrides(shape);
  return memory.Make(dtype, shape, strides, bytes.OneIn(4) ? bytes.Between(0, 31) : 0);
}

void Demand(const reference::Comparison& comparison, const std::string& what, const std::string& words) {
  if (!comparison.ok) Report(what + ": " + comparison.message + "\n" + words);
}

}  // namespace gyrograd::fuzz
