// Memory of the tensors of one problem, and the traffic that they stand for.
#ifndef GYROGRAD_BENCH_TENSORS_H_
#define GYROGRAD_BENCH_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bench/roof.h"
#include "gyrograd/tensor_view.h"
#include "problems/layout.h"

namespace gyrograd::bench {

class Tensors {
 public:
  enum class Role { kRead, kWritten };

  // What a tensor is before it has memory.
  struct Form {
    DType dtype;
    problems::Shape shape;
    problems::Layout layout = problems::Layout::kContiguous;
  };

  // Inputs are filled with finite numbers of ordinary size, outputs touched. Views live as long as this object.
  TensorView Add(Role role, const Form& form);
  // Two tensors one after the other, one stream of the traffic: those of an image and a text stream.
  std::vector<TensorView> AddTogether(Role role, const std::vector<Form>& forms);

  const Traffic& traffic() const { return traffic_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Extents {
    problems::Shape shape, strides;
  };

  std::byte* Allocate(std::size_t bytes);

  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
  std::deque<Extents> extents_;
  Traffic traffic_;
};

inline ConstTensorView AsInput(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

}  // namespace gyrograd::bench

#endif  // GYROGRAD_BENCH_TENSORS_H_
