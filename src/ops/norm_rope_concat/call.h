// A joint call as data: the arguments of either direction, and what messages call them.
#ifndef GYROGRAD_OPS_NORM_ROPE_CONCAT_CALL_H_
#define GYROGRAD_OPS_NORM_ROPE_CONCAT_CALL_H_

#include <array>
#include <cstdint>
#include <optional>

#include "gyrograd/norm_rope_concat.h"
#include "ops/norm_rope/call.h"

namespace gyrograd::internal {

inline constexpr int kJoints = 3;   // query, key, value
inline constexpr int kStreams = 6;  // query, encoder query, key, encoder key, value, encoder value

inline constexpr int JointOf(int stream) { return stream / 2; }
inline constexpr bool IsEncoder(int stream) { return stream % 2 == 1; }
inline constexpr bool IsValue(int stream) { return JointOf(stream) == 2; }

inline constexpr const char* kStreamNames[kStreams] = {"query",       "encoder_query", "key",
                                                       "encoder_key", "value",         "encoder_value"};

// The arguments of either direction; nothing is copied but the views.
struct NormRopeConcatCall {
  bool forward = false;
  const char* name = "";
  // grad_query_output ... backward, query_output ... forward.
  std::array<std::optional<ConstTensorView>, kJoints> joints;
  // By NormRopeOperand; empty for the operand that is a slice of the joint one, and for tables.
  std::array<std::array<std::optional<ConstTensorView>, kNormRopeOperands>, kStreams> own;
  // Cosine and sine, then the encoder's.
  std::array<std::optional<ConstTensorView>, 4> tables;
  NormRopeConcatOptions options;
  double eps = 0;
  Execution execution;

  static NormRopeConcatCall From(const NormRopeConcatBackwardArgs& args);
  static NormRopeConcatCall From(const NormRopeConcatArgs& args);

  // The operand of every segment that is a slice of a joint one: dy backward, y forward.
  int joint_operand() const { return forward ? NormRopeOperand::kOut : NormRopeOperand::kIn; }
  // The operand that is x.
  int x_operand() const { return forward ? NormRopeOperand::kIn : NormRopeOperand::kX; }
  NormType norm_type(int stream) const {
    return IsValue(stream) ? NormType::kNone : IsEncoder(stream) ? options.norm_added_type : options.norm_type;
  }
  // Encoder streams have tables of their own; then tables count each stream's positions, not the joint ones.
  bool has_encoder_tables() const { return tables[2] || tables[3]; }
  // Where the tables of a stream stand in `tables`.
  int table_of(int stream) const { return has_encoder_tables() && IsEncoder(stream) ? 2 : 0; }

  // What messages call the arguments.
  const NormRopeNames& names(int stream) const;
  Argument argument(const char* text) const { return {name, text}; }
  Argument joint_argument(int joint) const;
  Argument own_argument(int stream, int operand) const { return argument(names(stream).operands[operand]); }
  Argument table_argument(int table) const;
};

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_NORM_ROPE_CONCAT_CALL_H_
