// Conversions and contraction, driven through the operator on every CPU target: all 16-bit values on load, every
// rounding boundary on store, and products that a fused multiply-add would change.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

// Rows of `width` channels that hold at least `count` values.
Shape RowsFor(std::int64_t count, std::int64_t width) { return {(count + width - 1) / width, width}; }

Problem OneTermProblem(RotaryMode mode, Types types, std::int64_t count, std::int64_t width, CpuTarget target) {
  const Shape dy = RowsFor(count, width);
  Problem problem = MakeProblem(mode, types, dy, {dy[0]});
  problem.execution.cpu_target = target;
  return problem;
}

// The places at which kernels treat channels differently: whole vectors and a rest, split and interleaved pairs,
// strides.
struct Path {
  RotaryMode mode;
  std::int64_t width;
  Layout layout;
};

const Path kPaths[] = {
    {RotaryMode::kHalf, 64, Layout::kContiguous},           {RotaryMode::kHalf, 62, Layout::kContiguous},
    {RotaryMode::kInterleave, 64, Layout::kContiguous},     {RotaryMode::kInterleave, 62, Layout::kContiguous},
    {RotaryMode::kInterleaveHalf, 64, Layout::kContiguous}, {RotaryMode::kHalf, 20, Layout::kLastStride3}};

struct ConversionParameter {
  CpuTarget target;
  DType dtype;
};

void PrintTo(const ConversionParameter& parameter, std::ostream* out) {
  *out << Name(parameter.target) << " " << Name(parameter.dtype);
}

class RotaryConversion : public ::testing::TestWithParam<ConversionParameter> {
 protected:
  // The tables are f32 and the activations narrow, or both narrow.
  Types WideTables() const { return {GetParam().dtype, DType::kF32}; }
  Types NarrowTables() const { return {GetParam().dtype, GetParam().dtype}; }

  // dy (or x in the forward), tables and dx in the path's layout.
  BackwardTensors Make(const Path& path, Types types, std::int64_t count) const {
    Problem problem = OneTermProblem(path.mode, types, count, path.width, GetParam().target);
    problem.dy_layout = problem.x_layout = problem.tables_layout = path.layout;
    problem.dx_layout = problem.table_grads_layout = path.layout;
    return BackwardTensors(problem);
  }

  static void Fill(Tensor& tensor, double value) {
    tensor.Fill([value](std::int64_t) { return value; });
  }

  static void FillAllBits(Tensor& tensor) {
    tensor.FillBits([](std::int64_t i) { return static_cast<std::uint32_t>(i & 0xffff); });
  }

  static void ExpectRight(const BackwardTensors& tensors) {
    ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
    EXPECT_TRUE(tensors.Check());
  }
};

// dcos in f32 is the loaded value itself, where the other factor is 1.
TEST_P(RotaryConversion, LoadsEveryGradientAndInput) {
  for (const Path& path : kPaths) {
    BackwardTensors gradients = Make(path, WideTables(), 65536);
    FillAllBits(gradients.dy);
    Fill(gradients.x, 1);
    Fill(gradients.cos, 1);
    Fill(gradients.sin, 0);
    ExpectRight(gradients);
    BackwardTensors inputs = Make(path, WideTables(), 65536);
    Fill(inputs.dy, 1);
    FillAllBits(inputs.x);
    ExpectRight(inputs);
  }
}

TEST_P(RotaryConversion, LoadsEveryTableValue) {
  for (const Path& path : kPaths) {
    for (const bool cosine : {true, false}) {
      BackwardTensors tensors = Make(path, NarrowTables(), 65536);
      Fill(tensors.dy, 1);
      Fill(cosine ? tensors.sin : tensors.cos, 0);
      FillAllBits(cosine ? tensors.cos : tensors.sin);
      ExpectRight(tensors);
    }
  }
}

