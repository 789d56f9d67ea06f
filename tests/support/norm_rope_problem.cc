// Tensors of a norm and rotary segment, and its checks against the witnesses.
#include "tests/support/norm_rope_problem.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "tests/support/verdict.h"

namespace gyrograd::testing {
namespace {

// ---- A random problem -------------------------------------------------------------------------------------------

std::int64_t Between(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

bool OneIn(Random& random, std::int64_t count) { return Between(random, 1, count) == 1; }

template <class Choices>
auto Choose(Random& random, const Choices& choices) {
  return choices[static_cast<std::size_t>(Between(random, 0, static_cast<std::int64_t>(std::size(choices)) - 1))];
}

// Half of them contiguous.
template <class Layouts>
Layout ChooseLayout(Random& random, const Layouts& layouts) {
  return OneIn(random, 2) ? Layout::kContiguous : Choose(random, layouts);
}

void ChooseShape(Random& random, NormRopeProblem* problem) {
  static constexpr std::int64_t kHeadDims[] = {2, 4, 6, 8, 16, 20, 32, 40, 64, 80, 96, 128, 132, 256};
  problem->batch = Between(random, 1, 3);
  problem->sequence = OneIn(random, 16) ? 0 : Between(random, 1, OneIn(random, 4) ? 70 : 9);
  problem->heads = Between(random, 1, 5);
  problem->head_dim = OneIn(random, 4) ? Between(random, 1, 70) : Choose(random, kHeadDims);
}

void ChooseRotation(Random& random, NormRopeProblem* problem) {
  static constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                          RotaryMode::kInterleaveHalf};
  RotaryOptions options;
  options.mode = Choose(random, kModes);
  options.per_pair_tables = OneIn(random, 3);
  const std::int64_t unit = options.mode == RotaryMode::kQuarter ? 4 : 2;
  if (OneIn(random, 5) || problem->head_dim < unit) return;
  if (problem->head_dim % unit != 0 || OneIn(random, 4)) {
    options.rotary_dim = unit * Between(random, 1, problem->head_dim / unit);
    options.rotary_offset = Between(random, 0, problem->head_dim - *options.rotary_dim);
  }
  problem->rotary = options;
  problem->first = OneIn(random, 2) ? 0 : Between(random, 0, problem->sequence);
  const std::int64_t most = problem->sequence - problem->first;
  problem->length = OneIn(random, 2) ? most : Between(random, 0, most);
  problem->tables_per_batch = OneIn(random, 4);
  problem->tables_per_head = OneIn(random, 4);
}

void ChooseLayouts(Random& random, NormRopeProblem* problem) {
  problem->dy_layout = ChooseLayout(random, kInputLayouts);
  problem->x_layout = ChooseLayout(random, kInputLayouts);
  problem->tables_layout = ChooseLayout(random, kInputLayouts);
  problem->statistics_layout = ChooseLayout(random, kOutputLayouts);
  problem->weights_layout = ChooseLayout(random, kInputLayouts);
  problem->dx_layout = ChooseLayout(random, kOutputLayouts);
  problem->weight_grads_layout = ChooseLayout(random, kOutputLayouts);
}

// ---- Tensors ----------------------------------------------------------------------------------------------------

Tensor Activation(const NormRopeProblem& problem, const Shape& shape, Layout layout) {
  return Tensor(problem.types.activations, shape, layout, problem.placement);
}

Tensor Weight(const NormRopeProblem& problem, Layout layout) {
  return Tensor(problem.types.weights, {problem.head_dim}, layout, problem.placement);
}

Tensor Statistic(const NormRopeProblem& problem) {
  return Tensor(problem.types.statistics(), problem.StatisticsShape(), problem.statistics_layout, problem.placement);
}

Tensor Table(const NormRopeProblem& problem) {
  return Tensor(problem.types.tables, problem.TablesShape(), problem.tables_layout, problem.placement);
}

// Layouts of inputs may share elements; those of outputs may not.
Layout OutputLayout(Layout layout) {
  const bool legal =
      std::find(std::begin(kOutputLayouts), std::end(kOutputLayouts), layout) != std::end(kOutputLayouts);
  return legal ? layout : Layout::kContiguous;
}

std::optional<NormRopeRotation> RotationOf(const NormRopeProblem& problem, const Tensor& cos, const Tensor& sin) {
  if (!problem.rotary) return std::nullopt;
  return NormRopeRotation{cos.in(), sin.in(), problem.first, *problem.rotary};
}

std::vector<std::uint64_t> BitsOf(const std::vector<const Tensor*>& tensors) {
  std::vector<std::uint64_t> bits;
  for (const Tensor* tensor : tensors) {
    const std::vector<std::uint64_t> more = tensor->Bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

ConstTensorView AsInput(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

::testing::AssertionResult CheckOutput(const std::string& name, const std::optional<TensorView>& got,
                                       const reference::BoundedValues& want) {
  if (!got) return ::testing::AssertionSuccess();
  return Verdict(name, reference::CompareBounded(AsInput(*got), want));
}

}  // namespace

NormRopeProblem Typical(const NormRopeTypes& types, NormType norm, RotaryMode mode, std::int64_t head_dim) {
  NormRopeProblem problem;
  problem.types = types;
  problem.norm_type = norm;
  problem.batch = 2;
  problem.sequence = 9;
  problem.heads = 5;
  problem.head_dim = head_dim;
  problem.rotary = RotaryOptions{.mode = mode};
  problem.first = 2;
  problem.length = 5;
  return problem;
}

Shape NormRopeProblem::TablesShape() const {
  const RotaryOptions options = rotary.value_or(RotaryOptions{});
  const std::int64_t width = options.rotary_dim.value_or(head_dim);
  return {tables_per_batch ? batch : 1, tables_per_head ? heads : 1, length,
          options.per_pair_tables ? width / 2 : width};
}

std::ostream& operator<<(std::ostream& out, const NormRopeProblem& problem) {
  out << "norm=" << Name(problem.norm_type) << ",types=" << Name(problem.types.activations) << "/"
      << Name(problem.types.weights) << "/" << Name(problem.types.tables) << ",bsnd=" << ToString(problem.XShape());
  if (problem.rotary) {
    out << ",rotary=" << Name(problem.rotary->mode);
    if (problem.rotary->per_pair_tables) out << ",per_pair=1";
    if (problem.rotary->rotary_dim) out << ",rotary_dim=" << *problem.rotary->rotary_dim;
    if (problem.rotary->rotary_offset != 0) out << ",rotary_offset=" << problem.rotary->rotary_offset;
    out << ",first=" << problem.first << ",tables=" << ToString(problem.TablesShape());
  }
  out << ",wanted=" << (problem.dx ? "dx" : "") << (problem.dweight ? "+dweight" : "")
      << (problem.dbias ? "+dbias" : "") << ",dy_layout=" << Name(problem.dy_layout)
      << ",x_layout=" << Name(problem.x_layout) << ",dx_layout=" << Name(problem.dx_layout)
      << ",tables_layout=" << Name(problem.tables_layout) << ",statistics_layout=" << Name(problem.statistics_layout)
      << ",weights_layout=" << Name(problem.weights_layout)
      << ",weight_grads_layout=" << Name(problem.weight_grads_layout) << ",eps=" << problem.eps;
  if (problem.placement != Placement::kGuarded) out << ",placement=" << Name(problem.placement);
  return out << ",seed=" << problem.seed << ",threads=" << problem.execution.num_threads
             << ",target=" << Name(problem.execution.cpu_target);
}

NormRopeProblem RandomNormRopeProblem(std::uint64_t seed) {
  Random random(seed);
  NormRopeProblem problem;
  problem.seed = seed;
  problem.norm_type = Choose(random, kNormTypes);
  problem.types = Choose(random, kAllNormRopeTypes);
  ChooseShape(random, &problem);
  ChooseRotation(random, &problem);
  ChooseLayouts(random, &problem);
  const bool all = OneIn(random, 2);
  problem.dweight = all || OneIn(random, 2);
  problem.dbias = all || OneIn(random, 2);
  problem.dx = all || OneIn(random, 2) || !(problem.WantsDweight() || problem.WantsDbias());
  return problem;
}

// ---- The backward -----------------------------------------------------------------------------------------------

NormRopeBackwardTensors::NormRopeBackwardTensors(const NormRopeProblem& given)
    : problem(given),
      dy(Activation(given, given.YShape(), given.dy_layout)),
      x(Activation(given, given.XShape(), given.x_layout)),
      weight(Weight(given, given.weights_layout)),
      mean(Statistic(given)),
      rstd(Statistic(given)),
      cos(Table(given)),
      sin(Table(given)),
      dx(Activation(given, given.XShape(), given.dx_layout)),
      dweight(Weight(given, given.weight_grads_layout)),
      dbias(Weight(given, given.weight_grads_layout)) {
  Random random(given.seed);
  for (Tensor* tensor : {&dy, &x, &weight, &cos, &sin}) tensor->FillRandom(random);
  FillStatistics(x, given.norm_type, given.eps, &mean, &rstd);
}

NormRopeBackwardSegment NormRopeBackwardTensors::Segment() const {
  NormRopeBackwardSegment segment;
  segment.dy = dy.in();
  segment.norm_type = problem.norm_type;
  if (problem.norm_type != NormType::kNone) {
    segment.x = x.in();
    segment.rstd = rstd.in();
  }
  if (HasMean(problem.norm_type)) segment.mean = mean.in();
  if (HasWeight(problem.norm_type)) segment.weight = weight.in();
  segment.rotation = RotationOf(problem, cos, sin);
  if (problem.dx) segment.dx = dx.out();
  if (problem.WantsDweight()) segment.dweight = dweight.out();
  if (problem.WantsDbias()) segment.dbias = dbias.out();
  return segment;
}

NormRopeBackwardPointers NormRopeBackwardTensors::Pointers() const {
  const NormRopeBackwardSegment segment = Segment();
  const auto data = [](const auto& view) { return view ? view->data : nullptr; };
  return {.dy = dy.data(),
          .x = data(segment.x),
          .weight = data(segment.weight),
          .mean = data(segment.mean),
          .rstd = data(segment.rstd),
          .cos = segment.rotation ? cos.data() : nullptr,
          .sin = segment.rotation ? sin.data() : nullptr,
          .dx = data(segment.dx),
          .dweight = data(segment.dweight),
          .dbias = data(segment.dbias)};
}

::testing::AssertionResult NormRopeBackwardTensors::Check() const {
  const NormRopeBackwardSegment segment = Segment();
  const ::testing::AssertionResult result =
      FirstFailure({CheckSegment("", segment, reference::NormRopeBackward(segment)), dy.Unchanged("dy"),
                    x.Unchanged("x"), weight.Unchanged("weight"), mean.Unchanged("mean"), rstd.Unchanged("rstd"),
                    cos.Unchanged("cos"), sin.Unchanged("sin"), problem.dx ? dx.GuardsIntact("dx") : dx.Unchanged("dx"),
                    segment.dweight ? dweight.GuardsIntact("dweight") : dweight.Unchanged("dweight"),
                    segment.dbias ? dbias.GuardsIntact("dbias") : dbias.Unchanged("dbias")});
  return InProblem(result, problem);
}

std::vector<std::uint64_t> NormRopeBackwardTensors::ResultBits() const {
  std::vector<const Tensor*> wanted;
  if (problem.dx) wanted.push_back(&dx);
  if (problem.WantsDweight()) wanted.push_back(&dweight);
  if (problem.WantsDbias()) wanted.push_back(&dbias);
  return BitsOf(wanted);
}

// ---- The forward ------------------------------------------------------------------------------------------------

NormRopeForwardTensors::NormRopeForwardTensors(const NormRopeProblem& given)
    : problem(given),
      x(Activation(given, given.XShape(), given.x_layout)),
      weight(Weight(given, given.weights_layout)),
      bias(Weight(given, given.weights_layout)),
      cos(Table(given)),
      sin(Table(given)),
      y(Activation(given, given.YShape(), OutputLayout(given.dy_layout))),
      mean(Statistic(given)),
      rstd(Statistic(given)) {
  Random random(given.seed);
  for (Tensor* tensor : {&x, &weight, &bias, &cos, &sin}) tensor->FillRandom(random);
}

NormRopeSegment NormRopeForwardTensors::Segment() const {
  NormRopeSegment segment;
  segment.x = x.in();
  segment.norm_type = problem.norm_type;
  segment.eps = problem.eps;
  if (HasWeight(problem.norm_type)) segment.weight = weight.in();
  if (HasBias(problem.norm_type)) segment.bias = bias.in();
  segment.rotation = RotationOf(problem, cos, sin);
  segment.y = y.out();
  if (HasMean(problem.norm_type)) segment.mean = mean.out();
  if (problem.norm_type != NormType::kNone) segment.rstd = rstd.out();
  return segment;
}

NormRopePointers NormRopeForwardTensors::Pointers() const {
  const NormRopeSegment segment = Segment();
  const auto data = [](const auto& view) { return view ? view->data : nullptr; };
  return {.x = x.data(),
          .weight = data(segment.weight),
          .bias = data(segment.bias),
          .cos = segment.rotation ? cos.data() : nullptr,
          .sin = segment.rotation ? sin.data() : nullptr,
          .y = y.data(),
          .mean = data(segment.mean),
          .rstd = data(segment.rstd)};
}

::testing::AssertionResult NormRopeForwardTensors::Check() const {
  const ::testing::AssertionResult result =
      FirstFailure({CheckSegment("", Segment()), x.Unchanged("x"), weight.Unchanged("weight"), bias.Unchanged("bias"),
                    cos.Unchanged("cos"), sin.Unchanged("sin"), y.GuardsIntact("y"),
                    HasMean(problem.norm_type) ? mean.GuardsIntact("mean") : mean.Unchanged("mean"),
                    problem.norm_type != NormType::kNone ? rstd.GuardsIntact("rstd") : rstd.Unchanged("rstd")});
  return InProblem(result, problem);
}

std::vector<std::uint64_t> NormRopeForwardTensors::ResultBits() const {
  std::vector<const Tensor*> written = {&y};
  if (HasMean(problem.norm_type)) written.push_back(&mean);
  if (problem.norm_type != NormType::kNone) written.push_back(&rstd);
  return BitsOf(written);
}

// ---- Checks -----------------------------------------------------------------------------------------------------

::testing::AssertionResult CheckSegment(const std::string& name, const NormRopeBackwardSegment& segment,
                                        const reference::NormRopeGradients& want) {
  return FirstFailure({CheckOutput(name + "dx", segment.dx, want.dx),
                       CheckOutput(name + "dweight", segment.dweight, want.dweight),
                       CheckOutput(name + "dbias", segment.dbias, want.dbias)});
}

::testing::AssertionResult CheckSegment(const std::string& name, const NormRopeSegment& segment) {
  const reference::NormStatistics statistics = reference::ExactStatistics(segment);
  const Tensor want(segment.y.dtype, Shape(segment.y.shape.begin(), segment.y.shape.end()));
  NormRopeSegment formula = segment;
  formula.y = want.out();
  reference::NormRopeFromStatistics(formula);
  return FirstFailure({CheckOutput(name + "mean", segment.mean, statistics.mean),
                       CheckOutput(name + "rstd", segment.rstd, statistics.rstd),
                       Verdict(name + "y", reference::CompareBits(AsInput(segment.y), want.in()))});
}

void FillStatistics(const Tensor& x, NormType type, double eps, Tensor* mean, Tensor* rstd) {
  NormRopeSegment segment;
  segment.x = x.in();
  segment.norm_type = type;
  segment.eps = eps;
  const reference::NormStatistics exact = reference::ExactStatistics(segment);
  if (!exact.mean.high.empty()) mean->Fill(exact.mean.high);
  if (!exact.rstd.high.empty()) rstd->Fill(exact.rstd.high);
}

}  // namespace gyrograd::testing
