// Descriptions: creating, asking and destroying them.
#include <gtest/gtest.h>

#include <memory>

#include "aclnn/acl_meta.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {
namespace {

using Query = aclnnStatus (*)(const aclTensor*, int64_t**, uint64_t*);

// What the query hands out, which the caller deletes.
Shape Ask(Query query, const aclTensor* tensor) {
  std::int64_t* values = nullptr;
  std::uint64_t count = 0;
  EXPECT_EQ(query(tensor, &values, &count), 0);
  const std::unique_ptr<std::int64_t[]> owner(values);
  return Shape(values, values + count);
}

TEST(CannTensor, HoldsWhatItWasGiven) {
  const Shape shape = {2, 3, 4};
  const Shape strides = {40, -4, 1};
  const std::int64_t stored = 1000;
  int data = 0;
  const TensorHandle tensor(
      aclCreateTensor(shape.data(), 3, ACL_BF16, strides.data(), 17, ACL_FORMAT_NCL, &stored, 1, &data));
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(Ask(aclGetViewShape, tensor.get()), shape);
  EXPECT_EQ(Ask(aclGetViewStrides, tensor.get()), strides);
  EXPECT_EQ(Ask(aclGetStorageShape, tensor.get()), Shape{1000});
  std::int64_t offset = 0;
  aclDataType type = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  void* address = nullptr;
  EXPECT_EQ(aclGetViewOffset(tensor.get(), &offset), 0);
  EXPECT_EQ(aclGetDataType(tensor.get(), &type), 0);
  EXPECT_EQ(aclGetFormat(tensor.get(), &format), 0);
  EXPECT_EQ(aclGetRawTensorAddr(tensor.get(), &address), 0);
  EXPECT_EQ(offset, 17);
  EXPECT_EQ(type, ACL_BF16);
  EXPECT_EQ(format, ACL_FORMAT_NCL);
  EXPECT_EQ(address, &data);
  EXPECT_EQ(aclSetRawTensorAddr(tensor.get(), nullptr), 0);
  EXPECT_EQ(aclGetRawTensorAddr(tensor.get(), &address), 0);
  EXPECT_EQ(address, nullptr);
}

TEST(CannTensor, NullStridesMeanContiguous) {
  const Shape shape = {2, 3, 4};
  EXPECT_EQ(Ask(aclGetViewStrides, MakeHandle(shape, ACL_FLOAT, nullptr).get()), (Shape{12, 4, 1}));
}

TEST(CannTensor, RankZero) {
  const TensorHandle tensor(aclCreateTensor(nullptr, 0, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr));
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(Ask(aclGetViewShape, tensor.get()), Shape{});
}

TEST(CannTensor, NullDimensionsGiveNull) {
  const std::int64_t one = 1;
  EXPECT_EQ(aclCreateTensor(nullptr, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &one, 1, nullptr), nullptr);
  EXPECT_NE(RecentMessages().find("viewDims is null"), std::string::npos);
  EXPECT_EQ(aclCreateTensor(&one, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 1, nullptr), nullptr);
  EXPECT_NE(RecentMessages().find("storageDims is null"), std::string::npos);
}

TEST(CannTensor, QueriesRefuseNull) {
  const TensorHandle tensor = MakeHandle({1}, ACL_FLOAT, nullptr);
  std::int64_t* values = nullptr;
  std::uint64_t count = 7;
  for (const Query query : {aclGetViewShape, aclGetViewStrides, aclGetStorageShape}) {
    EXPECT_TRUE(Gives(query(nullptr, &values, &count), 161001, {"tensor is null"}));
    EXPECT_TRUE(Gives(query(tensor.get(), nullptr, &count), 161001));
    EXPECT_TRUE(Gives(query(tensor.get(), &values, nullptr), 161001));
  }
  EXPECT_EQ(values, nullptr);
  EXPECT_EQ(count, 7u);
  std::int64_t offset = 0;
  EXPECT_TRUE(Gives(aclGetViewOffset(nullptr, &offset), 161001));
  EXPECT_TRUE(Gives(aclGetDataType(tensor.get(), nullptr), 161001));
  EXPECT_TRUE(Gives(aclGetFormat(tensor.get(), nullptr), 161001));
  EXPECT_TRUE(Gives(aclGetRawTensorAddr(tensor.get(), nullptr), 161001));
  EXPECT_TRUE(Gives(aclSetRawTensorAddr(nullptr, nullptr), 161001));
}

TEST(CannMeta, DestroyingNullSucceeds) {
  EXPECT_EQ(aclDestroyTensor(nullptr), 0);
  EXPECT_EQ(aclDestroyScalar(nullptr), 0);
  EXPECT_EQ(aclDestroyIntArray(nullptr), 0);
  EXPECT_EQ(aclDestroyFloatArray(nullptr), 0);
  EXPECT_EQ(aclDestroyBoolArray(nullptr), 0);
  EXPECT_EQ(aclDestroyTensorList(nullptr), 0);
}

TEST(CannMeta, OtherDescriptions) {
  double value = 2.5;
  const std::int64_t ints[] = {1, 2, 3};
  const float floats[] = {1.5f, 2.5f};
  const bool bools[] = {true, false};
  const aclTensor* tensors[] = {MakeHandle({1}, ACL_FLOAT, nullptr).release(),
                                MakeHandle({2}, ACL_FLOAT, nullptr).release()};
  aclScalar* scalar = aclCreateScalar(&value, ACL_DOUBLE);
  aclIntArray* int_array = aclCreateIntArray(ints, 3);
  aclFloatArray* float_array = aclCreateFloatArray(floats, 2);
  aclBoolArray* bool_array = aclCreateBoolArray(bools, 2);
  aclTensorList* list = aclCreateTensorList(tensors, 2);
  ASSERT_NE(scalar, nullptr);
  ASSERT_NE(int_array, nullptr);
  ASSERT_NE(float_array, nullptr);
  ASSERT_NE(bool_array, nullptr);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(aclDestroyScalar(scalar), 0);
  EXPECT_EQ(aclDestroyIntArray(int_array), 0);
  EXPECT_EQ(aclDestroyFloatArray(float_array), 0);
  EXPECT_EQ(aclDestroyBoolArray(bool_array), 0);
  EXPECT_EQ(aclDestroyTensorList(list), 0);  // its tensors too
}

TEST(CannMeta, NullContentsGiveNull) {
  EXPECT_EQ(aclCreateScalar(nullptr, ACL_FLOAT), nullptr);
  EXPECT_EQ(aclCreateIntArray(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateFloatArray(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateBoolArray(nullptr, 1), nullptr);
  EXPECT_EQ(aclCreateTensorList(nullptr, 1), nullptr);
  int value = 0;
  EXPECT_EQ(aclCreateScalar(&value, ACL_STRING), nullptr);
  EXPECT_NE(RecentMessages().find("data type 13"), std::string::npos);
}

}  // namespace
}  // namespace gyrograd::testing
