// Memory, guards and filling of test tensors.
#include "tests/support/tensor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "reference/elements.h"

namespace gyrograd::testing {
namespace {

constexpr std::size_t kGuardBytes = 192;

std::byte GuardByte(std::size_t position) { return static_cast<std::byte>(0x5a ^ (position * 37 & 0xff)); }

std::shared_ptr<std::byte> HeapMemory(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  return {memory, [](std::byte* address) { std::free(address); }};
}

// `bytes` (whole pages) between two pages that cannot be touched.
std::shared_ptr<std::byte> FencedPages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t all = bytes + 2 * page;
  auto* base = static_cast<std::byte*>(mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(base + page, bytes, PROT_READ | PROT_WRITE);
  return {base + page, [base, all](std::byte*) { munmap(base, all); }};
}

std::uint64_t CanonicalBits(const std::byte* address, DType dtype) {
  if (std::isnan(reference::Load(address, dtype))) return ~std::uint64_t{0};
  std::uint64_t bits = 0;
  std::memcpy(&bits, address, reference::ElementSize(dtype));
  return bits;
}

}  // namespace

const char* Name(Placement placement) {
  switch (placement) {
    case Placement::kGuarded: return "guarded";
    case Placement::kPageEnd: return "page_end";
    case Placement::kPageStart: return "page_start";
  }
  return "unknown";
}

template <class Body>
void Tensor::ForEachWithin(const Shape& extents, const Body& body) const {
  if (Count(shape_) == 0) return;
  Shape outer(extents), index(shape_.size(), 0);
  const std::int64_t row = outer.back();
  const std::int64_t step = row == 1 ? 0 : strides_.back() * static_cast<std::int64_t>(reference::ElementSize(dtype_));
  outer.back() = 1;
  for (;;) {
    std::int64_t number = 0;
    for (std::size_t axis = 0; axis < shape_.size(); ++axis) number = number * shape_[axis] + index[axis];
    auto* const first = static_cast<std::byte*>(ElementAt(index));
    for (std::int64_t i = 0; i < row; ++i) body(number + i, first + i * step);
    std::size_t axis = shape_.size();
    while (axis > 0 && ++index[axis - 1] == outer[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

template <class Body>
void Tensor::ForEach(const Body& body) const {
  ForEachWithin(shape_, body);
}

template <class Body>
void Tensor::ForEachDistinct(const Body& body) const {
  Shape distinct(shape_);
  for (std::size_t axis = 0; axis < shape_.size(); ++axis) {
    if (strides_[axis] == 0) distinct[axis] = 1;
  }
  ForEachWithin(distinct, body);
}

Tensor::Tensor(DType dtype, const Shape& shape, Layout layout, Placement placement)
    : Tensor(dtype, shape, StridesOf(layout, shape), layout == Layout::kOffsetOne ? 1 : 0, placement) {}

Tensor::Tensor(DType dtype, const Shape& shape, const Shape& strides, std::int64_t misalignment, Placement placement)
    : dtype_(dtype), shape_(shape), strides_(strides) {
  Allocate(misalignment, placement);
  Clear();
  MarkOwnBytes();
  Remember();
}

void Tensor::Allocate(std::int64_t misalignment, Placement placement) {
  const bool empty = Count(shape_) == 0;
  const auto [lowest, highest] = empty ? std::pair<std::int64_t, std::int64_t>() : problems::Reach(shape_, strides_);
  const std::size_t size = reference::ElementSize(dtype_);
  const std::size_t before = static_cast<std::size_t>(-lowest) * size;
  const std::size_t span = empty ? 0 : static_cast<std::size_t>(highest - lowest + 1) * size;
  if (placement == Placement::kGuarded) {
    const std::size_t lead = kGuardBytes + static_cast<std::size_t>(misalignment) * size;
    bytes_ = lead + span + kGuardBytes;
    memory_ = HeapMemory(bytes_);
    origin_ = memory_.get() + lead + before;
    return;
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  bytes_ = std::max<std::size_t>(1, (span + page - 1) / page) * page;
  memory_ = FencedPages(bytes_);
  origin_ = memory_.get() + (placement == Placement::kPageEnd ? bytes_ - span : 0) + before;
}

void Tensor::MarkOwnBytes() {
  own_.assign(bytes_, 0);
  const std::size_t size = reference::ElementSize(dtype_);
  ForEachDistinct([&](std::int64_t, std::byte* address) {
    const auto first = address - memory_.get();
    std::fill_n(own_.begin() + first, size, char{1});
  });
}

void* Tensor::ElementAt(const Shape& index) const {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < shape_.size(); ++axis)
    offset += index[axis] == 0 ? 0 : index[axis] * strides_[axis];
  return origin_ + offset * static_cast<std::int64_t>(reference::ElementSize(dtype_));
}

double Tensor::Get(const Shape& index) const { return reference::Load(ElementAt(index), dtype_); }

void Tensor::Set(const Shape& index, double value) {
  reference::Store(value, ElementAt(index), dtype_);
  Remember();
}

void Tensor::Fill(const std::function<double(std::int64_t)>& value) {
  ForEachDistinct([&](std::int64_t number, std::byte* address) { reference::Store(value(number), address, dtype_); });
  Remember();
}

void Tensor::Fill(const std::vector<double>& values) {
  Fill([&](std::int64_t number) { return values.at(static_cast<std::size_t>(number)); });
}

void Tensor::FillRandom(Random& random) {
  ForEachDistinct([&](std::int64_t, std::byte* address) {
    const std::uint64_t bits = random();
    const std::uint64_t exponent = 1023 - 3 + (bits >> 1 & 0x3ff) % 6;
    reference::Store(std::bit_cast<double>(bits << 63 | exponent << 52 | bits >> 12), address, dtype_);
  });
  Remember();
}

void Tensor::Clear() const {
  for (std::size_t i = 0; i < bytes_; ++i) memory_.get()[i] = GuardByte(i);
}

void Tensor::FillBits(const std::function<std::uint32_t(std::int64_t)>& bits) {
  ForEachDistinct([&](std::int64_t number, std::byte* address) {
    const std::uint32_t wide = bits(number);
    const auto narrow = static_cast<std::uint16_t>(wide);
    const bool is_f32 = dtype_ == DType::kF32;
    std::memcpy(address, is_f32 ? static_cast<const void*>(&wide) : &narrow, is_f32 ? 4 : 2);
  });
  Remember();
}

std::vector<std::uint64_t> Tensor::Bits() const {
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(Count(shape_)));
  ForEach([&](std::int64_t number, const std::byte* address) {
    bits[static_cast<std::size_t>(number)] = CanonicalBits(address, dtype_);
  });
  return bits;
}

std::vector<double> Tensor::Values() const {
  std::vector<double> values(static_cast<std::size_t>(Count(shape_)));
  ForEach([&](std::int64_t number, const std::byte* address) {
    values[static_cast<std::size_t>(number)] = reference::Load(address, dtype_);
  });
  return values;
}

void Tensor::Remember() { remembered_.assign(memory_.get(), memory_.get() + bytes_); }

::testing::AssertionResult Tensor::Unchanged(const std::string& name) const {
  for (std::size_t i = 0; i < bytes_; ++i) {
    if (memory_.get()[i] != remembered_[i]) {
      return ::testing::AssertionFailure()
             << name << " changed: byte " << static_cast<std::ptrdiff_t>(i) - (origin_ - memory_.get())
             << " from its first element's address";
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Tensor::GuardsIntact(const std::string& name) const {
  for (std::size_t i = 0; i < bytes_; ++i) {
    if (own_[i] == 0 && memory_.get()[i] != remembered_[i]) {
      return ::testing::AssertionFailure()
             << name << " was written outside its elements: byte "
             << static_cast<std::ptrdiff_t>(i) - (origin_ - memory_.get()) << " from its first element's address";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gyrograd::testing
