// Parsing, shapes and memory of benchmark problems.
#include "bench/problem.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <numeric>

namespace gyrograd::bench {
namespace {

constexpr std::int64_t kHeadDim = 128;
constexpr std::size_t kLine = 64;
// Between tensors: whole cache lines, and no two tensors at the same place within a page.
constexpr std::size_t kGap = 17 * kLine;

constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};
constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

std::string ShapeText(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t extent : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text;
}

std::vector<std::int64_t> ParseShape(std::string_view text) {
  std::vector<std::int64_t> shape;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    std::int64_t extent = 0;
    const auto [next, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 0 || (next < end && *next != 'x')) return {};
    shape.push_back(extent);
    at = next + 1;
  }
  return shape;
}

std::int64_t Elements(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t Bytes(const Problem& problem, bool table) {
  return static_cast<std::size_t>(Elements(table ? problem.table_shape : problem.shape)) * SizeOf(problem.dtype);
}

std::size_t Padded(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine + kGap; }

std::span<std::byte> FromNextLine(std::vector<std::byte>& storage, std::size_t bytes) {
  void* data = storage.data();
  std::size_t space = storage.size();
  return {static_cast<std::byte*>(std::align(kLine, bytes, data, space)), bytes};
}

// Words that are ordinary numbers as f16 (1/8 to 1), as bf16 and as f32 and f64 alike.
void Fill(std::span<std::byte> memory) {
  const std::int64_t words = static_cast<std::int64_t>(memory.size() / 2);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < words; ++i) {
    const std::uint64_t hash = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
    const std::uint64_t random = (hash ^ (hash >> 29)) * 0xBF58476D1CE4E5B9u >> 32;
    const std::uint64_t exponent = 12 + (random >> 16) % 3;
    const std::uint16_t word = static_cast<std::uint16_t>((random & 0x83FF) | (exponent << 10));
    std::memcpy(memory.data() + 2 * i, &word, 2);
  }
}

// Hands out pieces of memory one after the other.
class Carver {
 public:
  explicit Carver(std::span<std::byte> memory) : memory_(memory) {}
  void* Take(std::size_t bytes) {
    std::byte* const piece = memory_.data() + used_;
    used_ += Padded(bytes);
    return piece;
  }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
};

}  // namespace

const char* OutputsName(const Problem& problem) {
  if (problem.dx) return problem.tables ? "dx+tables" : "dx";
  return "tables";
}

std::string ToString(const Problem& problem) {
  return std::string(Name(problem.mode)) + " " + Name(problem.dtype) + " " + ShapeText(problem.shape) + " " +
         ShapeText(problem.table_shape) + " " + OutputsName(problem);
}

std::optional<Problem> ParseProblem(std::span<const std::string_view> words) {
  if (words.size() != 5) return std::nullopt;
  Problem problem;
  const auto mode = std::ranges::find_if(kModes, [&](RotaryMode each) { return words[0] == Name(each); });
  const auto type = std::ranges::find_if(kTypes, [&](DType each) { return words[1] == Name(each); });
  if (mode == std::end(kModes) || type == std::end(kTypes)) return std::nullopt;
  problem.mode = *mode;
  problem.dtype = *type;
  problem.shape = ParseShape(words[2]);
  problem.table_shape = ParseShape(words[3]);
  problem.dx = words[4].starts_with("dx");
  problem.tables = words[4].ends_with("tables");
  if (problem.shape.empty() || problem.table_shape.empty() || words[4] != OutputsName(problem)) return std::nullopt;
  return problem;
}

void SetShapes(std::string_view layout, std::int64_t bytes, Problem* problem) {
  const auto set = [&](std::int64_t s) {
    constexpr std::int64_t kBatch = 2, kHeads = 32, d = kHeadDim;
    if (layout == "BSND 1S1D") {
      problem->shape = {kBatch, s, kHeads, d};
      problem->table_shape = {1, s, 1, d};
    } else if (layout == "SBND S11D") {
      problem->shape = {s, kBatch, kHeads, d};
      problem->table_shape = {s, 1, 1, d};
    } else if (layout == "TND T1D") {
      problem->shape = {s, kBatch * kHeads, d};
      problem->table_shape = {s, 1, d};
    } else {
      problem->shape = {kBatch, kHeads, s, d};
      problem->table_shape = {1, 1, s, d};
      if (layout != "BNSD 11SD") problem->table_shape[0] = kBatch;
      if (layout == "BNSD full") problem->table_shape[1] = kHeads;
    }
  };
  set(1);
  const std::size_t big = (problem->dx ? 2 : 1) + (problem->tables ? 1 : 0);
  const std::size_t small = (problem->dx ? 2 : 0) + (problem->tables ? 2 : 0);
  const std::size_t each = big * Bytes(*problem, false) + small * Bytes(*problem, true);
  constexpr std::int64_t kUnit = 128;  // sequences have whole multiples
  const std::int64_t most = std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(each));
  set(most > kUnit ? most - most % kUnit : most);
}

