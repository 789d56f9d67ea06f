// The runtime subset: memory, streams, events, contexts, devices, scalar helpers, messages.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"
#include "reference/elements.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

TEST(CannRuntime, InitAndFinalize) {
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_TRUE(Gives(aclInit("acl.json"), ACL_ERROR_REPEAT_INITIALIZE, {"aclInit"}));
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_TRUE(Gives(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE));
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_EQ(aclnnInit(nullptr), 0);
  EXPECT_EQ(aclnnFinalize(), 0);
}

TEST(CannRuntime, Devices) {
  std::uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  EXPECT_TRUE(Gives(aclrtSetDevice(1), ACL_ERROR_INVALID_PARAM, {"deviceId is 1"}));
  EXPECT_TRUE(Gives(aclrtResetDevice(-1), ACL_ERROR_INVALID_PARAM, {"deviceId is -1"}));
  std::int32_t device = -1;
  EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_TRUE(Gives(aclrtGetDevice(nullptr), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtGetDeviceCount(nullptr), ACL_ERROR_INVALID_PARAM));
  EXPECT_STREQ(aclrtGetSocName(), "CPU");
  aclrtRunMode mode = ACL_DEVICE;
  EXPECT_EQ(aclrtGetRunMode(&mode), ACL_SUCCESS);
  EXPECT_EQ(mode, ACL_HOST);
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
  EXPECT_GT(free, 0u);
  EXPECT_GE(total, free);
  EXPECT_TRUE(Gives(aclrtGetMemInfo(ACL_HBM_MEM, nullptr, &total), ACL_ERROR_INVALID_PARAM));
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
}

TEST(CannRuntime, Options) {
  EXPECT_EQ(aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1), ACL_SUCCESS);
  EXPECT_EQ(aclrtCtxSetSysParamOpt(ACL_OPT_ENABLE_KERNEL_EARLY_START, 0), ACL_SUCCESS);
}

TEST(CannMemory, AllocatesAlignedAndFrees) {
  for (const std::size_t size : {1, 63, 64, 65, 100000}) {
    void* device = nullptr;
    void* host = nullptr;
    ASSERT_EQ(aclrtMalloc(&device, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocHost(&host, size), ACL_SUCCESS);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device) % 64, 0u);
    std::memset(device, 1, size);
    std::memset(host, 2, size);
    EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(host), ACL_SUCCESS);
  }
}

TEST(CannMemory, Refusals) {
  void* memory = &memory;
  EXPECT_TRUE(Gives(aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_ERROR_INVALID_PARAM, {"size is 0"}));
  EXPECT_TRUE(Gives(aclrtMallocHost(&memory, 0), ACL_ERROR_INVALID_PARAM, {"size is 0"}));
  EXPECT_EQ(memory, static_cast<void*>(&memory));
  EXPECT_TRUE(Gives(aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtFreeHost(nullptr), ACL_ERROR_INVALID_PARAM));
  const std::size_t all = std::numeric_limits<std::size_t>::max();
  EXPECT_TRUE(Gives(aclrtMalloc(&memory, all, ACL_MEM_MALLOC_HUGE_ONLY), ACL_ERROR_BAD_ALLOC));
}

