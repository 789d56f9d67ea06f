// Problems made ready for timing: the bytes that they move, what they write, what is refused.
#include "bench/contestant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/turns.h"

namespace gyrograd::bench {
namespace {

struct Bytes {
  const char* problem;
  std::size_t read;
  std::size_t written;
};

class Traffics : public ::testing::TestWithParam<Bytes> {};

TEST_P(Traffics, AreThoseOfInputsAndOutputs) {
  Contestant contestant;
  const Status status = MakeContestant(GetParam().problem, &contestant);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(contestant.problem, GetParam().problem);
  EXPECT_EQ(contestant.traffic.BytesRead(), GetParam().read);
  EXPECT_EQ(contestant.traffic.BytesWritten(), GetParam().written);
}

INSTANTIATE_TEST_SUITE_P(
    All, Traffics,
    ::testing::Values(
        Bytes{"rotary:types=bf16,dy=2x3x4x8,tables=1x3x1x8,outputs=dx", 2 * (192 + 2 * 24), 2 * 192},
        Bytes{"rotary:types=bf16/f32,dy=2x3x4x8,tables=1x3x1x8", 2 * 2 * 192 + 4 * 2 * 24, 2 * 192 + 4 * 2 * 24},
        Bytes{"rotary:dy=2x3x4x8,tables=1x3x1x8,outputs=dsin", 4 * (2 * 192 + 2 * 24), 4 * 24},
        Bytes{"rotary:dy=2x3x4x8,tables=1x3x1x8,outputs=dx,dy_layout=packed,dx_layout=padded_rows", 4 * (192 + 2 * 24),
              4 * 192},
        Bytes{"rotary:dy=2x3x4x8,tables=1x3x1x8,outputs=dx,dy_layout=expanded_first", 4 * (96 + 2 * 24), 4 * 192},
        // Joint gradients of query, key, value: (4 + 2) rows of 3 heads of 8; no norm, so nothing else is read.
        Bytes{"norm_rope_concat:heads=3,head_dim=8,query=4,key=4,encoder_query=2,encoder_key=2", 4 * 3 * 144,
              4 * 3 * 144},
        // With the rows of query and key, their mean and rstd, four weights, two tables; and dweight and dbias.
        Bytes{"norm_rope_concat:heads=3,head_dim=8,query=4,key=4,encoder_query=2,encoder_key=2,norm=layer_affine,"
              "norm_added=layer_affine,rotary=half,rope=6",
              4 * (5 * 144 + 2 * 2 * 18 + 4 * 8 + 2 * 6 * 8), 4 * (3 * 144 + 8 * 8)}));

class Runs : public ::testing::TestWithParam<const char*> {};

// A call and a run of the plan write every byte of the outputs, whatever was in them, and the same.
TEST_P(Runs, WriteTheirOutputs) {
  Contestant contestant;
  const Status status = MakeContestant(GetParam(), &contestant);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto outputs_after = [&](const std::function<Status()>& work, int before) {
    for (const auto& stream : contestant.traffic.writes) std::memset(stream.data(), before, stream.size());
    EXPECT_TRUE(work().ok());
    std::vector<std::vector<std::byte>> written;
    for (const auto& stream : contestant.traffic.writes) written.emplace_back(stream.begin(), stream.end());
    return written;
  };
  EXPECT_EQ(outputs_after(contestant.call, 0xff), outputs_after(contestant.run, 0x11));
}

INSTANTIATE_TEST_SUITE_P(
    All, Runs,
    ::testing::Values("rotary:mode=quarter,dy=2x3x4x8,tables=1x3x1x8,threads=1",
                      "norm_rope_concat:heads=3,head_dim=8,query=64,key=64,encoder_query=64,"
                      "encoder_key=64,norm=rms_affine,norm_added=layer,rotary=interleave,rope=64"));

TEST(Contestants, AreRefusedWithTheirReason) {
  Contestant contestant;
  EXPECT_EQ(MakeContestant("rotary:dy=8", &contestant).message(), "problem: tables is missing");
  EXPECT_EQ(MakeContestant("rotary:dy=6,tables=6,mode=quarter", &contestant).code(), StatusCode::kInvalidShape);
  EXPECT_EQ(MakeContestant("rotary:dy=1152921504606846976,tables=1", &contestant).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(MakeContestant("rope:dy=8,tables=8", &contestant).message(),
            "problem: it is no problem of rotary: it must start with 'rotary:'");
}

TEST(TakeTurns, GivesATimeARound) {
  std::vector<Contestant> contestants(2);
  for (Contestant& each : contestants) {
    ASSERT_TRUE(MakeContestant("rotary:dy=2x3x4x8,tables=1x3x1x8,threads=1", &each).ok());
  }
  std::vector<Times> times;
  ASSERT_TRUE(TakeTurns(contestants, 3, 1, &times).ok());
  ASSERT_EQ(times.size(), 2u);
  for (const Times& each : times) {
    EXPECT_EQ(each.run.size(), 3u);
    EXPECT_GT(*std::ranges::min_element(each.run), 0);
    for (const auto& roof : each.roofs) EXPECT_EQ(roof.size(), 3u);
  }
}

}  // namespace
}  // namespace gyrograd::bench
