// Strides of every kind, misaligned addresses, page edges: the right numbers, the bits of contiguous tensors, and no
// byte outside the elements read or written.
#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

class RotaryLayout : public ::testing::TestWithParam<ModeAndTypes> {
 protected:
  std::vector<Problem> Problems() const {
    std::vector<Problem> problems;
    for (const std::int64_t dim : {16, 36, 132}) {
      for (const bool per_pair : {false, true}) {
        problems.push_back(MakeProblem(GetParam().mode, GetParam().types, {2, 5, 3, dim}, {1, 5, 1}, per_pair));
      }
    }
    problems.push_back(MakeProblem(GetParam().mode, GetParam().types, {2, 3, 20}, {2, 3}));
    Problem part = MakeProblem(GetParam().mode, GetParam().types, {3, 2, 40}, {3, 1});
    part.rotary_dim = 20;
    part.rotary_offset = 5;
    part.tables = {3, 1, 20};
    problems.push_back(part);
    return problems;
  }

  void Check(const Problem& problem) {
    EXPECT_TRUE(CheckBackward(problem));
    EXPECT_TRUE(CheckForward(problem));
  }
};

TEST_P(RotaryLayout, EachInput) {
  for (Problem problem : Problems()) {
    for (const Layout layout : kInputLayouts) {
      for (Layout Problem::* const member : {&Problem::dy_layout, &Problem::x_layout, &Problem::tables_layout}) {
        problem.*member = layout;
        Check(problem);
        problem.*member = Layout::kContiguous;
      }
    }
  }
}

TEST_P(RotaryLayout, EachOutput) {
  for (Problem problem : Problems()) {
    for (const Layout layout : kOutputLayouts) {
      for (Layout Problem::* const member : {&Problem::dx_layout, &Problem::table_grads_layout}) {
        problem.*member = layout;
        Check(problem);
        problem.*member = Layout::kContiguous;
      }
    }
  }
}

TEST_P(RotaryLayout, AllAtOnce) {
  Random random(7);
  const auto pick = [&](const auto& layouts) { return layouts[random() % std::size(layouts)]; };
  for (Problem problem : Problems()) {
    for (int i = 0; i < 12; ++i) {
      problem.dy_layout = pick(kInputLayouts);
      problem.x_layout = pick(kInputLayouts);
      problem.tables_layout = pick(kInputLayouts);
      problem.dx_layout = pick(kOutputLayouts);
      problem.table_grads_layout = pick(kOutputLayouts);
      problem.seed = random();
      Check(problem);
    }
  }
}

// Every tensor in the same layout, so that loops merge or change places together; page edges catch what strays.
TEST_P(RotaryLayout, OneLayoutForAll) {
  for (Problem problem : Problems()) {
    for (const Layout layout : kOutputLayouts) {
      problem.dy_layout = problem.x_layout = problem.tables_layout = layout;
      problem.dx_layout = problem.table_grads_layout = layout;
      problem.placement = Placement::kPageEnd;
      Check(problem);
      problem.placement = Placement::kGuarded;
      Check(problem);
    }
  }
}

// The same values in other places give the same bits.
TEST_P(RotaryLayout, BitsOfContiguousTensors) {
  for (Problem problem : Problems()) {
    const BackwardTensors contiguous(problem);
    ASSERT_TRUE(Ok(RotaryBackward(contiguous.Args())));
    const std::vector<std::uint64_t> want = contiguous.ResultBits();
    for (const Layout layout : kOutputLayouts) {
      problem.dy_layout = problem.x_layout = problem.tables_layout = layout;
      problem.dx_layout = problem.table_grads_layout = layout;
      const BackwardTensors tensors(problem);
      ASSERT_TRUE(Ok(RotaryBackward(tensors.Args())));
      EXPECT_TRUE(tensors.ResultBits() == want) << problem;
    }
  }
}

// A row that starts at the first byte of a page, or ends at its last, with nothing readable beyond.
TEST_P(RotaryLayout, PageEdges) {
  for (const Placement placement : {Placement::kPageEnd, Placement::kPageStart}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kPaddedRows, Layout::kReversedAll, Layout::kLastStride2,
                                Layout::kLastStride3, Layout::kLastStride4, Layout::kLastSlowest}) {
      for (const std::int64_t dim : {4, 8, 12, 20, 28, 36, 60, 68, 132}) {
        Problem problem = MakeProblem(GetParam().mode, GetParam().types, {2, 3, dim}, {1, 3}, dim % 8 == 4);
        problem.placement = placement;
        problem.dy_layout = problem.x_layout = problem.tables_layout = layout;
        problem.dx_layout = problem.table_grads_layout = layout;
        Check(problem);
      }
    }
  }
}

