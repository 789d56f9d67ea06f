// Norm + rotary on inputs whose results are known: exact answers, bits that pass, the derivative of the forward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gyrograd/norm_rope.h"
#include "reference/elements.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"
#include "tests/support/tape.h"

namespace gyrograd::testing {
namespace {

using Values = std::vector<double>;

constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

class NormRopeKnownAnswers : public ::testing::TestWithParam<CpuTarget> {
 protected:
  static NormRopeProblem Problem(NormType norm, const NormRopeTypes& types, const Shape& bsnd) {
    NormRopeProblem problem;
    problem.norm_type = norm;
    problem.types = types;
    problem.batch = bsnd[0];
    problem.sequence = bsnd[1];
    problem.heads = bsnd[2];
    problem.head_dim = bsnd[3];
    problem.execution.cpu_target = GetParam();
    return problem;
  }
  static NormRopeProblem Problem(NormType norm, DType type, const Shape& bsnd) {
    return Problem(norm, {type, type, type}, bsnd);
  }
};

INSTANTIATE_TEST_SUITE_P(All, NormRopeKnownAnswers, ::testing::ValuesIn(AvailableCpuTargets()),
                         [](const auto& param_info) { return std::string(Name(param_info.param)); });

template <class Tensors>
void RunAndCheck(const Tensors& tensors) {
  ASSERT_TRUE(Ok(Compute(tensors)));
  EXPECT_TRUE(tensors.Check());
}

void FillConstant(Tensor& tensor, double value) {
  tensor.Fill([value](std::int64_t) { return value; });
}

void RefreshStatistics(NormRopeBackwardTensors& tensors) {
  FillStatistics(tensors.x, tensors.problem.norm_type, tensors.problem.eps, &tensors.mean, &tensors.rstd);
}

void ExpectNear(double got, double want, double tolerance, DType type) {
  EXPECT_NEAR(got, want, tolerance + reference::Ulp(want, type) / 2) << Name(type);
}

// ---- Rows -------------------------------------------------------------------------------------------------------

TEST_P(NormRopeKnownAnswers, ARowOfEqualValues) {
  for (const DType type : {DType::kF64, DType::kF32, DType::kF16}) {
    NormRopeBackwardTensors tensors(Problem(NormType::kLayerAffine, type, {1, 1, 1, 256}));
    FillConstant(tensors.x, 1234);
    FillConstant(tensors.weight, 1);
    tensors.dy.Fill([](std::int64_t i) { return i == 0 ? 1.0 : 0.0; });
    RefreshStatistics(tensors);
    RunAndCheck(tensors);
    const Values dx = tensors.dx.Values();
    ExpectNear(dx[0], 314.9925, 2e-4, type);
    for (std::size_t i = 1; i < dx.size(); ++i) ExpectNear(dx[i], -1.23526, 1e-5, type);
    EXPECT_EQ(tensors.dweight.Values(), Values(256, 0));
    EXPECT_EQ(tensors.dbias.Values(), tensors.dy.Values());

    NormRopeForwardTensors forward(Problem(NormType::kLayerAffine, type, {1, 1, 1, 256}));
    FillConstant(forward.x, 1234);
    RunAndCheck(forward);
    EXPECT_EQ(forward.y.Values(), forward.bias.Values());
    EXPECT_EQ(forward.mean.Values(), Values(1, 1234));
    EXPECT_NEAR(forward.rstd.Values()[0], 316.22777, 1e-4);
  }
}

TEST_P(NormRopeKnownAnswers, ARowOfTwoCloseValues) {
  for (const DType type : {DType::kF64, DType::kF32}) {
    NormRopeBackwardTensors tensors(Problem(NormType::kLayer, type, {1, 1, 1, 2}));
    tensors.x.Fill({-1.83965693, -1.82964566});
    RefreshStatistics(tensors);
    EXPECT_NEAR(tensors.rstd.Values()[0], 168.9, 0.05);
    tensors.dy.Fill({1, 1});
    RunAndCheck(tensors);
    // 1.4e-3 is what the rounding of the saved mean does in f32.
    for (const double dx : tensors.dx.Values()) EXPECT_NEAR(dx, 0, type == DType::kF64 ? 1e-9 : 2e-3);
    tensors.dy.Fill({1, 0});
    RunAndCheck(tensors);
    EXPECT_NEAR(tensors.dx.Values()[0], 24.088, 2e-3);
    EXPECT_NEAR(tensors.dx.Values()[1], -24.088, 2e-3);
  }
}

// Layer norms of one value know nothing of it.
TEST_P(NormRopeKnownAnswers, RowsOfOne) {
  for (const DType type : kDTypes) {
    for (const NormType norm : kNormTypes) {
      const NormRopeBackwardTensors backward(Problem(norm, type, {2, 3, 5, 1}));
      RunAndCheck(backward);
      const NormRopeForwardTensors forward(Problem(norm, type, {2, 3, 5, 1}));
      RunAndCheck(forward);
      if (!HasMean(norm)) continue;
      EXPECT_EQ(backward.dx.Values(), Values(30, 0));
      EXPECT_EQ(forward.y.Values(), Values(30, HasBias(norm) ? forward.bias.Values()[0] : 0));
      EXPECT_EQ(HasWeight(norm) ? backward.dweight.Values() : Values(1, 0), Values(1, 0));
    }
  }
}

TEST_P(NormRopeKnownAnswers, ForwardOfARowOfFour) {
  for (const DType type : kDTypes) {
    for (const NormType norm : {NormType::kLayer, NormType::kRms}) {
      NormRopeProblem problem = Problem(norm, type, {1, 1, 1, 4});
      problem.eps = 0;
      NormRopeForwardTensors tensors(problem);
      tensors.x.Fill(HasMean(norm) ? Values{1, 3, 1, 3} : Values{2, -2, 2, 2});
      RunAndCheck(tensors);
      EXPECT_EQ(tensors.y.Values(), HasMean(norm) ? (Values{-1, 1, -1, 1}) : (Values{1, -1, 1, 1}));
      EXPECT_EQ(tensors.rstd.Values(), Values(1, HasMean(norm) ? 1 : 0.5));
      EXPECT_EQ(HasMean(norm) ? tensors.mean.Values() : Values(1, 2), Values(1, 2));
    }
  }
}

// The statistics of a row far from zero are as good as those of its deviations.
TEST_P(NormRopeKnownAnswers, ALargeMeanCostsTheForwardNothing) {
  for (const std::int64_t head_dim : {36, 128, 5000}) {
    NormRopeForwardTensors tensors(Problem(NormType::kLayer, DType::kF32, {1, 3, 2, head_dim}));
    tensors.x.Fill([](std::int64_t i) { return 8e6 + static_cast<double>(i * i % 23); });
    RunAndCheck(tensors);
    NormRopeForwardTensors near(Problem(NormType::kLayer, DType::kF32, {1, 3, 2, head_dim}));
    near.x.Fill([](std::int64_t i) { return static_cast<double>(i * i % 23); });
    RunAndCheck(near);
    EXPECT_EQ(tensors.rstd.Values(), near.rstd.Values()) << head_dim;
  }
}

// The square of the mean overflows; that of no deviation does.
TEST_P(NormRopeKnownAnswers, AHugeMeanMakesNoNaN) {
  for (const std::int64_t head_dim : {1, 2, 4, 6, 8, 20, 130}) {
    NormRopeForwardTensors tensors(Problem(NormType::kLayerAffine, DType::kF64, {1, 2, 3, head_dim}));
    tensors.x.Fill([](std::int64_t i) { return 1e155 * (1 + 1e-3 * static_cast<double>(i * i % 23)); });
    RunAndCheck(tensors);
    for (const double rstd : tensors.rstd.Values()) EXPECT_GT(rstd, 0) << head_dim;
    for (const double y : tensors.y.Values()) EXPECT_TRUE(std::isfinite(y)) << head_dim;
  }
}

// ---- Sums over rows ---------------------------------------------------------------------------------------------

TEST_P(NormRopeKnownAnswers, AThousandOnesSumToAThousand) {
  const Shape shapes[] = {{1, 1000, 1, 64}, {1, 125, 8, 6}, {10, 25, 4, 130}, {1, 1, 1000, 20}};
  for (const DType weights : {DType::kBF16, DType::kF32}) {
    for (const Shape& shape : shapes) {
      NormRopeProblem problem = Problem(NormType::kLayerAffine, {DType::kBF16, weights, DType::kBF16}, shape);
      problem.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
      problem.first = shape[1] / 3;
      problem.length = shape[1] / 2;
      NormRopeBackwardTensors tensors(problem);
      FillConstant(tensors.dy, 1);
      FillConstant(tensors.cos, 1);
      FillConstant(tensors.sin, 0);
      RunAndCheck(tensors);
      EXPECT_EQ(tensors.dbias.Values(), Values(static_cast<std::size_t>(shape[3]), 1000)) << problem;
    }
  }
}

// Its sign too, where it is a zero.
TEST_P(NormRopeKnownAnswers, ASumOfOneTermIsTheTerm) {
  for (const DType type : kDTypes) {
    for (const std::int64_t head_dim : {1, 8, 40, 132}) {
      NormRopeBackwardTensors tensors(Problem(NormType::kLayerAffine, type, {1, 1, 1, head_dim}));
      tensors.dy.Set({0, 0, 0, 0}, -0.0);
      tensors.dy.Set({0, 0, 0, head_dim - 1}, -0.0);
      RunAndCheck(tensors);
      EXPECT_EQ(tensors.dbias.Bits(), tensors.dy.Bits()) << Name(type) << " " << head_dim;
    }
  }
}

// Row counts that are no multiple of a run, a visit or a chunk.
TEST_P(NormRopeKnownAnswers, RowsOfAnyNumber) {
  const Shape shapes[] = {{1, 52, 7, 64},  {1, 1, 1, 16},   {1, 17, 1, 16}, {1, 15, 3, 16},   {1, 1037, 1, 16},
                          {2, 513, 7, 16}, {1, 1025, 1, 4}, {3, 7, 5, 130}, {1, 1, 1037, 16}, {5, 1, 33, 40}};
  for (const NormRopeTypes& types : {kAllNormRopeTypes[0], kAllNormRopeTypes[1], kAllNormRopeTypes[7]}) {
    for (const Shape& shape : shapes) {
      for (const int threads : {1, 2, 3}) {
        NormRopeProblem problem = Problem(NormType::kLayerAffine, types, shape);
        problem.execution.num_threads = threads;
        EXPECT_TRUE(CheckBackward(problem));
      }
    }
  }
}

TEST(NormRopeSums, OfEightHundredThousandRows) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayerAffine;
  problem.types = {DType::kBF16, DType::kF32, DType::kBF16};
  problem.sequence = 100000;
  problem.heads = 8;
  problem.head_dim = 16;
  problem.dx = false;
  EXPECT_TRUE(CheckBackward(problem));
}

// Equal terms, whose plain sums round in one direction again and again: only compensated sums keep f64's bounds.
TEST(NormRopeSums, OfEqualTermsInF64) {
  constexpr double kUlp = std::numeric_limits<double>::epsilon();
  NormRopeProblem many_rows;
  many_rows.norm_type = NormType::kLayerAffine;
  many_rows.types = {DType::kF64, DType::kF64, DType::kF64};
  many_rows.sequence = 1 << 20;
  many_rows.head_dim = 1;
  many_rows.dx = false;
  NormRopeBackwardTensors rows(many_rows);
  FillConstant(rows.dy, 1 + 240 * kUlp);
  RunAndCheck(rows);

  NormRopeProblem long_row = many_rows;
  long_row.norm_type = NormType::kLayer;
  long_row.sequence = 1;
  long_row.head_dim = 1 << 18;
  long_row.dx = true;
  NormRopeBackwardTensors row(long_row);
  FillConstant(row.dy, 1 + 960 * kUlp);
  RunAndCheck(row);
}

// ---- Rotation ---------------------------------------------------------------------------------------------------

// The channel of x that channel `d` of y stands for.
std::int64_t ChannelOfX(const NormRopeProblem& problem, std::int64_t d) {
  const std::int64_t width = problem.rotary->rotary_dim.value_or(problem.head_dim);
  const std::int64_t in_row = d - problem.rotary->rotary_offset;
  if (problem.rotary->mode != RotaryMode::kInterleaveHalf || in_row < 0 || in_row >= width) return d;
  const std::int64_t half = width / 2;
  return problem.rotary->rotary_offset + (in_row < half ? 2 * in_row : 2 * (in_row - half) + 1);
}

std::vector<NormRopeProblem> RotationsWithoutNorm(CpuTarget target) {
  std::vector<NormRopeProblem> problems;
  for (const DType type : kDTypes) {
    for (const RotaryMode mode : kModes) {
      for (const bool part : {false, true}) {
        NormRopeProblem problem;
        problem.types = {type, type, type};
        problem.batch = 2;
        problem.sequence = 7;
        problem.heads = 3;
        problem.head_dim = 72;
        problem.rotary = RotaryOptions{.mode = mode, .per_pair_tables = part};
        if (part) {
          problem.rotary->rotary_dim = 40;
          problem.rotary->rotary_offset = 9;
        }
        problem.first = 2;
        problem.length = 3;
        problem.execution.cpu_target = target;
        problems.push_back(problem);
      }
    }
  }
  return problems;
}

// Calls body({b, s, n, d of x}, {b, n, s, d of y}, whether the channel turns).
template <class Body>
void ForEachPlace(const NormRopeProblem& problem, const Body& body) {
  const std::int64_t begin = problem.rotary->rotary_offset;
  const std::int64_t end = begin + problem.rotary->rotary_dim.value_or(problem.head_dim);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t s = 0; s < problem.sequence; ++s) {
      for (std::int64_t n = 0; n < problem.heads; ++n) {
        for (std::int64_t d = 0; d < problem.head_dim; ++d) {
          const bool turning = s >= problem.first && s < problem.first + problem.length;
          body(Shape{b, s, n, turning ? ChannelOfX(problem, d) : d}, Shape{b, n, s, d},
               turning && d >= begin && d < end);
        }
      }
    }
  }
}

