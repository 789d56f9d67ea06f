// The product profiles: every rule at its boundary.
#include "cann/profiles.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace gyrograd::cann {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr Profile kA2 = Profile::kAtlasA2;
constexpr Profile kA3 = Profile::kAtlasA3;
constexpr Profile k950 = Profile::kAscend950;

struct Case {
  const char* what;
  Profile profile;
  RotaryProblem problem;
  const char* refused = nullptr;   // a part of the rule; null where accepted
  const char* readings = nullptr;  // where accepted
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.what; }

RotaryProblem Backward(Shape x, Shape cos, int mode = 0, bool tables = false, DType dtype = DType::kF32) {
  return {std::move(x), std::move(cos), mode, dtype, true, tables};
}

// A problem that no product's operator has, by tables of one value a pair, by part of the channels, by type.
RotaryProblem Extended(Shape x, Shape cos, bool per_pair, std::optional<std::int64_t> rotary_dim,
                       std::optional<DType> table_dtype = {}) {
  RotaryProblem problem = Backward(std::move(x), std::move(cos), 0, false, DType::kBF16);
  problem.per_pair_tables = per_pair;
  problem.rotary_dim = rotary_dim;
  problem.table_dtype = table_dtype;
  return problem;
}

RotaryProblem Forward(Shape x, Shape cos, DType dtype = DType::kF32, int mode = 0) {
  return {std::move(x), std::move(cos), mode, dtype, false, false};
}

