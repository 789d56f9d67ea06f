// No byte outside the tensors is touched: each tensor ends at the last byte of a page, or begins at the first, beside a
// page that cannot be read. Widths around those of vectors, on every CPU target, on one thread and several, for every
// way in which results are wanted; a fault names the problem.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"
#include "gyrograd/rotary.h"
#include "tests/support/child.h"
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"
#include "tests/support/verdict.h"

namespace gyrograd::testing {
namespace {

using Bits = std::vector<std::uint64_t>;

constexpr Placement kPlacements[] = {Placement::kPageEnd, Placement::kPageStart};

// 1 to 70, and around 128.
std::vector<std::int64_t> Widths() {
  std::vector<std::int64_t> widths;
  for (std::int64_t width = 1; width <= 70; ++width) widths.push_back(width);
  widths.insert(widths.end(), {126, 128, 130, 257});
  return widths;
}

class Choices {
 public:
  explicit Choices(std::uint64_t seed) : random_(seed) {}

  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }
  bool OneIn(std::int64_t count) { return Below(count) == 0; }
  template <class List>
  auto Of(const List& list) {
    return list[static_cast<std::size_t>(Below(static_cast<std::int64_t>(std::size(list))))];
  }
  // Contiguous most often: then each row's end is where vectors run over.
  Layout OutputLayout() { return OneIn(2) ? Layout::kContiguous : Of(kOutputLayouts); }
  Layout InputLayout() { return OneIn(2) ? Layout::kContiguous : Of(kInputLayouts); }
  std::uint64_t Seed() { return random_(); }

  // All of the row's channels, or as many as the mode can turn.
  std::optional<RotaryOptions> Rotation(RotaryMode mode, std::int64_t channels) {
    const std::int64_t unit = mode == RotaryMode::kQuarter ? 4 : 2;
    if (channels < unit) return std::nullopt;
    RotaryOptions options{.mode = mode, .per_pair_tables = OneIn(3)};
    if (channels % unit == 0 && !OneIn(4)) return options;
    options.rotary_dim = channels / unit * unit - (OneIn(2) && channels >= 2 * unit ? unit : 0);
    const std::int64_t rest = channels - *options.rotary_dim;
    options.rotary_offset = OneIn(2) ? rest : Below(rest + 1);
    return options;
  }

 private:
  Random random_;
};

// Runs one call on tensors in every placement, on every target, on 1 and 3 threads, and compares with the bits that
// tensors between guard bytes got. Run: what makes the tensors of a problem and calls.
template <class Run, class Problem>
void RunAtEdges(Problem problem, ChildReport& report) {
  problem.execution = {1, CpuTarget::kBest};
  report.Start(Run::kCall, problem);
  const Bits want = Run(problem).Compute(problem.execution, report);
  for (const Placement placement : kPlacements) {
    problem.placement = placement;
    const Run run(problem);
    for (const CpuTarget target : AvailableCpuTargets()) {
      for (const int threads : {1, 3}) {
        problem.execution = {threads, target};
        report.Start(Run::kCall, problem);
        const Bits got = run.Compute(problem.execution, report);
        const ::testing::AssertionResult intact = run.Intact();
        if (!intact) report.Fail(intact.message());
        if (got != want) report.Fail("other bits than between guard bytes");
      }
    }
  }
}

void ReportStatus(const Status& status, ChildReport& report) {
  if (!status.ok()) report.Fail(status.message());
}

// ---- Rotary -----------------------------------------------------------------------------------------------------

struct WantedRotary : Problem {
  int wanted = 7;  // 1: dx, 2: dcos, 4: dsin
};

std::ostream& operator<<(std::ostream& out, const WantedRotary& problem) {
  return out << static_cast<const Problem&>(problem) << ",wanted=" << problem.wanted;
}

class RotaryBackwardRun {
 public:
  static constexpr const char* kCall = "RotaryBackward";

  explicit RotaryBackwardRun(const WantedRotary& problem) : wanted_(problem.wanted), tensors_(problem) {}

