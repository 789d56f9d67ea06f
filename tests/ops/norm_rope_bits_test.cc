// Norm + rotary gives the same bits whatever runs it, wherever the tensors lie, whichever outputs are wanted, in place,
// and under any floating-point environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/machine.h"
#include "gyrograd/norm_rope.h"
#include "tests/support/environment.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"
#include "tests/support/verdict.h"

namespace gyrograd::testing {
namespace {

using Bits = std::vector<std::uint64_t>;

// Every norm; each with a rotation, whole or in part, of a mode that `number` chooses.
std::vector<NormRopeProblem> ProblemsOf(const NormRopeTypes& types, const Shape& bsnd, std::size_t number) {
  std::vector<NormRopeProblem> problems;
  for (const NormType norm : kNormTypes) {
    NormRopeProblem problem;
    problem.types = types;
    problem.norm_type = norm;
    problem.batch = bsnd[0];
    problem.sequence = bsnd[1];
    problem.heads = bsnd[2];
    problem.head_dim = bsnd[3];
    problem.rotary = RotaryOptions{.mode = kModes[number % 4], .per_pair_tables = number % 3 == 0};
    if (number % 5 == 0) {
      problem.rotary->rotary_dim = bsnd[3] / 8 * 4;
      problem.rotary->rotary_offset = bsnd[3] / 4 + 1;
    }
    problem.first = problem.sequence / 4;
    problem.length = problem.sequence / 2;
    problem.tables_per_head = number % 4 == 1;
    problem.tables_per_batch = number % 4 == 2;
    problem.seed = number + 1;
    problems.push_back(problem);
    ++number;
  }
  return problems;
}

// Both directions of one problem: the same tensors, run again and again.
class Both {
 public:
  explicit Both(const NormRopeProblem& problem) : backward(problem), forward(problem) {}

  Bits Run(const Execution& execution) {
    backward.problem.execution = forward.problem.execution = execution;
    for (const Tensor* tensor : {&backward.dx, &backward.dweight, &backward.dbias, &forward.y}) tensor->Clear();
    EXPECT_TRUE(Ok(Compute(backward)));
    EXPECT_TRUE(Ok(Compute(forward)));
    Bits bits = backward.ResultBits();
    const Bits more = forward.ResultBits();
    bits.insert(bits.end(), more.begin(), more.end());
    return bits;
  }

  void Check() const {
    EXPECT_TRUE(backward.Check());
    EXPECT_TRUE(forward.Check());
  }

