// A rotary problem: everything that decides a call but the values, as one line of text. Tests, checker and benchmarks
// share it.
#ifndef GYROGRAD_PROBLEMS_ROTARY_H_
#define GYROGRAD_PROBLEMS_ROTARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gyrograd/rotary.h"
#include "problems/layout.h"

namespace gyrograd::problems {

// Types of activations and tables.
struct Types {
  DType activations = DType::kF32;
  DType tables = DType::kF32;

  bool operator==(const Types&) const = default;
};

// Which gradients are wanted.
struct RotaryOutputs {
  bool dx = true, dcos = true, dsin = true;

  bool operator==(const RotaryOutputs&) const = default;
};

std::string ValueText(const Types& types);
bool ParseValue(std::string_view text, Types* types);
std::string ValueText(const RotaryOutputs& outputs);
bool ParseValue(std::string_view text, RotaryOutputs* outputs);

struct RotaryProblem {
  RotaryMode mode = RotaryMode::kHalf;
  Types types = {};
  Shape dy;
  Shape tables;  // the last extent included: R, or R / 2 per pair
  bool per_pair = false;
  std::optional<std::int64_t> rotary_dim = {};
  std::int64_t rotary_offset = 0;
  RotaryOutputs outputs = {};
  // Layouts: of dy (x in the forward), of x, of cos and sin, of dx (y), of dcos and dsin.
  Layout dy_layout = Layout::kContiguous;
  Layout x_layout = Layout::kContiguous;
  Layout tables_layout = Layout::kContiguous;
  Layout dx_layout = Layout::kContiguous;
  Layout table_grads_layout = Layout::kContiguous;
  std::uint64_t seed = 1;
  Execution execution = {};

  RotaryOptions Options() const { return {mode, per_pair, rotary_dim, rotary_offset}; }
};

inline constexpr const char* kRotaryName = "rotary";

// "rotary:mode=interleave,types=bf16/f32,dy=2x4096x32x128,tables=1x4096x1x128,outputs=dx", with what differs from the
// default (half, f32, all outputs, contiguous). Types are those of dy and, after a slash, of the tables where they
// differ; outputs dx, dcos and dsin, and tables for the last two.
std::string ToString(const RotaryProblem& problem);

// The opposite; nothing, and *error says why, where the text is none. Shapes and options are for the library to judge.
std::optional<RotaryProblem> ParseRotaryProblem(std::string_view text, std::string* error);

}  // namespace gyrograd::problems

#endif  // GYROGRAD_PROBLEMS_ROTARY_H_