// The f32 values at which rounding to bf16 or f16 changes its mind, and their neighbours.
std::vector<float> RoundingBoundaries(DType dtype) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (dtype == DType::kBF16) {
      for (const std::uint32_t low : {0u, 0x7fffu, 0x8000u, 0x8001u}) {
        values.push_back(std::bit_cast<float>(bits << 16 | low));
      }
    } else {
      const std::uint32_t exponent = bits >> 10 & 0x1f;
      if (exponent == 0x1f) continue;
      const float step = std::ldexp(1.0f, static_cast<int>(exponent == 0 ? 1 : exponent) - 25);
      const float magnitude = static_cast<float>((bits & 0x3ff) + (exponent == 0 ? 0 : 1024)) * step;
      const float value = bits & 0x8000 ? -magnitude : magnitude;
      const float middle = value + std::copysign(step / 2, value);
      for (const float v : {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2 * middle)}) {
        values.push_back(v);
      }
    }
  }
  Random random(9);
  for (int i = 0; i < 20000; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float v :
       {infinity, -infinity, std::numeric_limits<float>::max(), 1e-45f, -1e-45f, 65519.996f, 65520.0f}) {
    values.push_back(v);
  }
  return values;
}

// dx is cos itself, rounded, where dy is 1 and sin 0; and sin itself, negated or not, where cos is 0.
TEST_P(RotaryConversion, StoresRoundToNearestEven) {
  const std::vector<float> values = RoundingBoundaries(GetParam().dtype);
  const auto count = static_cast<std::int64_t>(values.size());
  for (const Path& path : kPaths) {
    for (const bool cosine : {true, false}) {
      BackwardTensors tensors = Make(path, WideTables(), count);
      Fill(tensors.dy, 1);
      Fill(cosine ? tensors.sin : tensors.cos, 0);
      (cosine ? tensors.cos : tensors.sin).FillBits([&](std::int64_t i) {
        return std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i % count)]);
      });
      ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
      EXPECT_TRUE(tensors.Check());
    }
  }
}

// A sum of one term passes through the other store: f32 arithmetic, then the tables' own 16-bit type.
TEST_P(RotaryConversion, TableGradientsRoundToNearestEven) {
  for (const Path& path : kPaths) {
    BackwardTensors tensors = Make(path, NarrowTables(), 65536);
    FillAllBits(tensors.dy);
    Random random(6);
    tensors.x.FillRandom(random);
    ExpectRight(tensors);
    BackwardTensors sums(MakeProblem(path.mode, NarrowTables(), {2, 70, path.width}, {1, 70}));
    sums.problem.execution.cpu_target = GetParam().target;
    ExpectRight(sums);
  }
}

std::vector<ConversionParameter> ConversionParameters() {
  std::vector<ConversionParameter> parameters;
  for (const CpuTarget target : AvailableCpuTargets()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) parameters.push_back({target, dtype});
  }
  return parameters;
}

template <class Parameter>
std::string TargetName(const ::testing::TestParamInfo<Parameter>& info) {
  return std::string(Name(info.param.target)) + "_" + Name(info.param.dtype);
}

INSTANTIATE_TEST_SUITE_P(Targets, RotaryConversion, ::testing::ValuesIn(ConversionParameters()),
                         TargetName<ConversionParameter>);

// ---- Contraction ------------------------------------------------------------------------------------------------

// For types whose products do not fit the arithmetic: a sum of a product and the negative of that product, rounded, is
// 0; a fused multiply-add would leave the rounding error.
class RotaryContraction : public ::testing::TestWithParam<ConversionParameter> {
 protected:
  Types types() const {
    const DType dtype = GetParam().dtype;
    return {dtype, dtype == DType::kF64 ? DType::kF64 : DType::kF32};
  }
  double RoundedProduct(double a, double b) const {
    return GetParam().dtype == DType::kF64 ? a * b : static_cast<float>(a) * static_cast<float>(b);
  }
};

