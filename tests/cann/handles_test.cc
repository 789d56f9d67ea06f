// Handles that are none: invented, foreign, of another kind, destroyed. Every call that takes one refuses it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"
#include "aclnn/opdev/op_errno.h"
#include "tests/cann/norm_rope_concat_support.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

constexpr std::int64_t kInts[] = {3, 1, 2};
constexpr float kFloats[] = {1.5f, -2.5f, 3};

aclTensor* NewTensor() {
  static float data[8] = {};
  return MakeHandle({1, 1, 1, 8}, ACL_FLOAT, data).release();
}

// One handle that is no tensor's, and how to be rid of what stands behind it.
struct Imposter {
  const char* what;
  std::function<void*()> make;
  std::function<void(void*)> drop = [](void*) {};

  friend void PrintTo(const Imposter& imposter, std::ostream* out) { *out << imposter.what; }
};

const Imposter kImposters[] = {
    {"invented", [] { return reinterpret_cast<void*>(16); }},
    {"odd", [] { return reinterpret_cast<void*>(~std::uintptr_t{0}); }},
    {"memory",
     [] {
       static float floats[64] = {1, 2, 3};
       return static_cast<void*>(floats);
     }},
    {"destroyed",
     [] {
       aclTensor* tensor = NewTensor();
       EXPECT_EQ(aclDestroyTensor(tensor), 0);
       return static_cast<void*>(tensor);
     }},
    {"float_array", [] { return static_cast<void*>(aclCreateFloatArray(kFloats, 3)); },
     [](void* handle) { EXPECT_EQ(aclDestroyFloatArray(static_cast<aclFloatArray*>(handle)), 0); }},
    {"executor",
     [] {
       GradProblem problem;
       EXPECT_EQ(problem.Plan(), 0);
       return static_cast<void*>(problem.executor);
     },
     [](void* handle) { EXPECT_EQ(aclDestroyAclOpExecutor(static_cast<aclOpExecutor*>(handle)), 0); }},
    {"stream",
     [] {
       aclrtStream stream = nullptr;
       EXPECT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
       return static_cast<void*>(stream);
     },
     [](void* handle) { EXPECT_EQ(aclrtDestroyStream(handle), ACL_SUCCESS); }},
};

// A tensor handle that is none, for a test's duration; every test below gets each of them.
class CannBadTensor : public ::testing::TestWithParam<Imposter> {
 protected:
  CannBadTensor() : handle_(GetParam().make()) {}
  ~CannBadTensor() override { GetParam().drop(handle_); }

  aclTensor* tensor() const { return static_cast<aclTensor*>(handle_); }

 private:
  void* handle_;
};

std::string NoTensor(const std::string& name) { return "): " + name + " is no tensor"; }

// The first phase with a handle in place of one array's own.
template <class Problem>
aclnnStatus PlanWith(Problem& problem, Array& array, aclTensor* handle) {
  TensorHandle own = array.Take();
  array.Describe(TensorHandle(handle));
  const aclnnStatus status = problem.Plan();
  static_cast<void>(array.Take().release());
  array.Describe(std::move(own));
  return status;
}

TEST_P(CannBadTensor, IsRefusedByTheRotaryBackward) {
  GradProblem p;
  const std::pair<const char*, Array*> arrays[] = {{"dy", &p.dy},    {"cos", &p.cos},      {"sin", &p.sin},
                                                   {"dxOut", &p.dx}, {"dcosOut", &p.dcos}, {"dsinOut", &p.dsin}};
  const std::vector<std::byte> dx = p.dx.bytes();
  for (const bool with_x : {true, false}) {
    p.with_x = with_x;
    for (const auto& [name, array] : arrays) {
      EXPECT_TRUE(Gives(PlanWith(p, *array, tensor()), ACLNN_ERR_PARAM_INVALID, {NoTensor(name)})) << with_x;
    }
  }
  p.with_x = true;
  EXPECT_TRUE(Gives(PlanWith(p, p.x, tensor()), ACLNN_ERR_PARAM_INVALID, {NoTensor("xOptional")}));
  EXPECT_EQ(p.executor, nullptr);
  EXPECT_EQ(p.workspace_size, ~std::uint64_t{0});
  EXPECT_EQ(p.dx.bytes(), dx);
}

TEST_P(CannBadTensor, IsRefusedByTheRotaryForward) {
  ForwardProblem p;
  const std::pair<const char*, Array*> arrays[] = {{"x", &p.x}, {"cos", &p.cos}, {"sin", &p.sin}, {"out", &p.out}};
  for (const auto& [name, array] : arrays) {
    EXPECT_TRUE(Gives(PlanWith(p, *array, tensor()), ACLNN_ERR_PARAM_INVALID, {NoTensor(name)}));
  }
  EXPECT_EQ(p.executor, nullptr);
}

