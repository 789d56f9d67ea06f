// The golden problems of norm + rotary, as single segments and as the joint call.
#include <algorithm>

#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"
#include "tests/golden/problems.h"

namespace gyrograd::golden {
namespace {

constexpr NormType kNorms[] = {NormType::kNone, NormType::kLayer, NormType::kLayerAffine, NormType::kRms,
                               NormType::kRmsAffine};
constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};
constexpr double kEps[] = {1e-5, 1e-6, 0.0, 1.0};

bool HasMean(NormType type) { return type == NormType::kLayer || type == NormType::kLayerAffine; }
bool HasWeight(NormType type) { return type == NormType::kLayerAffine || type == NormType::kRmsAffine; }
bool HasBias(NormType type) { return type == NormType::kLayerAffine; }
DType StatisticsType(const Types& types) { return types.activations == DType::kF64 ? DType::kF64 : DType::kF32; }

constexpr Types kAllTypes[] = {{DType::kF64, DType::kF64, DType::kF64},    {DType::kF32, DType::kF32, DType::kF32},
                               {DType::kF16, DType::kF16, DType::kF16},    {DType::kF16, DType::kF32, DType::kF16},
                               {DType::kF16, DType::kF16, DType::kF32},    {DType::kF16, DType::kF32, DType::kF32},
                               {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32, DType::kBF16},
                               {DType::kBF16, DType::kBF16, DType::kF32},  {DType::kBF16, DType::kF32, DType::kF32}};

std::string Words(const Types& types) {
  return std::string(Name(types.activations)) + "/" + Name(types.weights) + "/" + Name(types.tables);
}

// ---- One segment ------------------------------------------------------------------------------------------------

struct Extents {
  std::int64_t batch, sequence, heads, channels;

