// The rules of the joint call, in their order of precedence, and its list of segments.
#include "ops/norm_rope_concat/validate.h"

#include <algorithm>
#include <string>

#include "core/guard.h"

namespace gyrograd {

const char* Name(ConcatOrder order) {
  switch (order) {
    case ConcatOrder::kStreamFirst: return "stream_first";
    case ConcatOrder::kEncoderFirst: return "encoder_first";
  }
  return "unknown";
}

namespace internal {
namespace {

using Operand = NormRopeOperand;

// ---- names

constexpr const char* kJointNames[2][kJoints] = {{"grad_query_output", "grad_key_output", "grad_value_output"},
                                                 {"query_output", "key_output", "value_output"}};
constexpr const char* kStreamNames[kStreams] = {"query",       "encoder_query", "key",
                                                "encoder_key", "value",         "encoder_value"};
constexpr const char* kGradientNames[kStreams] = {"dquery",       "dencoder_query", "dkey",
                                                  "dencoder_key", "dvalue",         "dencoder_value"};
constexpr const char* kTableNames[4] = {"rope_cos", "rope_sin", "encoder_rope_cos", "encoder_rope_sin"};

struct NormNames {
  const char *weight, *bias, *mean, *rstd, *dweight, *dbias;
};

constexpr NormNames kNormNames[kStreams] = {
    {"norm_query.weight", "norm_query.bias", "norm_query.mean", "norm_query.rstd", "norm_query.dweight",
     "norm_query.dbias"},
    {"norm_added_query.weight", "norm_added_query.bias", "norm_added_query.mean", "norm_added_query.rstd",
     "norm_added_query.dweight", "norm_added_query.dbias"},
    {"norm_key.weight", "norm_key.bias", "norm_key.mean", "norm_key.rstd", "norm_key.dweight", "norm_key.dbias"},
    {"norm_added_key.weight", "norm_added_key.bias", "norm_added_key.mean", "norm_added_key.rstd",
     "norm_added_key.dweight", "norm_added_key.dbias"},
    {},
    {}};

constexpr NormRopeNames NamesOf(bool forward, int stream, int table) {
  const NormNames& norm = kNormNames[stream];
  const char* const joint = kJointNames[forward][JointOf(stream)];
  return {{forward ? kStreamNames[stream] : joint, forward ? "" : kStreamNames[stream], norm.weight, norm.bias,
           norm.mean, norm.rstd, kTableNames[table], kTableNames[table + 1], forward ? joint : kGradientNames[stream],
           norm.dweight, norm.dbias},
          IsEncoder(stream) ? "norm_added_type" : "norm_type",
          "eps",
          "rotary.",
          "rope_start"};
}

using NamesByStream = std::array<NormRopeNames, kStreams>;

constexpr NamesByStream NamesOf(bool forward, bool encoder_tables) {
  NamesByStream names = {};
  for (int s = 0; s < kStreams; ++s) names[s] = NamesOf(forward, s, encoder_tables && IsEncoder(s) ? 2 : 0);
  return names;
}

constexpr NamesByStream kNames[2][2] = {{NamesOf(false, false), NamesOf(false, true)},
                                        {NamesOf(true, false), NamesOf(true, true)}};

const NormRopeNames& NamesOf(const NormRopeConcatCall& call, int stream) {
  return kNames[call.forward][call.has_encoder_tables()][stream];
}

Argument ArgumentOf(const NormRopeConcatCall& call, const char* name) { return {call.name, name}; }

Argument JointArgument(const NormRopeConcatCall& call, int joint) {
  return ArgumentOf(call, kJointNames[call.forward][joint]);
}

Argument OwnArgument(const NormRopeConcatCall& call, int stream, int operand) {
  return ArgumentOf(call, NamesOf(call, stream).operands[operand]);
}

Argument TableArgument(const NormRopeConcatCall& call, int table) { return ArgumentOf(call, kTableNames[table]); }

// ---- lengths

bool HasRank4(const std::optional<ConstTensorView>& view) { return view && view->shape.size() == 4; }

// The rows of a stream, and the argument that says so; null where none does.
struct Length {
  std::int64_t rows = 0;
  const char* source = nullptr;
};

// What the stream's own views say: x, else its gradient. They are [B, S, N, D].
void AskStream(const NormRopeConcatCall& call, int stream, Length& length) {
  for (const int operand : {call.x_operand(), static_cast<int>(Operand::kOut)}) {
    const auto& view = call.own[stream][operand];
    if (length.source == nullptr && HasRank4(view)) {
      length = {view->shape[1], NamesOf(call, stream).operands[operand]};
    }
  }
}

// Value's lengths are key's: each tells the other's.
Length StatedLength(const NormRopeConcatCall& call, int stream) {
  Length length;
  const bool encoder = IsEncoder(stream);
  if (JointOf(stream) == 0) {
    AskStream(call, stream, length);
  } else {
    AskStream(call, 2 + encoder, length);
    AskStream(call, 4 + encoder, length);
  }
  return length;
}

std::int64_t JointRows(const NormRopeConcatCall& call, int joint) {
  return HasRank4(call.joints[joint]) ? call.joints[joint]->shape[2] : 0;
}

// The lengths of a joint sequence's two streams. An encoder stream that nothing speaks of has none; an image stream has
// what is left.
struct Lengths {
  Length image, encoder;

