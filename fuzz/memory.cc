// Blocks, views, values, and what of them a call changed.
#include "fuzz/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#define GYROGRAD_FUZZ_FENCES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GYROGRAD_FUZZ_FENCES 1
#endif
#endif
#if defined(GYROGRAD_FUZZ_FENCES)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <utility>

#include "reference/elements.h"
#include "reference/walk.h"

namespace gyrograd::fuzz {
namespace {

constexpr std::int64_t kGuardBytes = 64;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 18;  // of a block

// The bytes from element (0, ..., 0) to the lowest and the end of the highest element.
struct Reach {
  std::int64_t low = 0;
  std::int64_t high = 0;
  bool huge = false;
};

Reach ReachOf(const ConstTensorView& view) {
  Reach reach;
  if (IsEmpty(view)) return reach;
  const auto size = static_cast<std::int64_t>(reference::ElementSize(view.dtype));
  reach.high = size;
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 1) continue;
    std::int64_t bytes;
    reach.huge = reach.huge || __builtin_mul_overflow((view.shape[axis] - 1) * size, view.strides[axis], &bytes) ||
                 std::abs(bytes / 2) > kMostBytes;
    if (reach.huge) return reach;
    (bytes < 0 ? reach.low : reach.high) += bytes;
  }
  reach.huge = reach.high - reach.low > kMostBytes;
  return reach;
}

// The addresses of all elements in ascending order.
std::vector<std::uintptr_t> SortedElements(const ConstTensorView& view) {
  std::vector<std::uintptr_t> addresses;
  ForEachElement(view, [&](std::byte* element) { addresses.push_back(reinterpret_cast<std::uintptr_t>(element)); });
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

double Magnitude(std::uint64_t bits, int binades) {
  const double fraction = 1 + static_cast<double>(bits >> 12) * 0x1p-52;
  return std::ldexp(fraction, static_cast<int>(bits % static_cast<unsigned>(binades)) - binades / 2);
}

// Infinities do not stand beside denormals: where a product of these underflows, 0 times infinity is NaN, and exact
// arithmetic says infinity.
double SpecialValue(std::uint64_t bits, Values values, DType dtype) {
  const double sign = (bits & 1) != 0 ? -1 : 1;
  const bool tiny = values == Values::kTiny;
  switch (bits >> 1 & 31) {
    case 0: return sign * 0.0;
    case 1:
      if (tiny) return sign * reference::Ulp(0, dtype) * static_cast<double>(1 + (bits >> 8 & 63));
      return sign * std::numeric_limits<double>::infinity();
    case 2: return tiny ? sign * reference::Ulp(0, dtype) : std::numeric_limits<double>::quiet_NaN();
    default: return sign * Magnitude(bits, 6);
  }
}

double Value(std::uint64_t bits, Values values, DType dtype) {
  const double sign = (bits >> 11 & 1) != 0 ? -1 : 1;
  switch (values) {
    case Values::kPlain: return sign * Magnitude(bits, 6);
    case Values::kWide: return sign * Magnitude(bits, 24);
    case Values::kPositive: return Magnitude(bits, 6);
    default: return SpecialValue(bits, values, dtype);
  }
}

}  // namespace

void Report(const std::string& finding) {
  std::fprintf(stderr, "FINDING: %s\n", finding.c_str());
  std::abort();
}

std::string ToString(const ConstTensorView& view) {
  std::ostringstream text;
  text << Name(view.dtype) << " at " << view.data << " [";
  for (const std::int64_t extent : view.shape) text << ' ' << extent;
  text << " ] strides [";
  for (const std::int64_t stride : view.strides) text << ' ' << stride;
  text << " ]";
  return std::move(text).str();
}

bool IsEmpty(const ConstTensorView& view) { return std::ranges::find(view.shape, 0) != view.shape.end(); }