const Case kCases[] = {
    // Modes.
    {"a2_half", kA2, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 0)},
    {"a2_interleave", kA2, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 1)},
    {"a2_quarter", kA2, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 2), "mode is 2"},
    {"a3_interleave_half", kA3, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 3), "mode is 3"},
    {"950_quarter", k950, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 2)},
    {"950_interleave_half", k950, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 3)},
    {"950_mode_4", k950, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 4), "mode is 4"},
    // D.
    {"a2_894", kA2, Backward({2, 3, 4, 894}, {1, 1, 4, 894})},
    {"a2_896", kA2, Backward({2, 3, 4, 896}, {1, 1, 4, 896}), "D is 896; it must be below 896"},
    {"a2_interleave_896", kA2, Backward({2, 3, 4, 896}, {1, 1, 4, 896}, 1), "D is 896"},
    {"950_1024", k950, Backward({2, 3, 4, 1024}, {1, 1, 4, 1024})},
    {"950_1026", k950, Backward({2, 3, 4, 1026}, {1, 1, 4, 1026}), "D is 1026; it must be at most 1024"},
    {"a2_odd", kA2, Backward({2, 3, 4, 7}, {1, 1, 4, 7}), "D is 7; it must be divisible by 2"},
    {"950_quarter_6", k950, Backward({2, 3, 4, 6}, {1, 1, 4, 6}, 2), "D is 6; it must be divisible by 4"},
    {"950_half_6", k950, Backward({2, 3, 4, 6}, {1, 1, 4, 6})},
    {"a2_zero", kA2, Backward({2, 3, 4, 0}, {1, 1, 4, 0}), "D is 0"},
    // Types and ranks.
    {"a2_f64", kA2, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 0, false, DType::kF64), "f64"},
    {"950_f64", k950, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 0, false, DType::kF64), "f64"},
    {"950_bf16", k950, Backward({2, 3, 4, 8}, {1, 1, 4, 8}, 0, false, DType::kBF16)},
    {"a2_rank_2", kA2, Backward({4, 8}, {4, 8}), "rank 2"},
    {"950_rank_5", k950, Backward({1, 2, 3, 4, 8}, {1, 1, 1, 4, 8}), "rank 5"},
    {"native_rank_5", Profile::kNative, Backward({1, 2, 3, 4, 8}, {1, 1, 1, 4, 8})},
    {"native_f64", Profile::kNative, Backward({4098}, {4098}, 0, true, DType::kF64)},
    {"native_narrow", Profile::kNative, Backward({2, 8}, {2, 4}), "last extent must equal dy's, 8"},
    {"native_other_extent", Profile::kNative, Backward({4, 8}, {2, 8}), "extents must be 1 or dy's"},
    {"native_other_rank", Profile::kNative, Forward({4, 8}, {8}), "must have x's rank, 2"},
    // Half mode's tables, layout by layout.
    {"a2_bnsd_11sd", kA2, Backward({2, 5, 7, 8}, {1, 1, 7, 8}), nullptr, "BNSD, 11SD"},
    {"a2_bnsd_b1sd", kA2, Backward({6, 5, 7, 8}, {6, 1, 7, 8}), nullptr, "BNSD, B1SD"},
    {"a2_bnsd_bnsd", kA2, Backward({9, 5, 7, 8}, {9, 5, 7, 8}), nullptr, "BNSD, BNSD; BSND, BSND; SBND, SBND"},
    {"a2_bsnd_1s1d", kA2, Backward({2, 7, 5, 8}, {1, 7, 1, 8}), nullptr, "BSND, 1S1D"},
    {"a2_bsnd_bs1d", kA2, Backward({6, 7, 5, 8}, {6, 7, 1, 8}), nullptr, "BSND, BS1D; SBND, SB1D"},
    {"a2_sbnd_s11d", kA2, Backward({7, 2, 5, 8}, {7, 1, 1, 8}), nullptr, "SBND, S11D"},
    {"a2_sbnd_sb1d", kA2, Backward({9, 7, 5, 8}, {9, 7, 1, 8}), nullptr, "SBND, SB1D"},
    {"a2_sbnd_sb1d_b_is_s", kA2, Backward({7, 7, 5, 8}, {7, 7, 1, 8}), nullptr, "SBND, SB1D"},
    {"a2_b_below_s", kA2, Backward({7, 5, 7, 8}, {7, 1, 7, 8}), "need B < S"},
    {"a2_b_below_s_one_head", kA2, Backward({7, 1, 7, 8}, {7, 1, 7, 8}), nullptr, "BNSD, BNSD; BSND, BSND; SBND, SBND"},
    // Shapes that read in more ways than one: all are named, and one that is legal is enough.
    {"a2_square", kA2, Backward({7, 7, 7, 8}, {1, 7, 1, 8}), nullptr, "BSND, 1S1D"},
    {"a2_two_layouts", kA2, Backward({1, 1, 7, 8}, {1, 1, 7, 8}), nullptr, "BNSD, 11SD; BSND, BSND; SBND, SBND"},
    {"a2_one_legal_layout", kA2, Backward({1200, 5, 7, 8}, {1200, 5, 7, 8}), nullptr, "SBND, SBND"},
    {"950_all_layouts", k950, Backward({5, 6, 7, 8}, {1, 6, 1, 8}), nullptr,
     "BNSD, any broadcast; BSND, any broadcast; SBND, any broadcast"},
    // What the library alone has.
    {"a2_per_pair", kA2, Extended({2, 7, 5, 8}, {1, 7, 1, 4}, true, {}), "its operator has no tables per pair"},
    {"950_per_pair", k950, Extended({2, 7, 5, 8}, {1, 7, 1, 4}, true, {}), "its operator has no tables per pair"},
    {"950_partial", k950, Extended({2, 7, 5, 8}, {1, 7, 1, 4}, false, 4), "its operator has no partial rotary"},
    {"a3_table_type", kA3, Extended({2, 7, 5, 8}, {1, 7, 1, 8}, false, {}, DType::kF32), "no tables of another type"},
    {"a2_all_extensions", kA2, Extended({2, 7, 5, 8}, {1, 7, 1, 2}, true, 4, DType::kF32),
     "its operator has no tables per pair, no partial rotary, no tables of another type"},
    {"a2_whole_row", kA2, Extended({2, 7, 5, 8}, {1, 7, 1, 8}, false, 8, DType::kBF16), nullptr, "BSND, 1S1D"},
    {"native_per_pair", Profile::kNative, Extended({2, 7, 5, 8}, {1, 7, 1, 4}, true, {})},
    {"native_per_pair_wide", Profile::kNative, Extended({2, 7, 5, 8}, {1, 7, 1, 8}, true, {}), "extent must be 4"},
    {"native_partial", Profile::kNative, Extended({2, 7, 5, 9}, {1, 7, 1, 4}, false, 4)},
    {"a2_1111", kA2, Backward({2, 5, 7, 8}, {1, 1, 1, 8}), "none of 11SD, B1SD, BNSD"},
    {"a2_1n1d", kA2, Backward({1200, 5, 7, 8}, {1, 5, 7, 8}), "none of 1S1D, BS1D, BSND"},
    {"a2_tnd_t1d", kA2, Backward({7, 5, 8}, {7, 1, 8}), nullptr, "TND, T1D"},
    {"a2_tnd_tnd", kA2, Backward({7, 5, 8}, {7, 5, 8}), nullptr, "TND, TND"},
    {"a2_tnd_11d", kA2, Backward({7, 5, 8}, {1, 1, 8}), "none of T1D, TND"},
    // Interleave mode's tables.
    {"a2_interleave_11sd", kA2, Backward({2, 5, 7, 8}, {1, 1, 7, 8}, 1), nullptr, "BNSD, 11SD"},
    {"a2_interleave_1s1d", kA2, Backward({2, 7, 5, 8}, {1, 7, 1, 8}, 1), nullptr, "BSND, 1S1D"},
    {"a2_interleave_s11d", kA2, Backward({7, 2, 5, 8}, {7, 1, 1, 8}, 1), nullptr, "SBND, S11D"},
    {"a2_interleave_b1sd", kA2, Backward({6, 5, 7, 8}, {6, 1, 7, 8}, 1), "none of 11SD"},
    {"a2_interleave_bnsd", kA2, Backward({2, 5, 7, 8}, {2, 5, 7, 8}, 1), "none of"},
    {"a2_interleave_t1d", kA2, Backward({7, 5, 8}, {7, 1, 8}, 1), nullptr, "TND, T1D"},
    {"a2_interleave_tnd", kA2, Backward({7, 5, 8}, {7, 5, 8}, 1), "none of T1D"},
    // 950's tables.
    {"950_1111", k950, Backward({2, 5, 7, 8}, {1, 1, 1, 8})},
    {"950_1n1d", k950, Backward({2, 5, 7, 8}, {1, 5, 1, 8}, 1)},
    {"950_tnd_t1d", k950, Backward({7, 5, 8}, {7, 1, 8}, 1), nullptr, "TND, T1D"},
    {"950_tnd_tnd", k950, Backward({7, 5, 8}, {7, 5, 8}), nullptr, "TND, TND"},
    {"950_tnd_11d", k950, Backward({7, 5, 8}, {1, 1, 8}), "none of T1D, TND"},
    {"950_tnd_1nd", k950, Backward({7, 5, 8}, {1, 5, 8}), "none of T1D, TND"},
    // Half mode's sizes. Tables SB1D and the like force one reading.
    {"a2_b_999", kA2, Backward({2000, 999, 1, 8}, {2000, 1, 1, 8}), nullptr, "SBND, S11D"},
    {"a2_b_1000", kA2, Backward({2000, 1000, 1, 8}, {2000, 1, 1, 8}), "B is 1000; it must be below 1000"},
    {"a2_n_999", kA2, Backward({2000, 1, 999, 8}, {2000, 1, 1, 8}), nullptr, "SBND, S11D"},
    {"a2_n_1000", kA2, Backward({2000, 1, 1000, 8}, {2000, 1, 1, 8}), "N is 1000; it must be below 1000"},
    {"a2_tnd_n_999", kA2, Backward({5, 999, 8}, {5, 1, 8})},
    {"a2_tnd_n_1000", kA2, Backward({5, 1000, 8}, {5, 1, 8}), "N is 1000"},
    {"a2_tables_1024", kA2, Backward({40, 32, 32, 8}, {40, 1, 1, 8}, 0, true)},
    {"a2_tables_1056", kA2, Backward({40, 33, 32, 8}, {40, 1, 1, 8}, 0, true), "B*N is 1056; it must be at most 1024"},
    {"a2_no_tables_1056", kA2, Backward({40, 33, 32, 8}, {40, 1, 1, 8}, 0, false)},
    {"a2_tnd_many_tokens", kA2, Backward({100000, 64, 8}, {100000, 1, 8}, 0, true)},
    // Interleave mode's sizes.
    {"a2_interleave_999", kA2, Backward({40, 27, 37, 8}, {40, 1, 1, 8}, 1)},
    {"a2_interleave_1000", kA2, Backward({40, 25, 40, 8}, {40, 1, 1, 8}, 1), "B*N is 1000; it must be below 1000"},
    {"a2_interleave_tnd_999", kA2, Backward({5, 999, 8}, {5, 1, 8}, 1)},
    {"a2_interleave_tnd_1000", kA2, Backward({5, 1000, 8}, {5, 1, 8}, 1), "N is 1000"},
    {"950_any_size", k950, Backward({5000, 2000, 3000, 8}, {1, 1, 1, 8}, 1, true)},
    // The forward's own rule: half mode, BNSD, halves of rows that are whole blocks of 32 bytes.
    {"a2_forward_8s", kA2, Forward({4, 10, 5, 16}, {1, 1, 5, 16}), nullptr, "BNSD, 11SD"},
    {"a2_forward_beyond_8s", kA2, Forward({4, 11, 5, 16}, {1, 1, 5, 16}), "B*N is 44; it must be at most 8*S, 40"},
    {"a2_forward_f16_not_whole_blocks", kA2, Forward({4, 11, 5, 16}, {1, 1, 5, 16}, DType::kF16)},
    {"a2_forward_f16_whole_blocks", kA2, Forward({4, 11, 5, 32}, {1, 1, 5, 32}, DType::kF16), "at most 8*S"},
    {"a2_forward_bsnd", kA2, Forward({4, 5, 11, 16}, {1, 5, 1, 16}), nullptr, "BSND, 1S1D"},
    {"a2_forward_interleave", kA2, Forward({4, 11, 5, 16}, {1, 1, 5, 16}, DType::kF32, 1)},
    {"a2_backward_beyond_8s", kA2, Backward({4, 11, 5, 16}, {1, 1, 5, 16})},
    {"950_forward_beyond_8s", k950, Forward({4, 11, 5, 16}, {1, 1, 5, 16})},
    // Overflow of 64 bits counts as too much.
    {"a2_overflow", kA2, Backward({40, std::int64_t{1} << 40, std::int64_t{1} << 40, 8}, {40, 1, 1, 8}, 1),
     "it must be below 1000"},
};