  NormRopeBackwardTensors backward;
  NormRopeForwardTensors forward;
};

class NormRopeBits : public ::testing::TestWithParam<std::size_t> {
 protected:
  static NormRopeTypes types() { return kAllNormRopeTypes[GetParam()]; }
};

std::string TypesName(const ::testing::TestParamInfo<std::size_t>& info) {
  const NormRopeTypes& types = kAllNormRopeTypes[info.param];
  return std::string(Name(types.activations)) + "_" + Name(types.weights) + "_" + Name(types.tables);
}

INSTANTIATE_TEST_SUITE_P(All, NormRopeBits, ::testing::Range<std::size_t>(0, std::size(kAllNormRopeTypes)), TypesName);

// One choice of the other types for each type of activations.
class NormRopeBitsOfFour : public NormRopeBits {};

INSTANTIATE_TEST_SUITE_P(All, NormRopeBitsOfFour, ::testing::Values(0, 1, 3, 6), TypesName);

// ---- What runs it -----------------------------------------------------------------------------------------------

// Work enough for several threads: few heads and many positions, and the reverse; a rest of a vector; long rows.
TEST_P(NormRopeBits, ThreadsAndTargets) {
  std::size_t number = GetParam();
  for (const Shape& shape : {Shape{2, 60, 6, 72}, {1, 300, 1, 200}, {2, 4, 90, 76}, {1, 25, 1, 2088}}) {
    for (const NormRopeProblem& problem : ProblemsOf(types(), shape, ++number)) {
      Both both(problem);
      const Bits want = both.Run({1, CpuTarget::kBest});
      for (const CpuTarget target : AvailableCpuTargets()) {
        EXPECT_TRUE(both.Run({3, target}) == want) << problem << " on " << Name(target);
      }
      for (const int threads : {0, 2, 7}) {
        EXPECT_TRUE(both.Run({threads, CpuTarget::kBest}) == want) << problem << " threads " << threads;
      }
    }
  }
}

// Sums of rows of very different sizes, each row's negative among them: what is left is the rounding of every step, and
// another order of additions would leave something else.
TEST(NormRopeSums, KeepTheirOrder) {
  for (const std::size_t types : {0, 1, 7}) {
    NormRopeProblem problem;
    problem.norm_type = NormType::kLayerAffine;
    problem.types = kAllNormRopeTypes[types];
    problem.batch = 2;
    problem.sequence = 333;
    problem.heads = 3;
    problem.head_dim = 72;
    NormRopeBackwardTensors tensors(problem);
    const std::vector<double> dy = tensors.dy.Values(), x = tensors.x.Values();
    const std::size_t batch = dy.size() / 2;
    tensors.x.Fill([&](std::int64_t i) { return x[static_cast<std::size_t>(i) % batch]; });
    tensors.dy.Fill([&](std::int64_t i) {
      const auto place = static_cast<std::size_t>(i) % batch;
      const int exponent = static_cast<int>(place / 72 * 37 % 71) - 35;
      return std::ldexp(static_cast<std::size_t>(i) < batch ? dy[place] : -dy[place], exponent);
    });
    FillStatistics(tensors.x, problem.norm_type, problem.eps, &tensors.mean, &tensors.rstd);
    tensors.problem.execution.num_threads = 1;
    ASSERT_TRUE(Ok(Compute(tensors)));
    EXPECT_TRUE(tensors.Check());
    const Bits want = tensors.ResultBits();
    for (const CpuTarget target : AvailableCpuTargets()) {
      for (const int threads : {1, 2, 3, 7}) {
        for (const Tensor* tensor : {&tensors.dx, &tensors.dweight, &tensors.dbias}) tensor->Clear();
        tensors.problem.execution = {threads, target};
        ASSERT_TRUE(Ok(Compute(tensors)));
        EXPECT_TRUE(tensors.ResultBits() == want) << tensors.problem;
      }
    }
  }
}

TEST_P(NormRopeBits, AnyValuesOnEveryTarget) {
  if (types().activations == DType::kF64) return;
  for (const NormRopeProblem& problem : ProblemsOf(types(), {1, 12, 2, 76}, GetParam())) {
    Random random(17);
    Both both(problem);
    for (Tensor* tensor : {&both.backward.dy, &both.backward.x, &both.forward.x}) {
      tensor->FillBits([&](std::int64_t) { return static_cast<std::uint32_t>(random() >> 20); });
    }
    const Bits want = both.Run({1, CpuTarget::kBest});
    for (const CpuTarget target : AvailableCpuTargets()) {
      EXPECT_TRUE(both.Run({1, target}) == want) << problem << " on " << Name(target);
    }
  }
}

TEST(NormRopeRepeats, ThreeHundred) {
  for (const NormRopeTypes& types : {kAllNormRopeTypes[1], kAllNormRopeTypes[7]}) {
    NormRopeProblem problem = ProblemsOf(types, {2, 60, 6, 128}, 2)[2];
    ASSERT_TRUE(HasBias(problem.norm_type));
    problem.execution.num_threads = 3;
    const NormRopeBackwardTensors tensors(problem);
    ASSERT_TRUE(Ok(Compute(tensors)));
    const Bits want = tensors.ResultBits();
    for (int i = 0; i < 300; ++i) {
      for (const Tensor* tensor : {&tensors.dx, &tensors.dweight, &tensors.dbias}) tensor->Clear();
      ASSERT_TRUE(Ok(Compute(tensors)));
      ASSERT_TRUE(tensors.ResultBits() == want) << "repeat " << i;
    }
  }
}

TEST(NormRopeTargets, TheOneAskedForRuns) {
  for (NormRopeProblem problem : ProblemsOf({}, {1, 4, 2, 32}, 0)) {
    for (const CpuTarget target : AvailableCpuTargets()) {
      problem.execution.cpu_target = target;
      const NormRopeBackwardTensors tensors(problem);
      const NormRopeBackwardSegment segments[] = {tensors.Segment()};
      NormRopeBackwardPlan plan;
      ASSERT_TRUE(Ok(NormRopeBackwardPlan::Create({segments, problem.execution}, &plan)));
      EXPECT_NE(plan.Describe().find(std::string("target: ") + Name(target) + "\n"), std::string::npos);
    }
  }
}

// ---- Where the tensors lie --------------------------------------------------------------------------------------

using SetLayout = std::function<void(NormRopeProblem&, Layout)>;

TEST_P(NormRopeBits, Layouts) {
  const SetLayout of_tensors[] = {
      [](NormRopeProblem& p, Layout layout) { p.dy_layout = layout; },
      [](NormRopeProblem& p, Layout layout) { p.x_layout = layout; },
      [](NormRopeProblem& p, Layout layout) { p.dx_layout = layout; },
      [](NormRopeProblem& p, Layout layout) { p.tables_layout = layout; },
      [](NormRopeProblem& p, Layout layout) { p.statistics_layout = layout; },
      [](NormRopeProblem& p, Layout layout) { p.weights_layout = p.weight_grads_layout = layout; },
      [](NormRopeProblem& p, Layout layout) {
        p.dy_layout = p.x_layout = p.dx_layout = p.tables_layout = p.statistics_layout = p.weights_layout =
            p.weight_grads_layout = layout;
      }};
  std::size_t number = GetParam();
  for (const Shape& shape : {Shape{2, 8, 3, 72}, {2, 5, 17, 32}}) {
    for (const NormRopeProblem& problem : ProblemsOf(types(), shape, number++)) {
      Both plain(problem);
      const Bits want = plain.Run({});
      plain.Check();
      for (const SetLayout& set : of_tensors) {
        for (const Layout layout : kOutputLayouts) {
          NormRopeProblem other = problem;
          set(other, layout);
          EXPECT_TRUE(Both(other).Run({}) == want) << other;
        }
      }
    }
  }
}

// No byte beyond the tensors is touched, not even read.
TEST_P(NormRopeBits, AtTheEdgesOfPages) {
  std::size_t number = GetParam();
  for (const std::int64_t head_dim : {8, 20, 36, 64, 132, 200}) {
    for (NormRopeProblem problem : ProblemsOf(types(), {1, 5, 3, head_dim}, number++)) {
      Both plain(problem);
      const Bits want = plain.Run({});
      for (const Placement placement : {Placement::kPageEnd, Placement::kPageStart}) {
        for (const CpuTarget target : AvailableCpuTargets()) {
          problem.placement = placement;
          Both fenced(problem);
          EXPECT_TRUE(fenced.Run({1, target}) == want) << problem;
        }
      }
    }
  }
}

// ---- Which outputs are wanted -----------------------------------------------------------------------------------

TEST_P(NormRopeBitsOfFour, SubsetsOfOutputs) {
  std::size_t number = GetParam();
  for (const Shape& shape : {Shape{2, 60, 6, 72}, {1, 300, 3, 36}}) {
    for (const NormRopeProblem& problem : ProblemsOf(types(), shape, ++number)) {
      const NormRopeBackwardTensors full(problem);
      ASSERT_TRUE(Ok(Compute(full)));
      for (int wanted = 1; wanted < 7; ++wanted) {
        NormRopeProblem part = problem;
        part.dx = wanted & 1;
        part.dweight = wanted & 2;
        part.dbias = wanted & 4;
        const NormRopeBackwardTensors tensors(part);
        ASSERT_TRUE(Ok(Compute(tensors)));
        EXPECT_TRUE((part.dx ? tensors.dx.Bits() == full.dx.Bits() : tensors.dx.Unchanged("dx"))) << part;
        EXPECT_TRUE((part.WantsDweight() ? tensors.dweight.Bits() == full.dweight.Bits()
                                         : tensors.dweight.Unchanged("dweight")))
            << part;
        EXPECT_TRUE((part.WantsDbias() ? tensors.dbias.Bits() == full.dbias.Bits()  //
                                       : tensors.dbias.Unchanged("dbias")))
            << part;
      }
    }
  }
}

TEST_P(NormRopeBits, ForwardWithoutStatistics) {
  for (const NormRopeProblem& problem : ProblemsOf(types(), {2, 20, 3, 72}, GetParam())) {
    const NormRopeForwardTensors full(problem), part(problem);
    ASSERT_TRUE(Ok(Compute(full)));
    for (const bool mean : {false, true}) {
      NormRopeSegment segments[] = {part.Segment()};
      if (!mean) segments[0].mean.reset();
      if (mean) segments[0].rstd.reset();
      ASSERT_TRUE(Ok(NormRope({segments, problem.execution})));
      EXPECT_TRUE(part.y.Bits() == full.y.Bits()) << problem;
    }
  }
}

// ---- In place ---------------------------------------------------------------------------------------------------

// The strides of a [B, S, N, D] view as those of [B, N, S, D], and back.
Shape Swapped(Shape strides) {
  std::swap(strides[1], strides[2]);
  return strides;
}

std::vector<NormRopeProblem> ProblemsInPlace(const NormRopeTypes& types, std::size_t number) {
  std::vector<NormRopeProblem> problems;
  for (const Shape& shape : {Shape{2, 60, 6, 64}, {1, 9, 5, 36}, {1, 3, 2, 2088}, {1, 3, 1, 12000}}) {
    for (std::size_t mode = 0; mode < 4; ++mode) {
      if (shape[3] > 2088 && mode != 3) continue;
      for (NormRopeProblem problem : ProblemsOf(types, shape, ++number)) {
        problem.rotary->mode = kModes[mode];
        problem.execution.num_threads = 3;
        problems.push_back(problem);
      }
    }
  }
  const std::size_t count = problems.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (problems[i].head_dim > 64 || problems[i].sequence > 9) continue;
    for (const Layout layout : {Layout::kSwapped, Layout::kLastStride2, Layout::kReversedAll, Layout::kOffsetOne}) {
      problems.push_back(problems[i]);
      problems.back().dy_layout = problems.back().x_layout = problems.back().weights_layout = layout;
    }
  }
  return problems;
}

// `memory`, [B, N, S, D] or [B, S, N, D], as the other one.
class OtherOrder {
 public:
  explicit OtherOrder(const Tensor& memory)
      : memory_(memory), shape_(Swapped(memory.shape())), strides_(Swapped(memory.strides())) {}

