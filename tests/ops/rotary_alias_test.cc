// Memory that outputs share: the legal aliases give the bits of separate memory, every other one is refused untouched.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

// ---- Legal ------------------------------------------------------------------------------------------------------

class RotaryAlias : public ::testing::TestWithParam<ModeAndTypes> {
 protected:
  std::vector<Problem> Problems() const {
    const auto [mode, types] = GetParam();
    std::vector<Problem> problems;
    for (const bool per_pair : {false, true}) {
      problems.push_back(MakeProblem(mode, types, {2, 5, 3, 64}, {1, 5, 1}, per_pair));
      problems.push_back(MakeProblem(mode, types, {2, 5, 3, 36}, {2, 5, 3}, per_pair));
      problems.push_back(MakeProblem(mode, types, {2, 4100}, {2}, per_pair));
      problems.push_back(MakeProblem(mode, types, {2, 8200}, {1}, per_pair));
      problems.push_back(MakeProblem(mode, types, {1500, 3, 4}, {1, 1}, per_pair));
      problems.push_back(MakeProblem(mode, types, {150, 4, 64}, {150, 1}, per_pair));
    }
    Problem part = MakeProblem(mode, types, {2, 3, 40}, {1, 3});
    part.rotary_dim = 20;
    part.rotary_offset = 5;
    part.tables = {1, 3, 20};
    problems.push_back(part);
    const std::size_t count = problems.size();
    for (const Layout layout :
         {Layout::kReversedAll, Layout::kLastStride2, Layout::kLastSlowest, Layout::kPaddedRows, Layout::kOffsetOne}) {
      for (std::size_t i = 0; i < count; ++i) {
        Problem problem = problems[i];
        if (Count(problem.dy) > 4000) continue;
        problem.dy_layout = problem.x_layout = problem.tables_layout = layout;
        problems.push_back(problem);
      }
    }
    return problems;
  }
};

// Which memory the outputs take.
struct InPlace {
  bool dx_is_dy, dx_is_x, tables;
};

TEST_P(RotaryAlias, BackwardInPlace) {
  const InPlace choices[] = {{true, false, false}, {false, true, false}, {false, false, true},
                             {true, false, true},  {false, true, true},  {true, true, true}};
  for (const Problem& problem : Problems()) {
    for (const auto [dx_is_dy, dx_is_x, tables_in_place] : choices) {
      BackwardTensors separate(problem), shared(problem);
      const bool one_memory = dx_is_dy && dx_is_x;
      if (one_memory) separate.x.Fill(separate.dy.Values());
      ASSERT_TRUE(Ok(RotaryBackward(separate.Args())));
      ASSERT_TRUE(separate.Check());
      RotaryBackwardArgs args = shared.Args();
      if (one_memory) args.x = args.dy;
      if (dx_is_dy) args.dx = shared.dy.out();
      if (dx_is_x && !one_memory) args.dx = shared.x.out();
      if (tables_in_place) {
        args.dcos = shared.cos.out();
        args.dsin = shared.sin.out();
      }
      ASSERT_TRUE(Ok(RotaryBackward(args))) << problem;
      const std::string where = ::testing::PrintToString(problem) + (dx_is_dy ? " dx=dy" : "") +
                                (dx_is_x ? " dx=x" : "") + (tables_in_place ? " dcos=cos dsin=sin" : "");
      const Tensor& dx = dx_is_dy ? shared.dy : dx_is_x ? shared.x : shared.dx;
      const Tensor& dcos = tables_in_place ? shared.cos : shared.dcos;
      const Tensor& dsin = tables_in_place ? shared.sin : shared.dsin;
      EXPECT_TRUE(dx.Bits() == separate.dx.Bits()) << where;
      EXPECT_TRUE(dcos.Bits() == separate.dcos.Bits()) << where;
      EXPECT_TRUE(dsin.Bits() == separate.dsin.Bits()) << where;
      for (const Tensor* tensor :
           {&shared.dy, &shared.x, &shared.cos, &shared.sin, &shared.dx, &shared.dcos, &shared.dsin}) {
        EXPECT_TRUE(tensor->GuardsIntact("a tensor")) << where;
      }
    }
  }
}

TEST_P(RotaryAlias, DxAloneInPlace) {
  for (const Problem& problem : Problems()) {
    const BackwardTensors separate(problem), shared(problem);
    ASSERT_TRUE(Ok(RotaryBackward(separate.Args(true, false, false, false))));
    RotaryBackwardArgs args = shared.Args(true, false, false, false);
    args.dx = shared.dy.out();
    ASSERT_TRUE(Ok(RotaryBackward(args)));
    EXPECT_TRUE(shared.dy.Bits() == separate.dx.Bits()) << problem;
    EXPECT_TRUE(shared.dy.GuardsIntact("dy")) << problem;
  }
}