  // No overflow: a joint sequence that could not hold the encoder stream is refused without adding.
  bool SumTo(std::int64_t rows) const {
    return image.rows >= 0 && encoder.rows >= 0 && encoder.rows <= rows && image.rows == rows - encoder.rows;
  }
};

Lengths LengthsOf(const NormRopeConcatCall& call, int joint) {
  Lengths lengths{StatedLength(call, 2 * joint), StatedLength(call, 2 * joint + 1)};
  const std::int64_t rows = JointRows(call, joint);
  if (lengths.image.source == nullptr && lengths.encoder.rows <= rows) lengths.image.rows = rows - lengths.encoder.rows;
  return lengths;
}

// Where a stream lies in its joint sequence; inside it, whatever the lengths say.
struct Span {
  std::int64_t start = 0;
  std::int64_t rows = 0;
};

Span SpanOf(const NormRopeConcatCall& call, int stream) {
  const std::int64_t joint = std::max<std::int64_t>(JointRows(call, JointOf(stream)), 0);
  const std::int64_t image = std::clamp<std::int64_t>(LengthsOf(call, JointOf(stream)).image.rows, 0, joint);
  const bool encoder_first = call.options.concat_order == ConcatOrder::kEncoderFirst;
  if (IsEncoder(stream)) return {encoder_first ? 0 : image, joint - image};
  return {encoder_first ? joint - image : 0, image};
}

// ---- the list

bool IsGiven(const NormRopeConcatCall& call, int stream) {
  for (const auto& view : call.own[stream]) {
    if (view) return true;
  }
  return false;
}

// A stream is there where it may have rows, or was given anything.
bool IsThere(const NormRopeConcatCall& call, int stream) {
  if (!call.joints[JointOf(stream)]) return false;
  return !IsEncoder(stream) || IsGiven(call, stream) || SpanOf(call, stream).rows != 0;
}

// The slices' shapes and strides, four numbers at a time.
class ExtentsStore {
 public:
  using Four = std::array<std::int64_t, 4>;
  static constexpr std::size_t kPerSegment = 5 * 4;  // the joint view's shape, and both of each table

  explicit ExtentsStore(std::size_t segments)
      : memory_(new std::int64_t[segments * kPerSegment]), next_(memory_.get()) {}

  Extents Keep(const Four& values) {
    std::copy(values.begin(), values.end(), next_);
    next_ += values.size();
    return Extents(next_ - values.size(), values.size());
  }
  const std::shared_ptr<std::int64_t[]>& memory() const { return memory_; }

