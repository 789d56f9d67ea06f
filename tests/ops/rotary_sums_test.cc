// The tables' gradients: sums that are exact, bounds under adversarial data, every length at which a run or a chunk
// ends.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/elements.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

class RotarySums : public ::testing::TestWithParam<Types> {};

Problem SumProblem(Types types, std::int64_t terms, std::int64_t dim) {
  return MakeProblem(RotaryMode::kHalf, types, {terms, dim}, {1});
}

// Lengths around the ends of runs (16 terms) and chunks.
const std::int64_t kLengths[] = {1,   2,   3,    7,    8,    9,    15,   16,   17,   31,  32,  33,
                                 47,  48,  49,   63,   64,   65,   79,   80,   127,  128, 129, 255,
                                 256, 257, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 4097};

TEST_P(RotarySums, EveryLength) {
  const std::vector<CpuTarget> targets = AvailableCpuTargets();
  std::size_t next = 0;
  for (const std::int64_t terms : kLengths) {
    for (const std::int64_t dim : {2, 8, 40}) {
      for (const bool per_pair : {false, true}) {
        Problem problem = MakeProblem(per_pair ? RotaryMode::kInterleave : RotaryMode::kHalf, GetParam(), {terms, dim},
                                      {1}, per_pair);
        problem.seed = static_cast<std::uint64_t>(terms);
        problem.execution.cpu_target = targets[next++ % targets.size()];
        EXPECT_TRUE(CheckBackward(problem));
      }
    }
  }
}

TEST_P(RotarySums, LongSums) {
  for (const std::int64_t terms : {8191, 8192, 8193, 16384, 65537, 200001}) {
    EXPECT_TRUE(CheckBackward(SumProblem(GetParam(), terms, 2)));
  }
  EXPECT_TRUE(CheckBackward(SumProblem(GetParam(), 2100, 66)));
  EXPECT_TRUE(CheckBackward(MakeProblem(RotaryMode::kQuarter, GetParam(), {30001, 4}, {1}, true)));
}

// Summed axes on both sides of a kept one, and between two of them.
TEST_P(RotarySums, SeparatedAxes) {
  for (const bool per_pair : {false, true}) {
    EXPECT_TRUE(CheckBackward(MakeProblem(RotaryMode::kHalf, GetParam(), {37, 3, 29, 8}, {1, 3, 1}, per_pair)));
    EXPECT_TRUE(CheckBackward(MakeProblem(RotaryMode::kHalf, GetParam(), {3, 41, 2, 27, 8}, {3, 1, 2, 1}, per_pair)));
    EXPECT_TRUE(CheckBackward(MakeProblem(RotaryMode::kHalf, GetParam(), {900, 5, 11, 8}, {1, 5, 1}, per_pair)));
  }
}

// Whole numbers whose sums need no rounding: a lost or doubled term cannot hide.
TEST_P(RotarySums, WholeNumbersAreExact) {
  const bool wide = GetParam().tables == DType::kF32 || GetParam().tables == DType::kF64;
  for (const std::int64_t terms : kLengths) {
    const std::int64_t dim = 6;
    BackwardTensors tensors(SumProblem(GetParam(), terms, dim));
    tensors.dy.Fill([&](std::int64_t i) { return i % dim + 1; });
    tensors.x.Fill([&](std::int64_t i) { return (i / dim * 7 + i % dim) % 13 - 6; });
    ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
    std::vector<double> dcos(6), dsin(6);
    for (std::int64_t i = 0; i < terms * dim; ++i) {
      const auto channel = static_cast<std::size_t>(i % dim);
      const bool first = channel < 3;
      const std::int64_t partner = first ? i + 3 : i - 3;
      const auto x = [&](std::int64_t k) { return static_cast<double>((k / dim * 7 + k % dim) % 13 - 6); };
      dcos[channel] += static_cast<double>(channel + 1) * x(i);
      dsin[channel] += static_cast<double>(channel + 1) * (first ? -x(partner) : x(partner));
    }
    if (wide) {
      EXPECT_EQ(tensors.dcos.Values(), dcos) << terms;
      EXPECT_EQ(tensors.dsin.Values(), dsin) << terms;
    }
    EXPECT_TRUE(tensors.Check());
  }
}

