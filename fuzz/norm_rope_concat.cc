// Joint calls of norm, rotary and concatenation.
#include "gyrograd/norm_rope_concat.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/memory.h"
#include "fuzz/norm_rope.h"
#include "reference/norm_rope_concat.h"

namespace gyrograd::fuzz {
namespace {

using testing::HasBias;
using testing::HasMean;
using testing::HasWeight;

constexpr int kStreams = 6;  // query, encoder_query, key, encoder_key, value, encoder_value
constexpr int kJoints = 3;
constexpr const char* kStreamNames[kStreams] = {"query",       "encoder_query", "key",
                                                "encoder_key", "value",         "encoder_value"};
constexpr const char* kGradientNames[kStreams] = {"dquery",       "dencoder_query", "dkey",
                                                  "dencoder_key", "dvalue",         "dencoder_value"};
constexpr const char* kNormNames[kStreams] = {"norm_query", "norm_added_query", "norm_key", "norm_added_key", "", ""};
constexpr const char* kJointNames[2][kJoints] = {{"grad_query_output", "grad_key_output", "grad_value_output"},
                                                 {"query_output", "key_output", "value_output"}};

bool IsEncoder(int stream) { return stream % 2 == 1; }
int JointOf(int stream) { return stream / 2; }

// ---- the arguments by number

std::array<std::optional<ConstTensorView>*, kJoints> JointsOf(NormRopeConcatBackwardArgs& args) {
  return {&args.grad_query_output, &args.grad_key_output, &args.grad_value_output};
}
std::array<std::optional<TensorView>*, kJoints> JointsOf(NormRopeConcatArgs& args) {
  return {&args.query_output, &args.key_output, &args.value_output};
}
std::array<std::optional<ConstTensorView>*, kStreams> InputsOf(NormRopeConcatBackwardArgs& args) {
  return {&args.query, &args.encoder_query, &args.key, &args.encoder_key, nullptr, nullptr};
}
std::array<std::optional<ConstTensorView>*, kStreams> InputsOf(NormRopeConcatArgs& args) {
  return {&args.query, &args.encoder_query, &args.key, &args.encoder_key, &args.value, &args.encoder_value};
}
std::array<std::optional<TensorView>*, kStreams> GradientsOf(NormRopeConcatBackwardArgs& args) {
  return {&args.dquery, &args.dencoder_query, &args.dkey, &args.dencoder_key, &args.dvalue, &args.dencoder_value};
}
template <class Args>
auto NormsOf(Args& args) {
  return std::array{&args.norm_query, &args.norm_added_query, &args.norm_key, &args.norm_added_key};
}
template <class Args>
std::array<std::optional<ConstTensorView>*, 4> TablesOf(Args& args) {
  return {&args.rope_cos, &args.rope_sin, &args.encoder_rope_cos, &args.encoder_rope_sin};
}
constexpr const char* kTableNames[4] = {"rope_cos", "rope_sin", "encoder_rope_cos", "encoder_rope_sin"};

template <class Args>
constexpr bool kIsBackward = std::is_same_v<Args, NormRopeConcatBackwardArgs>;

template <class Args>
NormType NormTypeOf(const Args& args, int stream) {
  if (JointOf(stream) == 2) return NormType::kNone;
  return IsEncoder(stream) ? args.options.norm_added_type : args.options.norm_type;
}

// ---- a call

// Calls body(name, view, group) for each tensor of the stream's norm that the norm uses.
template <class Args, class Body>
void ForEachOfNorm(Args& args, int stream, const Body& body) {
  if (JointOf(stream) == 2) return;
  auto& norm = *NormsOf(args)[static_cast<std::size_t>(stream)];
  const NormType type = NormTypeOf(args, stream);
  const auto give = [&](const char* name, auto& view, bool used, int group = 0) {
    if (view && used) body(std::string(kNormNames[stream]) + name, *view, group);
  };
  give(".weight", norm.weight, HasWeight(type), 10 * stream + 2);
  give(".mean", norm.mean, HasMean(type));
  give(".rstd", norm.rstd, type != NormType::kNone);
  if constexpr (kIsBackward<Args>) {
    give(".dweight", norm.dweight, true, 10 * stream + 2);
    give(".dbias", norm.dbias, true);
  } else {
    give(".bias", norm.bias, HasBias(type));
  }
}

// The same for the rest of a stream's own tensors. What no norm reads tells a length and no more.
template <class Args, class Body>
void ForEachOfStream(Args& args, int stream, const Body& body) {
  const auto s = static_cast<std::size_t>(stream);
  const int group = 10 * stream + 1;
  auto* const x = InputsOf(args)[s];
  const bool read = !kIsBackward<Args> || NormTypeOf(args, stream) != NormType::kNone;
  if (x != nullptr && *x && read) body(kStreamNames[s], **x, group);
  ForEachOfNorm(args, stream, body);
  if constexpr (kIsBackward<Args>) {
    if (auto& gradient = *GradientsOf(args)[s]) body(kGradientNames[s], *gradient, group);
  }
}

template <class Args, class Body>
void ForEachTable(Args& args, const Body& body) {
  const bool turns = args.options.rotary && (*JointsOf(args)[0] || *JointsOf(args)[1]);
  for (std::size_t table = 0; table < 4 && turns; ++table) {
    if (auto& view = *TablesOf(args)[table]) body(kTableNames[table], *view, 0);
  }
}

template <class ArgsType, class PlanType>
struct JointCall {
  using Args = ArgsType;
  using Plan = PlanType;
  static constexpr const char* kName = kIsBackward<Args> ? "norm_rope_concat_backward" : "norm_rope_concat";
  Args args;
  std::array<std::int64_t, kStreams> lengths = {};
  bool witnessed = true;  // as in norm_rope.cc