 private:
  std::shared_ptr<std::int64_t[]> memory_;
  std::int64_t* next_;
};

// The bytes from a view's data to the start of a slice of it; 0 for one without elements, and where it would overflow
// (then the whole view is refused).
std::int64_t SliceOffset(const ConstTensorView& slice, std::int64_t start, std::int64_t stride) {
  std::int64_t offset;
  if (IsEmpty(slice.shape) || __builtin_mul_overflow(start, stride, &offset) ||
      __builtin_mul_overflow(offset, static_cast<std::int64_t>(SizeOf(slice.dtype)), &offset)) {
    return 0;
  }
  return offset;
}

const void* Shift(const void* data, std::int64_t offset) {
  if (data == nullptr) return nullptr;
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(offset));
}

void GiveSlice(SegmentCall& segment, bool forward, int operand, ConstTensorView slice, std::int64_t offset) {
  slice.data = Shift(slice.data, offset);
  segment.offsets[operand] = offset;
  segment.Give(forward, operand, slice);
}

void GiveJoint(const NormRopeConcatCall& call, SegmentCall& segment, ExtentsStore& store) {
  ConstTensorView slice = *call.joints[JointOf(segment.stream)];
  std::int64_t offset = 0;
  if (slice.shape.size() == 4) {
    const Span span = SpanOf(call, segment.stream);
    segment.batch = slice.shape[0];
    segment.sequence = span.rows;
    segment.heads = slice.shape[1];
    segment.head_dim = slice.shape[3];
    slice.shape = store.Keep({slice.shape[0], slice.shape[1], span.rows, slice.shape[3]});
    if (slice.strides.size() == 4) offset = SliceOffset(slice, span.start, slice.strides[2]);
  }
  GiveSlice(segment, call.forward, call.joint_operand(), slice, offset);
}

// Rows first .. first + rows - 1 of a table, [L, R] or rank 4, as a table of rank 4.
void GiveTableRows(const NormRopeConcatCall& call, SegmentCall& segment, int operand, const ConstTensorView& table,
                   std::int64_t first, ExtentsStore& store) {
  const bool flat = table.shape.size() == 2;
  ConstTensorView slice = table;
  if (flat) {
    slice.shape = store.Keep({1, 1, segment.rope_rows, table.shape[1]});
    slice.strides = store.Keep({0, 0, table.strides[0], table.strides[1]});
  } else {
    slice.shape = store.Keep({table.shape[0], table.shape[1], segment.rope_rows, table.shape[3]});
  }
  GiveSlice(segment, call.forward, operand, slice, SliceOffset(slice, first, slice.strides[2]));
}

bool IsTable(const std::optional<ConstTensorView>& view) {
  return view && (view->shape.size() == 2 || view->shape.size() == 4) && view->strides.size() == view->shape.size();
}

std::int64_t TableRows(const ConstTensorView& table) { return table.shape[table.shape.size() - 2]; }

// The part of the tables that meets the stream.
void GiveRotation(const NormRopeConcatCall& call, SegmentCall& segment, ExtentsStore& store) {
  if (!call.options.rotary || IsValue(segment.stream)) return;
  const int table = call.table_of(segment.stream);
  const auto &cos = call.tables[table], &sin = call.tables[table + 1];
  if (!IsTable(cos) || !IsTable(sin)) return;
  const std::int64_t start = call.has_encoder_tables() ? 0 : SpanOf(call, segment.stream).start;
  std::int64_t end;
  if (__builtin_add_overflow(call.options.rope_start, TableRows(*cos), &end)) return;
  const std::int64_t first = std::max(call.options.rope_start, start);
  end = std::min(end, start + segment.sequence);
  if (first >= end || call.options.rope_start < 0) return;
  segment.rotates = true;
  segment.options = *call.options.rotary;
  segment.rope_first = first - start;
  segment.rope_rows = end - first;
  GiveTableRows(call, segment, Operand::kCos, *cos, first - call.options.rope_start, store);
  GiveTableRows(call, segment, Operand::kSin, *sin, first - call.options.rope_start, store);
}

SegmentCall SegmentOf(const NormRopeConcatCall& call, int stream, ExtentsStore& store) {
  SegmentCall segment;
  segment.stream = stream;
  segment.norm_type = call.norm_type(stream);
  segment.eps = call.eps;
  segment.names = &NamesOf(call, stream);
  segment.model = call.joint_operand();
  GiveJoint(call, segment, store);
  for (int operand = 0; operand < kNormRopeOperands; ++operand) {
    if (call.own[stream][operand]) segment.Give(call.forward, operand, *call.own[stream][operand]);
  }
  GiveRotation(call, segment, store);
  return segment;
}

// ---- null

// The first refusal of rule(argument, view) over the joint views and, where something may turn, the tables.
template <class Rule>
Status ForEachShared(const NormRopeConcatCall& call, const Rule& rule) {
  for (int joint = 0; joint < kJoints; ++joint) {
    if (!call.joints[joint]) continue;
    if (Status status = rule(JointArgument(call, joint), *call.joints[joint]); !status.ok()) return status;
  }
  if (!call.options.rotary || !(call.joints[0] || call.joints[1])) return Status();
  for (int table = 0; table < 4; ++table) {
    if (!call.tables[table]) continue;
    if (Status status = rule(TableArgument(call, table), *call.tables[table]); !status.ok()) return status;
  }
  return Status();
}

Status ValidateSharedNull(const NormRopeConcatCall& call) {
  return ForEachShared(call, [](const Argument& argument, const ConstTensorView& view) {
    return ValidateNotNull(argument, view.shape, view.data);
  });
}

// ---- types

// Tables that turn nothing belong to no segment, and yet have a type.
Status ValidateTableTypes(const NormRopeConcatCall& call) {
  const Status known = ForEachShared(call, [](const Argument& argument, const ConstTensorView& view) {
    return ValidateKnownType(argument, view.dtype);
  });
  if (!known.ok() || !call.options.rotary) return known;
  const int joint = call.joints[0] ? 0 : 1;
  if (!call.joints[joint]) return Status();
  for (const int table : {0, 2}) {
    const auto &cos = call.tables[table], &sin = call.tables[table + 1];
    if (!cos || !sin) continue;
    if (Status status = ValidateCompanionType(TableArgument(call, table), cos->dtype, JointArgument(call, joint),
                                              call.joints[joint]->dtype);
        !status.ok()) {
      return status;
    }
    if (Status status =
            ValidateSameType(TableArgument(call, table + 1), sin->dtype, TableArgument(call, table), cos->dtype);
        !status.ok()) {
      return status;
    }
  }
  return Status();
}

// ---- attributes

Status ValidateJointRotary(const NormRopeConcatCall& call) {
  if (!call.options.rotary) return Status();
  const Argument prefix = ArgumentOf(call, "rotary.");
  if (Status status = ValidateMode(prefix, call.options.rotary->mode); !status.ok()) return status;
  for (int joint = 0; joint < 2; ++joint) {
    if (!HasRank4(call.joints[joint])) continue;
    const Argument row = JointArgument(call, joint);
    const std::int64_t width = call.joints[joint]->shape[3];
    if (Status status = ValidateRotaryDim(prefix, *call.options.rotary, row, width); !status.ok()) return status;
  }
  if (call.options.rope_start >= 0) return Status();
  return ArgumentOf(call, "rope_start")
      .Refuse(StatusCode::kInvalidAttribute,
              " is " + std::to_string(call.options.rope_start) + "; it must be at least 0");
}

Status ValidateJointAttributes(const NormRopeConcatCall& call) {
  const NormRopeConcatOptions& options = call.options;
  if (Status status = ValidateNormType(ArgumentOf(call, "norm_type"), options.norm_type); !status.ok()) return status;
  if (Status status = ValidateNormType(ArgumentOf(call, "norm_added_type"), options.norm_added_type); !status.ok()) {
    return status;
  }
  const int order = static_cast<int>(options.concat_order);
  if (order != 0 && order != 1) {
    return ArgumentOf(call, "concat_order")
        .Refuse(StatusCode::kInvalidAttribute,
                " is " + std::to_string(order) + "; it must be 0 (stream_first) or 1 (encoder_first)");
  }
  return ValidateJointRotary(call);
}

// ---- missing arguments

Status RefuseMissing(const Argument& argument, const Argument& asking) {
  return argument.Refuse(StatusCode::kMissingArgument, " is missing; " + asking.text() + " needs it");
}

// Outputs need the joint view of their stream; forward, the joint view needs every stream with rows.
Status ValidateStreamMissing(const NormRopeConcatCall& call, int stream) {
  const int joint = JointOf(stream);
  if (!call.joints[joint]) {
    for (int operand = 0; operand < kNormRopeOperands; ++operand) {
      if (!call.own[stream][operand] || !IsNormRopeOutput(call.forward, operand)) continue;
      return RefuseMissing(JointArgument(call, joint), OwnArgument(call, stream, operand));
    }
    return Status();
  }
  const int x = call.x_operand();
  if (!call.forward || call.own[stream][x] || SpanOf(call, stream).rows == 0) return Status();
  return RefuseMissing(OwnArgument(call, stream, x), JointArgument(call, joint));
}

// Whether anything is asked of positions that a pair of tables would turn.
bool NeedsTables(const NormRopeConcatCall& call, const NormRopeCall& list, int table) {
  if (!call.options.rotary) return false;
  for (const int joint : {0, 1}) {
    const bool no_positions = call.joints[joint] && !call.has_encoder_tables() && JointRows(call, joint) == 0;
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
    if (call.tables[other]) return RefuseMissing(TableArgument(call, i), TableArgument(call, other));
    return RefuseMissing(TableArgument(call, i), ArgumentOf(call, "rotary"));
  }
  return Status();
}

Status ValidateJointMissing(const NormRopeConcatCall& call, const NormRopeCall& list) {
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
    if (view && !HasRank4(view)) return JointArgument(call, joint).RefuseShape(*view, "its rank must be 4");
  }
  for (int stream = 0; stream < kStreams; ++stream) {
    if (!call.joints[JointOf(stream)]) continue;
    for (const int operand : {call.x_operand(), static_cast<int>(Operand::kOut)}) {
      const auto& view = call.own[stream][operand];
      if (view && !HasRank4(view)) return OwnArgument(call, stream, operand).RefuseShape(*view, "its rank must be 4");
    }
  }
  return Status();
}

// Batch and head dimension are those of the first joint view; value's sequence is key's.
Status ValidateJointsAgree(const NormRopeConcatCall& call) {
  int model = -1;
  for (int joint = 0; joint < kJoints; ++joint) {
    if (!call.joints[joint]) continue;
    if (model < 0) model = joint;
    const ConstTensorView &view = *call.joints[joint], &first = *call.joints[model];
    for (const auto& [axis, what] : {std::pair<int, const char*>{0, "batch"}, {3, "last extent"}}) {
      if (view.shape[axis] == first.shape[axis]) continue;
      return JointArgument(call, joint)
          .RefuseShape(view, std::string("its ") + what + " must be " + JointArgument(call, model).text() + "'s, " +
                                 std::to_string(first.shape[axis]));
    }
  }
  if (!call.joints[1] || !call.joints[2] || JointRows(call, 1) == JointRows(call, 2)) return Status();
  return JointArgument(call, 2).RefuseShape(
      *call.joints[2],
      "its sequence extent must be " + JointArgument(call, 1).text() + "'s, " + std::to_string(JointRows(call, 1)));
}

Status ValidateLengths(const NormRopeConcatCall& call, int joint) {
  if (!call.joints[joint]) return Status();
  const Lengths lengths = LengthsOf(call, joint);
  if (lengths.SumTo(JointRows(call, joint))) return Status();
  const auto say = [](const Length& length, const char* otherwise) {
    return std::to_string(length.rows) + " (" + (length.source == nullptr ? otherwise : length.source) + ")";
  };
  const std::string absent = std::string(kStreamNames[2 * joint + 1]) + " is absent";
  return JointArgument(call, joint)
      .RefuseShape(*call.joints[joint], "its sequence extent must be the sum of its streams', " +
                                            say(lengths.image, kStreamNames[2 * joint]) + " and " +
                                            say(lengths.encoder, absent.c_str()));
}

// Inputs that no norm reads tell their stream's length all the same, so their shape must be its.
Status ValidateUnreadShape(const NormRopeConcatCall& call, const SegmentCall& segment) {
  const auto& x = call.own[segment.stream][call.x_operand()];
  if (!x || segment.given[call.x_operand()]) return Status();
  const std::array<std::int64_t, 4> wanted = {segment.batch, segment.sequence, segment.heads, segment.head_dim};
  if (std::equal(x->shape.begin(), x->shape.end(), wanted.begin(), wanted.end())) return Status();
  return OwnArgument(call, segment.stream, call.x_operand())
      .RefuseShape(*x, "it must be [B, S, N, D] of " + JointArgument(call, JointOf(segment.stream)).text() + ", " +
                           ToString(wanted));
}

// The positions that a pair of tables may turn: those of the shorter joint sequence, or of the shortest stream with any
// rows whose tables these are.
std::int64_t TableLimit(const NormRopeConcatCall& call, int table) {
  std::int64_t limit = -1;
  const auto meet = [&limit](std::int64_t rows) { limit = limit < 0 ? rows : std::min(limit, rows); };
  for (const int joint : {0, 1}) {
    if (!call.joints[joint]) continue;
    const std::int64_t rows = SpanOf(call, 2 * joint + (table == 0 ? 0 : 1)).rows;
    if (!call.has_encoder_tables()) meet(JointRows(call, joint));
    if (call.has_encoder_tables() && rows != 0) meet(rows);
  }
  return std::max<std::int64_t>(limit, 0);
}

Status ValidateTableBroadcast(const NormRopeConcatCall& call, int table) {
  const ConstTensorView& view = *call.tables[table];
  if (view.shape.size() != 4) return Status();
  for (const int joint : {0, 1}) {
    if (!call.joints[joint]) continue;
    for (const int axis : {0, 1}) {
      const std::int64_t extent = call.joints[joint]->shape[axis];
      if (view.shape[axis] == 1 || view.shape[axis] == extent) continue;
      return TableArgument(call, table)
          .RefuseShape(view, "its extent of axis " + std::to_string(axis) + " must be 1 or " +
                                 JointArgument(call, joint).text() + "'s, " + std::to_string(extent));
    }
  }
  return Status();
}

Status ValidateTableRows(const NormRopeConcatCall& call, int table) {
  const ConstTensorView& view = *call.tables[table];
  const std::int64_t rows = TableRows(view), limit = TableLimit(call, table), start = call.options.rope_start;
  if (rows == 0 && limit != 0) return TableArgument(call, table).RefuseShape(view, "it must have at least 1 row");
  if (rows <= limit && start <= limit - rows) return Status();
  const char* const whose = !call.has_encoder_tables() ? "shorter of the joint sequences'"
                            : table == 0               ? "shorter of query's and key's"
                                                       : "shorter of encoder_query's and encoder_key's";
  return TableArgument(call, table)
      .RefuseShape(view, "rope_start, " + std::to_string(start) + ", and its " + std::to_string(rows) +
                             " rows must sum to at most the length of the " + whose + ", " + std::to_string(limit));
}

Status ValidateTableShapes(const NormRopeConcatCall& call, int table) {
  if (!call.tables[table] || !call.tables[table + 1]) return Status();
  const Argument argument = TableArgument(call, table);
  const ConstTensorView &cos = *call.tables[table], &sin = *call.tables[table + 1];
  if (!IsTable(call.tables[table])) return argument.RefuseShape(cos, "its rank must be 2 or 4");
  const int joint = call.joints[0] ? 0 : 1;
  if (Status status = ValidateTableWidth(argument, cos, *call.options.rotary, JointArgument(call, joint),
                                         call.joints[joint]->shape[3]);
      !status.ok()) {
    return status;
  }
  if (Status status = ValidateTableBroadcast(call, table); !status.ok()) return status;
  if (Status status = ValidateTableRows(call, table); !status.ok()) return status;
  return ValidateSameShape(TableArgument(call, table + 1), sin, argument, cos);
}

Status ValidateJointTables(const NormRopeConcatCall& call) {
  const int joint = call.joints[0] ? 0 : 1;
  if (!call.options.rotary || !call.joints[joint]) return Status();
  if (Status status = ValidateRowWidth(JointArgument(call, joint), *call.joints[joint], *call.options.rotary);
      !status.ok()) {
    return status;
  }
  for (const int table : {0, 2}) {
    if (Status status = ValidateTableShapes(call, table); !status.ok()) return status;
  }
  return Status();
}

Status ValidateJointShapes(const NormRopeConcatCall& call, const NormRopeCall& list) {
  if (Status status = ValidateRanks(call); !status.ok()) return status;
  if (Status status = ValidateJointsAgree(call); !status.ok()) return status;
  for (int joint = 0; joint < kJoints; ++joint) {
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
    if (Status status = ValidateOwnElements(JointArgument(call, joint), *call.joints[joint]); !status.ok()) {
      return status;
    }
  }
  return Status();
}

// ---- arguments

ConstTensorView ViewOf(const ConstTensorView& view) { return view; }
ConstTensorView ViewOf(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

// Sets own[stream][operand], if it was given.
class Giver {
 public:
  Giver(NormRopeConcatCall& call, int stream) : own_(call.own[stream]) {}

  template <class View>
  const Giver& Give(int operand, const std::optional<View>& view) const {
    if (view) own_[operand] = ViewOf(*view);
    return *this;
  }

 private:
  std::array<std::optional<ConstTensorView>, kNormRopeOperands>& own_;
};

void GiveNorm(NormRopeConcatCall& call, int stream, const NormBackwardTensors& norm) {
  Giver(call, stream)
      .Give(Operand::kWeight, norm.weight)
      .Give(Operand::kMean, norm.mean)
      .Give(Operand::kRstd, norm.rstd)
      .Give(Operand::kDweight, norm.dweight)
      .Give(Operand::kDbias, norm.dbias);
}

void GiveNorm(NormRopeConcatCall& call, int stream, const NormTensors& norm) {
  Giver(call, stream)
      .Give(Operand::kWeight, norm.weight)
      .Give(Operand::kBias, norm.bias)
      .Give(Operand::kMean, norm.mean)
      .Give(Operand::kRstd, norm.rstd);
}

template <class Args>
NormRopeConcatCall CallOf(const Args& args, bool forward, const char* name) {
  NormRopeConcatCall call;
  call.forward = forward;
  call.name = name;
  call.options = args.options;
  call.execution = args.execution;
  call.tables = {args.rope_cos, args.rope_sin, args.encoder_rope_cos, args.encoder_rope_sin};
  Giver(call, 0).Give(call.x_operand(), args.query);
  Giver(call, 1).Give(call.x_operand(), args.encoder_query);
  Giver(call, 2).Give(call.x_operand(), args.key);
  Giver(call, 3).Give(call.x_operand(), args.encoder_key);
  GiveNorm(call, 0, args.norm_query);
  GiveNorm(call, 1, args.norm_added_query);
  GiveNorm(call, 2, args.norm_key);
  GiveNorm(call, 3, args.norm_added_key);
  return call;
}

}  // namespace

NormRopeConcatCall NormRopeConcatCall::From(const NormRopeConcatBackwardArgs& args) {
  NormRopeConcatCall call = CallOf(args, false, "norm_rope_concat_backward");
  call.joints = {args.grad_query_output, args.grad_key_output, args.grad_value_output};
  Giver(call, 0).Give(Operand::kOut, args.dquery);
  Giver(call, 1).Give(Operand::kOut, args.dencoder_query);
  Giver(call, 2).Give(Operand::kOut, args.dkey);
  Giver(call, 3).Give(Operand::kOut, args.dencoder_key);
  Giver(call, 4).Give(Operand::kOut, args.dvalue);
  Giver(call, 5).Give(Operand::kOut, args.dencoder_value);
  return call;
}

NormRopeConcatCall NormRopeConcatCall::From(const NormRopeConcatArgs& args) {
  NormRopeConcatCall call = CallOf(args, true, "norm_rope_concat");
  call.eps = args.eps;
  if (args.query_output) call.joints[0] = ViewOf(*args.query_output);
  if (args.key_output) call.joints[1] = ViewOf(*args.key_output);
  if (args.value_output) call.joints[2] = ViewOf(*args.value_output);
  Giver(call, 4).Give(call.x_operand(), args.value);
  Giver(call, 5).Give(call.x_operand(), args.encoder_value);
  return call;
}

NormRopeCall ListOf(const NormRopeConcatCall& call) {
  NormRopeCall list;
  list.forward = call.forward;
  list.listed = false;
  list.name = call.name;
  list.execution = call.execution;
  list.segments.reserve(kStreams);
  ExtentsStore store(kStreams);
  for (int stream = 0; stream < kStreams; ++stream) {
    if (IsThere(call, stream)) list.segments.push_back(SegmentOf(call, stream, store));
  }
  list.extents = store.memory();
  return list;
}

Status ValidateViews(const NormRopeConcatCall& call, const NormRopeCall& list) {
  if (Status status = ValidateTableTypes(call); !status.ok()) return status;
  if (Status status = ValidateTypes(list); !status.ok()) return status;
  if (Status status = ValidateJointAttributes(call); !status.ok()) return status;
  if (Status status = ValidateAttributes(list); !status.ok()) return status;
  if (Status status = ValidateJointMissing(call, list); !status.ok()) return status;
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

NormRopeConcatPointers PointersOf(const NormRopeCall& planned, const NormRopeConcatCall& call) {
  NormRopeConcatPointers pointers = {};
  for (std::size_t i = 0; i < planned.segments.size(); ++i) {
    const SegmentCall& segment = planned.segments[i];
    const int table = call.table_of(segment.stream);
    for (int operand = 0; operand < kNormRopeOperands; ++operand) {
      if (!segment.given[operand]) continue;
      const auto& view = operand == call.joint_operand() ? call.joints[JointOf(segment.stream)]
                         : operand == Operand::kCos      ? call.tables[table]
                         : operand == Operand::kSin      ? call.tables[table + 1]
                                                         : call.own[segment.stream][operand];
      if (view) pointers[i][operand] = Shift(view->data, segment.offsets[operand]);
    }
  }
  return pointers;
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