TEST_P(RotarySums, AThousandOnes) {
  for (const Shape& dy : {Shape{1000, 8}, Shape{10, 4, 100, 8}, Shape{40, 4, 25, 8}}) {
    const Shape outer = dy.size() == 2 ? Shape{1} : Shape{1, 4, 1};
    BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, GetParam(), dy, outer));
    tensors.dy.Fill([](std::int64_t) { return 1; });
    tensors.x.Fill([](std::int64_t) { return 1; });
    ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
    for (const double value : tensors.dcos.Values()) EXPECT_EQ(value, 1000);
    const std::vector<double> dsin = tensors.dsin.Values();
    for (std::size_t i = 0; i < dsin.size(); ++i) EXPECT_EQ(dsin[i], i % 8 < 4 ? -1000 : 1000);
  }
}

// 2^24 terms of one sign that f32 rounds down at every step: a plain sum would lose them.
TEST_P(RotarySums, TwoToThe24TermsOfOneSign) {
  constexpr std::int64_t kTerms = std::int64_t{1} << 24;
  const double x = GetParam().activations == DType::kBF16 ? 1 + 1.0 / 128 : 1 + 1.0 / 1024;
  BackwardTensors tensors(MakeProblem(RotaryMode::kHalf, GetParam(), {1, 2}, {1}));
  tensors.dy.Fill({x, x});
  tensors.x.Fill({x, x});
  const Shape shape = {kTerms, 2}, strides = {0, 1};
  RotaryBackwardArgs args = tensors.Args(false, true, true);
  args.dy.shape = args.x->shape = shape;
  args.dy.strides = args.x->strides = strides;
  ASSERT_TRUE(Ok(RotaryBackward(args)));
  const double want = x * x * static_cast<double>(kTerms);
  const double bound = GetParam().tables == DType::kF64 ? 1e-14 : GetParam().tables == DType::kBF16 ? 4e-3 : 1e-6;
  for (const Tensor* tensor : {&tensors.dcos, &tensors.dsin}) {
    const std::vector<double> got = tensor->Values();
    for (const double value : got) {
      if (GetParam().tables == DType::kF16) {
        EXPECT_TRUE(std::isinf(value)) << value;  // 2^24 is beyond f16
      } else {
        EXPECT_NEAR(std::fabs(value), want, bound * want);
      }
    }
    EXPECT_EQ(got[0] < 0, tensor == &tensors.dsin);
    EXPECT_GT(got[1], 0);
  }
}

// Terms whose rounding errors all have one sign, in runs of every kind.
TEST_P(RotarySums, RoundingInOneDirection) {
  BackwardTensors tensors(SumProblem(GetParam(), 40000, 4));
  tensors.dy.Fill([](std::int64_t i) { return i / 4 % 16 == 0 ? 1 : 1.0 / 256; });
  tensors.x.Fill([](std::int64_t i) { return i / 4 % 16 == 0 ? 1 : 3.0 / 65536; });
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.Check());
}

// Large terms that cancel leave the small ones, within the bound of the large.
TEST_P(RotarySums, Cancellation) {
  BackwardTensors tensors(SumProblem(GetParam(), 5000, 4));
  Random random(4);
  tensors.x.FillRandom(random);
  tensors.dy.Fill([](std::int64_t i) { return (i / 4 % 2 == 0 ? 1 : -1) * (1 + i % 4 * 0.5); });
  const std::vector<double> x = tensors.x.Values();
  tensors.x.Fill(
      [&](std::int64_t i) { return x[static_cast<std::size_t>(i / 8 * 8 + i % 4)] * (i % 40 == 0 ? 1 : 1.5); });
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.Check());
}

