// The numbers that the C interface gives, against the witnesses, for every type, mode and layout.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "reference/elements.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

struct Shapes {
  Shape x;
  Shape cos;
};

const Shapes kShapes[] = {
    {{2, 3, 5, 16}, {1, 1, 5, 16}},                                  // BNSD, 11SD
    {{2, 3, 5, 16}, {2, 1, 5, 16}},                                  // B1SD
    {{2, 3, 5, 16}, {2, 3, 5, 16}},                                  // BNSD
    {{2, 3, 5, 16}, {1, 1, 1, 16}}, {{2, 5, 3, 16}, {1, 5, 1, 16}},  // BSND, 1S1D
    {{5, 2, 3, 16}, {5, 1, 1, 16}},                                  // SBND, S11D
    {{7, 3, 20}, {7, 1, 20}},                                        // TND, T1D
    {{7, 3, 20}, {1, 1, 20}},       {{2, 16, 16, 64}, {1, 16, 1, 64}},
    {{300, 40, 8}, {1, 1, 8}},  // sums of many terms, through a workspace
    {{2, 0, 4, 8}, {1, 1, 4, 8}},
};

using Parameter = std::tuple<DType, int, Shapes>;

class CannNumbers : public ::testing::TestWithParam<Parameter> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int mode() const { return std::get<1>(GetParam()); }
  const Shapes& shapes() const { return std::get<2>(GetParam()); }
};

TEST_P(CannNumbers, BackwardMatchesTheWitnesses) {
  GradProblem problem(dtype(), shapes().x, shapes().cos);
  problem.mode = mode();
  const std::vector<std::byte> inputs[] = {problem.dy.bytes(), problem.cos.bytes(), problem.sin.bytes(),
                                           problem.x.bytes()};
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
  EXPECT_EQ(problem.dy.bytes(), inputs[0]);
  EXPECT_EQ(problem.cos.bytes(), inputs[1]);
  EXPECT_EQ(problem.sin.bytes(), inputs[2]);
  EXPECT_EQ(problem.x.bytes(), inputs[3]);
}

TEST_P(CannNumbers, BackwardWithoutXLeavesTheTablesGradientsAlone) {
  GradProblem problem(dtype(), shapes().x, shapes().cos);
  problem.mode = mode();
  problem.with_x = false;
  const std::vector<std::byte> dcos = problem.dcos.bytes();
  const std::vector<std::byte> dsin = problem.dsin.bytes();
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check(false));
  EXPECT_EQ(problem.dcos.bytes(), dcos);
  EXPECT_EQ(problem.dsin.bytes(), dsin);
}

TEST_P(CannNumbers, ForwardMatchesTheWitness) {
  ForwardProblem problem(dtype(), shapes().x, shapes().cos);
  problem.mode = mode();
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

INSTANTIATE_TEST_SUITE_P(All, CannNumbers,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                                            ::testing::Values(0, 1, 2, 3), ::testing::ValuesIn(kShapes)),
                         [](const ::testing::TestParamInfo<Parameter>& test) {
                           return std::string(Name(std::get<0>(test.param))) + "_mode" +
                                  std::to_string(std::get<1>(test.param)) + "_" + std::to_string(test.index);
                         });

// What CANN's own example passes in place of dcos and dsin when there is no x.
TEST(CannViews, TablesGradientsMayBeDummiesWithoutX) {
  GradProblem problem;
  problem.with_x = false;
  const Shape shape = {1, 1, 1, 0};
  const Shape strides = {0, 0, 0, 0};
  for (Array* table : {&problem.dcos, &problem.dsin}) {
    table->Describe(TensorHandle(aclCreateTensor(shape.data(), 4, ACL_FLOAT, strides.data(), 0, ACL_FORMAT_FRACTAL_NZ,
                                                 shape.data(), 4, nullptr)));
  }
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check(false));
}