// Types and streams that call for every tensor.
template <class Problem>
void ExpectEachRefused(aclTensor* bad) {
  Problem problem;
  for (const FusedParameter& parameter : problem.parameters) {
    EXPECT_TRUE(
        Gives(PlanWith(problem, problem[parameter.name], bad), ACLNN_ERR_PARAM_INVALID, {NoTensor(parameter.name)}));
  }
  EXPECT_EQ(problem.executor, nullptr);
  EXPECT_TRUE(problem.OnlyChanged({}));
}

TEST_P(CannBadTensor, IsRefusedByTheFusedBackward) { ExpectEachRefused<FusedGradProblem>(tensor()); }
TEST_P(CannBadTensor, IsRefusedByTheFusedForward) { ExpectEachRefused<FusedForwardProblem>(tensor()); }

// An RMS norm's rstd is looked at where it is given.
TEST_P(CannBadTensor, IsRefusedAsTheRstdOfAnRmsNorm) {
  FusedForwardProblem problem(DType::kF32, {}, {.norm_type = 3});
  EXPECT_TRUE(
      Gives(PlanWith(problem, problem["normKeyRstd"], tensor()), ACLNN_ERR_PARAM_INVALID, {NoTensor("normKeyRstd")}));
}

// What the types do not call for is not looked at, whatever it is.
TEST_P(CannBadTensor, IsNotLookedAtWhereItIsNotCalledFor) {
  FusedGradProblem problem(DType::kF32, {}, {.norm_type = 0});
  for (const char* name : {"normQueryWeight", "normQueryMean", "gradNormQueryBias"}) {
    ASSERT_TRUE(Gives(PlanWith(problem, problem[name], tensor()), 0)) << name;
    ASSERT_TRUE(Gives(problem.Run(), 0)) << name;
    EXPECT_TRUE(problem.Check()) << name;
  }
}

