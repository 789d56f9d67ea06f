// Allocation and filling.
#include "bench/tensors.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gyrograd::bench {
namespace {

constexpr std::size_t kLine = 64;
// Between the beginnings of two blocks within a page: no two tensors stand at the same place of it.
constexpr std::size_t kStagger = 17 * kLine;
constexpr std::size_t kPage = 4096;

std::size_t RoundUp(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Words that are ordinary numbers as f16 (1/8 to 1), as bf16 and as f32 and f64 alike.
void Fill(std::byte* memory, std::size_t bytes) {
  const std::int64_t words = static_cast<std::int64_t>(bytes / 2);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < words; ++i) {
    const std::uint64_t hash = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
    const std::uint64_t random = (hash ^ (hash >> 29)) * 0xBF58476D1CE4E5B9u >> 32;
    const std::uint64_t exponent = 12 + (random >> 16) % 3;
    const std::uint16_t word = static_cast<std::uint16_t>((random & 0x83FF) | (exponent << 10));
    std::memcpy(memory + 2 * i, &word, 2);
  }
}

// Where a tensor's bytes lie: from the lowest element to the end of the highest, the first element among them.
struct Span {
  std::size_t before = 0;    // the first element's distance from the lowest
  std::size_t all = 0;       // gaps included
  std::size_t distinct = 0;  // the bytes that belong to elements
};

Span SpanOf(DType dtype, const problems::Shape& shape, const problems::Shape& strides) {
  const std::size_t size = SizeOf(dtype);
  if (problems::Count(shape) == 0) return {};
  const auto [lowest, highest] = problems::Reach(shape, strides);
  Span span;
  span.before = static_cast<std::size_t>(-lowest) * size;
  span.all = static_cast<std::size_t>(highest - lowest + 1) * size;
  span.distinct = size;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (strides[axis] != 0) span.distinct *= static_cast<std::size_t>(shape[axis]);
  }
  return span;
}

}  // namespace

void Tensors::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* Tensors::Allocate(std::size_t bytes) {
  const std::size_t stagger = blocks_.size() * kStagger % kPage;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, RoundUp(bytes + stagger + kLine, kPage)));
  if (memory == nullptr) throw std::bad_alloc();
  blocks_.emplace_back(memory);
  return memory + stagger;
}

TensorView Tensors::Add(Role role, const Form& form) { return AddTogether(role, {form})[0]; }

std::vector<TensorView> Tensors::AddTogether(Role role, const std::vector<Form>& forms) {
  std::size_t bytes = 0, distinct = 0;
  std::vector<std::size_t> places;
  for (const Form& form : forms) {
    const Extents& extents = extents_.emplace_back(form.shape, problems::StridesOf(form.layout, form.shape));
    const Span span = SpanOf(form.dtype, extents.shape, extents.strides);
    const std::size_t shift = form.layout == problems::Layout::kOffsetOne ? SizeOf(form.dtype) : 0;
    places.push_back(bytes + span.before + shift);
    bytes += RoundUp(span.all + shift, kLine);
    distinct += span.distinct;
  }
  std::byte* const memory = Allocate(bytes);
  Fill(memory, bytes);
  if (role == Role::kRead) {
    traffic_.reads.emplace_back(memory, distinct);
  } else {
    traffic_.writes.emplace_back(memory, distinct);
  }
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const Extents& extents = extents_[extents_.size() - forms.size() + i];
    views.push_back({memory + places[i], forms[i].dtype, extents.shape, extents.strides});
  }
  return views;
}

}  // namespace gyrograd::bench