// cos and sin as the two halves of complex numbers, and as entries of 2x2 matrices.
TEST_P(RotaryLayout, TablesInsideComplexNumbersAndMatrices) {
  for (const std::int64_t step : {2, 4}) {
    for (const std::int64_t dim : {16, 36, 128}) {
      Problem problem = MakeProblem(GetParam().mode, GetParam().types, {2, 5, 3, dim}, {1, 5, 1}, true);
      const BackwardTensors plain(problem);
      Tensor packed(problem.types.tables, {5, dim / 2, step});
      const std::vector<double> cos = plain.cos.Values(), sin = plain.sin.Values();
      packed.Fill([&](std::int64_t i) {
        const auto element = static_cast<std::size_t>(i / step);
        return i % step == 0 ? cos[element] : i % step == step / 2 ? sin[element] : 1e9;
      });
      const Shape strides = {0, dim / 2 * step, 0, step};
      const std::size_t size = SizeOf(problem.types.tables);
      RotaryBackwardArgs args = plain.Args();
      args.cos.strides = args.sin.strides = strides;
      args.cos.data = packed.data();
      args.sin.data = static_cast<const std::byte*>(packed.data()) + static_cast<std::size_t>(step / 2) * size;
      ASSERT_TRUE(Ok(RotaryBackward(args)));
      EXPECT_TRUE(packed.Unchanged("tables"));
      EXPECT_TRUE(plain.Check());
    }
  }
}

// A view of some columns of a wider tensor.
struct Columns {
  Columns(const Tensor& wide, std::int64_t first, std::int64_t count) : shape(wide.shape()), strides(wide.strides()) {
    shape.back() = count;
    data = static_cast<std::byte*>(wide.data()) + static_cast<std::size_t>(first) * SizeOf(wide.dtype());
    dtype = wide.dtype();
  }
  ConstTensorView in() const { return {data, dtype, shape, strides}; }
  TensorView out() const { return {data, dtype, shape, strides}; }

  Shape shape, strides;
  std::byte* data;
  DType dtype;
};

// dy and x are the last 64 columns of 576, as multi-head latent attention has them; so are the results.
TEST_P(RotaryLayout, LastColumnsOfAWideTensor) {
  BackwardTensors narrow(MakeProblem(GetParam().mode, GetParam().types, {7, 1, 64}, {7, 1}));
  Tensor wide_dy(narrow.dy.dtype(), {7, 1, 576}), wide_x(narrow.dy.dtype(), {7, 1, 576});
  Tensor wide_dx(narrow.dy.dtype(), {7, 1, 576});
  Random random(3);
  wide_dy.FillRandom(random);
  wide_x.FillRandom(random);
  wide_dx.FillRandom(random);
  const Columns dy(wide_dy, 512, 64), x(wide_x, 512, 64), dx(wide_dx, 512, 64);
  narrow.dy.Fill([&](std::int64_t i) { return wide_dy.Get({i / 64, 0, 512 + i % 64}); });
  narrow.x.Fill([&](std::int64_t i) { return wide_x.Get({i / 64, 0, 512 + i % 64}); });
  ASSERT_TRUE(Ok(RotaryBackward(narrow.Args())));
  ASSERT_TRUE(narrow.Check());
  const std::vector<std::uint64_t> want = narrow.ResultBits(), before = wide_dx.Bits();
  RotaryBackwardArgs args = narrow.Args();
  args.dy = dy.in();
  args.x = x.in();
  args.dx = dx.out();
  ASSERT_TRUE(Ok(RotaryBackward(args)));
  const std::vector<std::uint64_t> after = wide_dx.Bits(), dx_bits = narrow.dx.Bits();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::size_t row = i / 576, column = i % 576;
    EXPECT_EQ(after[i], column < 512 ? before[i] : dx_bits[row * 64 + column - 512]) << i;
  }
  EXPECT_EQ(narrow.ResultBits(), want);  // dcos and dsin again
  EXPECT_TRUE(wide_dy.Unchanged("dy"));
  EXPECT_TRUE(wide_x.Unchanged("x"));
}

// The gradients of a packed [B, S, 3, D]: dy reads the first third and writes the gradient beside it.
TEST_P(RotaryLayout, PackedGradients) {
  BackwardTensors plain(MakeProblem(GetParam().mode, GetParam().types, {2, 5, 32}, {1, 5}));
  Tensor packed(plain.dy.dtype(), {2, 5, 96});
  Random random(5);
  packed.FillRandom(random);
  const Columns dy(packed, 0, 32), x(packed, 32, 32), dx(packed, 64, 32);
  plain.dy.Fill([&](std::int64_t i) { return packed.Get({i / 160, i / 32 % 5, i % 32}); });
  plain.x.Fill([&](std::int64_t i) { return packed.Get({i / 160, i / 32 % 5, i % 32 + 32}); });
  ASSERT_TRUE(Ok(RotaryBackward(plain.Args())));
  ASSERT_TRUE(plain.Check());
  const std::vector<std::uint64_t> before = packed.Bits(), want = plain.dx.Bits();
  RotaryBackwardArgs args = plain.Args();
  args.dy = dy.in();
  args.x = x.in();
  args.dx = dx.out();
  ASSERT_TRUE(Ok(RotaryBackward(args)));
  const std::vector<std::uint64_t> after = packed.Bits();
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i], i % 96 < 64 ? before[i] : want[i / 96 * 32 + i % 96 - 64]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryLayout, ModesAndTypes(), ModeAndTypesName);

}  // namespace
}  // namespace gyrograd::testing
