// Strides, values and hashes of the golden problems' tensors.
#include "tests/golden/tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#ifdef GYROGRAD_MEMCHECK
#include <valgrind/memcheck.h>
#else
#define VALGRIND_MAKE_MEM_NOACCESS(address, bytes) static_cast<void>(address)
#define VALGRIND_MAKE_MEM_UNDEFINED(address, bytes) static_cast<void>(address)
#define VALGRIND_MAKE_MEM_DEFINED(address, bytes) static_cast<void>(address)
#define VALGRIND_CHECK_MEM_IS_DEFINED(address, bytes) static_cast<void>(address)
#define VALGRIND_COUNT_ERRORS 0u
#endif

namespace gyrograd::golden {
namespace {

// The bits of a floating-point type.
struct Format {
  int bits, mantissa_bits;

  std::uint64_t Sign() const { return std::uint64_t{1} << (bits - 1); }
  std::uint64_t One() const { return Infinity() / 2 >> mantissa_bits << mantissa_bits; }
  std::uint64_t Infinity() const { return Sign() - (std::uint64_t{1} << mantissa_bits); }
  std::uint64_t Nan() const { return Infinity() | std::uint64_t{1} << (mantissa_bits - 1); }
};

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF64: return {64, 52};
    case DType::kF32: return {32, 23};
    case DType::kF16: return {16, 10};
    case DType::kBF16: return {16, 7};
  }
  return {};
}

// Calls body(offset) for every element, in elements from the first one, once for those that share memory.
template <class Body>
void ForEachElement(Shape extents, const Shape& strides, const Body& body) {
  for (std::size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] == 0) return;
    if (strides[axis] == 0) extents[axis] = 1;
  }
  Shape index(extents.size(), 0);
  std::int64_t offset = 0;
  for (;;) {
    body(offset);
    std::size_t axis = extents.size();
    for (; axis > 0; --axis) {
      offset += strides[axis - 1];
      if (++index[axis - 1] < extents[axis - 1]) break;
      offset -= strides[axis - 1] * extents[axis - 1];
      index[axis - 1] = 0;
    }
    if (axis == 0) return;
  }
}

// Calls body(address) for every element of a tensor.
template <class Tensor, class Body>
void ForEachAddress(Tensor& tensor, const Body& body) {
  const auto size = static_cast<std::int64_t>(SizeOf(tensor.dtype));
  ForEachElement(tensor.shape, tensor.strides,
                 [&](std::int64_t offset) { body(tensor.memory.data() + (tensor.origin + offset) * size); });
}

std::string ToString(const Shape& numbers) {
  std::string text = "[";
  for (const std::int64_t number : numbers) text += std::to_string(number) + ",";
  text.back() = text.back() == ',' ? ']' : text.back();
  return text;
}

void MakeNanCanonical(std::byte* address, DType dtype) {
  const Format format = FormatOf(dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, address, SizeOf(dtype));
  if ((bits & ~format.Sign()) <= format.Infinity()) return;
  bits = format.Nan();
  std::memcpy(address, &bits, SizeOf(dtype));
}

std::uint64_t HashOf(const std::vector<std::byte>& memory, std::uint64_t hash) {
  for (std::size_t i = 0; i < memory.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, memory.data() + i, std::min<std::size_t>(8, memory.size() - i));
    hash = Mix(hash + word) + hash * 0x2545f4914f6cdd1d;
  }
  return hash;
}

constexpr std::byte kGap{0x5a};

}  // namespace

// ---- Strides ----------------------------------------------------------------------------------------------------

// Half of all tensors are contiguous. The others have their axes in any order, gaps, a step, axes that run backward;
// inputs alone may repeat their elements along an axis.
void Tensors::ChooseStrides(Tensor& tensor, bool input_alone) {
  const std::size_t rank = tensor.shape.size();
  std::vector<std::size_t> order(rank);  // from the innermost
  for (std::size_t i = 0; i < rank; ++i) order[i] = rank - 1 - i;
  const bool plain = numbers_.OneIn(2);
  if (!plain && numbers_.OneIn(2)) {
    // The last axis stays innermost in half of these.
    const std::size_t first = numbers_.OneIn(2) ? 1 : 0;
    for (std::size_t i = rank; i > first + 1; --i) {
      std::swap(order[i - 1],
                order[first + static_cast<std::size_t>(numbers_.Below(static_cast<std::int64_t>(i - first)))]);
    }
  }
  std::int64_t stride = !plain && numbers_.OneIn(4) ? numbers_.Between(2, 4) : 1;
  const std::int64_t gap = !plain && numbers_.OneIn(2) ? numbers_.Between(1, 5) : 0;
  tensor.strides.assign(rank, 0);
  for (const std::size_t axis : order) {
    if (!plain && input_alone && numbers_.OneIn(8)) continue;
    const bool backward = !plain && numbers_.OneIn(6);
    tensor.strides[axis] = backward ? -stride : stride;
    if (backward) tensor.origin += stride * std::max<std::int64_t>(tensor.shape[axis] - 1, 0);
    stride = stride * std::max<std::int64_t>(tensor.shape[axis], 1) + gap;
  }
}