// "BNSD, 11SD; BSND, 1S1D".
std::string Text(const std::vector<LayoutReading>& readings) {
  std::string text;
  for (const LayoutReading& reading : readings) {
    text += (text.empty() ? "" : "; ") + reading.layout + ", " + reading.tables;
  }
  return text;
}

class CannProfiles : public ::testing::TestWithParam<Case> {};

TEST_P(CannProfiles, AcceptsOrNamesTheRule) {
  const Case& c = GetParam();
  const ProfileVerdict verdict = ExplainRotary(c.problem, c.profile);
  EXPECT_EQ(verdict.product, Name(c.profile));
  EXPECT_EQ(verdict.accepted, c.refused == nullptr) << verdict.rule;
  EXPECT_EQ(verdict.rule.empty(), verdict.accepted);
  EXPECT_EQ(verdict.limits.empty() && verdict.readings.empty(), !verdict.accepted);
  if (c.refused != nullptr) {
    EXPECT_NE(verdict.rule.find(c.refused), std::string::npos) << verdict.rule;
    EXPECT_TRUE(verdict.readings.empty());
  }
  if (c.readings != nullptr) {
    EXPECT_EQ(Text(verdict.readings), c.readings);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, CannProfiles, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& test) { return std::string(test.param.what); });

bool Remarks(const ProfileVerdict& verdict, const char* words) {
  for (const std::string& remark : verdict.remarks) {
    if (remark.find(words) != remark.npos) return true;
  }
  return false;
}