std::vector<std::int64_t> ContiguousStrides(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return strides;
}

Memory::Memory(std::size_t input_bytes, std::size_t output_bytes)
    : input_storage_(input_bytes + kLine),
      output_storage_(output_bytes + kLine),
      inputs_(FromNextLine(input_storage_, input_bytes)),
      outputs_(FromNextLine(output_storage_, output_bytes)) {
  Fill(inputs_);
}

Tensors::Tensors(const Problem& problem, Memory* memory)
    : problem_(problem),
      strides_(ContiguousStrides(problem.shape)),
      table_strides_(ContiguousStrides(problem.table_shape)) {
  Carver inputs(memory->inputs());
  pointers_.dy = inputs.Take(Bytes(problem, false));
  pointers_.cos = inputs.Take(Bytes(problem, true));
  pointers_.sin = inputs.Take(Bytes(problem, true));
  if (problem.tables) pointers_.x = inputs.Take(Bytes(problem, false));
  Carver outputs(memory->outputs());
  if (problem.dx) pointers_.dx = outputs.Take(Bytes(problem, false));
  if (problem.tables) {
    pointers_.dcos = outputs.Take(Bytes(problem, true));
    pointers_.dsin = outputs.Take(Bytes(problem, true));
  }
}

std::size_t Tensors::InputBytes(const Problem& problem) {
  return (problem.tables ? 2 : 1) * Padded(Bytes(problem, false)) + 2 * Padded(Bytes(problem, true));
}

std::size_t Tensors::OutputBytes(const Problem& problem) {
  return (problem.dx ? Padded(Bytes(problem, false)) : 0) + (problem.tables ? 2 * Padded(Bytes(problem, true)) : 0);
}

ConstTensorView Tensors::Read(const void* data, bool table) const {
  if (table) return {data, problem_.dtype, problem_.table_shape, table_strides_};
  return {data, problem_.dtype, problem_.shape, strides_};
}

std::optional<TensorView> Tensors::Write(void* data, bool table) const {
  if (data == nullptr) return std::nullopt;
  if (table) return TensorView{data, problem_.dtype, problem_.table_shape, table_strides_};
  return TensorView{data, problem_.dtype, problem_.shape, strides_};
}

RotaryBackwardArgs Tensors::Args(int num_threads) const {
  RotaryBackwardArgs args;
  args.dy = Read(pointers_.dy, false);
  args.cos = Read(pointers_.cos, true);
  args.sin = Read(pointers_.sin, true);
  if (pointers_.x != nullptr) args.x = Read(pointers_.x, false);
  args.dx = Write(pointers_.dx, false);
  args.dcos = Write(pointers_.dcos, true);
  args.dsin = Write(pointers_.dsin, true);
  args.options.mode = problem_.mode;
  args.execution.num_threads = num_threads;
  return args;
}

RotaryBackwardPointers Tensors::Pointers() const { return pointers_; }

Traffic Tensors::BytesMoved() const {
  const auto read = [&](const void* data, bool table) {
    return std::span(static_cast<const std::byte*>(data), Bytes(problem_, table));
  };
  const auto written = [&](void* data, bool table) {
    return std::span(static_cast<std::byte*>(data), Bytes(problem_, table));
  };
  Traffic traffic;
  traffic.reads.push_back(read(pointers_.dy, false));
  if (problem_.dx) {
    traffic.reads.push_back(read(pointers_.cos, true));
    traffic.reads.push_back(read(pointers_.sin, true));
    traffic.writes.push_back(written(pointers_.dx, false));
  }
  if (problem_.tables) {
    traffic.reads.push_back(read(pointers_.x, false));
    traffic.writes.push_back(written(pointers_.dcos, true));
    traffic.writes.push_back(written(pointers_.dsin, true));
  }
  return traffic;
}

}  // namespace gyrograd::bench