  Bits Compute(const Execution& execution, ChildReport& report) const {
    for (const Tensor* tensor : {&tensors_.dx, &tensors_.dcos, &tensors_.dsin}) tensor->Clear();
    RotaryBackwardArgs args =
        tensors_.Args((wanted_ & 1) != 0, (wanted_ & 2) != 0, (wanted_ & 4) != 0, /*with_x=*/wanted_ != 1);
    args.execution = execution;
    ReportStatus(RotaryBackward(args), report);
    Bits bits;
    int bit = 1;
    for (const Tensor* tensor : {&tensors_.dx, &tensors_.dcos, &tensors_.dsin}) {
      const Bits more = wanted_ & bit ? tensor->Bits() : Bits();
      bits.insert(bits.end(), more.begin(), more.end());
      bit *= 2;
    }
    return bits;
  }

  ::testing::AssertionResult Intact() const {
    return FirstFailure({tensors_.dy.Unchanged("dy"), tensors_.x.Unchanged("x"), tensors_.cos.Unchanged("cos"),
                         tensors_.sin.Unchanged("sin"), tensors_.dx.GuardsIntact("dx"),
                         tensors_.dcos.GuardsIntact("dcos"), tensors_.dsin.GuardsIntact("dsin")});
  }

 private:
  int wanted_;
  BackwardTensors tensors_;
};

class RotaryRun {
 public:
  static constexpr const char* kCall = "Rotary";

  explicit RotaryRun(const Problem& problem) : tensors_(problem) {}

  Bits Compute(const Execution& execution, ChildReport& report) const {
    tensors_.y.Clear();
    RotaryArgs args = tensors_.Args();
    args.execution = execution;
    ReportStatus(Rotary(args), report);
    return tensors_.y.Bits();
  }

  ::testing::AssertionResult Intact() const {
    return FirstFailure({tensors_.x.Unchanged("x"), tensors_.cos.Unchanged("cos"), tensors_.sin.Unchanged("sin"),
                         tensors_.y.GuardsIntact("y")});
  }

 private:
  ForwardTensors tensors_;
};

// Rows under one table row or several, one row alone, and rows enough for three threads.
WantedRotary RotaryProblem(Choices& choices, RotaryMode mode, Types types, std::int64_t channels) {
  static const std::pair<Shape, Shape> kOuterShapes[] = {{{}, {}},
                                                         {{3}, {1}},
                                                         {{3}, {3}},
                                                         {{2, 3}, {1, 3}},
                                                         {{2, 3}, {2, 1}},
                                                         {{3, 5, 2}, {1, 5, 1}},
                                                         {{2, 90, 3}, {1, 90, 1}}};
  WantedRotary problem;
  problem.mode = mode;
  problem.types = types;
  std::tie(problem.dy, problem.tables) = kOuterShapes[choices.Below(choices.OneIn(6) ? 7 : 6)];
  problem.dy.push_back(channels);
  const RotaryOptions options = *choices.Rotation(mode, channels);
  problem.per_pair = options.per_pair_tables;
  problem.rotary_dim = options.rotary_dim;
  problem.rotary_offset = options.rotary_offset;
  problem.tables.push_back(options.rotary_dim.value_or(channels) / (problem.per_pair ? 2 : 1));
  problem.dy_layout = choices.InputLayout();
  problem.x_layout = choices.InputLayout();
  problem.tables_layout = choices.InputLayout();
  problem.dx_layout = choices.OutputLayout();
  problem.table_grads_layout = choices.OutputLayout();
  problem.wanted = choices.Of(std::vector<int>{7, 7, 7, 1, 6, 2, 4});
  problem.seed = choices.Seed();
  return problem;
}

class MemoryEdgesOfRotary : public ::testing::TestWithParam<ModeAndTypes> {};

INSTANTIATE_TEST_SUITE_P(All, MemoryEdgesOfRotary, ModesAndTypes(), ModeAndTypesName);

TEST_P(MemoryEdgesOfRotary, Hold) {
  const auto result = InChild([](ChildReport& report) {
    Choices choices(static_cast<std::uint64_t>(GetParam().mode) + 1);
    for (const std::int64_t channels : Widths()) {
      if (channels < (GetParam().mode == RotaryMode::kQuarter ? 4 : 2)) continue;
      for (int repeat = 0; repeat < 2; ++repeat) {
        const WantedRotary problem = RotaryProblem(choices, GetParam().mode, GetParam().types, channels);
        RunAtEdges<RotaryBackwardRun>(problem, report);
        RunAtEdges<RotaryRun>(static_cast<const Problem&>(problem), report);
      }
    }
  });
  EXPECT_TRUE(result);
}

// ---- One segment of norm and rotary -----------------------------------------------------------------------------

template <class Tensors>
::testing::AssertionResult InputsUnchanged(const Tensors& tensors) {
  return FirstFailure({tensors.x.Unchanged("x"), tensors.weight.Unchanged("weight"), tensors.cos.Unchanged("cos"),
                       tensors.sin.Unchanged("sin")});
}

class NormRopeBackwardRun {
 public:
  static constexpr const char* kCall = "NormRopeBackward";