TEST(CannProfileRemarks, WhereCodeAndPageDiffer) {
  EXPECT_TRUE(Remarks(ExplainRotary(Backward({2, 3, 4, 896}, {1, 1, 4, 896}), kA2), "D = 896"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({2, 3, 4, 896}, {1, 1, 4, 896}, 1), kA2), "D = 896"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({2, 3, 4, 898}, {1, 1, 4, 898}), kA2), "D = 896"));
  EXPECT_TRUE(Remarks(ExplainRotary(Backward({5, 1000, 8}, {5, 1, 8}), kA3), "B, N < 1000"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({5, 999, 8}, {5, 1, 8}), kA3), "B, N < 1000"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({5, 1000, 8}, {5, 1, 8}, 1), kA3), "B, N < 1000"));
  EXPECT_TRUE(Remarks(ExplainRotary(Backward({5, 9, 8}, {5, 1, 8}), kA3), "older page"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({5, 9, 8}, {5, 1, 8}), k950), "older page"));
  EXPECT_TRUE(Remarks(ExplainRotary(Backward({7, 5, 8}, {1, 1, 8}), k950), "more table shapes for TND"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({7, 5, 8}, {7, 1, 8}), k950), "more table shapes for TND"));
}

TEST(CannProfileRemarks, WhatShapesDoNotTell) {
  EXPECT_TRUE(Remarks(ExplainRotary(Forward({4, 11, 5, 16}, {1, 1, 5, 16}, DType::kF16), kA2), "D >= 80"));
  EXPECT_FALSE(Remarks(ExplainRotary(Forward({4, 10, 5, 16}, {1, 1, 5, 16}), kA2), "D >= 80"));
  EXPECT_FALSE(Remarks(ExplainRotary(Backward({4, 11, 5, 16}, {1, 1, 5, 16}, 0, false, DType::kF16), kA2), "D >= 80"));
}