  Shape X() const { return {batch, sequence, heads, channels}; }
  Shape Y() const { return {batch, heads, sequence, channels}; }
  Shape Statistics() const { return {batch, sequence, heads, 1}; }
};

Extents ChooseExtents(Numbers& numbers) {
  Extents extents;
  extents.channels = numbers.OneIn(16) ? numbers.Between(1, 3) : ChooseChannels(numbers, numbers.OneIn(3) ? 1 : 4);
  const bool many = extents.channels < 40 && numbers.OneIn(6);  // rows, for the sums of the weights' gradients
  extents.batch = numbers.Between(1, 2);
  extents.sequence = numbers.OneIn(30) ? 0 : many ? numbers.Between(100, 400) : numbers.Between(1, 9);
  extents.heads = numbers.Between(1, extents.channels > 2000 ? 1 : 4);
  return extents;
}

std::optional<NormRopeRotation> ChooseSegmentRotation(Numbers& numbers, const Extents& extents, DType table_type,
                                                      Tensors* tensors) {
  if (extents.channels < 4 || numbers.OneIn(6)) return std::nullopt;
  NormRopeRotation rotation;
  rotation.options = ChooseRotation(numbers, numbers.Choose(kModes), extents.channels);
  rotation.first = numbers.OneIn(2) ? 0 : numbers.Between(0, extents.sequence);
  const std::int64_t most = extents.sequence - rotation.first;
  Shape shape = {numbers.OneIn(2) ? most : numbers.Between(0, most), TableWidth(rotation.options, extents.channels)};
  if (numbers.OneIn(2)) {
    const Shape outer = {numbers.OneIn(2) ? 1 : extents.batch, numbers.OneIn(2) ? 1 : extents.heads};
    shape.insert(shape.begin(), outer.begin(), outer.end());
  }
  tensors->Say("first=" + std::to_string(rotation.first) + " " + golden::Words(rotation.options));
  rotation.cos = tensors->Input("cos", table_type, shape);
  rotation.sin = tensors->Input("sin", table_type, shape);
  return rotation;
}

Outcome RunBackward(Numbers& numbers, CpuTarget target, NormType norm, const Types& types) {
  Tensors tensors(numbers);
  const Extents extents = ChooseExtents(numbers);
  const Execution execution = ChooseExecution(numbers, target);
  const DType statistics = StatisticsType(types);
  // Which results; dx alone can be wanted without weights.
  const std::int64_t wanted = !HasWeight(norm) ? 1 : numbers.OneIn(2) ? 7 : numbers.Between(1, HasBias(norm) ? 7 : 3);
  NormRopeBackwardSegment segment;
  segment.norm_type = norm;
  segment.dy = tensors.Input("dy", types.activations, extents.Y());
  if (norm != NormType::kNone && (wanted & 1) && numbers.OneIn(5)) {
    segment.dx = tensors.InPlace("x", types.activations, extents.X());
    segment.x = AsInput(*segment.dx);
  } else {
    if (norm != NormType::kNone) segment.x = tensors.Input("x", types.activations, extents.X());
    if (wanted & 1) segment.dx = tensors.Output("dx", types.activations, extents.X());
  }
  if (HasMean(norm)) segment.mean = tensors.Input("mean", statistics, extents.Statistics());
  if (norm != NormType::kNone) {
    segment.rstd = tensors.Input("rstd", statistics, extents.Statistics(), Values::kPositive);
  }
  if (HasWeight(norm)) segment.weight = tensors.Input("weight", types.weights, {extents.channels});
  if (HasWeight(norm) && (wanted & 2)) segment.dweight = tensors.Output("dweight", types.weights, {extents.channels});
  if (HasBias(norm) && (wanted & 4)) segment.dbias = tensors.Output("dbias", types.weights, {extents.channels});
  segment.rotation = ChooseSegmentRotation(numbers, extents, types.tables, &tensors);
  return tensors.Run([&] { return NormRopeBackward({.segments = {&segment, 1}, .execution = execution}); });
}

Outcome RunForward(Numbers& numbers, CpuTarget target, NormType norm, const Types& types) {
  Tensors tensors(numbers);
  const Extents extents = ChooseExtents(numbers);
  const Execution execution = ChooseExecution(numbers, target);
  const DType statistics = StatisticsType(types);
  NormRopeSegment segment;
  segment.norm_type = norm;
  segment.eps = numbers.Choose(kEps);
  if (numbers.OneIn(5)) {
    const TensorView x = tensors.InPlace("x", types.activations, extents.X());
    segment.x = AsInput(x);
    segment.y = tensors.Swapped(x);
  } else {
    segment.x = tensors.Input("x", types.activations, extents.X());
    segment.y = tensors.Output("y", types.activations, extents.Y());
  }
  if (HasWeight(norm)) segment.weight = tensors.Input("weight", types.weights, {extents.channels});
  if (HasBias(norm)) segment.bias = tensors.Input("bias", types.weights, {extents.channels});
  segment.rotation = ChooseSegmentRotation(numbers, extents, types.tables, &tensors);
  if (HasMean(norm) && !numbers.OneIn(3)) segment.mean = tensors.Output("mean", statistics, extents.Statistics());
  if (norm != NormType::kNone && !numbers.OneIn(3)) {
    segment.rstd = tensors.Output("rstd", statistics, extents.Statistics());
  }
  return tensors.Run([&] { return NormRope({.segments = {&segment, 1}, .execution = execution}); });
}

// ---- The joint call ---------------------------------------------------------------------------------------------

// The extents of all streams, and what the call does to them.
struct Joint {
  Joint(Numbers& numbers, NormType norm, const Types& all_types) : types(all_types) {
    options.norm_type = norm;
    options.norm_added_type = numbers.Choose(kNorms);
    options.concat_order = numbers.OneIn(2) ? ConcatOrder::kStreamFirst : ConcatOrder::kEncoderFirst;
    batch = numbers.Between(1, 2);
    heads = numbers.Between(1, 4);
    key_heads = numbers.OneIn(3) ? 1 : heads;
    channels = numbers.OneIn(3) ? 64 : 4 * numbers.Between(1, 20);
    query = numbers.Between(1, 12);
    key = numbers.Between(1, 12);
    encoder_query = numbers.OneIn(4) ? 0 : numbers.Between(1, 7);
    encoder_key = numbers.OneIn(4) ? 0 : numbers.Between(1, 7);
    if (numbers.OneIn(5)) return;
    options.rotary = ChooseRotation(numbers, numbers.Choose(kModes), channels);
    const std::int64_t joint = std::min(query + encoder_query, key + encoder_key);
    options.rope_start = numbers.OneIn(2) ? 0 : numbers.Between(0, joint - 1);
    rope = numbers.Between(1, joint - options.rope_start);
  }

