// A problem of norm + rotary + concatenation: everything that decides a call but the values, as one line of text.
// Tests, checker and benchmarks share it.
#ifndef GYROGRAD_PROBLEMS_NORM_ROPE_CONCAT_H_
#define GYROGRAD_PROBLEMS_NORM_ROPE_CONCAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gyrograd/norm_rope_concat.h"
#include "problems/layout.h"

namespace gyrograd::problems {

// Types of activations, of weights and their gradients, and of tables.
struct NormRopeTypes {
  DType activations = DType::kF32;
  DType weights = DType::kF32;
  DType tables = DType::kF32;

  bool operator==(const NormRopeTypes&) const = default;
  DType statistics() const { return activations == DType::kF64 ? DType::kF64 : DType::kF32; }
};

std::string ValueText(const NormRopeTypes& types);
bool ParseValue(std::string_view text, NormRopeTypes* types);

struct NormRopeConcatProblem {
  NormRopeTypes types = {};
  std::int64_t batch = 1, heads = 1, head_dim = 2;
  std::int64_t seq_query = 0, seq_key = 0, seq_encoder_query = 0, seq_encoder_key = 0;  // of encoders: 0 is absent
  std::int64_t seq_rope = 0;
  NormRopeConcatOptions options = {};
  // Beyond the case list: heads of key and value, and the length of the encoder streams' own tables.
  std::optional<std::int64_t> key_heads = {};
  std::optional<std::int64_t> seq_encoder_rope = {};
  bool tables_per_batch = false;  // tables [B or 1, N or 1, L, R] rather than [L, R]
  bool tables_per_head = false;
  Layout joint_layout = Layout::kContiguous;   // of the outputs of the forward and their gradients
  Layout stream_layout = Layout::kContiguous;  // of the six inputs and their gradients
  double eps = 1e-5;
  std::uint64_t seed = 1;
  Execution execution = {};

  std::int64_t KeyHeads() const { return key_heads.value_or(heads); }
  // Of tables of this length: [L, R], or rank 4.
  Shape TablesShape(std::int64_t length) const;
};

inline constexpr const char* kNormRopeConcatName = "norm_rope_concat";

// "norm_rope_concat:types=bf16,heads=24,head_dim=128,query=4096,key=4096,encoder_query=512,encoder_key=512,
// norm=layer_affine,norm_added=layer_affine,rotary=half,rope=4608", with what differs from the default. Types are those
// of activations, weights and tables, one name where they are the same. eps is 1e-5.
std::string ToString(const NormRopeConcatProblem& problem);

// The opposite; nothing, and *error says why, where the text is none. Shapes and options are for the library to judge.
std::optional<NormRopeConcatProblem> ParseNormRopeConcatProblem(std::string_view text, std::string* error);

}  // namespace gyrograd::problems

#endif  // GYROGRAD_PROBLEMS_NORM_ROPE_CONCAT_H_