TEST(CannProfileExplain, NamesEveryProduct) {
  const std::vector<ProfileVerdict> verdicts = ExplainRotary(Backward({2, 3, 4, 8}, {1, 1, 4, 8}));
  const char* const products[] = {
      "native",          "atlas-a2",      "atlas-a3", "ascend-950", "Atlas 200I/500 A2 inference",
      "Atlas inference", "Atlas training"};
  ASSERT_EQ(verdicts.size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(verdicts[i].product, products[i]);
    EXPECT_EQ(verdicts[i].accepted, i < 4);
  }
  EXPECT_NE(verdicts[6].rule.find("not offered"), std::string::npos);
}

// Two readings refuse for two reasons: both are said.
TEST(CannProfileExplain, NamesEachReadingThatRefuses) {
  const ProfileVerdict readings = ExplainRotary(Backward({7, 5, 7, 8}, {7, 1, 7, 8}), kA2);
  EXPECT_NE(readings.rule.find("read as BNSD: B is 7"), std::string::npos) << readings.rule;
  EXPECT_NE(readings.rule.find("read as SBND: tables of shape [7, 1, 7, 8]"), std::string::npos) << readings.rule;
}

TEST(CannProfileNames, ParseWhatIsPrinted) {
  for (const Profile profile : {Profile::kNative, kA2, kA3, k950}) EXPECT_EQ(ParseProfile(Name(profile)), profile);
  EXPECT_EQ(ParseProfile("atlas"), std::nullopt);
  EXPECT_EQ(ParseProfile(""), std::nullopt);
}

// ---- the fused operator

struct FusedCase {
  const char* what;
  Profile profile;
  NormRopeConcatProblem problem;
  const char* refused = nullptr;
};

void PrintTo(const FusedCase& c, std::ostream* out) { *out << c.what; }

NormRopeConcatProblem Fused(const std::function<void(NormRopeConcatProblem&)>& change = {}) {
  NormRopeConcatProblem problem{.batch = 2,
                                .heads = 3,
                                .head_dim = 8,
                                .seq_query = 5,
                                .seq_key = 4,
                                .seq_encoder_query = 1,
                                .seq_encoder_key = 6,
                                .seq_rope = 6,
                                .norm_type = 2,
                                .norm_added_type = 2,
                                .rope_mode = RotaryMode::kHalf};
  if (change) change(problem);
  return problem;
}