TEST(CannMemory, CopiesWithinTheDestination) {
  const char from[8] = "abcdefg";
  for (int kind = 0; kind <= 4; ++kind) {
    char to[8] = "-------";
    EXPECT_EQ(aclrtMemcpy(to, 8, from, 5, static_cast<aclrtMemcpyKind>(kind)), ACL_SUCCESS);
    EXPECT_STREQ(to, "abcde--");
  }
  char to[8] = "-------";
  EXPECT_TRUE(Gives(aclrtMemcpy(to, 4, from, 5, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM,
                    {"count is 5", "4 bytes"}));
  EXPECT_TRUE(Gives(aclrtMemcpyAsync(to, 4, from, 5, ACL_MEMCPY_HOST_TO_DEVICE, nullptr), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(
      Gives(aclrtMemcpy(to, 8, from, 5, static_cast<aclrtMemcpyKind>(5)), ACL_ERROR_INVALID_PARAM, {"kind is 5"}));
  EXPECT_TRUE(Gives(aclrtMemcpy(nullptr, 8, from, 5, ACL_MEMCPY_DEFAULT), ACL_ERROR_INVALID_PARAM, {"dst"}));
  EXPECT_TRUE(Gives(aclrtMemcpy(to, 8, nullptr, 5, ACL_MEMCPY_DEFAULT), ACL_ERROR_INVALID_PARAM, {"src"}));
  EXPECT_STREQ(to, "-------");
  EXPECT_EQ(aclrtMemcpy(to, 8, from, 0, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(nullptr, 0, nullptr, 0, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
  EXPECT_STREQ(to, "-------");
  EXPECT_EQ(aclrtMemcpyAsync(to, 8, from, 8, ACL_MEMCPY_DEVICE_TO_HOST, nullptr), ACL_SUCCESS);
  EXPECT_STREQ(to, from);
}

TEST(CannMemory, Sets) {
  unsigned char bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(aclrtMemset(bytes, 8, 0x1AB, 3), ACL_SUCCESS);
  EXPECT_EQ(bytes[2], 0xAB);
  EXPECT_EQ(bytes[3], 4);
  EXPECT_EQ(aclrtMemsetAsync(bytes, 8, 0, 8, nullptr), ACL_SUCCESS);
  EXPECT_EQ(bytes[7], 0);
  EXPECT_TRUE(Gives(aclrtMemset(bytes, 8, 9, 9), ACL_ERROR_INVALID_PARAM, {"count is 9"}));
  EXPECT_TRUE(Gives(aclrtMemset(nullptr, 8, 9, 8), ACL_ERROR_INVALID_PARAM));
  EXPECT_EQ(aclrtMemset(nullptr, 8, 9, 0), ACL_SUCCESS);
  EXPECT_EQ(bytes[0], 0);
}

TEST(CannStreams, LiveUntilDestroyed) {
  aclrtStream streams[2] = {};
  ASSERT_EQ(aclrtCreateStream(&streams[0]), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateStreamWithConfig(&streams[1], 0, ACL_STREAM_FAST_SYNC), ACL_SUCCESS);
  EXPECT_NE(streams[0], nullptr);
  EXPECT_NE(streams[0], streams[1]);
  for (aclrtStream stream : {streams[0], streams[1], aclrtStream{nullptr}}) {
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, -1), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, 100), ACL_SUCCESS);
    EXPECT_TRUE(Gives(aclrtSynchronizeStreamWithTimeout(stream, -2), ACL_ERROR_INVALID_PARAM, {"-2"}));
  }
  EXPECT_EQ(aclrtDestroyStream(streams[0]), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStreamForce(streams[1]), ACL_SUCCESS);
  EXPECT_TRUE(Gives(aclrtDestroyStream(streams[0]), ACL_ERROR_INVALID_PARAM, {"destroyed"}));
  EXPECT_TRUE(Gives(aclrtSynchronizeStream(streams[1]), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtDestroyStream(nullptr), ACL_ERROR_INVALID_PARAM, {"stream is null"}));
  EXPECT_TRUE(Gives(aclrtCreateStream(nullptr), ACL_ERROR_INVALID_PARAM));
  char byte = 0;
  EXPECT_TRUE(Gives(aclrtMemsetAsync(&byte, 1, 1, 1, streams[0]), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtMemcpyAsync(&byte, 1, &byte, 1, ACL_MEMCPY_DEFAULT, &byte), ACL_ERROR_INVALID_PARAM));
  EXPECT_EQ(byte, 0);
}

TEST(CannEvents, LiveUntilDestroyed) {
  aclrtStream stream = nullptr;
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS);
  EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(stream, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(nullptr, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
  EXPECT_TRUE(Gives(aclrtRecordEvent(stream, stream), ACL_ERROR_INVALID_PARAM, {"event"}));
  EXPECT_TRUE(Gives(aclrtStreamWaitEvent(event, event), ACL_ERROR_INVALID_PARAM, {"stream"}));
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  EXPECT_TRUE(Gives(aclrtDestroyEvent(event), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtSynchronizeEvent(nullptr), ACL_ERROR_INVALID_PARAM, {"event is null"}));
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

TEST(CannContexts, AreThoseOfTheThread) {
  aclrtContext original = nullptr;
  ASSERT_EQ(aclrtGetCurrentContext(&original), ACL_SUCCESS);
  EXPECT_NE(original, nullptr);
  aclrtContext created = nullptr;
  ASSERT_EQ(aclrtCreateContext(&created, 0), ACL_SUCCESS);
  EXPECT_NE(created, original);
  aclrtContext current = nullptr;
  EXPECT_EQ(aclrtGetCurrentContext(&current), ACL_SUCCESS);
  EXPECT_EQ(current, created);
  std::thread([&] {
    aclrtContext others = nullptr;
    EXPECT_EQ(aclrtGetCurrentContext(&others), ACL_SUCCESS);
    EXPECT_EQ(others, original);
    EXPECT_EQ(aclrtSetCurrentContext(created), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetCurrentContext(&others), ACL_SUCCESS);
    EXPECT_EQ(others, created);
  }).join();
  EXPECT_EQ(aclrtDestroyContext(created), ACL_SUCCESS);
  EXPECT_EQ(aclrtGetCurrentContext(&current), ACL_SUCCESS);
  EXPECT_EQ(current, original);
  EXPECT_TRUE(Gives(aclrtSetCurrentContext(created), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtDestroyContext(created), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtDestroyContext(original), ACL_ERROR_INVALID_PARAM));
  EXPECT_TRUE(Gives(aclrtCreateContext(&created, 1), ACL_ERROR_INVALID_PARAM, {"deviceId is 1"}));
  EXPECT_TRUE(Gives(aclrtGetCurrentContext(nullptr), ACL_ERROR_INVALID_PARAM));
}

TEST(CannFloat16, EveryFiniteValueComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<aclFloat16>(bits);
    if ((half & 0x7C00) == 0x7C00) continue;
    const float value = aclFloat16ToFloat(half);
    ASSERT_EQ(static_cast<double>(value), reference::Load(&half, DType::kF16)) << bits;
    ASSERT_EQ(aclFloatToFloat16(value), half) << bits;
  }
}

TEST(CannFloat16, RoundsToNearestEven) {
  Random random(3);
  std::uniform_int_distribution<std::uint32_t> any;
  std::vector<float> values = {0.0f,       -0.0f,        0x1p-24f,     0x1p-25f,        0x1.000002p-25f,
                               0x1.8p-24f, 0x1.ffcp-15f, 0x1.ffep-15f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f,
                               65503.9f,   0x1p-149f,    2047.5f};
  for (int i = 0; i < 100000; ++i) {
    const std::uint32_t bits = any(random);
    float value = 0;
    std::memcpy(&value, &bits, 4);
    if (std::fabs(value) < 65504.0f) values.push_back(value);
  }
  std::uniform_real_distribution<float> narrow(-1e-4f, 1e-4f);
  for (int i = 0; i < 10000; ++i) values.push_back(narrow(random));
  for (const float value : values) {
    aclFloat16 want = 0;
    reference::Store(value, &want, DType::kF16);
    ASSERT_EQ(aclFloatToFloat16(value), want) << value;
  }
}

TEST(CannFloat16, Saturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(aclFloatToFloat16(infinity), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(-infinity), 0xFBFF);
  EXPECT_EQ(aclFloatToFloat16(nan), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(65504.0f), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(65519.0f), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(65520.0f), 0x7BFF);
  EXPECT_EQ(aclFloatToFloat16(-1e30f), 0xFBFF);
  EXPECT_EQ(aclFloat16ToFloat(0x7BFF), 65504.0f);
  EXPECT_EQ(aclFloat16ToFloat(0x7C00), 65536.0f);
  EXPECT_EQ(aclFloat16ToFloat(0xFC00), -65536.0f);
  EXPECT_EQ(aclFloat16ToFloat(0x7E00), 98304.0f);
}

TEST(CannTypes, Sizes) {
  EXPECT_EQ(aclDataTypeSize(ACL_FLOAT), 4u);
  EXPECT_EQ(aclDataTypeSize(ACL_FLOAT16), 2u);
  EXPECT_EQ(aclDataTypeSize(ACL_BF16), 2u);
  EXPECT_EQ(aclDataTypeSize(ACL_INT8), 1u);
  EXPECT_EQ(aclDataTypeSize(ACL_BOOL), 1u);
  EXPECT_EQ(aclDataTypeSize(ACL_INT64), 8u);
  EXPECT_EQ(aclDataTypeSize(ACL_DOUBLE), 8u);
  EXPECT_EQ(aclDataTypeSize(ACL_COMPLEX128), 16u);
  EXPECT_EQ(aclDataTypeSize(ACL_DT_UNDEFINED), 0u);
  EXPECT_EQ(aclDataTypeSize(ACL_STRING), 0u);
}

TEST(CannMessages, AreTheThreadsOwn) {
  EXPECT_EQ(aclrtSetDevice(9), ACL_ERROR_INVALID_PARAM);
  std::thread([] {
    EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
    EXPECT_EQ(aclrtSetDevice(8), ACL_ERROR_INVALID_PARAM);
    EXPECT_NE(RecentMessages().find("deviceId is 8"), std::string::npos);
  }).join();
  const std::string mine = RecentMessages();
  EXPECT_NE(mine.find("aclrtSetDevice"), mine.npos);
  EXPECT_NE(mine.find("deviceId is 9"), mine.npos);
  EXPECT_EQ(mine.find("deviceId is 8"), mine.npos);
}

// The values that programs were compiled with.
TEST(CannValues, Enumerations) {
  EXPECT_EQ(aclDataType::ACL_FLOAT, 0);
  EXPECT_EQ(ACL_DT_UNDEFINED, -1);
  EXPECT_EQ(ACL_BF16, 27);
  EXPECT_EQ(ACL_COMPLEX32, 33);
  EXPECT_EQ(ACL_FLOAT4_E1M2, 41);
  EXPECT_EQ(aclFormat::ACL_FORMAT_ND, 2);
  EXPECT_EQ(ACL_FORMAT_UNDEFINED, -1);
  EXPECT_EQ(ACL_FORMAT_NDHWC, 27);
  EXPECT_EQ(ACL_FORMAT_NCDHW, 30);
  EXPECT_EQ(ACL_FORMAT_NCL, 47);
  EXPECT_EQ(ACL_MEMCPY_DEFAULT, 4);
  EXPECT_EQ(ACL_MEM_MALLOC_NORMAL_ONLY_P2P, 5);
  EXPECT_EQ(ACL_OPT_ENABLE_KERNEL_EARLY_START, 3);
  EXPECT_EQ(ACL_ERROR_INVALID_PARAM, 100000);
  EXPECT_EQ(ACL_ERROR_REPEAT_INITIALIZE, 100002);
  EXPECT_EQ(ACL_ERROR_BAD_ALLOC, 200000);
  EXPECT_EQ(ACL_ERROR_INTERNAL_ERROR, 500000);
  EXPECT_EQ(ACL_ERROR_FAILURE, 500001);
}

}  // namespace
}  // namespace gyrograd::testing