// dy as the middle columns of a wider buffer: strides, an offset and a storage of rank 1.
TEST(CannViews, StridedViewWithAnOffset) {
  GradProblem problem(DType::kF32, {7, 1, 64}, {7, 1, 64});
  std::vector<float> wide(7 * 576);
  for (std::size_t row = 0; row < 7; ++row) {
    std::memcpy(&wide[row * 576 + 512], problem.dy.bytes().data() + row * 256, 256);
  }
  const Shape strides = {576, 64, 1};
  const std::int64_t stored = 7 * 576;
  problem.dy.Describe(TensorHandle(aclCreateTensor(problem.dy.shape().data(), 3, ACL_FLOAT, strides.data(), 512,
                                                   ACL_FORMAT_NCL, &stored, 1, wide.data())));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

TEST(CannViews, ReversedRows) {
  GradProblem problem(DType::kF16, {4, 2, 8}, {4, 1, 8});
  std::vector<std::byte> reversed(problem.dy.bytes().size());
  const std::size_t slice = 2 * 8 * 2;
  for (std::size_t i = 0; i < 4; ++i) {
    std::memcpy(&reversed[(3 - i) * slice], problem.dy.bytes().data() + i * slice, slice);
  }
  const Shape strides = {-16, 8, 1};
  problem.dy.Describe(TensorHandle(aclCreateTensor(problem.dy.shape().data(), 3, ACL_FLOAT16, strides.data(), 48,
                                                   ACL_FORMAT_ND, problem.dy.shape().data(), 3, reversed.data())));
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_TRUE(problem.Check());
}

TEST(CannViews, EveryPlainFormatMeansAsTheShapeSays) {
  for (const aclFormat format : {ACL_FORMAT_ND, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC, ACL_FORMAT_NCL, ACL_FORMAT_NCDHW,
                                 ACL_FORMAT_NDHWC, ACL_FORMAT_NC, ACL_FORMAT_UNDEFINED}) {
    GradProblem problem;
    problem.dy.Describe(MakeHandle(problem.dy.shape(), ACL_FLOAT, problem.dy.data(), format));
    ASSERT_TRUE(problem.PlanAndRun()) << format;
    EXPECT_TRUE(problem.Check()) << format;
  }
}

TEST(CannAlias, DxMayBeDyOrX) {
  for (const bool over_dy : {true, false}) {
    GradProblem problem;
    Array& shared = over_dy ? problem.dy : problem.x;
    GradProblem fresh;  // the same seed: the same inputs
    problem.dx.Describe(MakeHandle(shared.shape(), ACL_FLOAT, shared.data()));
    ASSERT_TRUE(problem.PlanAndRun());
    fresh.dx.bytes() = shared.bytes();
    fresh.dcos.bytes() = problem.dcos.bytes();
    fresh.dsin.bytes() = problem.dsin.bytes();
    EXPECT_TRUE(fresh.Check()) << "over dy: " << over_dy;
  }
}

TEST(CannAlias, TablesGradientsMayBeTheTables) {
  GradProblem problem;
  GradProblem fresh;
  problem.dcos.Describe(MakeHandle(problem.cos.shape(), ACL_FLOAT, problem.cos.data()));
  problem.dsin.Describe(MakeHandle(problem.sin.shape(), ACL_FLOAT, problem.sin.data()));
  ASSERT_TRUE(problem.PlanAndRun());
  fresh.dx.bytes() = problem.dx.bytes();
  fresh.dcos.bytes() = problem.cos.bytes();
  fresh.dsin.bytes() = problem.sin.bytes();
  EXPECT_TRUE(fresh.Check());
}

TEST(CannAlias, OutMayBeX) {
  ForwardProblem problem;
  ForwardProblem fresh;
  problem.out.Describe(MakeHandle(problem.x.shape(), ACL_FLOAT, problem.x.data()));
  ASSERT_TRUE(problem.PlanAndRun());
  fresh.out.bytes() = problem.x.bytes();
  EXPECT_TRUE(fresh.Check());
}

// Unlike the scalar helpers, the operators keep infinities and NaN.
TEST(CannNumbersOnce, InfinitiesAndNanStay) {
  ForwardProblem problem(DType::kF16, {1, 1, 1, 4}, {1, 1, 1, 4});
  const double infinity = std::numeric_limits<double>::infinity();
  const double x[] = {infinity, std::numeric_limits<double>::quiet_NaN(), 1, 2};
  const double cos[] = {1, 1, 2, 2};
  const double sin[] = {2, 2, 1, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    reference::Store(x[i], problem.x.bytes().data() + 2 * i, DType::kF16);
    reference::Store(cos[i], problem.cos.bytes().data() + 2 * i, DType::kF16);
    reference::Store(sin[i], problem.sin.bytes().data() + 2 * i, DType::kF16);
  }
  ASSERT_TRUE(problem.PlanAndRun());
  EXPECT_EQ(reference::Load(problem.out.bytes().data(), DType::kF16), infinity);
  EXPECT_TRUE(std::isnan(reference::Load(problem.out.bytes().data() + 2, DType::kF16)));
  EXPECT_TRUE(problem.Check());
}

}  // namespace
}  // namespace gyrograd::testing