using P = NormRopeConcatProblem;
constexpr Profile kNative = Profile::kNative;
const FusedCase kFusedCases[] = {
    {"a2", kA2, Fused()},
    {"950", k950, Fused()},
    {"a2_d_1024", kA2, Fused([](P& p) { p.head_dim = 1024; })},
    {"a2_d_1026", kA2, Fused([](P& p) { p.head_dim = 1026; }), "D is 1026; it must be 1 to 1024"},
    {"950_d_1026", k950, Fused([](P& p) { p.head_dim = 1026; }), "D is 1026"},
    {"native_d_1026", kNative, Fused([](P& p) { p.head_dim = 1026; })},
    {"a2_d_0", kA2, Fused([](P& p) { p.head_dim = 0; }), "D is 0"},
    {"native_d_0", kNative, Fused([](P& p) { p.head_dim = 0; })},
    {"a3_d_7", kA3, Fused([](P& p) { p.head_dim = 7, p.rope_mode = {}; }), "D is 7; it must be even"},
    {"native_d_7", kNative, Fused([](P& p) { p.head_dim = 7, p.rope_mode = {}; })},
    {"native_d_7_rotated", kNative, Fused([](P& p) { p.head_dim = 7; }), "D is 7; it must be even"},
    {"a2_rms", kA2, Fused([](P& p) { p.norm_type = 3; }), "normType is 3; it must be 0 to 2"},
    {"a2_rms_added", kA2, Fused([](P& p) { p.norm_added_type = 4; }), "normAddedType is 4; it must be 0 to 2"},
    {"a2_rms_forward", kA2, Fused([](P& p) { p.norm_type = 3, p.backward = false; })},
    {"native_rms", kNative, Fused([](P& p) { p.norm_type = 4; })},
    {"native_norm_5", kNative, Fused([](P& p) { p.norm_type = 5; }), "normType is 5; it must be 0 to 4"},
    {"950_interleave", k950, Fused([](P& p) { p.rope_mode = RotaryMode::kInterleave; })},
    {"950_quarter", k950, Fused([](P& p) { p.rope_mode = RotaryMode::kQuarter; }),
     "its operator has no rope type quarter"},
    {"a2_interleave_half", kA2, Fused([](P& p) { p.rope_mode = RotaryMode::kInterleaveHalf; }),
     "its operator has no rope type interleave-half"},
    {"native_quarter", kNative, Fused([](P& p) { p.rope_mode = RotaryMode::kQuarter; })},
    {"native_quarter_of_6", kNative, Fused([](P& p) { p.head_dim = 6, p.rope_mode = RotaryMode::kQuarter; }),
     "D is 6; it must be divisible by 4"},
    {"a3_per_pair", kA3, Fused([](P& p) { p.per_pair_tables = true; }), "its operator has no tables per pair"},
    {"native_per_pair", kNative, Fused([](P& p) { p.per_pair_tables = true; })},
    {"a2_partial", kA2, Fused([](P& p) { p.rotary_dim = 4; }), "its operator has no partial rotary"},
    {"a2_whole", kA2, Fused([](P& p) { p.rotary_dim = 8; })},
    {"native_partial", kNative, Fused([](P& p) { p.head_dim = 9, p.rotary_dim = 4; })},
    {"native_partial_odd", kNative, Fused([](P& p) { p.rotary_dim = 5; }), "rotary_dim is 5; it must be even"},
    {"native_partial_of_none", kNative, Fused([](P& p) { p.rotary_dim = 0; }), "rotary_dim is 0; it must be 2 to D, 8"},
    {"native_partial_too_wide", kNative, Fused([](P& p) { p.rotary_dim = 10; }), "rotary_dim is 10; it must be 2 to D"},
    {"950_rope_start", k950, Fused([](P& p) { p.seq_rope = 2, p.rope_start = 1; }), "its operator has no rope_start"},
    {"native_rope_start", kNative, Fused([](P& p) { p.seq_rope = 2, p.rope_start = 4; })},
    {"native_rope_start_too_far", kNative, Fused([](P& p) { p.seq_rope = 2, p.rope_start = 5; }),
     "rope_start + seqRope is 7; it must be 1 to 6"},
    {"native_rope_start_negative", kNative, Fused([](P& p) { p.rope_start = -1; }), "rope_start is -1"},
    {"a2_all_extensions", kA2, Fused([](P& p) {
       p.rope_mode = RotaryMode::kQuarter, p.per_pair_tables = true, p.rotary_dim = 4, p.rope_start = 1;
     }),
     "its operator has no tables per pair, no partial rotary, no rope type quarter, no rope_start"},
    {"a2_extensions_unused", kA2,
     Fused([](P& p) { p.rope_mode = {}, p.per_pair_tables = true, p.rotary_dim = 4, p.rope_start = 1; })},
    {"950_order_2", k950, Fused([](P& p) { p.concat_order = 2; }), "concatOrder is 2; it must be 0 to 1"},
    {"a2_longest_tables", kA2, Fused([](P& p) { p.seq_key = 0; })},
    {"a2_tables_too_long", kA2, Fused([](P& p) { p.seq_rope = 7; }), "seqRope is 7; it must be 1 to 6"},
    {"native_tables_too_long", kNative, Fused([](P& p) { p.seq_rope = 7; }), "seqRope is 7; it must be 1 to 6"},
    {"a2_tables_of_none", kA2, Fused([](P& p) { p.seq_rope = 0; }), "seqRope is 0; it must be 1 to 6"},
    {"native_tables_of_none", kNative, Fused([](P& p) { p.seq_rope = 0; }), "seqRope is 0; it must be 1 to 6"},
    {"a2_tables_of_none_for_none", kA2, Fused([](P& p) { p.seq_rope = p.seq_key = p.seq_encoder_key = 0; })},
    {"a2_tables_unused", kA2, Fused([](P& p) { p.seq_rope = 99, p.rope_mode = {}; })},
    {"a2_tables_negative", kA2, Fused([](P& p) { p.seq_rope = -1; }), "seqRope is -1"},
    {"a2_overflow", kA2, Fused([](P& p) { p.seq_query = p.seq_key = std::numeric_limits<std::int64_t>::max(); })},
    {"a2_negative", kA2, Fused([](P& p) { p.seq_key = -4; }), "an extent is -4"},
    {"a2_grouped_heads", kA2, Fused([](P& p) { p.key_heads = 1; }), "key's N is 1; it must be query's, 3"},
    {"native_grouped_heads", kNative, Fused([](P& p) { p.key_heads = 1; })},
    {"a2_same_heads", kA2, Fused([](P& p) { p.key_heads = 3; })},
    {"a2_f64", kA2, Fused([](P& p) { p.dtype = DType::kF64; }), "f64"},
    {"native_f64", kNative, Fused([](P& p) { p.dtype = DType::kF64; })},
    {"950_bf16", k950, Fused([](P& p) { p.dtype = DType::kBF16; })},
    {"950_f32_tables", k950, Fused([](P& p) { p.dtype = DType::kF16, p.tables_dtype = DType::kF32; }),
     "the tables have type f32; it must be the activations', f16"},
    {"native_f32_tables", kNative, Fused([](P& p) { p.dtype = DType::kF16, p.tables_dtype = DType::kF32; })},
    {"native_f16_tables", kNative, Fused([](P& p) { p.tables_dtype = DType::kF16; }), "the tables have type f16"},
    {"a2_f32_weights", kA2, Fused([](P& p) { p.dtype = DType::kBF16, p.weights_dtype = DType::kF32; }),
     "the weights have type f32"},
    {"native_f32_weights", kNative, Fused([](P& p) { p.dtype = DType::kBF16, p.weights_dtype = DType::kF32; })},
    {"native_f64_weights", kNative, Fused([](P& p) { p.dtype = DType::kBF16, p.weights_dtype = DType::kF64; }),
     "the weights have type f64; it must be the activations', bf16, or f32"},
};