  Execution& execution() { return args.execution; }
  bool IsModel(const std::string& name) const {
    const auto among = [&](const auto& names) { return std::ranges::find(names, name) != std::end(names); };
    return among(kJointNames[0]) || among(kJointNames[1]) || among(kStreamNames) || among(kGradientNames);
  }
  Status Create(Plan* plan) const { return Plan::Create(args, plan); }
  Status Run(const Plan& plan, void* workspace, std::size_t size) const { return plan.Run(args, workspace, size); }
  Status Validate() const {
    if constexpr (kIsBackward<Args>)
      return ValidateNormRopeConcatBackward(args);
    else
      return ValidateNormRopeConcat(args);
  }
  Status Compute() const {
    if constexpr (kIsBackward<Args>)
      return NormRopeConcatBackward(args);
    else
      return NormRopeConcat(args);
  }

  std::string Words() const {
    std::string words = std::string(kName) + ", norm " + std::to_string(static_cast<int>(args.options.norm_type)) +
                        "/" + std::to_string(static_cast<int>(args.options.norm_added_type)) + ", order " +
                        std::to_string(static_cast<int>(args.options.concat_order)) + ", lengths";
    for (const std::int64_t length : lengths) words += " " + std::to_string(length);
    if (args.options.rotary) {
      words += ", rope_start " + std::to_string(args.options.rope_start) + ", " + fuzz::Words(*args.options.rotary);
    }
    return words + ", " + fuzz::Words(args.execution);
  }

  template <class Body>
  void ForEachView(const Body& body) {
    const auto named = [&](const std::string& name, auto& view, int) { body(name, view); };
    for (std::size_t joint = 0; joint < kJoints; ++joint) {
      if (auto& view = *JointsOf(args)[joint]) body(kJointNames[!kIsBackward<Args>][joint], *view);
    }
    for (int stream = 0; stream < kStreams; ++stream) {
      if (*JointsOf(args)[static_cast<std::size_t>(JointOf(stream))]) ForEachOfStream(args, stream, named);
    }
    ForEachTable(args, named);
  }