  explicit NormRopeBackwardRun(const NormRopeProblem& problem) : tensors_(problem) {}

  Bits Compute(const Execution& execution, ChildReport& report) const {
    for (const Tensor* tensor : {&tensors_.dx, &tensors_.dweight, &tensors_.dbias}) tensor->Clear();
    const NormRopeBackwardSegment segments[] = {tensors_.Segment()};
    ReportStatus(NormRopeBackward({.segments = segments, .execution = execution}), report);
    return tensors_.ResultBits();
  }

  ::testing::AssertionResult Intact() const {
    return FirstFailure({InputsUnchanged(tensors_), tensors_.dy.Unchanged("dy"), tensors_.mean.Unchanged("mean"),
                         tensors_.rstd.Unchanged("rstd"), tensors_.dx.GuardsIntact("dx"),
                         tensors_.dweight.GuardsIntact("dweight"), tensors_.dbias.GuardsIntact("dbias")});
  }

 private:
  NormRopeBackwardTensors tensors_;
};

class NormRopeRun {
 public:
  static constexpr const char* kCall = "NormRope";

  explicit NormRopeRun(const NormRopeProblem& problem) : tensors_(problem) {}

  Bits Compute(const Execution& execution, ChildReport& report) const {
    for (const Tensor* tensor : {&tensors_.y, &tensors_.mean, &tensors_.rstd}) tensor->Clear();
    const NormRopeSegment segments[] = {tensors_.Segment()};
    ReportStatus(NormRope({.segments = segments, .execution = execution}), report);
    return tensors_.ResultBits();
  }

  ::testing::AssertionResult Intact() const {
    return FirstFailure({InputsUnchanged(tensors_), tensors_.bias.Unchanged("bias"), tensors_.y.GuardsIntact("y"),
                         tensors_.mean.GuardsIntact("mean"), tensors_.rstd.GuardsIntact("rstd")});
  }