void ForEachElement(const ConstTensorView& view, const std::function<void(std::byte*)>& body) {
  if (IsEmpty(view)) return;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(view.data));
  const auto size = static_cast<std::int64_t>(reference::ElementSize(view.dtype));
  const std::int64_t last = view.shape.back();
  const std::int64_t step = last == 1 ? 0 : view.strides.back() * size;
  reference::ForEachRow(view.shape, [&](const reference::Indices& index) {
    std::byte* element = data + reference::Offset(index, view.strides) * size;
    for (std::int64_t i = 0; i < last; ++i) body(element + i * step);
  });
}

bool SharesBytes(const ConstTensorView& a, const ConstTensorView& b) {
  if (IsEmpty(a) || IsEmpty(b)) return false;
  const Reach reach_a = ReachOf(a), reach_b = ReachOf(b);
  const auto from_a = reinterpret_cast<std::intptr_t>(a.data), from_b = reinterpret_cast<std::intptr_t>(b.data);
  if (from_a + reach_a.high <= from_b + reach_b.low || from_b + reach_b.high <= from_a + reach_a.low) return false;
  const std::vector<std::uintptr_t> elements = SortedElements(a);
  const std::size_t size_a = reference::ElementSize(a.dtype), size_b = reference::ElementSize(b.dtype);
  bool shared = false;
  ForEachElement(b, [&](std::byte* element) {
    const auto address = reinterpret_cast<std::uintptr_t>(element);
    const auto meets = std::lower_bound(elements.begin(), elements.end(), address + 1 - size_a);
    shared = shared || (meets != elements.end() && *meets < address + size_b);
  });
  return shared;
}

bool SharesWithItself(const ConstTensorView& view) {
  const std::vector<std::uintptr_t> elements = SortedElements(view);
  for (std::size_t i = 1; i < elements.size(); ++i) {
    if (elements[i] - elements[i - 1] < reference::ElementSize(view.dtype)) return true;
  }
  return false;
}

bool SameElements(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || !std::ranges::equal(a.shape, b.shape)) return false;
  for (std::size_t axis = 0; axis < a.shape.size(); ++axis) {
    if (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
  }
  return true;
}

void Fill(const ConstTensorView& view, Values values, Random& random) {
  const std::size_t size = reference::ElementSize(view.dtype);
  ForEachElement(view, [&](std::byte* element) {
    const std::uint64_t bits = random();
    if (values == Values::kBits) {
      std::memcpy(element, &bits, size);
    } else {
      reference::Store(Value(bits, values, view.dtype), element, view.dtype);
    }
  });
}

Shape ContiguousStrides(std::span<const std::int64_t> shape) { return reference::RowMajorStrides(shape); }

Shape DistinctStrides(Bytes& bytes, std::span<const std::int64_t> shape) {
  Shape strides(shape.size());
  std::vector<std::size_t> order;  // innermost first
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const bool usual = bytes.OneIn(2);
    const auto place = usual ? 0 : bytes.Between(0, static_cast<std::int64_t>(order.size()));
    order.insert(order.begin() + place, axis);
  }
  std::int64_t next = bytes.OneIn(4) ? bytes.Between(1, 4) : 1;
  for (const std::size_t axis : order) {
    if (shape[axis] == 1 && bytes.OneIn(3)) {
      strides[axis] = static_cast<std::int64_t>(bytes.Word());
      continue;
    }
    next += bytes.OneIn(4) ? bytes.Between(1, 9) : 0;
    strides[axis] = bytes.OneIn(4) ? -next : next;
    if (next <= kMostBytes) next *= std::max<std::int64_t>(shape[axis], 1);
  }
  return strides;
}

Shape FreeStrides(Bytes& bytes, std::span<const std::int64_t> shape) {
  Shape strides = ContiguousStrides(shape);
  for (std::int64_t& stride : strides) {
    const std::int64_t choice = bytes.Between(0, 15);
    if (choice < 12) stride = choice < 4 ? 0 : choice - 6;
  }
  return strides;
}

std::span<const std::int64_t> Memory::Keep(Shape values) { return arrays_.emplace_back(std::move(values)); }

