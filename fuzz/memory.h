// The memory of a call under test: blocks of random bytes that views lie in, with fences around the elements of a
// call's views; what of it a call changed; and which views share bytes, by looking at every element.
#ifndef GYROGRAD_FUZZ_MEMORY_H_
#define GYROGRAD_FUZZ_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "fuzz/bytes.h"
#include "gyrograd/tensor_view.h"

namespace gyrograd::fuzz {

using Random = std::mt19937_64;
using Shape = std::vector<std::int64_t>;

// Prints the finding and ends the program, which is how a fuzzer learns of it.
[[noreturn]] void Report(const std::string& finding);

inline ConstTensorView In(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }
inline ConstTensorView In(const ConstTensorView& view) { return view; }
// A view of memory that is the fuzzer's own, whoever it was given to.
inline TensorView Out(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.dtype, view.shape, view.strides};
}

std::string ToString(const ConstTensorView& view);
bool IsEmpty(const ConstTensorView& view);
// Calls body(address) for each element, row-major. Offsets of axes of extent 1 are 0 whatever the stride.
void ForEachElement(const ConstTensorView& view, const std::function<void(std::byte*)>& body);

bool SharesBytes(const ConstTensorView& a, const ConstTensorView& b);
bool SharesWithItself(const ConstTensorView& view);
// The same elements in the same places.
bool SameElements(const ConstTensorView& a, const ConstTensorView& b);

// What values an input has.
enum class Values {
  kPlain,     // either sign, magnitudes from 1/8 to 8
  kWide,      // magnitudes over 24 binades
  kInfinite,  // some infinities, NaN, zeros of both signs
  kBits,      // any bits
  kPositive,  // from 1/8 to 8
  kTiny,      // some denormals, zeros of both signs
};
void Fill(const ConstTensorView& view, Values values, Random& random);

// Row-major strides.
Shape ContiguousStrides(std::span<const std::int64_t> shape);
// Strides under which no two elements meet: axes in any order, with gaps, of either sign, anything where the extent
// is 1.
Shape DistinctStrides(Bytes& bytes, std::span<const std::int64_t> shape);
// Small strides of any sign, 0 among them, so that elements often meet.
Shape FreeStrides(Bytes& bytes, std::span<const std::int64_t> shape);

class Memory {
 public:
  explicit Memory(std::uint64_t seed) : random_(seed) {}
  ~Memory() { Unfence(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Random& random() { return random_; }

  // Arrays that views refer to.
  std::span<const std::int64_t> Keep(Shape values);

  // A view of a block of its own, `shift` elements beyond an address that 64 divides. Strides that would need too large
  // a block are replaced by row-major ones.
  TensorView Make(DType dtype, const Shape& shape, const Shape& strides, std::int64_t shift = 0);
  // Row-major, in a block of its own, with the same values.
  TensorView Copy(const ConstTensorView& view);
  // Whether all elements lie within one block.
  bool Holds(const ConstTensorView& view) const;

  // From here on Restore brings back the bytes of now.
  void Remember();
  void Restore();
  // Every byte that belongs to no element of `views` is out of bounds, as far as the build can tell, until Unfence.
  void Fence(const std::vector<ConstTensorView>& views);
  void Unfence();
  // Whether bytes have changed, since Remember or since their block was made, that belong to no element of `outputs`.
  bool ChangedBeside(const std::vector<ConstTensorView>& outputs) const;

 private:
  struct Block {
    std::vector<std::byte> bytes;
    std::vector<std::byte> remembered;
  };
  // Which bytes of a block belong to elements of the views.
  static std::vector<char> Owned(const Block& block, const std::vector<ConstTensorView>& views);

  Random random_;
  std::deque<Block> blocks_;
  std::deque<Shape> arrays_;
};

}  // namespace gyrograd::fuzz

#endif  // GYROGRAD_FUZZ_MEMORY_H_
