// Names of public enumerations, sizes of types, the version, the default status.
#include "gyrograd/status.h"

#include <gtest/gtest.h>

#include <string>

#include "gyrograd/gyrograd.h"

namespace gyrograd::testing {
namespace {

TEST(Names, OfEveryEnumeration) {
  EXPECT_STREQ(Name(StatusCode::kOk), "kOk");
  EXPECT_STREQ(Name(StatusCode::kNullPointer), "kNullPointer");
  EXPECT_STREQ(Name(StatusCode::kInvalidType), "kInvalidType");
  EXPECT_STREQ(Name(StatusCode::kInvalidAttribute), "kInvalidAttribute");
  EXPECT_STREQ(Name(StatusCode::kMissingArgument), "kMissingArgument");
  EXPECT_STREQ(Name(StatusCode::kInvalidShape), "kInvalidShape");
  EXPECT_STREQ(Name(StatusCode::kInvalidAlias), "kInvalidAlias");
  EXPECT_STREQ(Name(StatusCode::kWorkspaceTooSmall), "kWorkspaceTooSmall");
  EXPECT_STREQ(Name(StatusCode::kOutOfMemory), "kOutOfMemory");
  EXPECT_STREQ(Name(StatusCode::kInternal), "kInternal");
  EXPECT_STREQ(Name(DType::kF64), "f64");
  EXPECT_STREQ(Name(DType::kF32), "f32");
  EXPECT_STREQ(Name(DType::kF16), "f16");
  EXPECT_STREQ(Name(DType::kBF16), "bf16");
  EXPECT_STREQ(Name(CpuTarget::kBest), "best");
  EXPECT_STREQ(Name(CpuTarget::kAvx512), "avx512");
  EXPECT_STREQ(Name(CpuTarget::kAvx2), "avx2");
  EXPECT_STREQ(Name(CpuTarget::kNeon), "neon");
  EXPECT_STREQ(Name(CpuTarget::kPortable), "portable");
  EXPECT_STREQ(Name(RotaryMode::kHalf), "half");
  EXPECT_STREQ(Name(RotaryMode::kInterleave), "interleave");
  EXPECT_STREQ(Name(RotaryMode::kQuarter), "quarter");
  EXPECT_STREQ(Name(RotaryMode::kInterleaveHalf), "interleave-half");
  EXPECT_STREQ(Name(static_cast<RotaryMode>(4)), "unknown");
}

TEST(DTypes, Sizes) {
  EXPECT_EQ(SizeOf(DType::kF64), 8u);
  EXPECT_EQ(SizeOf(DType::kF32), 4u);
  EXPECT_EQ(SizeOf(DType::kF16), 2u);
  EXPECT_EQ(SizeOf(DType::kBF16), 2u);
}

TEST(Status, HoldsCodeAndMessage) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_TRUE(ok.message().empty());
  const Status refused(StatusCode::kInvalidShape, "why");
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidShape);
  EXPECT_EQ(refused.message(), "why");
}

TEST(Execution, Defaults) {
  EXPECT_GE(DefaultNumThreads(), 1);
  EXPECT_EQ(std::string(Version()).find_first_not_of("0123456789."), std::string::npos);
  EXPECT_EQ(Execution{}.num_threads, 0);
  EXPECT_EQ(Execution{}.cpu_target, CpuTarget::kBest);
}

}  // namespace
}  // namespace gyrograd::testing