TEST_P(NormRopeKnownAnswers, CosineOneAndSineZeroPassValues) {
  for (const NormRopeProblem& problem : RotationsWithoutNorm(GetParam())) {
    NormRopeBackwardTensors backward(problem);
    NormRopeForwardTensors forward(problem);
    for (Tensor* tensor : {&backward.cos, &forward.cos}) FillConstant(*tensor, 1);
    for (Tensor* tensor : {&backward.sin, &forward.sin}) FillConstant(*tensor, 0);
    backward.dy.Set({0, 0, 2, 1}, -0.0);
    RunAndCheck(backward);
    RunAndCheck(forward);
    ForEachPlace(problem, [&](const Shape& in_x, const Shape& in_y, bool) {
      ASSERT_EQ(backward.dx.Get(in_x), backward.dy.Get(in_y)) << problem;
      ASSERT_EQ(forward.y.Get(in_y), forward.x.Get(in_x)) << problem;
    });
  }
}

// A partner that is infinite or NaN, times a sine of 0, is NaN: as the formula does.
TEST_P(NormRopeKnownAnswers, AnInfinitePartnerGivesNaN) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const DType type : kDTypes) {
      NormRopeProblem problem = Problem(NormType::kNone, type, {1, 3, 1, 8});
      problem.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
      problem.first = 1;
      problem.length = 1;
      NormRopeBackwardTensors tensors(problem);
      FillConstant(tensors.cos, 1);
      FillConstant(tensors.sin, 0);
      tensors.dy.Set({0, 0, 1, 6}, bad);
      tensors.dy.Set({0, 0, 2, 6}, bad);
      RunAndCheck(tensors);
      EXPECT_TRUE(std::isnan(tensors.dx.Get({0, 1, 0, 2})));
      EXPECT_FALSE(std::isfinite(tensors.dx.Get({0, 1, 0, 6})));
      EXPECT_EQ(tensors.dx.Get({0, 2, 0, 2}), tensors.dy.Get({0, 0, 2, 2}));
    }
  }
}

