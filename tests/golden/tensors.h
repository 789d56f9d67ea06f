// The tensors of a golden problem: random values at random strides, and a hash of what a call wrote. Under valgrind's
// memcheck the gaps between elements are out of bounds, and outputs are undefined until they are written.
#ifndef GYROGRAD_TESTS_GOLDEN_TENSORS_H_
#define GYROGRAD_TESTS_GOLDEN_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "gyrograd/status.h"
#include "gyrograd/tensor_view.h"
#include "tests/golden/numbers.h"

namespace gyrograd::golden {

using Shape = std::vector<std::int64_t>;

inline ConstTensorView AsInput(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

enum class Values { kSigned, kPositive };

// What a problem was and came to.
struct Outcome {
  std::string problem;
  std::uint64_t hash = 0;
  std::string error;  // of a call that failed
};

class Tensors {
 public:
  // Draws whether infinities, NaN, zeros and denormals are among the values.
  explicit Tensors(Numbers& numbers) : numbers_(numbers), special_(numbers.OneIn(4)) {}

  ConstTensorView Input(const char* name, DType dtype, const Shape& shape, Values values = Values::kSigned);
  TensorView Output(const char* name, DType dtype, const Shape& shape);
  // An input that the call overwrites.
  TensorView InPlace(const char* name, DType dtype, const Shape& shape);
  // Of rank 4, with axes 1 and 2 exchanged.
  TensorView Swapped(const TensorView& view);

  // The name of each tensor with its type, shape and strides, and more words.
  void Say(const std::string& words) { said_ += " " + words; }
  // Calls, then hashes the memory of every output, gaps included.
  Outcome Run(const std::function<Status()>& call);

 private:
  struct Tensor {
    DType dtype;
    Shape shape, strides;
    std::int64_t origin = 0;  // in elements
    std::vector<std::byte> memory;
    bool read = false, written = false;
  };

  Tensor& Add(const char* name, DType dtype, const Shape& shape, bool read, bool written);
  void ChooseStrides(Tensor& tensor, bool input_alone);
  void Fill(Tensor& tensor, Values values);
  std::uint64_t ValueBits(DType dtype, Values values);

  Numbers& numbers_;
  bool special_;
  std::string said_;
  std::deque<Tensor> tensors_;  // views refer to their shapes and strides
  std::deque<Shape> swapped_;
};

}  // namespace gyrograd::golden

#endif  // GYROGRAD_TESTS_GOLDEN_TENSORS_H_
