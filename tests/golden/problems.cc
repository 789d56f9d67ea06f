// What the golden problems of the operators share, and the rotary operator's.
#include "tests/golden/problems.h"

#include <algorithm>
#include <iterator>

#include "gyrograd/rotary.h"

namespace gyrograd::golden {

std::int64_t ChooseChannels(Numbers& numbers, std::int64_t unit) {
  static constexpr std::int64_t kAroundVectors[] = {8, 16, 32, 64, 96, 124, 128, 132, 192, 256};
  if (numbers.OneIn(3)) return numbers.Choose(kAroundVectors);
  if (numbers.OneIn(30)) return unit * numbers.Between(2000 / unit, 9000 / unit);
  return unit * numbers.Between(std::max<std::int64_t>(4 / unit, 1), 72 / unit);
}

RotaryOptions ChooseRotation(Numbers& numbers, RotaryMode mode, std::int64_t channels) {
  RotaryOptions options;
  options.mode = mode;
  options.per_pair_tables = numbers.OneIn(3);
  const std::int64_t unit = mode == RotaryMode::kQuarter ? 4 : 2;
  if (channels % unit != 0 || numbers.OneIn(3)) {
    options.rotary_dim = unit * numbers.Between(1, channels / unit);
    options.rotary_offset = numbers.Between(0, channels - *options.rotary_dim);
  }
  return options;
}

std::int64_t TableWidth(const RotaryOptions& options, std::int64_t channels) {
  return options.rotary_dim.value_or(channels) / (options.per_pair_tables ? 2 : 1);
}

Execution ChooseExecution(Numbers& numbers, CpuTarget target) {
  return {static_cast<int>(numbers.Between(1, 3)), target};
}

std::string Words(const RotaryOptions& options) {
  return std::string(Name(options.mode)) + (options.per_pair_tables ? " per pair" : "") + " rotary_dim=" +
         (options.rotary_dim ? std::to_string(*options.rotary_dim) + "+" + std::to_string(options.rotary_offset)
                             : "all");
}

std::vector<Group> AllGroups() {
  std::vector<Group> all = RotaryGroups();
  for (std::vector<Group> more : {NormRopeGroups(), NormRopeConcatGroups()}) {
    all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return all;
}

// ---- Rotary -----------------------------------------------------------------------------------------------------

namespace {

struct RotaryShapes {
  Shape rows, tables;
};

// Few outer axes of small extents, or one long one that the tables' sums run over.
RotaryShapes ChooseShapes(Numbers& numbers, RotaryMode mode, RotaryOptions* options) {
  const std::int64_t unit = mode == RotaryMode::kQuarter ? 4 : 2;
  RotaryShapes shapes;
  if (numbers.OneIn(10)) {
    shapes.rows = {numbers.Between(1000, 9000), numbers.Between(4, 9)};
    shapes.tables = {1};
  } else {
    const std::int64_t channels = ChooseChannels(numbers, numbers.OneIn(3) ? 1 : unit);
    const std::int64_t rank = numbers.Between(0, channels > 2000 ? 1 : 4);
    for (std::int64_t axis = 0; axis < rank; ++axis) {
      shapes.rows.push_back(numbers.OneIn(40) ? 0 : numbers.Between(1, numbers.OneIn(8) ? 30 : 5));
      shapes.tables.push_back(numbers.OneIn(2) ? 1 : shapes.rows.back());
    }
    shapes.rows.push_back(channels);
  }
  *options = ChooseRotation(numbers, mode, shapes.rows.back());
  shapes.tables.push_back(TableWidth(*options, shapes.rows.back()));
  return shapes;
}

Outcome RunRotaryBackward(Numbers& numbers, CpuTarget target, RotaryMode mode, DType activations, DType table_type) {
  Tensors tensors(numbers);
  RotaryBackwardArgs args;
  const RotaryShapes shapes = ChooseShapes(numbers, mode, &args.options);
  args.execution = ChooseExecution(numbers, target);
  tensors.Say(Words(args.options));
  // In place or not, and which results.
  const bool in_place = numbers.OneIn(5), tables_in_place = numbers.OneIn(8);
  const std::int64_t wanted = numbers.OneIn(2) ? 7 : numbers.Between(1, 7);
  if (in_place && (wanted & 1)) {
    args.dx = tensors.InPlace("dy", activations, shapes.rows);
    args.dy = AsInput(*args.dx);
  } else {
    args.dy = tensors.Input("dy", activations, shapes.rows);
    if (wanted & 1) args.dx = tensors.Output("dx", activations, shapes.rows);
  }
  if (wanted != 1 || numbers.OneIn(2)) args.x = tensors.Input("x", activations, shapes.rows);
  if (tables_in_place && (wanted & 2)) {
    args.dcos = tensors.InPlace("cos", table_type, shapes.tables);
    args.cos = AsInput(*args.dcos);
  } else {
    args.cos = tensors.Input("cos", table_type, shapes.tables);
    if (wanted & 2) args.dcos = tensors.Output("dcos", table_type, shapes.tables);
  }
  args.sin = tensors.Input("sin", table_type, shapes.tables);
  if (wanted & 4) args.dsin = tensors.Output("dsin", table_type, shapes.tables);
  return tensors.Run([&] { return RotaryBackward(args); });
}

Outcome RunRotary(Numbers& numbers, CpuTarget target, RotaryMode mode, DType activations, DType table_type) {
  Tensors tensors(numbers);
  RotaryArgs args;
  const RotaryShapes shapes = ChooseShapes(numbers, mode, &args.options);
  args.execution = ChooseExecution(numbers, target);
  tensors.Say(Words(args.options));
  if (numbers.OneIn(5)) {
    args.y = tensors.InPlace("x", activations, shapes.rows);
    args.x = AsInput(args.y);
  } else {
    args.x = tensors.Input("x", activations, shapes.rows);
    args.y = tensors.Output("y", activations, shapes.rows);
  }
  args.cos = tensors.Input("cos", table_type, shapes.tables);
  args.sin = tensors.Input("sin", table_type, shapes.tables);
  return tensors.Run([&] { return Rotary(args); });
}

constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};

constexpr DType kRotaryTypes[][2] = {{DType::kF64, DType::kF64}, {DType::kF32, DType::kF32},
                                     {DType::kF16, DType::kF16}, {DType::kBF16, DType::kBF16},
                                     {DType::kF16, DType::kF32}, {DType::kBF16, DType::kF32}};

}  // namespace

std::vector<Group> RotaryGroups() {
  std::vector<Group> groups;
  for (const bool backward : {true, false}) {
    for (const RotaryMode mode : kModes) {
      for (const auto& [activations, tables] : kRotaryTypes) {
        groups.push_back({std::string(backward ? "rotary_backward " : "rotary ") + Name(mode) + " " +
                              Name(activations) + "/" + Name(tables),
                          [=](Numbers& numbers, CpuTarget target) {
                            return (backward ? RunRotaryBackward : RunRotary)(numbers, target, mode, activations,
                                                                              tables);
                          }});
      }
    }
  }
  return groups;
}

}  // namespace gyrograd::golden