Tensors::Tensor& Tensors::Add(const char* name, DType dtype, const Shape& shape, bool read, bool written) {
  tensors_.emplace_back();
  Tensor& tensor = tensors_.back();
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.read = read;
  tensor.written = written;
  ChooseStrides(tensor, !written);
  tensor.origin += numbers_.OneIn(3) ? numbers_.Between(1, 3) : 0;  // off an aligned address
  std::int64_t end = 0;
  ForEachElement(tensor.shape, tensor.strides, [&](std::int64_t offset) { end = std::max(end, offset + 1); });
  tensor.memory.assign(static_cast<std::size_t>(tensor.origin + end) * SizeOf(dtype), kGap);
  Say(std::string(name) + "=" + Name(dtype) + ToString(shape) + "/" + ToString(tensor.strides) + "+" +
      std::to_string(tensor.origin));
  return tensor;
}

// ---- Values -----------------------------------------------------------------------------------------------------

// Magnitudes from 1/8 to 8, and among special ones every 24th is something else.
std::uint64_t Tensors::ValueBits(DType dtype, Values values) {
  const Format format = FormatOf(dtype);
  const std::uint64_t random = numbers_.Next();
  const std::uint64_t mantissa = random & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  const std::uint64_t sign = values == Values::kSigned && random >> 63 != 0 ? format.Sign() : 0;
  if (special_ && numbers_.OneIn(24)) {
    const std::uint64_t choices[] = {0,        mantissa,          format.Infinity(), format.Infinity() - 1,
                                     mantissa, format.Infinity(), format.Nan(),      mantissa >> 3};
    return sign | numbers_.Choose(choices);
  }
  const auto exponent = static_cast<std::uint64_t>(numbers_.Below(6));
  return sign | (format.One() + ((exponent - 3) << format.mantissa_bits) + mantissa);
}

void Tensors::Fill(Tensor& tensor, Values values) {
  ForEachAddress(tensor, [&](std::byte* address) {
    const std::uint64_t bits = ValueBits(tensor.dtype, values);
    std::memcpy(address, &bits, SizeOf(tensor.dtype));
  });
}

ConstTensorView Tensors::Input(const char* name, DType dtype, const Shape& shape, Values values) {
  Tensor& tensor = Add(name, dtype, shape, true, false);
  Fill(tensor, values);
  return {tensor.memory.data() + static_cast<std::size_t>(tensor.origin) * SizeOf(dtype), dtype, tensor.shape,
          tensor.strides};
}

TensorView Tensors::Output(const char* name, DType dtype, const Shape& shape) {
  Tensor& tensor = Add(name, dtype, shape, false, true);
  return {tensor.memory.data() + static_cast<std::size_t>(tensor.origin) * SizeOf(dtype), dtype, tensor.shape,
          tensor.strides};
}

TensorView Tensors::InPlace(const char* name, DType dtype, const Shape& shape) {
  const TensorView view = Output(name, dtype, shape);
  Fill(tensors_.back(), Values::kSigned);
  tensors_.back().read = true;
  Say("(in place)");
  return view;
}

TensorView Tensors::Swapped(const TensorView& view) {
  TensorView swapped = view;
  for (auto* numbers : {&swapped.shape, &swapped.strides}) {
    Shape& copy = swapped_.emplace_back(numbers->begin(), numbers->end());
    std::swap(copy[1], copy[2]);
    *numbers = copy;
  }
  return swapped;
}

// ---- A call -----------------------------------------------------------------------------------------------------

Outcome Tensors::Run(const std::function<Status()>& call) {
  const unsigned errors_before = VALGRIND_COUNT_ERRORS;
  for (Tensor& tensor : tensors_) {
    VALGRIND_MAKE_MEM_NOACCESS(tensor.memory.data(), tensor.memory.size());
    ForEachAddress(tensor, [&](std::byte* address) {
      if (tensor.read) {
        VALGRIND_MAKE_MEM_DEFINED(address, SizeOf(tensor.dtype));
      } else {
        VALGRIND_MAKE_MEM_UNDEFINED(address, SizeOf(tensor.dtype));
      }
    });
  }
  const Status status = call();
  Outcome outcome{said_, 0, status.ok() ? std::string() : "failed: " + status.message()};
  for (Tensor& tensor : tensors_) {
    if (tensor.written) {
      ForEachAddress(tensor, [&](std::byte* address) {
        VALGRIND_CHECK_MEM_IS_DEFINED(address, SizeOf(tensor.dtype));
        VALGRIND_MAKE_MEM_DEFINED(address, SizeOf(tensor.dtype));
        MakeNanCanonical(address, tensor.dtype);
      });
    }
    VALGRIND_MAKE_MEM_DEFINED(tensor.memory.data(), tensor.memory.size());
    if (tensor.written) outcome.hash = HashOf(tensor.memory, outcome.hash + 1);
  }
  if (VALGRIND_COUNT_ERRORS != errors_before) outcome.error += "memcheck has found errors";
  return outcome;
}

}  // namespace gyrograd::golden