void FillMemory(Tensor& contiguous, Random& random) {
  auto* const bytes = static_cast<unsigned char*>(contiguous.data());
  const std::size_t size = static_cast<std::size_t>(Count(contiguous.shape())) * SizeOf(contiguous.dtype());
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(random() >> 32);
  contiguous.Remember();
}

const unsigned char* AddressIn(const Tensor& contiguous, const Shape& index) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * contiguous.strides()[axis];
  return static_cast<const unsigned char*>(contiguous.data()) +
         static_cast<std::size_t>(offset) * SizeOf(contiguous.dtype());
}

// Any bits: NaN payloads, -0, denormals.
TEST_P(NormRopeKnownAnswers, WhatDoesNotTurnPassesItsBits) {
  Random random(3);
  for (const NormRopeProblem& problem : RotationsWithoutNorm(GetParam())) {
    NormRopeBackwardTensors backward(problem);
    NormRopeForwardTensors forward(problem);
    FillMemory(backward.dy, random);
    FillMemory(forward.x, random);
    RunAndCheck(backward);
    RunAndCheck(forward);
    const std::size_t size = SizeOf(problem.types.activations);
    std::int64_t passed = 0;
    ForEachPlace(problem, [&](const Shape& in_x, const Shape& in_y, bool turns) {
      if (turns) return;
      ++passed;
      ASSERT_EQ(std::memcmp(AddressIn(backward.dx, in_x), AddressIn(backward.dy, in_y), size), 0) << problem;
      ASSERT_EQ(std::memcmp(AddressIn(forward.y, in_y), AddressIn(forward.x, in_x), size), 0) << problem;
    });
    EXPECT_GE(passed, 2 * 4 * 3 * 72);
  }
}