  TensorView out() const { return {memory_.data(), memory_.dtype(), shape_, strides_}; }
  ConstTensorView in() const { return {memory_.data(), memory_.dtype(), shape_, strides_}; }

 private:
  const Tensor& memory_;
  Shape shape_, strides_;
};

::testing::AssertionResult SameBits(const ConstTensorView& got, const ConstTensorView& want) {
  return Verdict("the output in place", reference::CompareBits(got, want));
}

enum class DxOn { kX, kDy, kBoth };

TEST_P(NormRopeBitsOfFour, BackwardInPlace) {
  for (const NormRopeProblem& problem : ProblemsInPlace(types(), GetParam())) {
    for (const DxOn on : {DxOn::kX, DxOn::kDy, DxOn::kBoth}) {
      const NormRopeBackwardTensors separate(problem), shared(problem);
      const OtherOrder separate_dy(separate.dy), shared_dy(shared.dy);
      NormRopeBackwardSegment segments[] = {separate.Segment()};
      if (on == DxOn::kBoth && segments[0].x) segments[0].x = separate_dy.in();
      ASSERT_TRUE(Ok(NormRopeBackward({segments, problem.execution})));
      segments[0] = shared.Segment();
      segments[0].dx = on == DxOn::kX ? shared.x.out() : shared_dy.out();
      if (on == DxOn::kBoth && segments[0].x) segments[0].x = shared_dy.in();
      if (segments[0].dweight) segments[0].dweight = shared.weight.out();
      ASSERT_TRUE(Ok(NormRopeBackward({segments, problem.execution}))) << problem;
      EXPECT_TRUE(SameBits(on == DxOn::kX ? shared.x.in() : shared_dy.in(), separate.dx.in()))
          << problem << " dx on " << static_cast<int>(on);
      if (segments[0].dweight) {
        EXPECT_TRUE(SameBits(shared.weight.in(), separate.dweight.in())) << problem;
      }
      EXPECT_TRUE(shared.dbias.Bits() == separate.dbias.Bits() || !HasBias(problem.norm_type)) << problem;
      for (const Tensor* tensor : {&shared.dy, &shared.x, &shared.weight, &shared.dx}) {
        EXPECT_TRUE(tensor->GuardsIntact("a tensor")) << problem;
      }
    }
  }
}

TEST_P(NormRopeBitsOfFour, ForwardInPlace) {
  for (const NormRopeProblem& problem : ProblemsInPlace(types(), GetParam())) {
    const NormRopeForwardTensors separate(problem), shared(problem);
    const OtherOrder x(shared.x);
    ASSERT_TRUE(Ok(Compute(separate)));
    NormRopeSegment segments[] = {shared.Segment()};
    segments[0].y = x.out();
    ASSERT_TRUE(Ok(NormRope({segments, problem.execution}))) << problem;
    EXPECT_TRUE(SameBits(x.in(), separate.y.in())) << problem;
    EXPECT_TRUE(shared.rstd.Bits() == separate.rstd.Bits()) << problem;
    EXPECT_TRUE(shared.x.GuardsIntact("x")) << problem;
  }
}

// ---- The caller's environment -----------------------------------------------------------------------------------

// Values that rounding modes and flushed denormals would change.
Both DelicateTensors(const NormRopeTypes& types, int threads) {
  NormRopeProblem problem;
  problem.types = types;
  problem.norm_type = NormType::kLayerAffine;
  problem.batch = 2;
  problem.sequence = 100;
  problem.heads = 4;
  problem.head_dim = 72;
  problem.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
  problem.length = 50;
  problem.execution.num_threads = threads;
  Both both(problem);
  const double scale = types.activations == DType::kF64 ? 1e-160 : types.activations == DType::kF16 ? 1e-4 : 1e-20;
  NormRopeBackwardTensors& b = both.backward;
  NormRopeForwardTensors& f = both.forward;
  for (Tensor* tensor : {&b.dy, &b.x, &b.cos, &b.sin, &b.weight, &f.x, &f.cos, &f.sin, &f.weight, &f.bias}) {
    const std::vector<double> values = tensor->Values();
    tensor->Fill([&](std::int64_t i) { return values[static_cast<std::size_t>(i)] * (i % 3 == 0 ? scale : 1); });
  }
  return both;
}

// Calls the library between `enter` and `leave`, and compares with what the default environment gave.
void RunUnder(const std::function<void()>& enter, const std::function<void()>& leave, const NormRopeTypes& types,
              int threads) {
  Both both = DelicateTensors(types, threads);
  const Bits want = both.Run(both.backward.problem.execution);
  both.Check();
  const NormRopeBackwardSegment backward[] = {both.backward.Segment()};
  const NormRopeSegment forward[] = {both.forward.Segment()};
  for (const Tensor* tensor : {&both.backward.dx, &both.backward.dweight, &both.backward.dbias, &both.forward.y}) {
    tensor->Clear();
  }
  enter();
  const Status status = NormRopeBackward({backward, both.backward.problem.execution});
  const Status forward_status = NormRope({forward, both.backward.problem.execution});
  leave();
  ASSERT_TRUE(Ok(status));
  ASSERT_TRUE(Ok(forward_status));
  Bits bits = both.backward.ResultBits();
  const Bits more = both.forward.ResultBits();
  bits.insert(bits.end(), more.begin(), more.end());
  EXPECT_TRUE(bits == want);
}

TEST_P(NormRopeBitsOfFour, RoundingModes) {
  ExpectRoundingModesAreKept(
      [](const auto& enter, const auto& leave, int threads) { RunUnder(enter, leave, types(), threads); });
}

TEST_P(NormRopeBitsOfFour, ExceptionFlags) {
  ExpectExceptionFlagsAreKept(
      [](const auto& enter, const auto& leave, int threads) { RunUnder(enter, leave, types(), threads); });
}

#if defined(__SSE__)

// What the threads of the pool hold after a call is what they would hold without it.
TEST_P(NormRopeBitsOfFour, ControlWords) {
  for (const unsigned word : kControlWords) {
    for (const int threads : {1, kPoolThreads}) {
      std::vector<unsigned> before, after;
      unsigned mine = 0;
      RunUnder(
          [&] {
            SetControlWordsOfThreads(word);
            before = ControlWordsOfThreads();
            _mm_setcsr(word);
          },
          [&] {
            mine = _mm_getcsr();
            after = ControlWordsOfThreads();
            SetControlWordsOfThreads(kDefaultControlWord);
          },
          types(), threads);
      EXPECT_EQ(mine, word);
      EXPECT_EQ(after, before);
      EXPECT_EQ(before[1] & ~kFlagBits, word & ~kFlagBits);
    }
  }
}

#endif

// ---- More than the cache holds ----------------------------------------------------------------------------------

// The rows of a small problem again and again: batches of stride 0, which take no memory, and outputs of their own.
class ManyBatches {
 public:
  // The outputs begin `shift` elements beyond a cache line.
  ManyBatches(const NormRopeProblem& problem, std::int64_t shift) : size_(SizeOf(problem.types.activations)) {
    const std::int64_t views = problem.norm_type == NormType::kNone ? 2 : 3;
    elements_ = Count(problem.XShape());
    const std::int64_t bytes = 2 * internal::LastLevelCacheBytes();
    batches_ = bytes / (views * elements_ * static_cast<std::int64_t>(size_)) + 1;
    const std::size_t whole = (static_cast<std::size_t>(batches_ * elements_ + shift) * size_ + 63) / 64 * 64;
    memory_.reset(static_cast<char*>(std::aligned_alloc(64, whole)));
    output_ = memory_.get() + static_cast<std::size_t>(shift) * size_;
  }

