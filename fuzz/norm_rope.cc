// Lists of norm and rotary segments.
#include "fuzz/norm_rope.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/memory.h"

namespace gyrograd::fuzz {
namespace {

using testing::HasBias;
using testing::HasMean;
using testing::HasWeight;

// Calls body(name, view, group, heads_first) for each given view of the segment that its norm uses.
template <class Segment, class Body>
void ForEachGiven(Segment& segment, const std::string& prefix, int group, const Body& body) {
  const NormType norm = segment.norm_type;
  const auto give = [&](const char* name, auto& view, bool used, int own_group = 0) {
    if (view && used) body(prefix + name, *view, own_group, false);
  };
  constexpr bool kBackward = requires { segment.dy; };
  if constexpr (kBackward) {
    body(prefix + "dy", segment.dy, group, true);
    give("x", segment.x, norm != NormType::kNone, group);
  } else {
    body(prefix + "x", segment.x, group, false);
    give("bias", segment.bias, HasBias(norm));
  }
  give("weight", segment.weight, HasWeight(norm), group + 1);
  give("mean", segment.mean, HasMean(norm));
  give("rstd", segment.rstd, norm != NormType::kNone);
  if (segment.rotation) {
    body(prefix + "rotation.cos", segment.rotation->cos, 0, false);
    body(prefix + "rotation.sin", segment.rotation->sin, 0, false);
  }
  if constexpr (kBackward) {
    give("dx", segment.dx, true, group);
    give("dweight", segment.dweight, true, group + 1);
    give("dbias", segment.dbias, true);
  } else {
    body(prefix + "y", segment.y, group, true);
  }
}

template <class Segment>
std::string SegmentWords(const Segment& segment) {
  std::string words = "norm " + std::to_string(static_cast<int>(segment.norm_type));
  if (!segment.rotation) return words;
  return words + ", first " + std::to_string(segment.rotation->first) + ", " + Words(segment.rotation->options);
}

struct Backward {
  using Segment = NormRopeBackwardSegment;
  using Args = NormRopeBackwardArgs;
  using Plan = NormRopeBackwardPlan;
  static constexpr const char* kName = "norm_rope_backward";
  static constexpr const char* kModel = "dy";

  static Status Validate(const Args& args) { return ValidateNormRopeBackward(args); }
  static Status Compute(const Args& args) { return NormRopeBackward(args); }
  static NormRopeBackwardPointers PointersOf(const Segment& segment) {
    const auto data = [](const auto& view) { return view ? view->data : nullptr; };
    const bool rotates = segment.rotation.has_value();
    return {.dy = segment.dy.data,
            .x = data(segment.x),
            .weight = data(segment.weight),
            .mean = data(segment.mean),
            .rstd = data(segment.rstd),
            .cos = rotates ? segment.rotation->cos.data : nullptr,
            .sin = rotates ? segment.rotation->sin.data : nullptr,
            .dx = data(segment.dx),
            .dweight = data(segment.dweight),
            .dbias = data(segment.dbias)};
  }
};

struct Forward {
  using Segment = NormRopeSegment;
  using Args = NormRopeArgs;
  using Plan = NormRopePlan;
  static constexpr const char* kName = "norm_rope";
  static constexpr const char* kModel = "x";

  static Status Validate(const Args& args) { return ValidateNormRope(args); }
  static Status Compute(const Args& args) { return NormRope(args); }
  static NormRopePointers PointersOf(const Segment& segment) {
    const auto data = [](const auto& view) { return view ? view->data : nullptr; };
    const bool rotates = segment.rotation.has_value();
    return {.x = segment.x.data,
            .weight = data(segment.weight),
            .bias = data(segment.bias),
            .cos = rotates ? segment.rotation->cos.data : nullptr,
            .sin = rotates ? segment.rotation->sin.data : nullptr,
            .y = segment.y.data,
            .mean = data(segment.mean),
            .rstd = data(segment.rstd)};
  }
};

// `witnessed`: the witnesses can say what is right. Among any bits an intermediate may overflow beside an infinity that
// an input brought, which they cannot tell.
template <class Direction>
struct ListCall {
  using Plan = typename Direction::Plan;
  static constexpr const char* kName = Direction::kName;
  std::vector<typename Direction::Segment> segments;
  Execution how = {};
  bool witnessed = true;

  typename Direction::Args args() const { return {.segments = segments, .execution = how}; }
  Execution& execution() { return how; }
  bool IsModel(const std::string& name) const { return name.ends_with(std::string(".") + Direction::kModel); }
  Status Validate() const { return Direction::Validate(args()); }
  Status Compute() const { return Direction::Compute(args()); }
  Status Create(Plan* plan) const { return Plan::Create(args(), plan); }
  Status Run(const Plan& plan, void* workspace, std::size_t size) const {
    std::vector<decltype(Direction::PointersOf(segments[0]))> pointers;
    for (const auto& segment : segments) pointers.push_back(Direction::PointersOf(segment));
    return plan.Run(pointers, workspace, size);
  }