// ---- The derivative of the forward ------------------------------------------------------------------------------

// Gradients of sum(dy * y) by automatic differentiation of y, row by row.
struct TrueGradients {
  Values dx;
  Values dweight, dbias;
};

TrueGradients Differentiate(const NormRopeBackwardTensors& tensors, const Values& bias) {
  const NormRopeProblem& problem = tensors.problem;
  const auto width = static_cast<std::size_t>(problem.head_dim);
  TrueGradients gradients = {{}, Values(width), Values(width)};
  const auto row_of = [](const Tensor& tensor, Shape index, std::size_t count) {
    Values values;
    for (index.back() = 0; values.size() < count; ++index.back()) values.push_back(tensor.Get(index));
    return values;
  };
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t s = 0; s < problem.sequence; ++s) {
      for (std::int64_t n = 0; n < problem.heads; ++n) {
        Tape tape;
        const Row x = Leaves(tape, row_of(tensors.x, {b, s, n, 0}, width));
        const Row weight = Leaves(tape, tensors.weight.Values()), shift = Leaves(tape, bias);
        Row y = x;
        if (problem.norm_type != NormType::kNone) y = NormalizeRow(tape, x, HasMean(problem.norm_type), problem.eps);
        if (HasWeight(problem.norm_type)) y = Multiply(tape, y, weight);
        if (HasBias(problem.norm_type)) y = Add(tape, y, shift);
        const std::int64_t l = s - problem.first;
        if (l >= 0 && l < problem.length) {
          const auto columns = static_cast<std::size_t>(tensors.cos.shape().back());
          y = RotateRow(tape, *problem.rotary, y, Leaves(tape, row_of(tensors.cos, {0, 0, l, 0}, columns)),
                        Leaves(tape, row_of(tensors.sin, {0, 0, l, 0}, columns)));
        }
        for (std::size_t d = 0; d < width; ++d) {
          tape.AddGrad(y[d], tensors.dy.Get({b, n, s, static_cast<std::int64_t>(d)}));
        }
        tape.Backward();
        const Values dx = GradsOf(tape, x), dweight = GradsOf(tape, weight), dbias = GradsOf(tape, shift);
        gradients.dx.insert(gradients.dx.end(), dx.begin(), dx.end());
        for (std::size_t d = 0; d < width; ++d) gradients.dweight[d] += dweight[d];
        for (std::size_t d = 0; d < width; ++d) gradients.dbias[d] += dbias[d];
      }
    }
  }
  return gradients;
}

