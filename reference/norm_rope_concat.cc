// Slicing of the joint sequences and of their tables into segments.
#include "reference/norm_rope_concat.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "reference/walk.h"

namespace gyrograd::reference {
namespace {

using Extents = std::array<Index, 4>;

// Makes views of rank 4 whose extents lie in a deque.
class Slicer {
 public:
  explicit Slicer(std::deque<Extents>* extents) : extents_(extents) {}

  // Positions first .. first + length - 1 of a view of rank 4 along its axis 2.
  template <class View>
  View Positions(const View& view, Index first, Index length) {
    Extents shape, strides;
    std::copy_n(view.shape.begin(), 4, shape.begin());
    std::copy_n(view.strides.begin(), 4, strides.begin());
    shape[2] = length;
    View result = Keep(view, shape, strides);
    if (Count(result.shape) != 0) result.data = Address(view.data, view.dtype, first * strides[2]);
    return result;
  }

  // [L, R] as [1, 1, L, R].
  ConstTensorView Rank4(const ConstTensorView& table) {
    if (table.shape.size() == 4) return table;
    return Keep(table, {1, 1, table.shape[0], table.shape[1]}, {0, 0, table.strides[0], table.strides[1]});
  }

 private:
  template <class View>
  View Keep(View view, const Extents& shape, const Extents& strides) {
    extents_->push_back(shape);
    view.shape = extents_->back();
    extents_->push_back(strides);
    view.strides = extents_->back();
    return view;
  }

