// Memory that outputs of a list of segments share, against sets of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/norm_rope_lists.h"
#include "tests/support/problem.h"
#include "tests/support/refusal.h"

namespace gyrograd::testing {
namespace {

// A view of [B, S, N, D] or the like at an address in a small arena: only an address, never read.
struct Placed {
  std::uintptr_t address = 0;
  Shape shape = {}, strides = {};
  std::size_t size = 2;

  ConstTensorView in() const { return {reinterpret_cast<const void*>(address), DType::kBF16, shape, strides}; }
  TensorView out() const { return {reinterpret_cast<void*>(address), DType::kBF16, shape, strides}; }

  // The address of every element, row-major over [B, S, N, D]; `transposed` for a view of [B, N, S, D].
  std::vector<std::uintptr_t> Elements(bool transposed) const {
    const int axes[4] = {0, transposed ? 2 : 1, transposed ? 1 : 2, 3};
    std::vector<std::uintptr_t> elements = {address};
    for (const int axis : axes) {
      std::vector<std::uintptr_t> more;
      for (const std::uintptr_t element : elements) {
        for (std::int64_t i = 0; i < shape[axis]; ++i) {
          more.push_back(element + 2 * static_cast<std::uintptr_t>(i * strides[axis]));
        }
      }
      elements = std::move(more);
    }
    return elements;
  }
};

// Segments without norm of dy and dx: the first forbidden pair, as "output other"; empty where there is none.
std::string FirstForbidden(const std::vector<Placed>& dys, const std::vector<Placed>& dxs) {
  const auto meet = [](const std::vector<std::uintptr_t>& a, const std::vector<std::uintptr_t>& b) {
    const std::set<std::uintptr_t> set(a.begin(), a.end());
    return std::any_of(b.begin(), b.end(), [&](std::uintptr_t element) { return set.count(element) != 0; });
  };
  for (std::size_t i = 0; i < dxs.size(); ++i) {
    const auto dx = dxs[i].Elements(false);
    for (std::size_t j = 0; j < dys.size(); ++j) {
      const auto dy = dys[j].Elements(true);
      const std::string output = "segments[" + std::to_string(i) + "].dx shares memory with segments[";
      if (meet(dx, dy) && (i != j || dx != dy)) return output + std::to_string(j) + "].dy";
      if (j < i && meet(dx, dxs[j].Elements(false))) return output + std::to_string(j) + "].dx";
    }
  }
  return "";
}

class RandomPlaces {
 public:
  RandomPlaces(std::uint64_t seed, std::int64_t arena) : random_(seed), arena_(arena) {}

  // [B, S, N, D] of 1 or 2 steps each, in any order of axes, with gaps.
  Placed Make() {
    Placed view;
    for (int axis = 0; axis < 4; ++axis) view.shape.push_back(1 + Below(2));
    view.strides.assign(4, 0);
    int order[4] = {0, 1, 2, 3};
    std::shuffle(order, order + 4, random_);
    std::int64_t stride = 1 + Below(3);
    for (const int axis : order) {
      view.strides[axis] = stride;
      stride *= view.shape[axis] + Below(2);
    }
    view.address = 0x10000 + 2 * static_cast<std::uintptr_t>(Below(arena_));
    return view;
  }
  static Placed Transposed(Placed view) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
    return view;
  }
  std::int64_t Below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

 private:
  Random random_;
  std::int64_t arena_;
};

// How many of `runs` random lists were refused; each with the first forbidden pair in its message.
int CompareWithSets(int runs, std::size_t segments, std::int64_t arena) {
  int refused = 0;
  for (int run = 0; run < runs; ++run) {
    RandomPlaces places(static_cast<std::uint64_t>(run), arena);
    std::vector<Placed> dys, dxs;
    BackwardList list;
    for (std::size_t i = 0; i < segments; ++i) {
      dxs.push_back(places.Make());
      Placed dy = places.Make();
      dy.shape = dxs.back().shape;
      if (places.Below(2)) dy = dxs.back();  // in place
      dys.push_back(RandomPlaces::Transposed(dy));
    }
    for (std::size_t i = 0; i < segments; ++i) list.segments.push_back({.dy = dys[i].in(), .dx = dxs[i].out()});
    const Status status = ValidateNormRopeBackward(list.args());
    const std::string expected = FirstForbidden(dys, dxs);
    if (expected.empty()) {
      EXPECT_TRUE(Ok(status)) << "run " << run;
    } else {
      EXPECT_TRUE(Refused(status, StatusCode::kInvalidAlias, {expected})) << "run " << run;
    }
    refused += !expected.empty();
  }
  return refused;
}

TEST(NormRopeValidate, SharingIsDecidedExactly) {
  const int refused = CompareWithSets(2000, 3, 150);
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 1500);
}

// More outputs than are compared at once.
TEST(NormRopeValidate, SharingAmongManySegments) {
  const int refused = CompareWithSets(30, 150, 1500000);
  EXPECT_GT(refused, 5);
  EXPECT_LT(refused, 25);
}

}  // namespace
}  // namespace gyrograd::testing