// One term: the sum is the term, rounded as a product and then to the type; -0 stays -0.
TEST_P(RotarySums, OneTermIsTheTerm) {
  BackwardTensors tensors(SumProblem(GetParam(), 1, 8));
  tensors.dy.Fill({0.0, -0.0, 1, -1, 3, -5, 1e-30, 1e-38});
  tensors.x.Fill({-1, 1, -0.0, 0.0, 1.0 / 3, 1.0 / 3, -1e-30, 1e-5});
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.Check());
  const std::vector<double> dcos = tensors.dcos.Values(), dsin = tensors.dsin.Values();
  for (const std::size_t i : {0, 1, 2, 3}) {
    EXPECT_EQ(dcos[i], 0);
    EXPECT_TRUE(std::signbit(dcos[i])) << i;
  }
  EXPECT_TRUE(std::signbit(dsin[0]));  // 0 * -(1/3)
}

// Infinities and NaN reach the sums they belong to and no other; finite sums beyond the type become infinite.
TEST_P(RotarySums, InfinityAndNaN) {
  for (const CpuTarget target : AvailableCpuTargets()) {
    for (const std::int64_t terms : {1, 5, 40, 3000}) {
      for (const double special : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
        for (const std::int64_t place : {std::int64_t{0}, terms / 2, terms - 1}) {
          Problem problem = SumProblem(GetParam(), terms, 8);
          problem.execution.cpu_target = target;
          BackwardTensors tensors(problem);
          tensors.dy.Set({place, 2}, special);
          tensors.x.Set({terms - 1 - place, 5}, special);
          ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
          EXPECT_TRUE(tensors.Check());
        }
      }
    }
  }
}

// Each term and each run of 16 is finite in f32; their sum is not in the tables' type.
TEST_P(RotarySums, Overflow) {
  const double term = GetParam().activations == DType::kF16   ? 60000
                      : GetParam().activations == DType::kF64 ? 1e307
                                                              : std::ldexp(1.0, 123);
  for (const CpuTarget target : AvailableCpuTargets()) {
    for (const std::int64_t terms : {17, 40, 3000}) {
      Problem problem = SumProblem(GetParam(), terms, 8);
      problem.execution.cpu_target = target;
      BackwardTensors tensors(problem);
      tensors.dy.Fill([](std::int64_t i) { return i % 8 == 3 ? -1 : 1; });
      tensors.x.Fill([&](std::int64_t) { return term; });
      ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
      const double sum = term * static_cast<double>(terms);
      const std::vector<double> dcos = tensors.dcos.Values();
      if (std::isinf(reference::Round(sum, GetParam().tables))) {
        EXPECT_EQ(dcos[0], HUGE_VAL) << problem;
        EXPECT_EQ(dcos[3], -HUGE_VAL) << problem;
      } else {
        EXPECT_NEAR(dcos[0], sum, 1e-2 * sum) << problem;
      }
    }
  }
}

TEST_P(RotarySums, Denormals) {
  const double tiny = GetParam().activations == DType::kF64   ? 1e-160
                      : GetParam().activations == DType::kF16 ? 6e-6
                                                              : 1e-21;
  BackwardTensors tensors(SumProblem(GetParam(), 50, 8));
  tensors.dy.Fill([&](std::int64_t i) { return tiny * static_cast<double>(i % 17 + 1); });
  tensors.x.Fill([&](std::int64_t i) { return tiny * static_cast<double>(i % 11 - 5); });
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.Check());
}

INSTANTIATE_TEST_SUITE_P(All, RotarySums, ::testing::ValuesIn(kAllTypes), [](const auto& param_info) {
  return std::string(Name(param_info.param.activations)) + "_" + Name(param_info.param.tables);
});

// f64 sums are compensated: each run of 16 small terms is less than half an ulp of the 1 that came before.
TEST(RotarySums, F64IsCompensated) {
  constexpr double kSmall = 6.8e-18;
  BackwardTensors tensors(SumProblem({DType::kF64, DType::kF64}, 100000, 2));
  tensors.dy.Fill([](std::int64_t i) { return i / 2 % 8000 == 0 ? 1 : kSmall; });
  tensors.x.Fill([](std::int64_t) { return 1; });
  ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
  EXPECT_TRUE(tensors.Check());
  EXPECT_NEAR(tensors.dcos.Get({0, 0}) - 13, (100000 - 13) * kSmall, 13e-14);
}

}  // namespace
}  // namespace gyrograd::testing
