// A benchmark problem: a mode, a type, the shapes and the outputs wanted, as one line of text and as tensors in memory.
#ifndef GYROGRAD_BENCH_PROBLEM_H_
#define GYROGRAD_BENCH_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/roof.h"
#include "gyrograd/rotary.h"

namespace gyrograd::bench {

struct Problem {
  RotaryMode mode = RotaryMode::kHalf;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> table_shape;
  bool dx = true;
  bool tables = false;
};

// "half bf16 2x4096x32x128 1x4096x1x128 dx+tables"; the outputs are dx, tables or dx+tables.
std::string ToString(const Problem& problem);
std::optional<Problem> ParseProblem(std::span<const std::string_view> words);

const char* OutputsName(const Problem& problem);

// The shape of `bytes` (all tensors together, roughly) in one of the usual layouts, D = 128: "BNSD 11SD", "BSND 1S1D",
// "SBND S11D", "TND T1D", "BNSD B1SD", "BNSD full".
inline constexpr std::string_view kLayouts[] = {"BNSD 11SD", "BSND 1S1D", "SBND S11D",
                                                "TND T1D",   "BNSD B1SD", "BNSD full"};
void SetShapes(std::string_view layout, std::int64_t bytes, Problem* problem);

// Contiguous row-major strides.
std::vector<std::int64_t> ContiguousStrides(std::span<const std::int64_t> shape);

// Memory for inputs (finite values of ordinary size, whatever type they are read as) and for outputs, every page
// touched.
class Memory {
 public:
  Memory(std::size_t input_bytes, std::size_t output_bytes);

  std::span<std::byte> inputs() { return inputs_; }
  std::span<std::byte> outputs() { return outputs_; }

 private:
  std::vector<std::byte> input_storage_;
  std::vector<std::byte> output_storage_;
  std::span<std::byte> inputs_;
  std::span<std::byte> outputs_;
};

// The problem's tensors laid out in memory. The inputs and outputs that the problem does not use stay unset.
class Tensors {
 public:
  Tensors(const Problem& problem, Memory* memory);

  RotaryBackwardArgs Args(int num_threads) const;
  RotaryBackwardPointers Pointers() const;

  // What the problem has to move: tables are read for dx alone, x for the tables' gradients alone.
  Traffic BytesMoved() const;

  // Bytes of inputs and of outputs that a problem needs, gaps included.
  static std::size_t InputBytes(const Problem& problem);
  static std::size_t OutputBytes(const Problem& problem);

 private:
  ConstTensorView Read(const void* data, bool table) const;
  std::optional<TensorView> Write(void* data, bool table) const;

  Problem problem_;
  std::vector<std::int64_t> strides_;
  std::vector<std::int64_t> table_strides_;
  RotaryBackwardPointers pointers_;
};

}  // namespace gyrograd::bench

#endif  // GYROGRAD_BENCH_PROBLEM_H_
