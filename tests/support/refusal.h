// Cases of refused and of legal calls: what is changed in a call that is legal, the code and the words of the message.
#ifndef GYROGRAD_TESTS_SUPPORT_REFUSAL_H_
#define GYROGRAD_TESTS_SUPPORT_REFUSAL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gyrograd/status.h"
#include "tests/support/tensor.h"

namespace gyrograd::testing {

inline constexpr std::int64_t kHuge = std::int64_t{1} << 62;

// Arguments that a case changes, with the arrays that changed shapes and strides refer to.
template <class Args>
struct Call {
  Args args;
  std::vector<std::unique_ptr<Shape>> arrays = {};

  std::span<const std::int64_t> Keep(Shape values) {
    arrays.push_back(std::make_unique<Shape>(std::move(values)));
    return *arrays.back();
  }
  // The view gets another shape, and the strides of a contiguous tensor of that shape (zeros where that would
  // overflow).
  template <class View>
  void Reshape(View& view, const Shape& shape) {
    view.shape = Keep(shape);
    bool huge = false;
    for (const std::int64_t extent : shape) huge = huge || extent > 1000 || extent < 0;
    view.strides = Keep(huge ? Shape(shape.size(), 0) : StridesOf(Layout::kContiguous, shape));
  }
};

// Tensors that stay where they are, filled with random values.
struct TensorStore {
  Random random{7};
  std::deque<Tensor> tensors = {};

  const Tensor& Make(DType type, const Shape& shape, Layout layout = Layout::kContiguous) {
    tensors.emplace_back(type, shape, layout);
    tensors.back().FillRandom(random);
    tensors.back().Remember();
    return tensors.back();
  }
  ConstTensorView In(DType type, const Shape& shape, Layout layout = Layout::kContiguous) {
    return Make(type, shape, layout).in();
  }
  TensorView Out(DType type, const Shape& shape, Layout layout = Layout::kContiguous) {
    return Make(type, shape, layout).out();
  }
  void ExpectUnchanged() const {
    for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(tensors[i].Unchanged("tensor " + std::to_string(i)));
  }
};

template <class View>
void Misalign(View& view) {
  view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) + 1);
}

template <class Args>
struct Refusal {
  const char* name;
  std::function<void(Call<Args>&)> change;
  StatusCode code;
  std::vector<std::string> words;
};

// A change after which the call is still legal.
template <class Args>
struct Freedom {
  const char* name;
  std::function<void(Call<Args>&)> change;
};

template <class Args>
void PrintTo(const Refusal<Args>& refusal, std::ostream* out) {
  *out << refusal.name;
}

template <class Args>
void PrintTo(const Freedom<Args>& freedom, std::ostream* out) {
  *out << freedom.name;
}

// The same of a plan's run, whose addresses are changed.
template <class Pointers>
struct RunRefusal {
  const char* name;
  std::function<void(Pointers&)> change;
  StatusCode code;
  std::vector<std::string> words;
};

template <class Pointers>
void PrintTo(const RunRefusal<Pointers>& refusal, std::ostream* out) {
  *out << refusal.name;
}

template <class Pointer>
Pointer* Shifted(Pointer* address, std::ptrdiff_t bytes) {
  return const_cast<char*>(static_cast<const char*>(address)) + bytes;
}

// Names the tests of any.
template <class Case>
std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_REFUSAL_H_