void ExpectClose(const Values& got, const Values& want, const NormRopeProblem& problem) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 1e-11 * (1 + std::abs(want[i]))) << i << " of " << problem;
  }
}

TEST_P(NormRopeKnownAnswers, TrueGradients) {
  std::uint64_t seed = 0;
  for (const NormType norm : kNormTypes) {
    for (const RotaryMode mode : kModes) {
      for (const bool part : {false, true}) {
        NormRopeProblem problem = Problem(norm, DType::kF64, {2, 5, 2, 20});
        problem.rotary = RotaryOptions{.mode = mode, .per_pair_tables = part};
        if (part) {
          problem.rotary->rotary_dim = 12;
          problem.rotary->rotary_offset = 3;
        }
        problem.first = 1;
        problem.length = 3;
        problem.seed = ++seed;
        const NormRopeBackwardTensors tensors(problem);
        RunAndCheck(tensors);
        const TrueGradients want = Differentiate(tensors, Values(20, 0.25));
        ExpectClose(tensors.dx.Values(), want.dx, problem);
        if (HasWeight(norm)) ExpectClose(tensors.dweight.Values(), want.dweight, problem);
        if (HasBias(norm)) ExpectClose(tensors.dbias.Values(), want.dbias, problem);
      }
    }
  }
}

// ---- NaN and infinity -------------------------------------------------------------------------------------------

NormRopeProblem OfTwelveRows(NormType norm, DType type, RotaryMode mode, CpuTarget target) {
  NormRopeProblem problem;
  problem.norm_type = norm;
  problem.types = {type, type, type};
  problem.batch = 2;
  problem.sequence = 3;
  problem.heads = 2;
  problem.head_dim = 40;
  problem.rotary = RotaryOptions{.mode = mode};
  problem.first = 1;
  problem.length = 1;
  problem.execution.cpu_target = target;
  return problem;
}