class CannFusedProfiles : public ::testing::TestWithParam<FusedCase> {};

TEST_P(CannFusedProfiles, AcceptsOrNamesTheRule) {
  const FusedCase& c = GetParam();
  const ProfileVerdict verdict = ExplainNormRopeConcat(c.problem, c.profile);
  EXPECT_EQ(verdict.product, Name(c.profile));
  EXPECT_EQ(verdict.accepted, c.refused == nullptr) << verdict.rule;
  EXPECT_EQ(verdict.rule.empty(), verdict.accepted);
  EXPECT_EQ(verdict.limits.empty() && verdict.readings.empty(), !verdict.accepted);
  if (c.refused != nullptr) {
    EXPECT_NE(verdict.rule.find(c.refused), std::string::npos) << verdict.rule;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, CannFusedProfiles, ::testing::ValuesIn(kFusedCases),
                         [](const ::testing::TestParamInfo<FusedCase>& test) { return std::string(test.param.what); });

// The library takes more than its C interface, which holds the products' limits.
TEST(CannFusedProfileExplain, NativeTellsWhatTheCInterfaceRefuses) {
  const ProfileVerdict rms = ExplainNormRopeConcat(Fused([](P& p) { p.norm_type = 4; }), kNative);
  EXPECT_TRUE(rms.accepted);
  EXPECT_EQ(rms.limits, "no limits beyond the operator's");
  EXPECT_TRUE(Remarks(rms, "the C interface refuses it: normType is 4; it must be 0 to 2"));
  EXPECT_TRUE(ExplainNormRopeConcat(Fused(), kNative).remarks.empty());
  EXPECT_TRUE(ExplainNormRopeConcat(Fused([](P& p) { p.norm_type = 4, p.backward = false; }), kNative).remarks.empty());
  EXPECT_TRUE(ExplainNormRopeConcat(Fused([](P& p) { p.norm_type = 5; }), kNative).remarks.empty());
}

TEST(CannProfileExplain, NativeTellsWhatTheCInterfaceRefuses) {
  const auto told = [](const RotaryProblem& problem, const char* words) {
    return Remarks(ExplainRotary(problem, kNative), words);
  };
  EXPECT_TRUE(told(Extended({2, 7, 5, 8}, {1, 7, 1, 4}, true, {}), "the C interface refuses it: its operator has no"));
  EXPECT_TRUE(told(Backward({6, 8}, {6, 8}), "the C interface refuses it: dy has rank 2"));
  EXPECT_TRUE(told(Forward({2, 7, 5, 8}, {1, 7, 1, 8}, DType::kF64), "the C interface refuses it: the type is f64"));
  EXPECT_TRUE(ExplainRotary(Backward({2, 7, 5, 8}, {1, 7, 1, 8}, 3), kNative).remarks.empty());
}

TEST(CannFusedProfileExplain, ProductsTellTheirLimits) {
  for (const Profile profile : {kA2, kA3, k950}) {
    const ProfileVerdict backward = ExplainNormRopeConcat(Fused(), profile);
    EXPECT_NE(backward.limits.find("D even, 1 to 1024"), std::string::npos) << backward.limits;
    EXPECT_NE(backward.limits.find("norm types 0 to 2"), std::string::npos) << backward.limits;
    const ProfileVerdict forward = ExplainNormRopeConcat(Fused([](P& p) { p.backward = false; }), profile);
    EXPECT_NE(forward.limits.find("norm types 0 to 4"), std::string::npos) << forward.limits;
    EXPECT_EQ(ExplainNormRopeConcat(Fused([](P& p) { p.head_dim = 7; }), profile).limits, "");
  }
}

TEST(CannFusedProfileExplain, NamesEveryProduct) {
  const std::vector<ProfileVerdict> verdicts = ExplainNormRopeConcat(Fused([](P& p) { p.head_dim = 1026; }));
  ASSERT_EQ(verdicts.size(), 7u);
  EXPECT_TRUE(verdicts[0].accepted);
  for (std::size_t i = 1; i < 7; ++i) EXPECT_FALSE(verdicts[i].accepted) << verdicts[i].product;
  EXPECT_EQ(verdicts[3].product, "ascend-950");
  EXPECT_NE(verdicts[4].rule.find("not offered"), std::string::npos);
}

}  // namespace
}  // namespace gyrograd::cann