  // The types' part of a call, and the tables.
  template <class Args>
  void SetTables(Tensors& tensors, Args* args) const {
    args->options = options;
    if (!options.rotary) return;
    tensors.Say(golden::Words(*options.rotary) + " start=" + std::to_string(options.rope_start));
    const Shape shape = {rope, TableWidth(*options.rotary, channels)};
    args->rope_cos = tensors.Input("cos", types.tables, shape);
    args->rope_sin = tensors.Input("sin", types.tables, shape);
  }
  Shape Stream(std::int64_t sequence, std::int64_t its_heads) const { return {batch, sequence, its_heads, channels}; }
  Shape Whole(std::int64_t sequence, std::int64_t its_heads) const { return {batch, its_heads, sequence, channels}; }
  Shape Statistics(const ConstTensorView& x) const { return {batch, x.shape[1], x.shape[2], 1}; }

  Types types;
  NormRopeConcatOptions options;
  std::int64_t batch, heads, key_heads, channels, query, key, encoder_query, encoder_key, rope = 0;
};

NormBackwardTensors BackwardNorm(Tensors& tensors, const Joint& joint, NormType type,
                                 const std::optional<ConstTensorView>& x) {
  NormBackwardTensors norm;
  if (!x || type == NormType::kNone) return norm;
  const DType statistics = StatisticsType(joint.types);
  if (HasMean(type)) norm.mean = tensors.Input("mean", statistics, joint.Statistics(*x));
  norm.rstd = tensors.Input("rstd", statistics, joint.Statistics(*x), Values::kPositive);
  if (HasWeight(type)) {
    norm.weight = tensors.Input("weight", joint.types.weights, {joint.channels});
    norm.dweight = tensors.Output("dweight", joint.types.weights, {joint.channels});
  }
  if (HasBias(type)) norm.dbias = tensors.Output("dbias", joint.types.weights, {joint.channels});
  return norm;
}

Outcome RunConcatBackward(Numbers& numbers, CpuTarget target, NormType norm, const Types& types) {
  Tensors tensors(numbers);
  const Joint joint(numbers, norm, types);
  const DType type = types.activations;
  NormRopeConcatBackwardArgs args;
  args.execution = ChooseExecution(numbers, target);
  joint.SetTables(tensors, &args);
  const std::int64_t queries = joint.query + joint.encoder_query, keys = joint.key + joint.encoder_key;
  args.grad_query_output = tensors.Input("grad_query", type, joint.Whole(queries, joint.heads));
  args.grad_key_output = tensors.Input("grad_key", type, joint.Whole(keys, joint.key_heads));
  args.grad_value_output = tensors.Input("grad_value", type, joint.Whole(keys, joint.key_heads));
  // A stream that is there has an input and a gradient.
  const auto add = [&](std::optional<ConstTensorView>* x, std::optional<TensorView>* dx, std::int64_t sequence,
                       std::int64_t heads) {
    if (sequence == 0) return;
    if (x != nullptr) *x = tensors.Input("x", type, joint.Stream(sequence, heads));
    *dx = tensors.Output("dx", type, joint.Stream(sequence, heads));
  };
  add(&args.query, &args.dquery, joint.query, joint.heads);
  add(&args.key, &args.dkey, joint.key, joint.key_heads);
  add(nullptr, &args.dvalue, joint.key, joint.key_heads);
  add(&args.encoder_query, &args.dencoder_query, joint.encoder_query, joint.heads);
  add(&args.encoder_key, &args.dencoder_key, joint.encoder_key, joint.key_heads);
  add(nullptr, &args.dencoder_value, joint.encoder_key, joint.key_heads);
  args.norm_query = BackwardNorm(tensors, joint, joint.options.norm_type, args.query);
  args.norm_key = BackwardNorm(tensors, joint, joint.options.norm_type, args.key);
  args.norm_added_query = BackwardNorm(tensors, joint, joint.options.norm_added_type, args.encoder_query);
  args.norm_added_key = BackwardNorm(tensors, joint, joint.options.norm_added_type, args.encoder_key);
  return tensors.Run([&] { return NormRopeConcatBackward(args); });
}

NormTensors ForwardNorm(Tensors& tensors, const Joint& joint, NormType type, const std::optional<ConstTensorView>& x) {
  NormTensors norm;
  if (!x || type == NormType::kNone) return norm;
  const DType statistics = StatisticsType(joint.types);
  if (HasWeight(type)) norm.weight = tensors.Input("weight", joint.types.weights, {joint.channels});
  if (HasBias(type)) norm.bias = tensors.Input("bias", joint.types.weights, {joint.channels});
  if (HasMean(type)) norm.mean = tensors.Output("mean", statistics, joint.Statistics(*x));
  norm.rstd = tensors.Output("rstd", statistics, joint.Statistics(*x));
  return norm;
}

Outcome RunConcat(Numbers& numbers, CpuTarget target, NormType norm, const Types& types) {
  Tensors tensors(numbers);
  const Joint joint(numbers, norm, types);
  const DType type = types.activations;
  NormRopeConcatArgs args;
  args.execution = ChooseExecution(numbers, target);
  args.eps = numbers.Choose(kEps);
  joint.SetTables(tensors, &args);
  const auto input = [&](std::int64_t sequence, std::int64_t heads) -> std::optional<ConstTensorView> {
    if (sequence == 0) return std::nullopt;
    return tensors.Input("x", type, joint.Stream(sequence, heads));
  };
  args.query = input(joint.query, joint.heads);
  args.key = input(joint.key, joint.key_heads);
  args.value = input(joint.key, joint.key_heads);
  args.encoder_query = input(joint.encoder_query, joint.heads);
  args.encoder_key = input(joint.encoder_key, joint.key_heads);
  args.encoder_value = input(joint.encoder_key, joint.key_heads);
  args.norm_query = ForwardNorm(tensors, joint, joint.options.norm_type, args.query);
  args.norm_key = ForwardNorm(tensors, joint, joint.options.norm_type, args.key);
  args.norm_added_query = ForwardNorm(tensors, joint, joint.options.norm_added_type, args.encoder_query);
  args.norm_added_key = ForwardNorm(tensors, joint, joint.options.norm_added_type, args.encoder_key);
  const std::int64_t queries = joint.query + joint.encoder_query, keys = joint.key + joint.encoder_key;
  args.query_output = tensors.Output("query_output", type, joint.Whole(queries, joint.heads));
  args.key_output = tensors.Output("key_output", type, joint.Whole(keys, joint.key_heads));
  args.value_output = tensors.Output("value_output", type, joint.Whole(keys, joint.key_heads));
  return tensors.Run([&] { return NormRopeConcat(args); });
}

using RunProblem = Outcome (*)(Numbers&, CpuTarget, NormType, const Types&);

std::vector<Group> Groups(const std::string& name, RunProblem run) {
  std::vector<Group> groups;
  for (const NormType norm : kNorms) {
    for (const Types& types : kAllTypes) {
      groups.push_back({name + " " + Name(norm) + " " + Words(types),
                        [=](Numbers& numbers, CpuTarget target) { return run(numbers, target, norm, types); }});
    }
  }
  return groups;
}

std::vector<Group> Joined(std::vector<Group> first, const std::vector<Group>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

std::vector<Group> NormRopeGroups() {
  return Joined(Groups("norm_rope_backward", RunBackward), Groups("norm_rope", RunForward));
}

std::vector<Group> NormRopeConcatGroups() {
  return Joined(Groups("norm_rope_concat_backward", RunConcatBackward), Groups("norm_rope_concat", RunConcat));
}

}  // namespace gyrograd::golden
