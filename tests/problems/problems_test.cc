// Problems as lines of text: what is written is read back, and what is none is refused with a reason.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "problems/norm_rope_concat.h"
#include "problems/rotary.h"

namespace gyrograd::problems {
namespace {

RotaryProblem FullRotaryProblem() {
  RotaryProblem problem;
  problem.mode = RotaryMode::kInterleaveHalf;
  problem.types = {DType::kBF16, DType::kF32};
  problem.dy = {2, 3, 4, 64};
  problem.tables = {1, 3, 1, 16};
  problem.per_pair = true;
  problem.rotary_dim = 32;
  problem.rotary_offset = 8;
  problem.outputs = {true, false, true};
  problem.dy_layout = Layout::kSwapped;
  problem.x_layout = Layout::kPacked;
  problem.tables_layout = Layout::kLastStride2;
  problem.dx_layout = Layout::kPaddedRows;
  problem.table_grads_layout = Layout::kReversedAll;
  problem.seed = 18446744073709551615u;
  problem.execution = {3, CpuTarget::kPortable};
  return problem;
}

TEST(RotaryText, HoldsEveryField) {
  EXPECT_EQ(ToString(FullRotaryProblem()),
            "rotary:mode=interleave-half,types=bf16/f32,dy=2x3x4x64,tables=1x3x1x16,per_pair=1,rotary_dim=32,"
            "rotary_offset=8,outputs=dx+dsin,dy_layout=swapped,x_layout=packed,tables_layout=last_stride_2,"
            "dx_layout=padded_rows,table_grads_layout=reversed_all,seed=18446744073709551615,threads=3,"
            "target=portable");
}

// Text alone tells problems apart, so equal texts are equal problems.
TEST(RotaryText, IsReadBack) {
  RotaryProblem plain;
  plain.dy = {8};
  plain.tables = {1};
  for (const RotaryProblem& problem : {FullRotaryProblem(), plain}) {
    std::string error;
    const auto read = ParseRotaryProblem(ToString(problem), &error);
    ASSERT_TRUE(read) << error;
    EXPECT_EQ(ToString(*read), ToString(problem));
  }
}

TEST(RotaryText, LeavesDefaultsOut) {
  RotaryProblem problem;
  problem.dy = {2, 8};
  problem.tables = {1, 8};
  EXPECT_EQ(ToString(problem), "rotary:dy=2x8,tables=1x8");
}

TEST(RotaryText, NamesOutputs) {
  for (const std::string outputs : {"dx", "dcos", "dsin", "tables", "dx+dcos"}) {
    const std::string text = "rotary:dy=8,tables=8,outputs=" + outputs;
    std::string error;
    const auto read = ParseRotaryProblem(text, &error);
    ASSERT_TRUE(read) << error;
    EXPECT_EQ(ToString(*read), text);
  }
}

NormRopeConcatProblem FullConcatProblem() {
  NormRopeConcatProblem problem;
  problem.types = {DType::kF16, DType::kF32, DType::kF16};
  problem.batch = 2;
  problem.heads = 6;
  problem.key_heads = 3;
  problem.head_dim = 64;
  problem.seq_query = 5;
  problem.seq_key = 7;
  problem.seq_encoder_query = 3;
  problem.seq_encoder_key = 4;
  problem.options.norm_type = NormType::kLayerAffine;
  problem.options.norm_added_type = NormType::kRms;
  problem.options.concat_order = ConcatOrder::kEncoderFirst;
  problem.options.rotary = RotaryOptions{RotaryMode::kInterleave, true, 32, 16};
  problem.seq_rope = 6;
  problem.options.rope_start = 1;
  problem.seq_encoder_rope = 2;
  problem.tables_per_batch = true;
  problem.tables_per_head = true;
  problem.joint_layout = Layout::kSwapped;
  problem.stream_layout = Layout::kPacked;
  problem.seed = 9;
  problem.execution = {2, CpuTarget::kAvx2};
  return problem;
}

TEST(ConcatText, HoldsEveryFieldAndIsReadBack) {
  const std::string text =
      "norm_rope_concat:types=f16/f32/f16,batch=2,heads=6,key_heads=3,head_dim=64,query=5,key=7,encoder_query=3,"
      "encoder_key=4,norm=layer_affine,norm_added=rms,order=encoder_first,rotary=interleave,per_pair=1,rotary_dim=32,"
      "rotary_offset=16,rope=6,rope_start=1,encoder_rope=2,tables_per_batch=1,tables_per_head=1,joint_layout=swapped,"
      "stream_layout=packed,seed=9,threads=2,target=avx2";
  EXPECT_EQ(ToString(FullConcatProblem()), text);
  std::string error;
  const auto read = ParseNormRopeConcatProblem(text, &error);
  ASSERT_TRUE(read) << error;
  EXPECT_EQ(ToString(*read), text);
}

struct Refusal {
  std::string_view text;
  std::string_view error;
};

class Refusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refusals, SayWhy) {
  std::string error;
  EXPECT_FALSE(ParseRotaryProblem(GetParam().text, &error));
  EXPECT_EQ(error, GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    Rotary, Refusals,
    ::testing::Values(
        Refusal{"", "it is no problem of rotary: it must start with 'rotary:'"},
        Refusal{"norm_rope_concat:dy=8,tables=8", "it is no problem of rotary: it must start with 'rotary:'"},
        Refusal{"rotary", "dy is missing"}, Refusal{"rotary:dy=8", "tables is missing"},
        Refusal{"rotary:dy=8,tables=8,,seed=1", "'' is no key=value"},
        Refusal{"rotary:dy=8,tables=8,mode", "'mode' is no key=value"},
        Refusal{"rotary:dy=8,dy=8,tables=8", "dy stands twice"},
        Refusal{"rotary:dy=8,tables=8,colour=red", "there is no field colour"},
        Refusal{"rotary:dy=8x,tables=8", "dy is '8x'"}, Refusal{"rotary:dy=-8,tables=8", "dy is '-8'"},
        Refusal{"rotary:dy=99999999999999999999,tables=8", "dy is '99999999999999999999'"},
        Refusal{"rotary:dy=8,tables=8,mode=quart",
                "mode is 'quart'; it must be half, interleave, quarter, interleave-half"},
        Refusal{"rotary:dy=8,tables=8,types=bf16/",
                "types is 'bf16/'; it must be f64, f32, f16, bf16, or two of them: rows/tables"},
        Refusal{"rotary:dy=8,tables=8,outputs=", "outputs is ''; it must be dx, dcos, dsin or tables, joined by +"},
        Refusal{"rotary:dy=8,tables=8,outputs=dx+y",
                "outputs is 'dx+y'; it must be dx, dcos, dsin or tables, joined by +"},
        Refusal{"rotary:dy=8,tables=8,per_pair=yes", "per_pair is 'yes'"},
        Refusal{"rotary:dy=8,tables=8,dy_layout=odd",
                "dy_layout is 'odd'; it must be contiguous, padded_rows, transposed, swapped, last_slowest, "
                "reversed_rows, reversed_all, last_stride_2, last_stride_3, last_stride_4, offset_one, "
                "packed, expanded_first, expanded_outer, expanded_last, expanded_all"},
        Refusal{"rotary:dy=8,tables=8,threads=1.5", "threads is '1.5'"},
        Refusal{"rotary:dy=8,tables=8,target=sse2",
                "target is 'sse2'; it must be best, avx512, avx2, neon, portable"}));

}  // namespace
}  // namespace gyrograd::problems