  std::string Words() const {
    std::string words = fuzz::Words(how);
    for (const auto& segment : segments) words += "; " + SegmentWords(segment);
    return words;
  }

  // body(segment, prefix, group).
  template <class Self, class Body>
  static void ForEachSegment(Self& self, const Body& body) {
    for (std::size_t i = 0; i < self.segments.size(); ++i) {
      body(self.segments[i], "segments[" + std::to_string(i) + "].", static_cast<int>(10 * i + 1));
    }
  }

  template <class Body>
  void ForEachView(const Body& body) {
    ForEachSegment(*this, [&](auto& segment, const std::string& prefix, int group) {
      ForEachGiven(segment, prefix, group, [&](const std::string& name, auto& view, int, bool) { body(name, view); });
    });
  }

  std::vector<Operand> Operands(Memory&) const {
    std::vector<Operand> operands;
    ForEachSegment(*this, [&](const auto& segment, const std::string& prefix, int group) {
      ForEachGiven(segment, prefix, group, [&](const std::string& name, const auto& view, int own, bool heads_first) {
        operands.push_back({name, In(view), std::is_same_v<decltype(view), const TensorView&>, own, heads_first});
      });
    });
    return operands;
  }
};

// ---- what a list is made of

struct Problem {
  testing::NormRopeTypes types;
  Values values = Values::kPlain;
};

struct Extents {
  std::int64_t batch, sequence, heads, width;
  Shape x() const { return {batch, sequence, heads, width}; }
  Shape y() const { return {batch, heads, sequence, width}; }
  Shape statistics() const { return {batch, sequence, heads, 1}; }
};

Extents ChooseExtents(Bytes& bytes, std::int64_t width) {
  std::int64_t room = std::max<std::int64_t>(1, (bytes.OneIn(8) ? 8000 : 1200) / std::max<std::int64_t>(width, 1));
  const auto take = [&](std::int64_t most) {
    const std::int64_t extent = bytes.OneIn(24) ? 0 : bytes.Between(1, std::min(room, most));
    room /= std::max<std::int64_t>(extent, 1);
    return extent;
  };
  const std::int64_t heads = take(12), batch = take(4), sequence = take(70);
  return {batch, sequence, heads, width};
}

NormRopeRotation MakeRotation(Bytes& bytes, const Turn& turn, const Extents& extents, const Problem& problem,
                              Memory& memory) {
  NormRopeRotation rotation;
  rotation.options = turn.options;
  rotation.first = bytes.OneIn(2) ? bytes.Between(0, extents.sequence) : 0;
  const std::int64_t most = extents.sequence - rotation.first;
  const std::int64_t rows = bytes.OneIn(3) ? bytes.Between(0, most) : most;
  const std::int64_t width = turn.options.per_pair_tables ? turn.turned / 2 : turn.turned;
  Shape shape = {rows, width};
  if (bytes.OneIn(2)) {
    shape = {bytes.OneIn(2) ? extents.batch : 1, bytes.OneIn(2) ? extents.heads : 1, rows, width};
  }
  rotation.cos = MakeInput(bytes, problem.types.tables, shape, memory, problem.values);
  rotation.sin = MakeInput(bytes, problem.types.tables, shape, memory, problem.values);
  return rotation;
}

// What forward and backward have in common.
template <class Segment>
Extents MakeCommon(Bytes& bytes, const Problem& problem, Memory& memory, Segment& segment) {
  segment.norm_type = bytes.Of(testing::kNormTypes);
  std::optional<Turn> turn;
  if (!bytes.OneIn(4)) turn = ChooseTurn(bytes);
  const Extents extents = ChooseExtents(bytes, turn ? turn->width : bytes.Between(0, 300));
  if (turn) segment.rotation = MakeRotation(bytes, *turn, extents, problem, memory);
  segment.x = MakeInput(bytes, problem.types.activations, extents.x(), memory, problem.values);
  if (HasWeight(segment.norm_type)) {
    segment.weight = MakeInput(bytes, problem.types.weights, {extents.width}, memory, problem.values);
  }
  return extents;
}

NormRopeBackwardSegment MakeSegment(Bytes& bytes, const Problem& problem, Memory& memory, NormRopeBackwardSegment*) {
  NormRopeBackwardSegment segment;
  const Extents extents = MakeCommon(bytes, problem, memory, segment);
  const DType rows = problem.types.activations, weights = problem.types.weights;
  const DType statistics = problem.types.statistics();
  segment.dy = MakeInput(bytes, rows, extents.y(), memory, problem.values);
  if (HasMean(segment.norm_type)) {
    segment.mean = MakeInput(bytes, statistics, extents.statistics(), memory, Values::kPlain);
  }
  if (segment.norm_type != NormType::kNone) {
    segment.rstd = MakeInput(bytes, statistics, extents.statistics(), memory, Values::kPositive);
  }
  segment.dx = MakeOutput(bytes, rows, extents.x(), memory);
  if (HasWeight(segment.norm_type)) segment.dweight = MakeOutput(bytes, weights, {extents.width}, memory);
  if (HasBias(segment.norm_type)) segment.dbias = MakeOutput(bytes, weights, {extents.width}, memory);
  return segment;
}

NormRopeSegment MakeSegment(Bytes& bytes, const Problem& problem, Memory& memory, NormRopeSegment*) {
  constexpr double kEpsilons[] = {1e-5, 1e-6, 0, 1, 1e-12};
  NormRopeSegment segment;
  const Extents extents = MakeCommon(bytes, problem, memory, segment);
  const DType statistics = problem.types.statistics();
  segment.eps = bytes.Of(kEpsilons);
  // A constant row has the variance 0 exactly, and that of its f64 mean's rounding in f64.
  if (problem.types.activations == DType::kF64 && segment.eps == 0) segment.eps = 1e-12;
  if (HasBias(segment.norm_type)) {
    segment.bias = MakeInput(bytes, problem.types.weights, {extents.width}, memory, problem.values);
  }
  segment.y = MakeOutput(bytes, problem.types.activations, extents.y(), memory);
  if (HasMean(segment.norm_type)) segment.mean = MakeOutput(bytes, statistics, extents.statistics(), memory);
  if (segment.norm_type != NormType::kNone) {
    segment.rstd = MakeOutput(bytes, statistics, extents.statistics(), memory);
  }
  return segment;
}

// The witnesses take tables of rank 4.
ConstTensorView Rank4(const ConstTensorView& table, Memory& memory) {
  if (table.shape.size() == 4) return table;
  ConstTensorView view = table;
  view.shape = memory.Keep({1, 1, table.shape[0], table.shape[1]});
  view.strides = memory.Keep({0, 0, table.strides[0], table.strides[1]});
  return view;
}

template <class Direction>
void RightResults(const ListCall<Direction>& full, Memory& memory) {
  const std::string words = Computed(full, memory);
  if (!full.witnessed) return;
  ListCall<Direction>::ForEachSegment(full, [&](auto segment, const std::string& prefix, int) {
    if (segment.rotation) {
      segment.rotation->cos = Rank4(segment.rotation->cos, memory);
      segment.rotation->sin = Rank4(segment.rotation->sin, memory);
    }
    DemandSegment(prefix, segment, words);
  });
}

// ---- less of it

// What no norm uses may be anything at all.
constexpr std::int64_t kNonsense[] = {-3, 1};

void DropSome(Bytes& bytes, ListCall<Backward>& call) {
  const ConstTensorView nonsense{kNonsense, static_cast<DType>(77), kNonsense, std::span(kNonsense).first(1)};
  for (NormRopeBackwardSegment& segment : call.segments) {
    if (bytes.OneIn(4)) segment.dx.reset();
    if (bytes.OneIn(4)) segment.dweight.reset();
    if (bytes.OneIn(4)) segment.dbias.reset();
    if (!segment.dx && bytes.OneIn(2)) segment.weight.reset();
    if (segment.norm_type == NormType::kNone) {
      if (bytes.OneIn(2)) segment.x = nonsense;
      if (bytes.OneIn(3)) segment.mean = segment.rstd = segment.weight = nonsense;
    }
  }
}

void DropSome(Bytes& bytes, ListCall<Forward>& call) {
  for (NormRopeSegment& segment : call.segments) {
    if (bytes.OneIn(3)) segment.mean.reset();
    if (bytes.OneIn(3)) segment.rstd.reset();
  }
}

// ---- wrong

bool HasRows(const ConstTensorView& rows) { return rows.shape[0] != 0 && rows.shape[1] != 0 && rows.shape[2] != 0; }

// What the norm needs, taken away.
Expected BreakNeeds(Bytes& bytes, const std::string& prefix, NormRopeBackwardSegment& segment) {
  if (!HasRows(segment.dy) || !(segment.dx || segment.dweight || segment.dbias)) return {};
  const auto missing = [&](const char* name, auto& view, bool needed) {
    if (!needed) return Expected{};
    view.reset();
    return Expected{StatusCode::kMissingArgument, {prefix + name}};
  };
  const NormType norm = segment.norm_type;
  switch (bytes.Between(0, 3)) {
    case 0: return missing("x", segment.x, norm != NormType::kNone);
    case 1: return missing("rstd", segment.rstd, norm != NormType::kNone);
    case 2: return missing("mean", segment.mean, HasMean(norm));
    default: return missing("weight", segment.weight, HasWeight(norm) && segment.dx.has_value());
  }
}

Expected BreakNeeds(Bytes& bytes, const std::string& prefix, NormRopeSegment& segment) {
  if (bytes.OneIn(3) && segment.norm_type != NormType::kNone) {
    segment.eps = -1e-5;
    return {StatusCode::kInvalidAttribute, {prefix + "eps"}};
  }
  if (!HasRows(segment.x) || !HasWeight(segment.norm_type)) return {};
  const bool bias = HasBias(segment.norm_type) && bytes.OneIn(2);
  (bias ? segment.bias : segment.weight).reset();
  return {StatusCode::kMissingArgument, {prefix + (bias ? "bias" : "weight")}};
}

bool IsNarrow(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// An output that the norm does not define, of a type that any may have.
Expected BreakWants(const std::string& prefix, NormRopeBackwardSegment& segment) {
  if (!segment.dx || HasBias(segment.norm_type) || IsNarrow(segment.dx->dtype)) return {};
  segment.dbias = segment.dx;
  return {StatusCode::kInvalidAttribute, {prefix + "dbias"}};
}

Expected BreakWants(const std::string& prefix, NormRopeSegment& segment) {
  if (HasMean(segment.norm_type) || IsNarrow(segment.y.dtype)) return {};
  segment.mean = segment.y;
  return {StatusCode::kInvalidAttribute, {prefix + "mean"}};
}

Expected BreakRotation(Bytes& bytes, const std::string& prefix, NormRopeRotation& rotation, const Shape& x) {
  const auto rows = rotation.cos.shape[rotation.cos.shape.size() - 2];
  switch (bytes.Between(0, 2)) {
    case 0: rotation.first = -Beyond(bytes); return {StatusCode::kInvalidAttribute, {prefix + "rotation.first"}};
    case 1: {
      rotation.first = x[1] - rows + Beyond(bytes);
      return {StatusCode::kInvalidShape, {prefix + "rotation.first"}};
    }
    default: {
      Expected expected = BreakRotaryOptions(bytes, rotation.options, x[3]);
      for (std::string& name : expected.names) name = prefix + "rotation.options." + name;
      return expected;
    }
  }
}

template <class Direction>
Expected BreakOne(Bytes& bytes, ListCall<Direction>& call, Memory&) {
  const auto i = static_cast<std::size_t>(bytes.Between(0, static_cast<std::int64_t>(call.segments.size()) - 1));
  auto& segment = call.segments[i];
  const std::string prefix = "segments[" + std::to_string(i) + "].";
  Shape x;
  if constexpr (std::is_same_v<Direction, Backward>) {
    x.assign(segment.dy.shape.begin(), segment.dy.shape.end());
    std::swap(x[1], x[2]);
  } else {
    x.assign(segment.x.shape.begin(), segment.x.shape.end());
  }
  switch (bytes.Between(0, 4)) {
    case 0: return segment.rotation ? BreakRotation(bytes, prefix, *segment.rotation, x) : Expected{};
    case 1:
      segment.norm_type = ChooseBadNormType(bytes);
      return {StatusCode::kInvalidAttribute, {prefix + "norm_type"}};
    case 2: return BreakWants(prefix, segment);
    case 3: return BreakNeeds(bytes, prefix, segment);
    default: return BreakExecution(bytes, call.how);
  }
}

template <class Direction>
void TryList(Bytes& bytes) {
  Memory memory(bytes.Between(0, 255));
  Problem problem;
  problem.types = bytes.Of(testing::kAllNormRopeTypes);
  problem.values = ChooseValues(bytes);
  ListCall<Direction> call;
  call.witnessed = problem.values != Values::kBits;
  const std::int64_t count = bytes.OneIn(3) ? bytes.Between(2, 4) : 1;
  for (std::int64_t i = 0; i < count; ++i) {
    call.segments.push_back(MakeSegment(bytes, problem, memory, static_cast<typename Direction::Segment*>(nullptr)));
  }
  Try(bytes, std::move(call), memory);
}

}  // namespace

void TryNormRope(Bytes& bytes) {
  if (bytes.OneIn(3)) {
    TryList<Forward>(bytes);
  } else {
    TryList<Backward>(bytes);
  }
}

}  // namespace gyrograd::fuzz