TEST_P(CannBadTensor, IsRefusedByQueries) {
  std::int64_t* values = nullptr;
  std::uint64_t count = 7;
  for (const auto query : {aclGetViewShape, aclGetViewStrides, aclGetStorageShape}) {
    EXPECT_TRUE(Gives(query(tensor(), &values, &count), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  }
  EXPECT_EQ(values, nullptr);
  EXPECT_EQ(count, 7u);
  std::int64_t offset = 7;
  aclDataType type = ACL_BF16;
  aclFormat format = ACL_FORMAT_NCL;
  void* address = &offset;
  EXPECT_TRUE(Gives(aclGetViewOffset(tensor(), &offset), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  EXPECT_TRUE(Gives(aclGetDataType(tensor(), &type), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  EXPECT_TRUE(Gives(aclGetFormat(tensor(), &format), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  EXPECT_TRUE(Gives(aclGetRawTensorAddr(tensor(), &address), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  EXPECT_TRUE(Gives(aclSetRawTensorAddr(tensor(), &offset), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  EXPECT_EQ(offset, 7);
  EXPECT_EQ(type, ACL_BF16);
  EXPECT_EQ(format, ACL_FORMAT_NCL);
  EXPECT_EQ(address, &offset);
}

TEST_P(CannBadTensor, IsRefusedByDestroying) {
  EXPECT_TRUE(Gives(aclDestroyTensor(tensor()), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
}

// The executor's own address stays.
TEST_P(CannBadTensor, IsRefusedByMovingAnExecutorsData) {
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), 0);
  std::vector<float> elsewhere(4096, 3.0f);
  for (const auto set : {aclSetInputTensorAddr, aclSetOutputTensorAddr, aclSetTensorAddr, AclSetInputTensorAddr,
                         AclSetOutputTensorAddr, AclSetTensorAddr}) {
    EXPECT_TRUE(
        Gives(set(problem.executor, 0, tensor(), elsewhere.data()), ACLNN_ERR_PARAM_INVALID, {NoTensor("tensor")}));
  }
  ASSERT_TRUE(Gives(problem.Run(), 0));
  EXPECT_TRUE(problem.Check());
}

TEST_P(CannBadTensor, IsRefusedInAList) {
  const aclTensor* tensors[] = {NewTensor(), tensor()};
  EXPECT_EQ(aclCreateTensorList(tensors, 2), nullptr);
  EXPECT_TRUE(Gives(161002, 161002, {NoTensor("value[1]")}));
  EXPECT_EQ(aclDestroyTensor(tensors[0]), 0);  // still there
}

INSTANTIATE_TEST_SUITE_P(Handles, CannBadTensor, ::testing::ValuesIn(kImposters),
                         [](const ::testing::TestParamInfo<Imposter>& test) { return std::string(test.param.what); });

// Null comes first, handles before whatever is read through them.
TEST(CannBadHandlePrecedence, NullThenHandlesThenData) {
  GradProblem p;
  auto* const bad = reinterpret_cast<aclTensor*>(16);
  p.mode = 9;
  p.cos.Describe(MakeHandle(p.cos.shape(), ACL_FLOAT, nullptr));
  TensorHandle dx = p.dx.Take();
  EXPECT_TRUE(Gives(PlanWith(p, p.sin, bad), ACLNN_ERR_PARAM_NULLPTR, {"dxOut is null"}));
  p.dx.Describe(std::move(dx));
  EXPECT_TRUE(Gives(PlanWith(p, p.sin, bad), ACLNN_ERR_PARAM_INVALID, {NoTensor("sin")}));
  EXPECT_TRUE(Gives(p.Plan(), ACLNN_ERR_PARAM_NULLPTR, {"cos", "no data"}));
}

// ---- destroying twice

struct Kind {
  const char* what;
  std::function<void*()> make;
  std::function<int(void*)> destroy;
  int refused = ACLNN_ERR_PARAM_INVALID;

  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.what; }
};

template <class Object>
std::function<int(void*)> With(aclnnStatus (*destroy)(const Object*)) {
  return [destroy](void* handle) { return destroy(static_cast<Object*>(handle)); };
}

template <class Create>
std::function<void*()> Made(Create create) {
  return [create] {
    void* object = nullptr;
    EXPECT_EQ(create(&object), ACL_SUCCESS);
    return object;
  };
}

const Kind kKinds[] = {
    {"tensor", [] { return static_cast<void*>(NewTensor()); }, With(aclDestroyTensor)},
    {"scalar",
     [] {
       double value = 2.5;
       return static_cast<void*>(aclCreateScalar(&value, ACL_DOUBLE));
     },
     With(aclDestroyScalar)},
    {"int_array", [] { return static_cast<void*>(aclCreateIntArray(kInts, 3)); }, With(aclDestroyIntArray)},
    {"float_array", [] { return static_cast<void*>(aclCreateFloatArray(kFloats, 3)); }, With(aclDestroyFloatArray)},
    {"bool_array",
     [] {
       const bool values[] = {true, false, true};
       return static_cast<void*>(aclCreateBoolArray(values, 3));
     },
     With(aclDestroyBoolArray)},
    {"tensor_list",
     [] {
       const aclTensor* tensors[] = {NewTensor(), nullptr, NewTensor()};
       return static_cast<void*>(aclCreateTensorList(tensors, 3));
     },
     With(aclDestroyTensorList)},
    {"executor",
     [] {
       GradProblem problem;
       EXPECT_EQ(problem.Plan(), 0);
       return static_cast<void*>(problem.executor);
     },
     [](void* handle) { return aclDestroyAclOpExecutor(static_cast<aclOpExecutor*>(handle)); }},
    {"stream", Made(aclrtCreateStream), aclrtDestroyStream, ACL_ERROR_INVALID_PARAM},
    {"event", Made(aclrtCreateEvent), aclrtDestroyEvent, ACL_ERROR_INVALID_PARAM},
    {"context", Made([](void** context) { return aclrtCreateContext(context, 0); }), aclrtDestroyContext,
     ACL_ERROR_INVALID_PARAM},
    {"memory", Made([](void** address) { return aclrtMalloc(address, 100, ACL_MEM_MALLOC_NORMAL_ONLY); }), aclrtFree,
     ACL_ERROR_INVALID_PARAM},
    {"host_memory", Made([](void** address) { return aclrtMallocHost(address, 100); }), aclrtFreeHost,
     ACL_ERROR_INVALID_PARAM},
};

class CannHandle : public ::testing::TestWithParam<Kind> {};

TEST_P(CannHandle, IsDestroyedOnce) {
  void* const handle = GetParam().make();
  ASSERT_NE(handle, nullptr);
  EXPECT_TRUE(Gives(GetParam().destroy(handle), 0));
  EXPECT_TRUE(Gives(GetParam().destroy(handle), GetParam().refused, {" is no "}));
}

TEST_P(CannHandle, ThatWasNeverMadeIsNotDestroyed) {
  alignas(64) char somewhere[64] = {};
  for (void* handle : {static_cast<void*>(somewhere), reinterpret_cast<void*>(16)}) {
    EXPECT_TRUE(Gives(GetParam().destroy(handle), GetParam().refused, {" is no "}));
  }
}

// A handle of one kind is none of another; a refused one lives on.
TEST_P(CannHandle, IsOfItsOwnKind) {
  void* const handle = GetParam().make();
  for (const Kind& other : kKinds) {
    const std::string what = GetParam().what;
    // Both ways to allocate give memory of one kind.
    const bool alike = other.what == what || (what.ends_with("memory") && std::string(other.what).ends_with("memory"));
    if (alike) continue;
    EXPECT_TRUE(Gives(other.destroy(handle), other.refused, {" is no "})) << other.what;
  }
  EXPECT_TRUE(Gives(GetParam().destroy(handle), 0));
}

INSTANTIATE_TEST_SUITE_P(Kinds, CannHandle, ::testing::ValuesIn(kKinds),
                         [](const ::testing::TestParamInfo<Kind>& test) { return std::string(test.param.what); });

TEST(CannTensorList, TellsOfTensorsThatWereDestroyedBefore) {
  const aclTensor* tensors[] = {NewTensor(), NewTensor(), NewTensor()};
  aclTensorList* list = aclCreateTensorList(tensors, 3);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(aclDestroyTensor(tensors[1]), 0);
  EXPECT_TRUE(Gives(aclDestroyTensorList(list), ACLNN_ERR_PARAM_INVALID, {NoTensor("array's value[1]")}));
  for (const aclTensor* tensor : tensors) EXPECT_TRUE(Gives(aclDestroyTensor(tensor), ACLNN_ERR_PARAM_INVALID));
  EXPECT_TRUE(Gives(aclDestroyTensorList(list), ACLNN_ERR_PARAM_INVALID, {"array is no list of tensors"}));
}

// ---- streams of the second phase

// A single-use executor is released by any run but one whose workspace is refused.
TEST(CannBadStream, IsRefusedByTheSecondPhase) {
  aclrtStream destroyed = nullptr;
  ASSERT_EQ(aclrtCreateStream(&destroyed), ACL_SUCCESS);
  ASSERT_EQ(aclrtDestroyStream(destroyed), ACL_SUCCESS);
  for (aclrtStream stream : {destroyed, reinterpret_cast<aclrtStream>(16)}) {
    GradProblem problem;
    ASSERT_EQ(problem.Plan(), 0);
    const std::vector<std::byte> dx = problem.dx.bytes();
    EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGrad(nullptr, 0, nullptr, stream), ACLNN_ERR_PARAM_NULLPTR,
                      {"executor is null"}));
    EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGrad(nullptr, 0, problem.executor, stream), ACLNN_ERR_PARAM_INVALID,
                      {"): stream is no stream"}));
    EXPECT_EQ(problem.dx.bytes(), dx);
    EXPECT_TRUE(Gives(problem.Run(), ACLNN_ERR_PARAM_INVALID, {"executor is no executor"}));
  }
}

TEST(CannBadStream, IsRefusedByEverySecondPhase) {
  const auto stream = reinterpret_cast<aclrtStream>(16);
  ForwardProblem forward;
  FusedGradProblem fused_grad;
  FusedForwardProblem fused_forward;
  ASSERT_EQ(forward.Plan(), 0);
  ASSERT_EQ(fused_grad.Plan(), 0);
  ASSERT_EQ(fused_forward.Plan(), 0);
  std::vector<std::byte> workspace(1 << 20);
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbedding(workspace.data(), workspace.size(), forward.executor, stream), 161002,
                    {"stream is no stream"}));
  EXPECT_TRUE(Gives(aclnnNormRopeConcatBackward(workspace.data(), workspace.size(), fused_grad.executor, stream),
                    161002, {"stream is no stream"}));
  EXPECT_TRUE(Gives(aclnnNormRopeConcat(workspace.data(), workspace.size(), fused_forward.executor, stream), 161002,
                    {"stream is no stream"}));
  EXPECT_TRUE(fused_grad.OnlyChanged({}));
}

TEST(CannStreams, RunASecondPhase) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  GradProblem problem;
  ASSERT_EQ(problem.Plan(), 0);
  EXPECT_TRUE(Gives(aclnnRotaryPositionEmbeddingGrad(nullptr, 0, problem.executor, stream), 0));
  EXPECT_TRUE(problem.Check());
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

// ---- never given twice

TEST(CannTensorHandle, IsNeverGivenTwice) {
  aclTensor* const first = NewTensor();
  ASSERT_EQ(aclDestroyTensor(first), 0);
  for (int i = 0; i < 100; ++i) {
    aclTensor* const next = NewTensor();
    EXPECT_NE(next, first);
    std::int64_t offset = 0;
    EXPECT_TRUE(Gives(aclGetViewOffset(first, &offset), ACLNN_ERR_PARAM_INVALID));
    ASSERT_EQ(aclDestroyTensor(next), 0);
  }
}

}  // namespace
}  // namespace gyrograd::testing
