// The overlap test against sets of bytes, on random small views.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/tensor.h"

namespace gyrograd::testing {
namespace {

using internal::SameElements;
using internal::SharesBytes;
using internal::SharesWithItself;
using internal::Sharing;

// A view that is never read: its data is only an address.
struct View {
  DType dtype = DType::kF32;
  Shape shape, strides;
  std::int64_t address = 1 << 20;

  ConstTensorView view() const { return {reinterpret_cast<const void*>(address), dtype, shape, strides}; }

  // The address of every element.
  std::vector<std::int64_t> Elements() const {
    std::vector<std::int64_t> elements = {address};
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      std::vector<std::int64_t> more;
      for (const std::int64_t element : elements) {
        for (std::int64_t i = 0; i < shape[axis]; ++i) {
          more.push_back(element + i * strides[axis] * static_cast<std::int64_t>(SizeOf(dtype)));
        }
      }
      elements = more;
    }
    return elements;
  }

  std::set<std::int64_t> Bytes() const {
    std::set<std::int64_t> bytes;
    for (const std::int64_t element : Elements()) {
      for (std::size_t byte = 0; byte < SizeOf(dtype); ++byte) bytes.insert(element + static_cast<std::int64_t>(byte));
    }
    return bytes;
  }
};

View RandomView(Random& random) {
  const auto below = [&](std::uint64_t limit) { return static_cast<std::int64_t>(random() % limit); };
  View view;
  view.dtype = std::array{DType::kF64, DType::kF32, DType::kF16, DType::kBF16}[random() % 4];
  const std::int64_t rank = 1 + below(4), reach = 1 + below(30);
  for (std::int64_t axis = 0; axis < rank; ++axis) {
    view.shape.push_back(random() % 12 == 0 ? 0 : 1 + below(4));
    view.strides.push_back(below(2 * static_cast<std::uint64_t>(reach) + 1) - reach);
  }
  view.address += below(60) * static_cast<std::int64_t>(SizeOf(view.dtype));
  return view;
}

bool Meet(const std::set<std::int64_t>& a, const std::set<std::int64_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](std::int64_t byte) { return b.count(byte) != 0; });
}

std::string Describe(const View& view) {
  std::ostringstream text;
  text << Name(view.dtype) << " " << ToString(view.shape) << " strides";
  for (const std::int64_t stride : view.strides) text << " " << stride;
  text << " at " << view.address;
  return text.str();
}

TEST(Overlap, AgreesWithSetsOfBytes) {
  Random random(1);
  int shared = 0, apart = 0;
  for (int i = 0; i < 20000; ++i) {
    const View a = RandomView(random), b = RandomView(random);
    const bool want = Meet(a.Bytes(), b.Bytes());
    ++(want ? shared : apart);
    const Sharing expected = want ? Sharing::kShared : Sharing::kNone;
    ASSERT_EQ(SharesBytes(a.view(), b.view()), expected) << Describe(a) << "; " << Describe(b);
    ASSERT_EQ(SharesBytes(b.view(), a.view()), expected) << Describe(a) << "; " << Describe(b);
  }
  EXPECT_GT(shared, 2000);
  EXPECT_GT(apart, 2000);
}

TEST(Overlap, OfAViewWithItself) {
  Random random(2);
  int shared = 0, apart = 0;
  for (int i = 0; i < 20000; ++i) {
    const View view = RandomView(random);
    std::vector<std::int64_t> elements = view.Elements();
    std::sort(elements.begin(), elements.end());
    const bool want = std::adjacent_find(elements.begin(), elements.end()) != elements.end();
    ++(want ? shared : apart);
    ASSERT_EQ(SharesWithItself(view.view()), want ? Sharing::kShared : Sharing::kNone) << Describe(view);
  }
  EXPECT_GT(shared, 2000);
  EXPECT_GT(apart, 2000);
}

// Slices of one packed buffer whose ranges interleave.
TEST(Overlap, SlicesOfAPackedBuffer) {
  const std::int64_t base = 1 << 20;
  const View q = {DType::kBF16, {8, 4096, 32, 128}, {50331648, 12288, 128, 1}, base};
  const View k = {DType::kBF16, {8, 4096, 32, 128}, {50331648, 12288, 128, 1}, base + 2 * 4096};
  const View k_late = {DType::kBF16, {8, 4096, 32, 128}, {50331648, 12288, 128, 1}, base + 2 * 4095};
  EXPECT_EQ(SharesBytes(q.view(), k.view()), Sharing::kNone);
  EXPECT_EQ(SharesBytes(q.view(), k_late.view()), Sharing::kShared);
  EXPECT_EQ(SharesWithItself(q.view()), Sharing::kNone);
  const View even = {DType::kF32, {1 << 20, 64}, {128, 2}, base},
             odd = {DType::kF32, {1 << 20, 64}, {128, 2}, base + 4};
  EXPECT_EQ(SharesBytes(even.view(), odd.view()), Sharing::kNone);
}

// Strides of axes of extent 1 mean nothing, whatever they are.
TEST(Overlap, StridesOfExtentOne) {
  const std::int64_t huge = std::int64_t{1} << 62;
  const View a = {DType::kF64, {1, 3, 1}, {huge, 1, INT64_MIN}, 1 << 20};
  View b = a;
  b.strides = {-5, 1, INT64_MAX};
  EXPECT_EQ(SharesWithItself(a.view()), Sharing::kNone);
  EXPECT_EQ(SharesBytes(a.view(), b.view()), Sharing::kShared);
  EXPECT_TRUE(SameElements(a.view(), b.view()));
  b.address += 24;
  EXPECT_EQ(SharesBytes(a.view(), b.view()), Sharing::kNone);
  EXPECT_FALSE(SameElements(a.view(), b.view()));
}

TEST(Overlap, SameElements) {
  const View a = {DType::kF32, {2, 3}, {3, 1}, 1 << 20};
  const auto differs = [&](const View& b) { return !SameElements(a.view(), b.view()); };
  EXPECT_FALSE(differs(a));
  EXPECT_TRUE(differs({DType::kF32, {2, 3}, {4, 1}, 1 << 20}));
  EXPECT_TRUE(differs({DType::kF32, {3, 2}, {3, 1}, 1 << 20}));
  EXPECT_TRUE(differs({DType::kF32, {6}, {1}, 1 << 20}));
  EXPECT_TRUE(differs({DType::kF64, {2, 3}, {3, 1}, 1 << 20}));
  EXPECT_TRUE(differs({DType::kF32, {2, 3}, {3, 1}, (1 << 20) + 4}));
}

// A subset-sum in disguise: the search may give up, but never says that views which meet do not.
TEST(Overlap, HardProblemsEndAndAreNotCalledApart) {
  Random random(3);
  int undecided = 0;
  for (int i = 0; i < 50; ++i) {
    View a = {DType::kF16, {}, {}, std::int64_t{1} << 50}, b = {DType::kF16, {1}, {1}, std::int64_t{1} << 50};
    for (int axis = 0; axis < 40; ++axis) {
      const auto stride = static_cast<std::int64_t>(random() % (std::uint64_t{1} << 34));
      a.shape.push_back(2);
      a.strides.push_back(stride);
      if (random() % 2 == 0) b.address += 2 * stride;
    }
    const Sharing found = SharesBytes(a.view(), b.view());
    EXPECT_NE(found, Sharing::kNone);
    undecided += found == Sharing::kUndecided;
  }
  EXPECT_GT(undecided, 0);
}

}  // namespace
}  // namespace gyrograd::testing
