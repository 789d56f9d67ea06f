// Tensors for tests: memory in a chosen layout, with guard bytes before it, after it and in every gap.
#ifndef GYROGRAD_TESTS_SUPPORT_TENSOR_H_
#define GYROGRAD_TESTS_SUPPORT_TENSOR_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gyrograd/tensor_view.h"
#include "problems/layout.h"

namespace gyrograd::testing {

using problems::Count;
using problems::kInputLayouts;
using problems::kOutputLayouts;
using problems::Layout;
using problems::Shape;
using problems::StridesOf;
using problems::ToString;
using Random = std::mt19937_64;

// What surrounds the elements.
enum class Placement {
  kGuarded,    // guard bytes on both sides
  kPageEnd,    // the last byte is the last one of a page, and the next page cannot be touched
  kPageStart,  // the first byte is the first one of a page, and the page before cannot be touched
};

const char* Name(Placement placement);

class Tensor {
 public:
  Tensor(DType dtype, const Shape& shape, Layout layout = Layout::kContiguous,
         Placement placement = Placement::kGuarded);
  // Any strides; element (0, ..., 0) stands `misalignment` elements beyond an address that 64 divides, for positive
  // strides.
  Tensor(DType dtype, const Shape& shape, const Shape& strides, std::int64_t misalignment = 0,
         Placement placement = Placement::kGuarded);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  void* data() const { return origin_; }

  // Views refer to this tensor's shape and strides.
  TensorView out() const { return {origin_, dtype_, shape_, strides_}; }
  ConstTensorView in() const { return {origin_, dtype_, shape_, strides_}; }

  double Get(const Shape& index) const;
  void Set(const Shape& index, double value);

  // Element by element in row-major order; the argument of `value` is the row-major number.
  void Fill(const std::function<double(std::int64_t)>& value);
  void Fill(const std::vector<double>& values);
  // Values of either sign with magnitudes from 1/8 to 8.
  void FillRandom(Random& random);
  // Guard bytes again, everywhere.
  void Clear() const;
  // The bit patterns of 16-bit and 32-bit types.
  void FillBits(const std::function<std::uint32_t(std::int64_t)>& bits);

  // Row-major, with one bit pattern for every NaN.
  std::vector<std::uint64_t> Bits() const;
  std::vector<double> Values() const;

  // Remembers every byte, for the two questions below.
  void Remember();
  ::testing::AssertionResult Unchanged(const std::string& name) const;
  // Every byte that belongs to no element is as it was.
  ::testing::AssertionResult GuardsIntact(const std::string& name) const;

 private:
  void Allocate(std::int64_t misalignment, Placement placement);
  void MarkOwnBytes();
  void* ElementAt(const Shape& index) const;
  // Calls body(number, address) for each element, numbered row-major.
  template <class Body>
  void ForEach(const Body& body) const;
  // Once for those that share memory along an axis of stride 0.
  template <class Body>
  void ForEachDistinct(const Body& body) const;
  // For those of index below `extents`.
  template <class Body>
  void ForEachWithin(const Shape& extents, const Body& body) const;

  DType dtype_;
  Shape shape_;
  Shape strides_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
  std::byte* origin_ = nullptr;
  std::vector<char> own_;  // 1 for each byte of an element
  std::vector<std::byte> remembered_;
};

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_TENSOR_H_