  std::vector<Operand> Operands(Memory& memory) const {
    Args copy = args;
    std::vector<Operand> operands;
    const auto add = [&](const std::string& name, auto& view, int group) {
      operands.push_back({name, In(view), std::is_same_v<decltype(view), TensorView&>, group});
    };
    for (int stream = 0; stream < kStreams; ++stream) {
      const auto joint = static_cast<std::size_t>(JointOf(stream));
      auto& view = *JointsOf(copy)[joint];
      if (!view) continue;
      operands.push_back({kJointNames[!kIsBackward<Args>][joint], OwnRows(In(*view), stream, memory),
                          !kIsBackward<Args>, 10 * stream + 1, true});
      ForEachOfStream(copy, stream, add);
    }
    ForEachTable(copy, add);
    return operands;
  }

  // The stream's positions of its joint sequence.
  ConstTensorView OwnRows(const ConstTensorView& joint, int stream, Memory& memory) const {
    const auto s = static_cast<std::size_t>(stream);
    const bool behind = IsEncoder(stream) == (args.options.concat_order == ConcatOrder::kStreamFirst);
    Shape shape(joint.shape.begin(), joint.shape.end());
    if (shape.size() != 4 || joint.strides.size() != 4) return joint;
    shape[2] = lengths[s];
    ConstTensorView rows = joint;
    rows.shape = memory.Keep(shape);
    if (behind && !IsEmpty(rows) && lengths[s ^ 1] != 0) {
      const std::int64_t first = lengths[s ^ 1] * joint.strides[2];
      rows.data = static_cast<const std::byte*>(joint.data) + first * static_cast<std::int64_t>(SizeOf(joint.dtype));
    }
    return rows;
  }
};

using Backward = JointCall<NormRopeConcatBackwardArgs, NormRopeConcatBackwardPlan>;
using Forward = JointCall<NormRopeConcatArgs, NormRopeConcatPlan>;

// ---- what a call is made of

struct Problem {
  testing::NormRopeTypes types;
  Values values = Values::kPlain;
  std::int64_t batch = 1, heads = 1, key_heads = 1, width = 2;
  bool with_key = true, with_value = true;
  std::array<std::int64_t, kStreams> lengths = {};
  std::array<bool, kStreams> present = {};