  std::int64_t batches() const { return batches_; }
  ConstTensorView Repeat(const ConstTensorView& view) { return View(view, 0); }
  TensorView Output(const TensorView& view) {
    const ConstTensorView all = View({output_, view.dtype, view.shape, view.strides}, elements_);
    return {output_, all.dtype, all.shape, all.strides};
  }

  // Every batch of the output has the bytes of the small problem's.
  ::testing::AssertionResult RepeatsBytesOf(const Tensor& one) const {
    for (std::int64_t b = 0; b < batches_; ++b) {
      const char* const batch = output_ + static_cast<std::size_t>(b * elements_) * size_;
      if (std::memcmp(batch, one.data(), static_cast<std::size_t>(elements_) * size_) != 0) {
        return ::testing::AssertionFailure() << "batch " << b << " of " << batches_ << " differs";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  ConstTensorView View(ConstTensorView view, std::int64_t batch_stride) {
    const auto keep = [this](std::span<const std::int64_t> from, std::int64_t first) {
      extents_.push_back(std::make_unique<Shape>(from.begin(), from.end()));
      extents_.back()->front() = first;
      return std::span<const std::int64_t>(*extents_.back());
    };
    view.shape = keep(view.shape, batches_);
    view.strides = keep(view.strides, batch_stride);
    return view;
  }

  std::size_t size_;
  std::int64_t elements_, batches_;
  std::unique_ptr<char, Free> memory_;
  char* output_;
  std::vector<std::unique_ptr<Shape>> extents_;
};

// Rows of one batch; of whole cache lines and not.
std::vector<NormRopeProblem> RowsToRepeat(const NormRopeTypes& types) {
  std::vector<NormRopeProblem> problems;
  for (const std::int64_t head_dim : {128, 36}) {
    for (const NormType norm : {NormType::kNone, NormType::kLayerAffine, NormType::kRms}) {
      for (const RotaryMode mode : kModes) {
        NormRopeProblem problem;
        problem.types = types;
        problem.norm_type = norm;
        problem.sequence = 50;
        problem.heads = 3;
        problem.head_dim = head_dim;
        problem.rotary = RotaryOptions{.mode = mode};
        problem.first = 10;
        problem.length = 30;
        if (head_dim == 128 || mode == RotaryMode::kHalf) problems.push_back(problem);
      }
    }
  }
  return problems;
}

class NormRopeLarge : public ::testing::TestWithParam<NormRopeTypes> {};

INSTANTIATE_TEST_SUITE_P(All, NormRopeLarge,
                         ::testing::Values(kAllNormRopeTypes[0], kAllNormRopeTypes[1], kAllNormRopeTypes[6]),
                         [](const auto& param_info) { return std::string(Name(param_info.param.activations)); });

// The sums of the repeated rows: as often the exact sum, within as often the bound.
reference::BoundedValues Times(reference::BoundedValues values, double count) {
  for (std::vector<double>* part : {&values.high, &values.low, &values.bound}) {
    for (double& value : *part) value *= count;
  }
  return values;
}

TEST_P(NormRopeLarge, BackwardHasTheBitsOfTheSmallOne) {
  int number = 0;
  for (NormRopeProblem problem : RowsToRepeat(GetParam())) {
    const std::int64_t shift = number++ % 3 == 2;
    problem.dx_layout = number % 2 == 0 ? Layout::kContiguous : Layout::kSwapped;
    const NormRopeBackwardTensors one(problem);
    ASSERT_TRUE(Ok(Compute(one)));
    const reference::NormRopeGradients exact = reference::NormRopeBackward(one.Segment());
    ManyBatches many(problem, shift);
    NormRopeBackwardSegment segments[] = {one.Segment()};
    NormRopeBackwardSegment& segment = segments[0];
    segment.dy = many.Repeat(segment.dy);
    for (auto* view : {&segment.x, &segment.mean, &segment.rstd}) {
      if (*view) *view = many.Repeat(**view);
    }
    segment.dx = many.Output(*segment.dx);
    NormRopeBackwardPlan plan;
    ASSERT_TRUE(Ok(NormRopeBackwardPlan::Create({segments, problem.execution}, &plan)));
    if (problem.norm_type != NormType::kNone) {
      EXPECT_NE(plan.Describe().find("stores past the cache"), std::string::npos) << plan.Describe();
    }
    ASSERT_TRUE(Ok(NormRopeBackward({segments, problem.execution})));
    EXPECT_TRUE(many.RepeatsBytesOf(one.dx)) << problem;
    if (!segment.dweight) continue;
    const auto count = static_cast<double>(many.batches());
    EXPECT_TRUE(Verdict("dweight", reference::CompareBounded(one.dweight.in(), Times(exact.dweight, count))));
    EXPECT_TRUE(Verdict("dbias", reference::CompareBounded(one.dbias.in(), Times(exact.dbias, count))));
  }
}

TEST_P(NormRopeLarge, ForwardHasTheBitsOfTheSmallOne) {
  int number = 0;
  for (NormRopeProblem problem : RowsToRepeat(GetParam())) {
    const std::int64_t shift = number++ % 3 == 2;
    problem.dy_layout = number % 2 == 0 ? Layout::kContiguous : Layout::kSwapped;
    const NormRopeForwardTensors one(problem);
    ASSERT_TRUE(Ok(Compute(one)));
    problem.norm_type = NormType::kNone;  // two tensors are moved, whatever the norm
    ManyBatches many(problem, shift);
    NormRopeSegment segments[] = {one.Segment()};
    segments[0].x = many.Repeat(segments[0].x);
    segments[0].y = many.Output(segments[0].y);
    segments[0].mean.reset();
    segments[0].rstd.reset();
    ASSERT_TRUE(Ok(NormRope({segments, problem.execution})));
    EXPECT_TRUE(many.RepeatsBytesOf(one.y)) << one.problem;
  }
}

TEST_P(NormRopeLarge, InPlace) {
  for (const NormType norm : {NormType::kNone, NormType::kLayerAffine}) {
    for (const RotaryMode mode : kModes) {
      NormRopeProblem problem = RowsToRepeat(GetParam())[0];
      problem.norm_type = norm;
      problem.rotary->mode = mode;
      problem.dweight = problem.dbias = false;
      problem.dy_layout = Layout::kSwapped;
      const NormRopeBackwardTensors one(problem);
      ASSERT_TRUE(Ok(Compute(one)));
      ManyBatches many(problem, 0);
      NormRopeBackwardSegment segments[] = {one.Segment()};
      NormRopeBackwardSegment& segment = segments[0];
      for (auto* view : {&segment.x, &segment.mean, &segment.rstd}) {
        if (*view) *view = many.Repeat(**view);
      }
      segment.dx = many.Output(*segment.dx);
      const Shape dy_shape = Swapped({segment.dx->shape.begin(), segment.dx->shape.end()});
      const Shape dy_strides = Swapped({segment.dx->strides.begin(), segment.dx->strides.end()});
      segment.dy = {segment.dx->data, segment.dx->dtype, dy_shape, dy_strides};
      const std::size_t batch_bytes = static_cast<std::size_t>(Count(problem.XShape())) * SizeOf(segment.dy.dtype);
      for (std::int64_t b = 0; b < many.batches(); ++b) {
        std::memcpy(static_cast<char*>(segment.dx->data) + static_cast<std::size_t>(b) * batch_bytes, one.dy.data(),
                    batch_bytes);
      }
      ASSERT_TRUE(Ok(NormRopeBackward({segments, problem.execution})));
      EXPECT_TRUE(many.RepeatsBytesOf(one.dx)) << problem;
    }
  }
}

}  // namespace
}  // namespace gyrograd::testing