TEST_P(RotaryAlias, OneTableInPlace) {
  for (const Problem& problem : Problems()) {
    BackwardTensors separate(problem), shared(problem);
    ASSERT_TRUE(Ok(RotaryBackward(separate.Args())));
    RotaryBackwardArgs args = shared.Args(true, true, false);
    args.dcos = shared.cos.out();
    ASSERT_TRUE(Ok(RotaryBackward(args)));
    EXPECT_TRUE(shared.cos.Bits() == separate.dcos.Bits()) << problem;
    EXPECT_TRUE(shared.dx.Bits() == separate.dx.Bits()) << problem;
    EXPECT_TRUE(shared.sin.Unchanged("sin")) << problem;
  }
}

TEST_P(RotaryAlias, ForwardInPlace) {
  for (const Problem& problem : Problems()) {
    const ForwardTensors separate(problem), shared(problem);
    ASSERT_TRUE(Ok(Rotary(separate.Args())));
    ASSERT_TRUE(separate.Check());
    RotaryArgs args = shared.Args();
    args.y = shared.x.out();
    ASSERT_TRUE(Ok(Rotary(args)));
    EXPECT_TRUE(shared.x.Bits() == separate.y.Bits()) << problem;
    EXPECT_TRUE(shared.x.GuardsIntact("x")) << problem;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotaryAlias, ModesAndTypes(), ModeAndTypesName);

TEST(RotaryAlias, InputsMayShare) {
  const BackwardTensors tensors(MakeProblem(RotaryMode::kInterleave, {}, {3, 3, 8}, {3, 1}));
  RotaryBackwardArgs args = tensors.Args();
  args.sin = args.cos;
  args.x = args.dy;
  EXPECT_TRUE(Ok(RotaryBackward(args)));
}

// ---- Illegal ----------------------------------------------------------------------------------------------------

// One buffer, in which views of f32 are cut by offset, shape and strides.
struct Slice {
  std::int64_t offset = 0;
  Shape shape;
  Shape strides;
};

class Pool {
 public:
  Pool() : tensor_(DType::kF32, {4096}) {
    Random random(11);
    tensor_.FillRandom(random);
  }

  TensorView out(const Slice& slice) const {
    return {static_cast<float*>(tensor_.data()) + slice.offset, DType::kF32, slice.shape, slice.strides};
  }
  ConstTensorView in(const Slice& slice) const { return {out(slice).data, DType::kF32, slice.shape, slice.strides}; }
  ::testing::AssertionResult Unchanged() const { return tensor_.Unchanged("the buffer"); }

 private:
  Tensor tensor_;
};

// A backward call of dy 4x8 and tables 1x8, whose views lie apart until a test moves one.
struct Slices {
  Slice dy = {0, {4, 8}, {8, 1}};
  Slice cos = {100, {1, 8}, {8, 1}};
  Slice sin = {200, {1, 8}, {8, 1}};
  Slice x = {300, {4, 8}, {8, 1}};
  Slice dx = {400, {4, 8}, {8, 1}};
  Slice dcos = {500, {1, 8}, {8, 1}};
  Slice dsin = {600, {1, 8}, {8, 1}};

  RotaryBackwardArgs Args(const Pool& pool) const {
    RotaryBackwardArgs args;
    args.dy = pool.in(dy);
    args.cos = pool.in(cos);
    args.sin = pool.in(sin);
    args.x = pool.in(x);
    args.dx = pool.out(dx);
    args.dcos = pool.out(dcos);
    args.dsin = pool.out(dsin);
    return args;
  }
};

struct AliasCase {
  const char* name;
  std::function<void(Slices&)> move;
  std::vector<std::string> words;  // empty: legal
};

void PrintTo(const AliasCase& c, std::ostream* out) { *out << c.name; }

class RotaryAliasCases : public ::testing::TestWithParam<AliasCase> {};

TEST_P(RotaryAliasCases, IsJudgedAsTheContractSays) {
  const AliasCase& c = GetParam();
  const Pool pool;
  Slices slices;
  c.move(slices);
  const RotaryBackwardArgs args = slices.Args(pool);
  if (c.words.empty()) {
    EXPECT_TRUE(Ok(ValidateRotaryBackward(args)));
    EXPECT_TRUE(Ok(RotaryBackward(args)));
    return;
  }
  EXPECT_TRUE(Refused(ValidateRotaryBackward(args), StatusCode::kInvalidAlias, c.words));
  EXPECT_TRUE(Refused(RotaryBackward(args), StatusCode::kInvalidAlias, c.words));
  EXPECT_TRUE(pool.Unchanged());
  // A plan knows no addresses: its run refuses them.
  RotaryBackwardPlan plan;
  const Status created = RotaryBackwardPlan::Create(args, &plan);
  if (!created.ok()) {
    EXPECT_TRUE(Refused(created, StatusCode::kInvalidAlias, c.words));
    return;
  }
  std::vector<std::byte> workspace(plan.workspace_size());
  const RotaryBackwardPointers pointers = {args.dy.data,  args.cos.data,   args.sin.data,  args.x->data,
                                           args.dx->data, args.dcos->data, args.dsin->data};
  EXPECT_TRUE(Refused(plan.Run(pointers, workspace.data(), workspace.size()), StatusCode::kInvalidAlias, c.words));
  EXPECT_TRUE(pool.Unchanged());
}

const AliasCase kAliasCases[] = {
    {"apart", [](Slices&) {}, {}},
    {"dx_is_dy", [](Slices& s) { s.dx = s.dy; }, {}},
    {"dx_is_x", [](Slices& s) { s.dx = s.x; }, {}},
    {"dx_one_element_on", [](Slices& s) { s.dx.offset = s.dy.offset + 1; }, {"rotary_backward", "dx", "dy"}},
    {"dx_one_row_on", [](Slices& s) { s.dx.offset = s.x.offset + 8; }, {"rotary_backward", "dx", "x"}},
    {"dx_last_element_of_x", [](Slices& s) { s.dx.offset = s.x.offset + 31; }, {"dx", "x"}},
    {"dx_right_behind_dy", [](Slices& s) { s.dx.offset = s.dy.offset + 32; }, {}},
    {"dx_reversed_dy", [](Slices& s) { s.dx = {s.dy.offset + 24, {4, 8}, {-8, 1}}; }, {"dx", "dy"}},
    {"dx_reversed_rows_of_dy", [](Slices& s) { s.dx = {s.dy.offset + 7, {4, 8}, {8, -1}}; }, {"dx", "dy"}},
    {"dx_transposed_dy", [](Slices& s) { s.dx = {s.dy.offset, {4, 8}, {1, 4}}; }, {"dx", "dy"}},
    {"dx_is_dy_and_overlaps_x",
     [](Slices& s) {
       s.dx = s.dy;
       s.x.offset = s.dy.offset + 8;
     },
     {"dx", "x"}},
    {"dx_other_half_of_dy_rows",
     [](Slices& s) {
       s.dy.strides = {16, 1};
       s.dx = {s.dy.offset + 8, {4, 8}, {16, 1}};
     },
     {}},
    {"dx_other_channels_of_x",
     [](Slices& s) {
       s.x = {1000, {4, 8}, {16, 2}};
       s.dx = {1001, {4, 8}, {16, 2}};
     },
     {}},
    {"dx_channels_of_x_that_meet",
     [](Slices& s) {
       s.x = {1000, {4, 8}, {24, 2}};
       s.dx = {1001, {4, 8}, {24, 3}};
     },
     {"dx", "x"}},
    {"dx_in_cos", [](Slices& s) { s.cos = {s.dx.offset + 8, {1, 8}, {8, 1}}; }, {"dx", "cos"}},
    {"dx_in_sin", [](Slices& s) { s.sin = {s.dx.offset + 31, {1, 8}, {8, 1}}; }, {"dx", "sin"}},
    {"dx_in_dcos", [](Slices& s) { s.dcos.offset = s.dx.offset + 16; }, {"dx", "dcos"}},
    {"dx_in_dsin", [](Slices& s) { s.dsin.offset = s.dx.offset - 7; }, {"dx", "dsin"}},
    {"dcos_is_cos", [](Slices& s) { s.dcos = s.cos; }, {}},
    {"dsin_is_sin", [](Slices& s) { s.dsin = s.sin; }, {}},
    {"dcos_is_cos_whose_other_stride_does_not_matter",
     [](Slices& s) {
       s.dcos = s.cos;
       s.dcos.strides[0] = 99;
     },
     {}},
    {"dcos_is_sin", [](Slices& s) { s.dcos = s.sin; }, {"dcos", "sin"}},
    {"dsin_is_cos", [](Slices& s) { s.dsin = s.cos; }, {"dsin", "cos"}},
    {"dcos_is_dsin", [](Slices& s) { s.dcos = s.dsin; }, {"dcos", "dsin"}},
    {"dcos_reversed_cos", [](Slices& s) { s.dcos = {s.cos.offset + 7, {1, 8}, {8, -1}}; }, {"dcos", "cos"}},
    {"dcos_is_cos_which_is_sin",
     [](Slices& s) {
       s.sin = s.cos;
       s.dcos = s.cos;
     },
     {"dcos", "sin"}},
    {"dcos_one_element_on", [](Slices& s) { s.dcos.offset = s.cos.offset + 1; }, {"dcos", "cos"}},
    {"dcos_in_dy", [](Slices& s) { s.dcos.offset = s.dy.offset + 8; }, {"dcos", "dy"}},
    {"dsin_in_x", [](Slices& s) { s.dsin.offset = s.x.offset + 30; }, {"dsin", "x"}},
    {"dcos_between_the_channels_of_dsin",
     [](Slices& s) {
       s.dsin = {2000, {1, 8}, {0, 2}};
       s.dcos = {2001, {1, 8}, {0, 2}};
     },
     {}},
    {"dx_of_stride_zero", [](Slices& s) { s.dx.strides = {0, 1}; }, {"dx"}},
    {"dx_of_last_stride_zero", [](Slices& s) { s.dx.strides = {8, 0}; }, {"dx"}},
    {"dx_rows_that_overlap", [](Slices& s) { s.dx.strides = {7, 1}; }, {"dx"}},
    {"dx_elements_that_meet", [](Slices& s) { s.dx.strides = {6, 3}; }, {"dx"}},
    {"dx_columns_between_columns", [](Slices& s) { s.dx.strides = {1, 4}; }, {}},
    {"dx_of_odd_strides_that_never_meet", [](Slices& s) { s.dx = {1000, {4, 8}, {3, 13}}; }, {}},
    {"dcos_of_stride_zero", [](Slices& s) { s.dcos.strides = {8, 0}; }, {"dcos"}},
    {"dsin_of_outer_stride_zero", [](Slices& s) { s.dsin.strides = {0, 1}; }, {}},
};

INSTANTIATE_TEST_SUITE_P(All, RotaryAliasCases, ::testing::ValuesIn(kAliasCases),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

struct ForwardAliasCase {
  const char* name;
  Slice y;
  std::vector<std::string> words;
};

void PrintTo(const ForwardAliasCase& c, std::ostream* out) { *out << c.name; }

class RotaryForwardAliasCases : public ::testing::TestWithParam<ForwardAliasCase> {};

TEST_P(RotaryForwardAliasCases, IsJudgedAsTheContractSays) {
  const ForwardAliasCase& c = GetParam();
  const Pool pool;
  const Slices slices;
  const RotaryArgs args = {.x = pool.in(slices.x),
                           .cos = pool.in(slices.cos),
                           .sin = pool.in(slices.sin),
                           .y = pool.out(c.y),
                           .options = {},
                           .execution = {}};
  if (c.words.empty()) {
    EXPECT_TRUE(Ok(Rotary(args)));
    return;
  }
  EXPECT_TRUE(Refused(ValidateRotary(args), StatusCode::kInvalidAlias, c.words));
  EXPECT_TRUE(Refused(Rotary(args), StatusCode::kInvalidAlias, c.words));
  EXPECT_TRUE(pool.Unchanged());
}

const ForwardAliasCase kForwardAliasCases[] = {
    {"y_is_x", {300, {4, 8}, {8, 1}}, {}},
    {"y_behind_x", {332, {4, 8}, {8, 1}}, {}},
    {"y_one_on", {301, {4, 8}, {8, 1}}, {"rotary: ", "y", "x"}},
    {"y_in_cos", {107, {4, 8}, {8, 1}}, {"rotary: ", "y", "cos"}},
    {"y_in_sin", {200, {4, 8}, {8, 1}}, {"rotary: ", "y", "sin"}},
    {"y_on_itself", {700, {4, 8}, {0, 1}}, {"rotary: ", "y"}},
};

INSTANTIATE_TEST_SUITE_P(All, RotaryForwardAliasCases, ::testing::ValuesIn(kForwardAliasCases),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(RotaryAlias, EmptyOutputsShareNothing) {
  const Pool pool;
  Slices slices;
  slices.dy.shape = slices.x.shape = slices.dx.shape = {0, 8};
  slices.dx.offset = slices.cos.offset;
  slices.dx.strides = {0, 0};
  EXPECT_TRUE(Ok(RotaryBackward(slices.Args(pool))));
}

}  // namespace
}  // namespace gyrograd::testing