  std::int64_t HeadsOf(int joint) const { return joint == 0 ? heads : key_heads; }
  std::int64_t JointLength(int joint) const {
    return lengths[static_cast<std::size_t>(2 * joint)] + lengths[static_cast<std::size_t>(2 * joint + 1)];
  }
  bool has_joint(int joint) const { return joint == 0 || (with_key && (joint == 1 || with_value)); }
  Shape Rows(int stream) const {
    return {batch, lengths[static_cast<std::size_t>(stream)], HeadsOf(JointOf(stream)), width};
  }
};

Problem ChooseProblem(Bytes& bytes, const std::optional<Turn>& turn) {
  Problem problem;
  problem.types = bytes.Of(testing::kAllNormRopeTypes);
  problem.values = ChooseValues(bytes);
  problem.width = turn ? turn->width : bytes.Between(0, 200);
  std::int64_t room =
      std::max<std::int64_t>(1, (bytes.OneIn(8) ? 3000 : 600) / std::max<std::int64_t>(problem.width, 1));
  const auto take = [&](std::int64_t most) {
    const std::int64_t extent = bytes.OneIn(24) ? 0 : bytes.Between(1, std::min(room, most));
    room /= std::max<std::int64_t>(extent, 1);
    return extent;
  };
  problem.heads = take(6);
  problem.batch = take(3);
  problem.key_heads = bytes.OneIn(4) ? bytes.Between(1, problem.heads) : problem.heads;
  problem.with_key = !bytes.OneIn(8);
  problem.with_value = !bytes.OneIn(4);
  for (std::size_t s = 0; s < 4; ++s) {
    problem.present[s] = s % 2 == 0 || bytes.OneIn(2);
    problem.lengths[s] = !problem.present[s] ? 0
                         : bytes.OneIn(12)   ? 0
                                             : bytes.Between(1, std::min<std::int64_t>(room, 20));
  }
  for (const std::size_t s : {4, 5}) {
    problem.present[s] = problem.present[s - 2];
    problem.lengths[s] = problem.lengths[s - 2];
  }
  return problem;
}

// How many positions a pair of tables may turn; `own`: each of the two streams has tables of its own.
std::int64_t TableLimit(const Problem& problem, bool own, bool encoder) {
  std::optional<std::int64_t> limit;
  for (const int joint : {0, 1}) {
    if (!problem.has_joint(joint)) continue;
    const std::int64_t rows =
        own ? problem.lengths[static_cast<std::size_t>(2 * joint + encoder)] : problem.JointLength(joint);
    if (!own || rows != 0) limit = std::min(limit.value_or(rows), rows);
  }
  return limit.value_or(0);
}

template <class Args>
void MakeTables(Bytes& bytes, const Problem& problem, const Turn& turn, Memory& memory, Args& args) {
  const bool own = bytes.OneIn(4);
  const std::int64_t limits[] = {TableLimit(problem, own, false), own ? TableLimit(problem, own, true) : 0};
  std::int64_t& start = args.options.rope_start;
  args.options.rotary = turn.options;
  const std::int64_t shortest = own ? std::min(limits[0], limits[1]) : limits[0];
  start = bytes.OneIn(2) ? bytes.Between(0, shortest - 1) : 0;
  const std::int64_t width = turn.options.per_pair_tables ? turn.turned / 2 : turn.turned;
  const bool per_batch = bytes.OneIn(4), same_heads = !problem.with_key || problem.heads == problem.key_heads;
  const bool per_head = bytes.OneIn(4) && same_heads;
  for (std::size_t pair = 0; pair < (own ? 2U : 1U); ++pair) {
    const std::int64_t most = limits[pair] - start;
    const std::int64_t rows = most == 0 ? 0 : bytes.OneIn(2) ? bytes.Between(1, most) : most;
    Shape shape = {rows, width};
    if (per_batch || per_head) shape = {per_batch ? problem.batch : 1, per_head ? problem.heads : 1, rows, width};
    for (const std::size_t table : {2 * pair, 2 * pair + 1}) {
      *TablesOf(args)[table] = MakeInput(bytes, problem.types.tables, shape, memory, problem.values);
    }
  }
}

template <class Norm>
void MakeWeight(Bytes& bytes, const Problem& problem, NormType type, Memory& memory, Norm& norm) {
  if (!HasWeight(type)) return;
  norm.weight = MakeInput(bytes, problem.types.weights, {problem.width}, memory, problem.values);
}

void MakeNorm(Bytes& bytes, const Problem& problem, int stream, NormType type, Memory& memory,
              NormBackwardTensors& norm) {
  Shape statistics = problem.Rows(stream);
  statistics.back() = 1;
  const DType dtype = problem.types.statistics(), weights = problem.types.weights;
  if (problem.present[static_cast<std::size_t>(stream)]) {
    MakeWeight(bytes, problem, type, memory, norm);
    if (HasMean(type)) norm.mean = MakeInput(bytes, dtype, statistics, memory, Values::kPlain);
    if (type != NormType::kNone) norm.rstd = MakeInput(bytes, dtype, statistics, memory, Values::kPositive);
  } else if (bytes.OneIn(2)) {
    return;
  }
  if (HasWeight(type)) norm.dweight = MakeOutput(bytes, weights, {problem.width}, memory);
  if (HasBias(type)) norm.dbias = MakeOutput(bytes, weights, {problem.width}, memory);
}

void MakeNorm(Bytes& bytes, const Problem& problem, int stream, NormType type, Memory& memory, NormTensors& norm) {
  if (!problem.present[static_cast<std::size_t>(stream)]) return;
  Shape statistics = problem.Rows(stream);
  statistics.back() = 1;
  const DType dtype = problem.types.statistics();
  MakeWeight(bytes, problem, type, memory, norm);
  if (HasBias(type)) norm.bias = MakeInput(bytes, problem.types.weights, {problem.width}, memory, problem.values);
  if (HasMean(type)) norm.mean = MakeOutput(bytes, dtype, statistics, memory);
  if (type != NormType::kNone) norm.rstd = MakeOutput(bytes, dtype, statistics, memory);
}

void MakeJoint(Bytes& bytes, DType dtype, const Shape& shape, const Problem& problem, Memory& memory,
               std::optional<ConstTensorView>& view) {
  view = MakeInput(bytes, dtype, shape, memory, problem.values);
}

void MakeJoint(Bytes& bytes, DType dtype, const Shape& shape, const Problem&, Memory& memory,
               std::optional<TensorView>& view) {
  view = MakeOutput(bytes, dtype, shape, memory);
}

template <class Call>
Call Make(Bytes& bytes, Memory& memory) {
  std::optional<Turn> turn;
  if (!bytes.OneIn(4)) turn = ChooseTurn(bytes);
  const Problem problem = ChooseProblem(bytes, turn);
  const DType rows = problem.types.activations;
  Call call;
  auto& args = call.args;
  call.lengths = problem.lengths;
  call.witnessed = problem.values != Values::kBits;
  args.options.norm_type = bytes.Of(testing::kNormTypes);
  args.options.norm_added_type = bytes.Of(testing::kNormTypes);
  args.options.concat_order = bytes.OneIn(2) ? ConcatOrder::kEncoderFirst : ConcatOrder::kStreamFirst;
  if (turn) MakeTables(bytes, problem, *turn, memory, args);
  for (int joint = 0; joint < kJoints; ++joint) {
    if (!problem.has_joint(joint)) continue;
    const Shape shape = {problem.batch, problem.HeadsOf(joint), problem.JointLength(joint), problem.width};
    MakeJoint(bytes, rows, shape, problem, memory, *JointsOf(args)[static_cast<std::size_t>(joint)]);
  }
  for (int stream = 0; stream < kStreams; ++stream) {
    const auto s = static_cast<std::size_t>(stream);
    if (!problem.has_joint(JointOf(stream))) continue;
    if (s < 4) MakeNorm(bytes, problem, stream, NormTypeOf(args, stream), memory, *NormsOf(args)[s]);
    if (!problem.present[s]) continue;
    if (auto* const x = InputsOf(args)[s]) *x = MakeInput(bytes, rows, problem.Rows(stream), memory, problem.values);
    if constexpr (kIsBackward<typename Call::Args>) {
      *GradientsOf(args)[s] = MakeOutput(bytes, rows, problem.Rows(stream), memory);
    }
  }
  return call;
}

template <class Args, class Plan>
void RightResults(const JointCall<Args, Plan>& full, Memory& memory) {
  const std::string words = Computed(full, memory);
  if (!full.witnessed) return;
  const auto segments = reference::SegmentsOf(full.args);
  for (const auto& [name, segment] : segments.streams) DemandSegment(std::string(name) + " ", segment, words);
}

// ---- less of it

void DropSome(Bytes& bytes, Backward& call) {
  NormRopeConcatBackwardArgs& args = call.args;
  for (std::size_t s = 0; s < kStreams; ++s) {
    auto& gradient = *GradientsOf(args)[s];
    if (bytes.OneIn(6)) gradient.reset();
    auto* const x = InputsOf(args)[s];
    const bool read = NormTypeOf(args, static_cast<int>(s)) != NormType::kNone;
    if (x != nullptr && gradient && !read && bytes.OneIn(3)) x->reset();
    if (s >= 4 || !bytes.OneIn(3)) continue;
    NormsOf(args)[s]->dweight.reset();
    if (bytes.OneIn(2)) NormsOf(args)[s]->dbias.reset();
  }
}

void DropSome(Bytes& bytes, Forward& call) {
  for (NormTensors* norm : NormsOf(call.args)) {
    if (bytes.OneIn(4)) norm->mean.reset();
    if (bytes.OneIn(4)) norm->rstd.reset();
  }
}

// ---- wrong

// What a stream's norm needs, taken away.
Expected BreakNeeds(Bytes& bytes, Backward& call) {
  const int stream = static_cast<int>(bytes.Between(0, 3));
  const auto s = static_cast<std::size_t>(stream);
  NormRopeConcatBackwardArgs& args = call.args;
  const auto& gradient = *GradientsOf(args)[s];
  if (!gradient || !*JointsOf(args)[static_cast<std::size_t>(JointOf(stream))]) return {};
  const Shape shape(gradient->shape.begin(), gradient->shape.end());
  if (shape[0] == 0 || shape[1] == 0 || shape[2] == 0) return {};
  const NormType type = NormTypeOf(args, stream);
  const auto missing = [](auto& view, const std::string& name, bool needed) {
    if (!needed) return Expected{};
    view.reset();
    return Expected{StatusCode::kMissingArgument, {name}};
  };
  NormBackwardTensors& norm = *NormsOf(args)[s];
  const std::string prefix = std::string(kNormNames[s]) + ".";
  switch (bytes.Between(0, 3)) {
    case 0: return missing(*InputsOf(args)[s], kStreamNames[s], type != NormType::kNone);
    case 1: return missing(norm.mean, prefix + "mean", HasMean(type));
    case 2: return missing(norm.rstd, prefix + "rstd", type != NormType::kNone);
    default: return missing(norm.weight, prefix + "weight", HasWeight(type));
  }
}

Expected BreakNeeds(Bytes& bytes, Forward& call) {
  if (bytes.OneIn(2)) {
    const bool used = call.args.options.norm_type != NormType::kNone && call.args.query_output;
    if (!used) return {};
    call.args.eps = -1;
    return {StatusCode::kInvalidAttribute, {"eps"}};
  }
  if (call.lengths[0] == 0) return {};
  call.args.query.reset();
  return {StatusCode::kMissingArgument, {"query"}};
}

template <class Args>
Expected BreakTables(Bytes& bytes, Args& args) {
  if (!args.options.rotary) return {};
  switch (bytes.Between(0, 4)) {
    case 0: args.options.rope_start = -Beyond(bytes); return {StatusCode::kInvalidAttribute, {"rope_start"}};
    case 1:
      args.options.rope_start += 100 + bytes.Between(0, std::int64_t{1} << 40);
      return {StatusCode::kInvalidShape, {"rope_start"}};
    case 2: {
      const auto table = static_cast<std::size_t>(bytes.Between(0, args.encoder_rope_cos ? 3 : 1));
      TablesOf(args)[table]->reset();
      return {StatusCode::kMissingArgument, {kTableNames[table]}};
    }
    default: {
      const std::int64_t width = (*JointsOf(args)[0])->shape.back();
      Expected expected = BreakRotaryOptions(bytes, *args.options.rotary, width);
      for (std::string& name : expected.names) name = "rotary." + name;
      return expected;
    }
  }
}

template <class Args, class Plan>
Expected BreakOne(Bytes& bytes, JointCall<Args, Plan>& call, Memory&) {
  NormRopeConcatOptions& options = call.args.options;
  switch (bytes.Between(0, 5)) {
    case 0: options.norm_type = ChooseBadNormType(bytes); return {StatusCode::kInvalidAttribute, {"norm_type"}};
    case 1:
      options.norm_added_type = ChooseBadNormType(bytes);
      return {StatusCode::kInvalidAttribute, {"norm_added_type"}};
    case 2:
      options.concat_order = static_cast<ConcatOrder>(bytes.OneIn(2) ? -1 : 2 + bytes.Byte());
      return {StatusCode::kInvalidAttribute, {"concat_order"}};
    case 3: return BreakTables(bytes, call.args);
    case 4: return BreakNeeds(bytes, call);
    default: return BreakExecution(bytes, call.args.execution);
  }
}

template <class Call>
void TryJoint(Bytes& bytes) {
  Memory memory(bytes.Between(0, 255));
  Try(bytes, Make<Call>(bytes, memory), memory);
}

}  // namespace

void TryNormRopeConcat(Bytes& bytes) {
  if (bytes.OneIn(3)) {
    TryJoint<Forward>(bytes);
  } else {
    TryJoint<Backward>(bytes);
  }
}

}  // namespace gyrograd::fuzz
