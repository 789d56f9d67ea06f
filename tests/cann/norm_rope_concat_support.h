// A problem of the fused operators as a user of the C interface sets it up: every tensor of the argument list by its
// name, and the two phases.
#ifndef GYROGRAD_TESTS_CANN_NORM_ROPE_CONCAT_SUPPORT_H_
#define GYROGRAD_TESTS_CANN_NORM_ROPE_CONCAT_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aclnnop/aclnn_norm_rope_concat.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"
#include "gyrograd/norm_rope_concat.h"
#include "tests/cann/support.h"

namespace gyrograd::testing {

// Extents that differ, so that none can stand for another. No length: that stream is absent.
struct FusedShape {
  std::int64_t batch = 2;
  std::int64_t heads = 3;
  std::int64_t head_dim = 8;
  std::int64_t query = 5;
  std::int64_t key = 4;
  std::optional<std::int64_t> encoder_query = 1;
  std::optional<std::int64_t> encoder_key = 6;
  std::int64_t rope = 5;

  std::int64_t joint_query() const { return query + encoder_query.value_or(0); }
  std::int64_t joint_key() const { return key + encoder_key.value_or(0); }
};

struct FusedAttributes {
  std::int64_t norm_type = 2;
  std::int64_t norm_added_type = 2;
  std::int64_t rope_type = 2;
  std::int64_t concat_order = 0;
  double eps = 1e-5;
  bool training = true;
};

enum class Role {
  kJoint,      // [B, N, S of both, D]
  kStream,     // [B, S, N, D]
  kStatistic,  // [B, S, N, 1], f32
  kVector,     // [D]
  kTable,      // [L, D]
};

enum class Part { kQuery, kKey, kEncoderQuery, kEncoderKey };

struct FusedParameter {
  const char* name;
  Role role;
  Part part;  // of a joint tensor: kQuery or kKey
  bool required;
};

// The argument lists, in their order.
std::span<const FusedParameter> GradParameters();
std::span<const FusedParameter> ForwardParameters();
inline constexpr std::size_t kGradInputs = 21;
inline constexpr std::size_t kForwardInputs = 16;

Shape ShapeOf(const FusedParameter& parameter, const FusedShape& shape);

// The arrays of a call. The handle of an absent stream is null; everything else is given, called for or not.
class FusedArrays {
 public:
  FusedArrays(std::span<const FusedParameter> parameters, DType dtype, const FusedShape& shape,
              const FusedAttributes& attributes, std::uint64_t seed);

  Array& operator[](std::string_view name) { return arrays[IndexOf(name)]; }
  const Array& operator[](std::string_view name) const { return arrays[IndexOf(name)]; }
  // Null in place of the tensor.
  void Omit(std::string_view name) { (*this)[name].Describe(nullptr); }
  std::size_t IndexOf(std::string_view name) const;
  std::int64_t norm(Part part) const;
  bool has(Part part) const;

  // Success where no array but those named has changed since the problem was made.
  ::testing::AssertionResult OnlyChanged(const std::vector<std::string>& names) const;

  std::span<const FusedParameter> parameters;
  DType dtype;
  FusedShape shape;
  FusedAttributes attributes;
  std::vector<Array> arrays;
  std::vector<std::vector<std::byte>> before;
  std::uint64_t workspace_size = ~std::uint64_t{0};
  aclOpExecutor* executor = nullptr;
};

struct FusedGradProblem : FusedArrays {
  explicit FusedGradProblem(DType type = DType::kF32, const FusedShape& extents = {},
                            const FusedAttributes& values = {}, std::uint64_t seed = 1)
      : FusedArrays(GradParameters(), type, extents, values, seed) {}

  aclnnStatus Plan();
  aclnnStatus Run();
  ::testing::AssertionResult PlanAndRun();

  // The outputs that the types and streams call for.
  std::vector<std::string> Wanted() const;
  // The same call of the C++ interface, from the arrays' memory.
  NormRopeConcatBackwardArgs Args();
  // Against the witness; and whether everything but the wanted outputs is as it was.
  ::testing::AssertionResult Check();
};

struct FusedForwardProblem : FusedArrays {
  explicit FusedForwardProblem(DType type = DType::kF32, const FusedShape& extents = {},
                               const FusedAttributes& values = {}, std::uint64_t seed = 1)
      : FusedArrays(ForwardParameters(), type, extents, values, seed) {}

  aclnnStatus Plan();
  aclnnStatus Run();
  ::testing::AssertionResult PlanAndRun();
  std::vector<std::string> Wanted() const;
  NormRopeConcatArgs Args();
  ::testing::AssertionResult Check();
};

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_CANN_NORM_ROPE_CONCAT_SUPPORT_H_