TEST_P(RotaryContraction, InputGradientAndForward) {
  for (const std::int64_t pairs : {3, 32, 37}) {
    Problem problem = MakeProblem(RotaryMode::kHalf, types(), {50, 2 * pairs}, {50});
    problem.execution.cpu_target = GetParam().target;
    // Which of the two products of a result is the one that is rounded, and which result it is.
    for (const int choice : {0, 1}) {
      BackwardTensors tensors(problem);
      const std::vector<double> dy = tensors.dy.Values(), cos = tensors.cos.Values(), sin = tensors.sin.Values();
      const auto first = [&](std::int64_t i) { return i % (2 * pairs) < pairs; };
      const auto at = [](const std::vector<double>& values, std::int64_t i) {
        return values[static_cast<std::size_t>(i)];
      };
      std::int64_t telling = 0;
      if (choice == 0) {
        // dy1 = 1: dx0 = c0*dy0 + s1 and dx1 = c1 - s0*dy0.
        tensors.dy.Fill([&](std::int64_t i) { return first(i) ? at(dy, i) : 1; });
        tensors.sin.Fill([&](std::int64_t i) {
          return first(i) ? at(sin, i) : -RoundedProduct(at(cos, i - pairs), at(dy, i - pairs));
        });
        tensors.cos.Fill([&](std::int64_t i) {
          return first(i) ? at(cos, i) : RoundedProduct(at(sin, i - pairs), at(dy, i - pairs));
        });
      } else {
        // dy0 = 1: dx0 = c0 + s1*dy1 and dx1 = c1*dy1 - s0.
        tensors.dy.Fill([&](std::int64_t i) { return first(i) ? 1 : at(dy, i); });
        tensors.cos.Fill([&](std::int64_t i) {
          return first(i) ? -RoundedProduct(at(sin, i + pairs), at(dy, i + pairs)) : at(cos, i);
        });
        tensors.sin.Fill([&](std::int64_t i) {
          return first(i) ? RoundedProduct(at(cos, i + pairs), at(dy, i + pairs)) : at(sin, i);
        });
      }
      for (std::size_t i = 0; i < dy.size(); ++i)
        telling += std::fma(cos[i], dy[i], -RoundedProduct(cos[i], dy[i])) != 0;
      EXPECT_GT(telling, Count(problem.dy) / 2);
      ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
      for (const double value : tensors.dx.Values()) ASSERT_EQ(value, 0);
      EXPECT_TRUE(tensors.Check());
    }
    // x1 = 1: y0 = x0*c0 - s0 and y1 = c1 + x0*s1.
    ForwardTensors forward(problem);
    const std::vector<double> x = forward.x.Values(), cos = forward.cos.Values(), sin = forward.sin.Values();
    const auto first = [&](std::size_t i) {
      return i % static_cast<std::size_t>(2 * pairs) < static_cast<std::size_t>(pairs);
    };
    forward.x.Fill(
        [&](std::int64_t i) { return first(static_cast<std::size_t>(i)) ? x[static_cast<std::size_t>(i)] : 1; });
    forward.sin.Fill([&](std::int64_t n) {
      const auto i = static_cast<std::size_t>(n);
      return first(i) ? RoundedProduct(x[i], cos[i]) : sin[i];
    });
    forward.cos.Fill([&](std::int64_t n) {
      const auto i = static_cast<std::size_t>(n);
      return first(i) ? cos[i] : -RoundedProduct(x[i - static_cast<std::size_t>(pairs)], sin[i]);
    });
    ASSERT_TRUE(Ok(Rotary(forward.Args())));
    for (const double value : forward.y.Values()) ASSERT_EQ(value, 0);
    EXPECT_TRUE(forward.Check());
  }
}

TEST_P(RotaryContraction, TableGradients) {
  if (GetParam().dtype != DType::kF32 && GetParam().dtype != DType::kF64)
    return;  // products of 16-bit values are exact
  for (const std::int64_t dim : {2, 10, 64, 70}) {
    Problem problem = MakeProblem(RotaryMode::kHalf, types(), {2, dim}, {1});
    problem.execution.cpu_target = GetParam().target;
    BackwardTensors tensors(problem);
    const std::vector<double> dy = tensors.dy.Values(), x = tensors.x.Values();
    // Row 1: dy = 1 and x = minus row 0's rounded product, so dcos = p - p.
    tensors.dy.Fill([&](std::int64_t i) { return i < dim ? dy[static_cast<std::size_t>(i)] : 1; });
    tensors.x.Fill([&](std::int64_t n) {
      const auto i = static_cast<std::size_t>(n % dim);
      return n < dim ? x[i] : -RoundedProduct(dy[i], x[i]);
    });
    ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
    for (const double value : tensors.dcos.Values()) EXPECT_EQ(value, 0);
    EXPECT_TRUE(tensors.Check());
  }
}

std::vector<ConversionParameter> ContractionParameters() {
  std::vector<ConversionParameter> parameters;
  for (const CpuTarget target : AvailableCpuTargets()) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16})
      parameters.push_back({target, dtype});
  }
  return parameters;
}

INSTANTIATE_TEST_SUITE_P(Targets, RotaryContraction, ::testing::ValuesIn(ContractionParameters()),
                         TargetName<ConversionParameter>);

}  // namespace
}  // namespace gyrograd::testing