// One value of one input: it reaches what the formulas say, and nothing else.
template <class Tensors>
void SpoilEachInput(const NormRopeProblem& problem, const std::vector<Tensor Tensors::*>& inputs) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (Tensor Tensors::* const input : inputs) {
      Tensors tensors(problem);
      Tensor& tensor = tensors.*input;
      Shape index(tensor.shape().size(), 0);
      index.back() = tensor.shape().back() / 2;
      tensor.Set(index, bad);
      RunAndCheck(tensors);
    }
  }
}

TEST_P(NormRopeKnownAnswers, NaNAndInfinityReachWhatTheySpoil) {
  using B = NormRopeBackwardTensors;
  using F = NormRopeForwardTensors;
  for (const DType type : kDTypes) {
    for (const NormType norm : kNormTypes) {
      for (const RotaryMode mode : {RotaryMode::kHalf, RotaryMode::kInterleave}) {
        const NormRopeProblem problem = OfTwelveRows(norm, type, mode, GetParam());
        SpoilEachInput<B>(problem, {&B::dy, &B::x, &B::weight, &B::mean, &B::rstd, &B::cos, &B::sin});
        SpoilEachInput<F>(problem, {&F::x, &F::weight, &F::bias, &F::cos, &F::sin});
      }
    }
  }
}

// A payload of ones would be carried away by bf16's rounding, and leave a zero; one in the lower half, an infinity.
TEST_P(NormRopeKnownAnswers, NaNOfAnyPayloadStaysNaN) {
  using B = NormRopeBackwardTensors;
  using F = NormRopeForwardTensors;
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    const auto spoil = [bits](Tensor& tensor) {
      ASSERT_EQ(tensor.dtype(), DType::kF32);
      std::memcpy(tensor.data(), &bits, sizeof bits);
      tensor.Remember();
    };
    for (const NormType norm : kNormTypes) {
      NormRopeProblem problem = OfTwelveRows(norm, DType::kBF16, RotaryMode::kHalf, GetParam());
      problem.types = {DType::kBF16, DType::kF32, DType::kF32};
      for (Tensor B::* const input : {&B::weight, &B::mean, &B::rstd, &B::cos, &B::sin}) {
        B tensors(problem);
        spoil(tensors.*input);
        RunAndCheck(tensors);
      }
      for (Tensor F::* const input : {&F::weight, &F::bias, &F::cos, &F::sin}) {
        F tensors(problem);
        spoil(tensors.*input);
        RunAndCheck(tensors);
      }
    }
  }
}

// What stands beyond a row's end takes no part: infinite x_hat of one sign make infinities, not NaN.
TEST_P(NormRopeKnownAnswers, AnInfiniteRstd) {
  for (const DType type : kDTypes) {
    for (const std::int64_t head_dim : {3, 36, 40}) {
      NormRopeBackwardTensors tensors(Problem(NormType::kLayerAffine, type, {1, 2, 1, head_dim}));
      for (Tensor* tensor : {&tensors.dy, &tensors.x, &tensors.weight}) {
        const Values values = tensor->Values();
        tensor->Fill([&](std::int64_t i) { return 1 + std::abs(values[static_cast<std::size_t>(i)]); });
      }
      FillConstant(tensors.mean, 0.5);
      FillConstant(tensors.rstd, std::numeric_limits<double>::infinity());
      RunAndCheck(tensors);
      const Values infinite(static_cast<std::size_t>(2 * head_dim), -std::numeric_limits<double>::infinity());
      EXPECT_EQ(tensors.dx.Values(), infinite) << Name(type) << " " << head_dim;
    }
  }
}

// 16-bit and 32-bit patterns of every kind.
TEST_P(NormRopeKnownAnswers, AnyBits) {
  Random random(5);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const NormType norm : kNormTypes) {
      NormRopeBackwardTensors tensors(OfTwelveRows(norm, type, RotaryMode::kHalf, GetParam()));
      for (Tensor* tensor : {&tensors.dy, &tensors.x}) {
        tensor->FillBits([&](std::int64_t) { return static_cast<std::uint32_t>(random() >> 20); });
      }
      ASSERT_TRUE(Ok(Compute(tensors)));
      EXPECT_TRUE(tensors.Check());
    }
  }
}

}  // namespace
}  // namespace gyrograd::testing