 private:
  NormRopeForwardTensors tensors_;
};

NormRopeProblem SegmentProblem(Choices& choices, NormType norm, const NormRopeTypes& types, std::int64_t channels) {
  NormRopeProblem problem;
  problem.norm_type = norm;
  problem.types = types;
  problem.batch = 1 + choices.Below(2);
  problem.sequence = choices.OneIn(10) ? 150 : 1 + choices.Below(4);  // enough for three threads, or few
  problem.heads = 1 + choices.Below(3);
  problem.head_dim = channels;
  if (!choices.OneIn(5)) problem.rotary = choices.Rotation(choices.Of(kModes), channels);
  problem.first = choices.Below(problem.sequence);
  problem.length =
      choices.OneIn(2) ? problem.sequence - problem.first : choices.Below(problem.sequence - problem.first);
  problem.tables_per_batch = choices.OneIn(3);
  problem.tables_per_head = choices.OneIn(3);
  for (Layout NormRopeProblem::* const layout : {&NormRopeProblem::dy_layout, &NormRopeProblem::x_layout,
                                                 &NormRopeProblem::tables_layout, &NormRopeProblem::weights_layout}) {
    problem.*layout = choices.InputLayout();
  }
  for (Layout NormRopeProblem::* const layout :
       {&NormRopeProblem::dx_layout, &NormRopeProblem::weight_grads_layout, &NormRopeProblem::statistics_layout}) {
    problem.*layout = choices.OutputLayout();
  }
  problem.dweight = !choices.OneIn(4);
  problem.dbias = !choices.OneIn(4);
  problem.dx = !choices.OneIn(4) || !(problem.WantsDweight() || problem.WantsDbias());
  problem.seed = choices.Seed();
  return problem;
}

struct NormAndTypes {
  NormType norm;
  NormRopeTypes types;
};

std::vector<NormAndTypes> NormsAndTypes() {
  std::vector<NormAndTypes> all;
  for (const NormType norm : kNormTypes) {
    for (const NormRopeTypes& types : kAllNormRopeTypes) all.push_back({norm, types});
  }
  return all;
}

std::string NormAndTypesName(const ::testing::TestParamInfo<NormAndTypes>& info) {
  const auto& [norm, types] = info.param;
  return std::string(Name(norm)) + "_" + Name(types.activations) + "_" + Name(types.weights) + "_" + Name(types.tables);
}

class MemoryEdgesOfNormRope : public ::testing::TestWithParam<NormAndTypes> {};

INSTANTIATE_TEST_SUITE_P(All, MemoryEdgesOfNormRope, ::testing::ValuesIn(NormsAndTypes()), NormAndTypesName);

TEST_P(MemoryEdgesOfNormRope, Hold) {
  const auto result = InChild([](ChildReport& report) {
    Choices choices(static_cast<std::uint64_t>(GetParam().norm) + 1);
    for (const std::int64_t channels : Widths()) {
      const NormRopeProblem problem = SegmentProblem(choices, GetParam().norm, GetParam().types, channels);
      RunAtEdges<NormRopeBackwardRun>(problem, report);
      RunAtEdges<NormRopeRun>(problem, report);
    }
  });
  EXPECT_TRUE(result);
}

// ---- The joint call ---------------------------------------------------------------------------------------------

Bits BitsOf(const std::vector<const Tensor*>& outputs) {
  Bits bits;
  for (const Tensor* tensor : outputs) {
    const Bits more = tensor->Bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

::testing::AssertionResult AllIntact(const std::vector<const Tensor*>& outputs) {
  for (const Tensor* tensor : outputs) {
    if (::testing::AssertionResult intact = tensor->GuardsIntact("an output"); !intact) return intact;
  }
  return ::testing::AssertionSuccess();
}

// All that the two calls may write, the unwanted too.
class NormRopeConcatRun {
 public:
  static constexpr const char* kCall = "NormRopeConcatBackward, NormRopeConcat";

  explicit NormRopeConcatRun(const NormRopeConcatProblem& problem) : tensors_(problem) {
    outputs_ = {&tensors_.query_output, &tensors_.key_output, &tensors_.value_output};
    for (const StreamTensors* stream : {&tensors_.query, &tensors_.key, &tensors_.value, &tensors_.encoder_query,
                                        &tensors_.encoder_key, &tensors_.encoder_value}) {
      outputs_.insert(outputs_.end(), {&stream->dx, &stream->dweight, &stream->dbias});
    }
  }

  Bits Compute(const Execution& execution, ChildReport& report) const {
    NormRopeConcatBackwardArgs backward = tensors_.BackwardArgs();
    NormRopeConcatArgs forward = tensors_.ForwardArgs(/*statistics=*/false);
    backward.execution = forward.execution = execution;
    ReportStatus(NormRopeConcatBackward(backward), report);
    ReportStatus(NormRopeConcat(forward), report);
    return BitsOfWritten(backward);
  }

  ::testing::AssertionResult Intact() const { return AllIntact(outputs_); }

 private:
  // Outputs that nothing writes hold guard bytes, which depend on the placement.
  Bits BitsOfWritten(const NormRopeConcatBackwardArgs& args) const {
    std::vector<const Tensor*> written = {&tensors_.query_output, &tensors_.key_output, &tensors_.value_output,
                                          &tensors_.query.dx,     &tensors_.key.dx,     &tensors_.value.dx};
    if (args.dencoder_query) written.push_back(&tensors_.encoder_query.dx);
    if (args.dencoder_key) written.insert(written.end(), {&tensors_.encoder_key.dx, &tensors_.encoder_value.dx});
    const std::pair<const NormBackwardTensors*, const StreamTensors*> norms[] = {
        {&args.norm_query, &tensors_.query},
        {&args.norm_key, &tensors_.key},
        {&args.norm_added_query, &tensors_.encoder_query},
        {&args.norm_added_key, &tensors_.encoder_key}};
    for (const auto& [norm, stream] : norms) {
      if (norm->dweight) written.push_back(&stream->dweight);
      if (norm->dbias) written.push_back(&stream->dbias);
    }
    return BitsOf(written);
  }

  NormRopeConcatTensors tensors_;
  std::vector<const Tensor*> outputs_;
};

NormRopeConcatProblem JointProblem(Choices& choices, NormType norm, const NormRopeTypes& types, std::int64_t channels) {
  NormRopeConcatProblem problem;
  problem.types = types;
  problem.batch = 1 + choices.Below(2);
  problem.heads = 1 + choices.Below(3);
  problem.head_dim = channels;
  problem.seq_query = 1 + choices.Below(choices.OneIn(6) ? 60 : 4);
  problem.seq_key = 1 + choices.Below(4);
  problem.seq_encoder_query = choices.Below(4);
  problem.seq_encoder_key = choices.Below(4);
  problem.options.norm_type = norm;
  problem.options.norm_added_type = choices.Of(kNormTypes);
  problem.options.rotary = choices.Rotation(choices.Of(kModes), channels);
  problem.options.concat_order = choices.OneIn(2) ? ConcatOrder::kStreamFirst : ConcatOrder::kEncoderFirst;
  problem.seq_rope = 1 + choices.Below(std::min(problem.seq_query + problem.seq_encoder_query,
                                                problem.seq_key + problem.seq_encoder_key));
  problem.joint_layout = choices.OutputLayout();
  problem.stream_layout = choices.OutputLayout();
  problem.seed = choices.Seed();
  return problem;
}

class MemoryEdgesOfNormRopeConcat : public ::testing::TestWithParam<NormAndTypes> {};

INSTANTIATE_TEST_SUITE_P(All, MemoryEdgesOfNormRopeConcat, ::testing::ValuesIn(NormsAndTypes()), NormAndTypesName);

TEST_P(MemoryEdgesOfNormRopeConcat, Hold) {
  const auto result = InChild([](ChildReport& report) {
    Choices choices(static_cast<std::uint64_t>(GetParam().norm) + 1);
    for (const std::int64_t channels : Widths()) {
      if (channels % 3 != static_cast<std::int64_t>(GetParam().norm) % 3) continue;
      RunAtEdges<NormRopeConcatRun>(JointProblem(choices, GetParam().norm, GetParam().types, channels), report);
    }
  });
  EXPECT_TRUE(result);
}

// ---- The check itself -------------------------------------------------------------------------------------------

// A byte beyond the last one, read: the failure names the problem, and the test program goes on.
TEST(MemoryEdges, AFaultNamesTheProblem) {
  for (const Placement placement : kPlacements) {
    const Tensor tensor(DType::kF32, {3}, Layout::kContiguous, placement);
    const auto result = InChild([&](ChildReport& report) {
      report.Start("the first call", 1);
      report.Start("the second call", 2);
      const auto* const first = static_cast<const volatile float*>(tensor.data());
      if (first[placement == Placement::kPageEnd ? 3 : -1] == 0) report.Fail("read");
    });
    EXPECT_FALSE(result);
    EXPECT_NE(std::string(result.message()).find("second call of 2"), std::string::npos) << result.message();
  }
}

}  // namespace
}  // namespace gyrograd::testing