TensorView Memory::Make(DType dtype, const Shape& shape, const Shape& strides, std::int64_t shift) {
  TensorView view{nullptr, dtype, Keep(shape), Keep(strides)};
  Reach reach = ReachOf(In(view));
  if (reach.huge) {
    view.strides = Keep(ContiguousStrides(shape));
    reach = ReachOf(In(view));
  }
  const std::int64_t lead = kGuardBytes + shift * static_cast<std::int64_t>(reference::ElementSize(dtype));
  Block& block = blocks_.emplace_back();
  block.bytes.resize(static_cast<std::size_t>(lead + reach.high - reach.low + kGuardBytes + 64));
  for (std::byte& byte : block.bytes) byte = static_cast<std::byte>(random_() >> 40);
  block.remembered = block.bytes;
  const auto start = reinterpret_cast<std::uintptr_t>(block.bytes.data());
  view.data = block.bytes.data() + ((start + 63) / 64 * 64 - start) + lead - reach.low;
  return view;
}

TensorView Memory::Copy(const ConstTensorView& view) {
  const Shape shape(view.shape.begin(), view.shape.end());
  const TensorView copy = Make(view.dtype, shape, ContiguousStrides(shape));
  const std::size_t size = reference::ElementSize(view.dtype);
  auto* to = static_cast<std::byte*>(copy.data);
  ForEachElement(view, [&](std::byte* element) {
    std::memcpy(to, element, size);
    to += size;
  });
  return copy;
}

bool Memory::Holds(const ConstTensorView& view) const {
  const Reach reach = ReachOf(view);
  if (reach.huge) return false;
  const auto* const data = static_cast<const std::byte*>(view.data);
  return std::ranges::any_of(blocks_, [&](const Block& block) {
    const auto offset = reinterpret_cast<std::intptr_t>(data) - reinterpret_cast<std::intptr_t>(block.bytes.data());
    return offset + reach.low >= 0 && offset + reach.high <= static_cast<std::int64_t>(block.bytes.size());
  });
}

void Memory::Remember() {
  for (Block& block : blocks_) block.remembered = block.bytes;
}

void Memory::Restore() {
  for (Block& block : blocks_) std::ranges::copy(block.remembered, block.bytes.begin());
}

std::vector<char> Memory::Owned(const Block& block, const std::vector<ConstTensorView>& views) {
  std::vector<char> owned(block.bytes.size(), 0);
  for (const ConstTensorView& view : views) {
    const auto* const data = static_cast<const std::byte*>(view.data);
    if (data == nullptr || IsEmpty(view)) continue;
    if (data < block.bytes.data() || data >= block.bytes.data() + block.bytes.size()) continue;
    ForEachElement(view, [&](std::byte* element) {
      std::fill_n(owned.begin() + (element - block.bytes.data()), reference::ElementSize(view.dtype), char{1});
    });
  }
  return owned;
}

void Memory::Fence(const std::vector<ConstTensorView>& views) {
  for (Block& block : blocks_) {
    const std::vector<char> owned = Owned(block, views);
    for (std::size_t first = 0, end; first < owned.size(); first = end) {
      end = static_cast<std::size_t>(std::find(owned.begin() + static_cast<std::ptrdiff_t>(first), owned.end(),
                                               owned[first] != 0 ? char{0} : char{1}) -
                                     owned.begin());
      if (owned[first] == 0) ASAN_POISON_MEMORY_REGION(block.bytes.data() + first, end - first);
    }
  }
}

void Memory::Unfence() {
  for (Block& block : blocks_) ASAN_UNPOISON_MEMORY_REGION(block.bytes.data(), block.bytes.size());
}

bool Memory::ChangedBeside(const std::vector<ConstTensorView>& outputs) const {
  return std::ranges::any_of(blocks_, [&](const Block& block) {
    if (block.bytes == block.remembered) return false;
    const std::vector<char> owned = Owned(block, outputs);
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (owned[i] == 0 && block.bytes[i] != block.remembered[i]) return true;
    }
    return false;
  });
}

}  // namespace gyrograd::fuzz
