// The rules of the joint call, in their order of precedence.
#include "ops/norm_rope_concat/validate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/guard.h"
#include "ops/norm_rope/validate.h"
#include "ops/norm_rope_concat/extents.h"

namespace gyrograd {
namespace internal {
namespace {

using Operand = NormRopeOperand;

// ---- null

// The first refusal of rule(argument, view) over the joint views and, where something may turn, the tables.
template <class Rule>
Status ForEachShared(const NormRopeConcatCall& call, const Rule& rule) {
  for (int joint = 0; joint < kJoints; ++joint) {
    if (!call.joints[joint]) continue;
    if (Status status = rule(call.joint_argument(joint), *call.joints[joint]); !status.ok()) return status;
  }
  if (!call.options.rotary || !(call.joints[0] || call.joints[1])) return Status();
  for (int table = 0; table < 4; ++table) {
    if (!call.tables[table]) continue;
    if (Status status = rule(call.table_argument(table), *call.tables[table]); !status.ok()) return status;
  }
  return Status();
}

Status ValidateSharedNull(const NormRopeConcatCall& call) {
  return ForEachShared(call, [](const Argument& argument, const ConstTensorView& view) {
    return ValidateNotNull(argument, view.shape, view.data);
  });
}

// ---- types

// The rows that the tables must fit: query's, or key's where nothing is asked of query.
Rows TurningRowsOf(const NormRopeConcatCall& call) { return ModelOf(call, call.joints[0] ? 0 : 1); }

// Tables that turn nothing belong to no segment, and yet have a type.
Status ValidateTableTypes(const NormRopeConcatCall& call) {
  const Status known = ForEachShared(call, [](const Argument& argument, const ConstTensorView& view) {
    return ValidateKnownType(argument, view.dtype);
  });
  if (!known.ok() || !call.options.rotary) return known;
  const Rows rows = TurningRowsOf(call);
  if (rows.view == nullptr) return Status();
  for (const int table : {0, 2}) {
    const auto &cos = call.tables[table], &sin = call.tables[table + 1];
    if (!cos || !sin) continue;
    if (Status status = ValidateCompanionType(call.table_argument(table), cos->dtype, rows.argument, rows.view->dtype);
        !status.ok()) {
      return status;
    }
    if (Status status =
            ValidateSameType(call.table_argument(table + 1), sin->dtype, call.table_argument(table), cos->dtype);
        !status.ok()) {
      return status;
    }
  }
  return Status();
}

// ---- attributes

Status ValidateJointRotary(const NormRopeConcatCall& call) {
  if (!call.options.rotary) return Status();
  const Argument prefix = call.argument("rotary.");
  if (Status status = ValidateMode(prefix, call.options.rotary->mode); !status.ok()) return status;
  for (int joint = 0; joint < 2; ++joint) {
    const Rows rows = ModelOf(call, joint);
    if (!rows.has_rank_4()) continue;
    const Status status = ValidateRotaryDim(prefix, *call.options.rotary, rows.argument, rows.head_dim());
    if (!status.ok()) return status;
  }
  if (call.options.rope_start >= 0) return Status();
  return call.argument("rope_start")
      .Refuse(StatusCode::kInvalidAttribute,
              " is " + std::to_string(call.options.rope_start) + "; it must be at least 0");
}

Status ValidateJointAttributes(const NormRopeConcatCall& call) {
  const NormRopeConcatOptions& options = call.options;
  if (Status status = ValidateNormType(call.argument("norm_type"), options.norm_type); !status.ok()) return status;
  if (Status status = ValidateNormType(call.argument("norm_added_type"), options.norm_added_type); !status.ok()) {
    return status;
  }
  const int order = static_cast<int>(options.concat_order);
  if (order != 0 && order != 1) {
    return call.argument("concat_order")
        .Refuse(StatusCode::kInvalidAttribute,
                " is " + std::to_string(order) + "; it must be 0 (stream_first) or 1 (encoder_first)");
  }
  return ValidateJointRotary(call);
}

// ---- missing arguments

Status RefuseMissing(const Argument& argument, const Argument& asking) {
  return argument.Refuse(StatusCode::kMissingArgument, " is missing; " + asking.text() + " needs it");
}

// What an output's stream lacks: the joint view; forward, where it was not given either, the input.
Status ValidateJointMissing(const NormRopeConcatCall& call, int stream) {
  const int x = call.x_operand();
  const bool from_input = call.forward && !call.own[stream][x];
  for (int operand = 0; operand < kNormRopeOperands; ++operand) {
    if (!call.own[stream][operand] || !IsNormRopeOutput(call.forward, operand)) continue;
    return RefuseMissing(from_input ? call.own_argument(stream, x) : call.joint_argument(JointOf(stream)),
                         call.own_argument(stream, operand));
  }
  return Status();
}

// Whether a stream of value and key's are of two lengths: shapes are refused for it, whatever is left of the output.
bool DiffersFromKey(const NormRopeConcatCall& call, int stream) {
  const Rows value = StreamRowsOf(call, stream), key = StreamRowsOf(call, stream - 2);
  return value.has_rank_4() && key.has_rank_4() && value.sequence() != key.sequence();
}

// Forward, an output needs every stream with rows: those that it holds, and, as value's lengths are key's, those that
// the other of the two has.
Status ValidateInputMissing(const NormRopeConcatCall& call, int stream) {
  const int x = call.x_operand(), joint = JointOf(stream);
  if (!call.forward || call.own[stream][x]) return Status();
  const Argument input = call.own_argument(stream, x);
  const Length length = StatedLength(call, stream);
  if (length.rows != 0 && !LengthsOf(call, joint).SumTo(JointLength(call, joint))) {
    return input.Refuse(StatusCode::kMissingArgument, std::string(" is missing; ") + length.source + " has " +
                                                          std::to_string(length.rows) +
                                                          " rows, and it must have as many");
  }
  const bool is_other = IsValue(stream) && DiffersFromKey(call, stream ^ 1);
  return SpanOf(call, stream).rows == 0 || is_other ? Status() : RefuseMissing(input, call.joint_argument(joint));
}

Status ValidateStreamMissing(const NormRopeConcatCall& call, int stream) {
  return call.joints[JointOf(stream)] ? ValidateInputMissing(call, stream) : ValidateJointMissing(call, stream);
}

// Whether anything is asked of positions that a pair of tables would turn.
bool NeedsTables(const NormRopeConcatCall& call, const NormRopeCall& list, int table) {
  if (!call.options.rotary) return false;
  for (const int joint : {0, 1}) {
    const bool no_positions = call.joints[joint] && !call.has_encoder_tables() && JointLength(call, joint) == 0;
    if (no_positions) return false;
  }
  for (const SegmentCall& segment : list.segments) {
    if (IsValue(segment.stream) || call.table_of(segment.stream) != table) continue;
    if (segment.has_rows() && segment.wants_outputs(call.forward)) return true;
  }
  return false;
}

Status ValidateTablesMissing(const NormRopeConcatCall& call, const NormRopeCall& list, int table) {
  if (!call.options.rotary || !(call.joints[0] || call.joints[1])) return Status();
  const bool needed = NeedsTables(call, list, table);
  for (const int i : {table, table + 1}) {
    const int other = i == table ? table + 1 : table;
    if (call.tables[i] || (!needed && !call.tables[other])) continue;
    if (call.tables[other]) return RefuseMissing(call.table_argument(i), call.table_argument(other));
    return RefuseMissing(call.table_argument(i), call.argument("rotary"));
  }
  return Status();
}

Status ValidateAllMissing(const NormRopeConcatCall& call, const NormRopeCall& list) {
  for (int stream = 0; stream < kStreams; ++stream) {
    if (Status status = ValidateStreamMissing(call, stream); !status.ok()) return status;
  }
  for (const int table : {0, 2}) {
    if (Status status = ValidateTablesMissing(call, list, table); !status.ok()) return status;
  }
  return Status();
}

// ---- shapes

// The views that lengths are read off: sizes and ranks.
Status ValidateRanks(const NormRopeConcatCall& call) {
  const Status sizes = ForEachShared(call, ValidateSize);
  if (!sizes.ok()) return sizes;
  for (int joint = 0; joint < kJoints; ++joint) {
    const auto& view = call.joints[joint];
    if (view && !HasRank4(view)) return call.joint_argument(joint).RefuseShape(*view, "its rank must be 4");
  }
  for (int stream = 0; stream < kStreams; ++stream) {
    if (!call.joints[JointOf(stream)]) continue;
    for (const int operand : {call.x_operand(), static_cast<int>(Operand::kOut)}) {
      const auto& view = call.own[stream][operand];
      if (view && !HasRank4(view)) return call.own_argument(stream, operand).RefuseShape(*view, "its rank must be 4");
    }
  }
  return Status();
}

// Batch, heads and channels of `rows` are those of `model`, as far as `axes` has them.
Status ValidateRowsAgree(const Rows& rows, const Rows& model, bool same_heads) {
  const auto refuse = [&](const char* what, std::int64_t wanted, const std::string& hint) {
    return rows.argument.RefuseShape(*rows.view, std::string("its ") + what + " must be " + model.argument.text() +
                                                     "'s, " + std::to_string(wanted) + hint);
  };
  if (rows.batch() != model.batch()) return refuse("batch", model.batch(), "");
  if (same_heads && rows.heads() != model.heads()) {
    const bool exchanged = rows.sequence() == model.heads();
    return refuse("head extent", model.heads(), exchanged ? HintOfExchange(rows.argument) : "");
  }
  if (rows.head_dim() != model.head_dim()) return refuse("last extent", model.head_dim(), "");
  return Status();
}

Status ValidateSameLength(const Rows& rows, const Rows& model) {
  if (!rows.has_rank_4() || !model.has_rank_4() || rows.sequence() == model.sequence()) return Status();
  return rows.argument.RefuseShape(
      *rows.view, "its sequence extent must be " + model.argument.text() + "'s, " + std::to_string(model.sequence()));
}

// Batch and channels are the same everywhere; heads within a joint sequence; value's lengths are key's.
Status ValidateModelsAgree(const NormRopeConcatCall& call) {
  std::optional<Rows> first;
  for (int joint = 0; joint < kJoints; ++joint) {
    const Rows model = ModelOf(call, joint);
    if (model.view == nullptr) continue;
    if (!first) first = model;
    if (Status status = ValidateRowsAgree(model, *first, false); !status.ok()) return status;
  }
  return call.forward ? Status() : ValidateSameLength(JointRowsOf(call, 2), JointRowsOf(call, 1));
}

// Forward: streams and the output of a joint sequence.
Status ValidateInputsAgree(const NormRopeConcatCall& call, int joint) {
  const Rows model = ModelOf(call, joint);
  if (!call.forward || model.view == nullptr) return Status();
  for (const bool encoder : {false, true}) {
    const Rows rows = StreamRowsOf(call, 2 * joint + encoder);
    if (rows.view == nullptr) continue;
    if (Status status = ValidateRowsAgree(rows, model, true); !status.ok()) return status;
    if (joint != 2) continue;
    if (Status status = ValidateSameLength(rows, StreamRowsOf(call, 2 + encoder)); !status.ok()) return status;
  }
  return ValidateRowsAgree(JointRowsOf(call, joint), model, true);
}

// Where the joint view has the right number of rows in the place of its heads.
std::string HintOfJointOrder(const Rows& joint, const Lengths& lengths) {
  return lengths.SumTo(joint.heads()) ? HintOfExchange(joint.argument) : "";
}

Status ValidateLengths(const NormRopeConcatCall& call, int joint) {
  if (!call.joints[joint]) return Status();
  const Rows rows = JointRowsOf(call, joint);
  const Lengths lengths = LengthsOf(call, joint);
  if (lengths.SumTo(rows.sequence())) return Status();
  const Length& encoder = lengths.encoder;
  const auto refuse = [&](const std::string& rule) {
    return rows.argument.RefuseShape(*rows.view, "its sequence extent must be " + rule);
  };
  if (encoder.rows > rows.sequence()) {  // whatever the other stream's
    return refuse("at least " + std::string(encoder.source) + "'s, " + std::to_string(encoder.rows) +
                  HintOfJointOrder(rows, lengths));
  }
  const auto say = [](const Length& length, const std::string& otherwise) {
    return std::to_string(length.rows) + " (" + (length.source == nullptr ? otherwise : length.source) + ")";
  };
  return refuse("the sum of " + say(lengths.image, kStreamNames[2 * joint]) + " and " +
                say(encoder, std::string(kStreamNames[2 * joint + 1]) + " is absent") +
                HintOfJointOrder(rows, lengths));
}

// Inputs that no norm reads tell their stream's length all the same, so their shape must be its.
Status ValidateUnreadShape(const NormRopeConcatCall& call, const SegmentCall& segment) {
  const auto& x = call.own[segment.stream][call.x_operand()];
  if (!x || segment.given[call.x_operand()]) return Status();
  const std::array<std::int64_t, 4> wanted = {segment.batch, segment.sequence, segment.heads, segment.head_dim};
  if (std::equal(x->shape.begin(), x->shape.end(), wanted.begin(), wanted.end())) return Status();
  const Argument argument = call.own_argument(segment.stream, call.x_operand());
  const Argument joint = call.joint_argument(JointOf(segment.stream));
  return argument.RefuseShape(*x, "it must be [B, S, N, D] of " + joint.text() + ", " + ToString(wanted) +
                                      HintOfOrder(argument, x->shape, wanted, joint));
}

// The positions that a pair of tables may turn: those of the shorter joint sequence, or of the shortest stream with any
// rows whose tables these are.
std::int64_t TableLimit(const NormRopeConcatCall& call, int table) {
  std::int64_t limit = -1;
  const auto meet = [&limit](std::int64_t rows) { limit = limit < 0 ? rows : std::min(limit, rows); };
  for (const int joint : {0, 1}) {
    if (!call.joints[joint]) continue;
    const std::int64_t rows = SpanOf(call, 2 * joint + (table == 0 ? 0 : 1)).rows;
    if (!call.has_encoder_tables()) meet(JointLength(call, joint));
    if (call.has_encoder_tables() && rows != 0) meet(rows);
  }
  return std::max<std::int64_t>(limit, 0);
}

// Both query's and key's rows turn by it.
Status ValidateTableBroadcast(const NormRopeConcatCall& call, int table) {
  const Argument argument = call.table_argument(table);
  for (const int joint : {0, 1}) {
    const Rows rows = ModelOf(call, joint);
    if (rows.view == nullptr) continue;
    const Status status =
        ValidateTableBroadcast(argument, *call.tables[table], rows.argument, rows.batch(), rows.heads());
    if (!status.ok()) return status;
  }
  return Status();
}

// The heads that a table may have beside 1: those of query and key, where they are the same.
std::int64_t TableHeads(const NormRopeConcatCall& call) {
  const std::int64_t heads = TurningRowsOf(call).heads();
  return call.joints[1] && ModelOf(call, 1).heads() != heads ? 1 : heads;
}

Status ValidateTableRows(const NormRopeConcatCall& call, int table) {
  const ConstTensorView& view = *call.tables[table];
  const std::int64_t rows = TableRows(view), limit = TableLimit(call, table), start = call.options.rope_start;
  if (rows == 0 && limit != 0) return call.table_argument(table).RefuseShape(view, "it must have at least 1 row");
  if (rows <= limit && start <= limit - rows) return Status();
  const char* const whose = !call.has_encoder_tables() ? "shorter joint sequence"
                            : table == 0               ? "shorter of query and key"
                                                       : "shorter of encoder_query and encoder_key";
  return call.table_argument(table).RefuseShape(
      view, "rope_start, " + std::to_string(start) + ", and its " + std::to_string(rows) +
                " rows must sum to at most the length of the " + whose + ", " + std::to_string(limit));
}

Status ValidateTableShapes(const NormRopeConcatCall& call, int table) {
  if (!call.tables[table] || !call.tables[table + 1]) return Status();
  const Argument argument = call.table_argument(table);
  const ConstTensorView &cos = *call.tables[table], &sin = *call.tables[table + 1];
  const Rows rows = TurningRowsOf(call);
  if (Status status = ValidateTableRank(argument, cos, rows.batch(), TableHeads(call)); !status.ok()) return status;
  if (Status status = ValidateTableWidth(argument, cos, *call.options.rotary, rows.argument, rows.head_dim());
      !status.ok()) {
    return status;
  }
  if (Status status = ValidateTableBroadcast(call, table); !status.ok()) return status;
  if (Status status = ValidateTableRows(call, table); !status.ok()) return status;
  return ValidateSameShape(call.table_argument(table + 1), sin, argument, cos);
}

Status ValidateJointTables(const NormRopeConcatCall& call) {
  const Rows rows = TurningRowsOf(call);
  if (!call.options.rotary || rows.view == nullptr) return Status();
  if (Status status = ValidateRowWidth(rows.argument, *rows.view, *call.options.rotary); !status.ok()) return status;
  for (const int table : {0, 2}) {
    if (Status status = ValidateTableShapes(call, table); !status.ok()) return status;
  }
  return Status();
}

Status ValidateJointShapes(const NormRopeConcatCall& call, const NormRopeCall& list) {
  if (Status status = ValidateRanks(call); !status.ok()) return status;
  if (Status status = ValidateModelsAgree(call); !status.ok()) return status;
  for (int joint = 0; joint < kJoints; ++joint) {
    if (Status status = ValidateInputsAgree(call, joint); !status.ok()) return status;
    if (Status status = ValidateLengths(call, joint); !status.ok()) return status;
  }
  for (const SegmentCall& segment : list.segments) {
    if (Status status = ValidateUnreadShape(call, segment); !status.ok()) return status;
  }
  return ValidateJointTables(call);
}

// Slices of one output: an element twice in the whole may be once in each.
Status ValidateJointElements(const NormRopeConcatCall& call) {
  if (!call.forward) return Status();
  for (int joint = 0; joint < kJoints; ++joint) {
    if (!call.joints[joint]) continue;
    if (Status status = ValidateOwnElements(call.joint_argument(joint), *call.joints[joint]); !status.ok()) {
      return status;
    }
  }
  return Status();
}

}  // namespace

Status ValidateViews(const NormRopeConcatCall& call, const NormRopeCall& list) {
  if (Status status = ValidateTableTypes(call); !status.ok()) return status;
  if (Status status = ValidateTypes(list); !status.ok()) return status;
  if (Status status = ValidateJointAttributes(call); !status.ok()) return status;
  if (Status status = ValidateAttributes(list); !status.ok()) return status;
  if (Status status = ValidateAllMissing(call, list); !status.ok()) return status;
  if (Status status = ValidateMissing(list); !status.ok()) return status;
  if (Status status = ValidateJointShapes(call, list); !status.ok()) return status;
  if (Status status = ValidateShapes(list); !status.ok()) return status;
  if (Status status = ValidateJointElements(call); !status.ok()) return status;
  return ValidateOwnElements(list);
}

Status Validate(const NormRopeConcatCall& call, const NormRopeCall& list) {
  const NormRopeAddresses data = AddressesOf(list);
  if (Status status = ValidateSharedNull(call); !status.ok()) return status;
  if (Status status = ValidateNull(list, data); !status.ok()) return status;
  if (Status status = ValidateViews(call, list); !status.ok()) return status;
  return ValidateMemory(list, data);
}

}  // namespace internal

namespace {

template <class Args>
Status ValidateArgs(const Args& args) {
  return internal::Guard([&] {
    const auto call = internal::NormRopeConcatCall::From(args);
    return internal::Validate(call, internal::ListOf(call));
  });
}

}  // namespace

Status ValidateNormRopeConcatBackward(const NormRopeConcatBackwardArgs& args) { return ValidateArgs(args); }

Status ValidateNormRopeConcat(const NormRopeConcatArgs& args) { return ValidateArgs(args); }

}  // namespace gyrograd