  std::deque<Extents>* extents_;
};

// ---- Where a stream lies in its joint sequence ------------------------------------------------------------------

struct Span {
  Index first = 0;
  Index length = 0;
};

// The streams' lengths, from whichever of their views (rank 4, positions along `axis`) are there.
template <class View>
std::optional<Index> LengthOf(std::initializer_list<const std::optional<View>*> views, std::size_t axis) {
  for (const std::optional<View>* view : views) {
    if (*view) return (*view)->shape[axis];
  }
  return std::nullopt;
}

struct Joint {
  Span stream;
  Span encoder;
};

// An encoder stream that nothing speaks of is absent; the other one has what is left.
Joint Places(Index joint, std::optional<Index> stream, std::optional<Index> encoder, ConcatOrder order) {
  const Index encoder_length = encoder.value_or(0), stream_length = stream.value_or(joint - encoder_length);
  if (order == ConcatOrder::kStreamFirst) return {{0, stream_length}, {stream_length, encoder_length}};
  return {{encoder_length, stream_length}, {0, encoder_length}};
}

// ---- The rotation of a stream -----------------------------------------------------------------------------------

struct Tables {
  const std::optional<ConstTensorView>& rope_cos;
  const std::optional<ConstTensorView>& rope_sin;
  const std::optional<ConstTensorView>& encoder_rope_cos;
  const std::optional<ConstTensorView>& encoder_rope_sin;
  bool own() const { return encoder_rope_cos.has_value(); }
};

template <class Args>
Tables TablesOf(const Args& args) {
  return {args.rope_cos, args.rope_sin, args.encoder_rope_cos, args.encoder_rope_sin};
}

// The part of the tables that meets a stream. Tables cover positions rope_start and on of the joint sequence, or of the
// stream itself where each has its own.
std::optional<NormRopeRotation> RotationOf(const NormRopeConcatOptions& options, const Tables& tables, bool encoder,
                                           const Span& place, Slicer& slicer) {
  const bool encoders_tables = encoder && tables.own();
  const auto& cos = encoders_tables ? tables.encoder_rope_cos : tables.rope_cos;
  const auto& sin = encoders_tables ? tables.encoder_rope_sin : tables.rope_sin;
  if (!options.rotary || !cos) return std::nullopt;
  const ConstTensorView all_cos = slicer.Rank4(*cos), all_sin = slicer.Rank4(*sin);
  const Index stream_first = tables.own() ? 0 : place.first, stream_end = stream_first + place.length;
  const Index first = std::max(options.rope_start, stream_first);
  const Index end = std::min(options.rope_start + all_cos.shape[2], stream_end);
  if (first >= end) return std::nullopt;
  NormRopeRotation rotation;
  rotation.cos = slicer.Positions(all_cos, first - options.rope_start, end - first);
  rotation.sin = slicer.Positions(all_sin, first - options.rope_start, end - first);
  rotation.first = first - stream_first;
  rotation.options = *options.rotary;
  return rotation;
}

// ---- The backward -----------------------------------------------------------------------------------------------

const NormBackwardTensors kNoNorm = {};

struct BackwardStream {
  const char* name;
  const std::optional<ConstTensorView>& joint_dy;
  Span place;
  bool encoder = false;
  bool turns = false;
  NormType norm_type = NormType::kNone;
  std::optional<ConstTensorView> x = {};
  const NormBackwardTensors& norm = kNoNorm;
  const std::optional<TensorView>& dx;
};

void Append(const BackwardStream& stream, const NormRopeConcatBackwardArgs& args,
            StreamSegments<NormRopeBackwardSegment>* result) {
  if (!stream.joint_dy || !(stream.dx || stream.norm.dweight || stream.norm.dbias)) return;
  Slicer slicer(&result->extents);
  NormRopeBackwardSegment segment;
  segment.dy = slicer.Positions(*stream.joint_dy, stream.place.first, stream.place.length);
  segment.x = stream.x;
  segment.norm_type = stream.norm_type;
  segment.weight = stream.norm.weight;
  segment.mean = stream.norm.mean;
  segment.rstd = stream.norm.rstd;
  if (stream.turns) {
    segment.rotation = RotationOf(args.options, TablesOf(args), stream.encoder, stream.place, slicer);
  }
  segment.dx = stream.dx;
  segment.dweight = stream.norm.dweight;
  segment.dbias = stream.norm.dbias;
  result->streams.push_back({stream.name, segment});
}

Joint QueryPlaces(const NormRopeConcatBackwardArgs& args) {
  if (!args.grad_query_output) return {};
  std::optional<Index> stream = LengthOf({&args.query}, 1), encoder = LengthOf({&args.encoder_query}, 1);
  if (!stream) stream = LengthOf({&args.dquery}, 1);
  if (!encoder) encoder = LengthOf({&args.dencoder_query}, 1);
  return Places(args.grad_query_output->shape[2], stream, encoder, args.options.concat_order);
}

// Of key and of value, which are of the same lengths.
Joint KeyPlaces(const NormRopeConcatBackwardArgs& args) {
  const std::optional<Index> joint = LengthOf({&args.grad_key_output, &args.grad_value_output}, 2);
  if (!joint) return {};
  std::optional<Index> stream = LengthOf({&args.key}, 1), encoder = LengthOf({&args.encoder_key}, 1);
  if (!stream) stream = LengthOf({&args.dkey, &args.dvalue}, 1);
  if (!encoder) encoder = LengthOf({&args.dencoder_key, &args.dencoder_value}, 1);
  return Places(*joint, stream, encoder, args.options.concat_order);
}

// ---- The forward ------------------------------------------------------------------------------------------------

const NormTensors kNoNormTensors = {};

struct ForwardStream {
  const char* name;
  const std::optional<ConstTensorView>& x;
  Index first = 0;
  bool encoder = false;
  bool turns = false;
  NormType norm_type = NormType::kNone;
  const NormTensors& norm = kNoNormTensors;
  const std::optional<TensorView>& joint_y;
};

void Append(const ForwardStream& stream, const NormRopeConcatArgs& args, StreamSegments<NormRopeSegment>* result) {
  if (!stream.joint_y || !stream.x) return;
  Slicer slicer(&result->extents);
  const Span place = {stream.first, stream.x->shape[1]};
  NormRopeSegment segment;
  segment.x = *stream.x;
  segment.norm_type = stream.norm_type;
  segment.eps = args.eps;
  segment.weight = stream.norm.weight;
  segment.bias = stream.norm.bias;
  if (stream.turns) segment.rotation = RotationOf(args.options, TablesOf(args), stream.encoder, place, slicer);
  segment.y = slicer.Positions(*stream.joint_y, place.first, place.length);
  segment.mean = stream.norm.mean;
  segment.rstd = stream.norm.rstd;
  result->streams.push_back({stream.name, segment});
}

// Where a stream and its encoder's begin.
std::pair<Index, Index> Firsts(const std::optional<ConstTensorView>& stream,
                               const std::optional<ConstTensorView>& encoder, ConcatOrder order) {
  const Index stream_length = LengthOf({&stream}, 1).value_or(0), encoder_length = LengthOf({&encoder}, 1).value_or(0);
  if (order == ConcatOrder::kStreamFirst) return {0, stream_length};
  return {encoder_length, 0};
}

}  // namespace

StreamSegments<NormRopeBackwardSegment> SegmentsOf(const NormRopeConcatBackwardArgs& args) {
  StreamSegments<NormRopeBackwardSegment> result;
  const NormType norm = args.options.norm_type, added = args.options.norm_added_type;
  const auto query = QueryPlaces(args), key = KeyPlaces(args);
  const BackwardStream streams[] = {
      {"query", args.grad_query_output, query.stream, false, true, norm, args.query, args.norm_query, args.dquery},
      {"key", args.grad_key_output, key.stream, false, true, norm, args.key, args.norm_key, args.dkey},
      {.name = "value", .joint_dy = args.grad_value_output, .place = key.stream, .dx = args.dvalue},
      {"encoder_query", args.grad_query_output, query.encoder, true, true, added, args.encoder_query,
       args.norm_added_query, args.dencoder_query},
      {"encoder_key", args.grad_key_output, key.encoder, true, true, added, args.encoder_key, args.norm_added_key,
       args.dencoder_key},
      {.name = "encoder_value", .joint_dy = args.grad_value_output, .place = key.encoder, .dx = args.dencoder_value}};
  for (const BackwardStream& stream : streams) Append(stream, args, &result);
  return result;
}

StreamSegments<NormRopeSegment> SegmentsOf(const NormRopeConcatArgs& args) {
  StreamSegments<NormRopeSegment> result;
  const NormType norm = args.options.norm_type, added = args.options.norm_added_type;
  const ConcatOrder order = args.options.concat_order;
  const auto [query, encoder_query] = Firsts(args.query, args.encoder_query, order);
  const auto [key, encoder_key] = Firsts(args.key, args.encoder_key, order);
  const auto [value, encoder_value] = Firsts(args.value, args.encoder_value, order);
  const ForwardStream streams[] = {
      {"query", args.query, query, false, true, norm, args.norm_query, args.query_output},
      {"key", args.key, key, false, true, norm, args.norm_key, args.key_output},
      {.name = "value", .x = args.value, .first = value, .joint_y = args.value_output},
      {"encoder_query", args.encoder_query, encoder_query, true, true, added, args.norm_added_query, args.query_output},
      {"encoder_key", args.encoder_key, encoder_key, true, true, added, args.norm_added_key, args.key_output},
      {.name = "encoder_value", .x = args.encoder_value, .first = encoder_value, .joint_y = args.value_output}};
  for (const ForwardStream& stream : streams) Append(stream, args, &result);
  return result;
}

}  // namespace gyrograd::reference
