// What a call of norm + rotary is made of: the arguments of either direction as operands of segments.
#include "ops/norm_rope/call.h"

#include <algorithm>
#include <utility>

#include "core/dtype.h"

namespace gyrograd {

const char* Name(NormType type) {
  switch (type) {
    case NormType::kNone: return "none";
    case NormType::kLayer: return "layer";
    case NormType::kLayerAffine: return "layer_affine";
    case NormType::kRms: return "rms";
    case NormType::kRmsAffine: return "rms_affine";
  }
  return "unknown";
}

namespace internal {
namespace {

using Operand = NormRopeOperand;

constexpr NormRopeNames kBackwardNames = {
    {"dy", "x", "weight", "", "mean", "rstd", "rotation.cos", "rotation.sin", "dx", "dweight", "dbias"},
    "norm_type",
    "",
    "rotation.options.",
    "rotation.first"};
constexpr NormRopeNames kForwardNames = {
    {"x", "", "weight", "bias", "mean", "rstd", "rotation.cos", "rotation.sin", "y", "", ""},
    "norm_type",
    "eps",
    "rotation.options.",
    "rotation.first"};

bool Uses(bool forward, NormType type, int operand) {
  if (IsNormRopeOutput(forward, operand)) return true;
  switch (operand) {
    case Operand::kX:
    case Operand::kRstd: return IsNorm(type);
    case Operand::kMean: return IsLayerNorm(type);
    case Operand::kWeight: return IsAffine(type);
    case Operand::kBias: return type == NormType::kLayerAffine;
    default: return true;
  }
}

// Reads the extents of the model, [B, N, S, D] backward and [B, S, N, D] forward.
void Measure(SegmentCall& segment, bool forward) {
  const Extents shape = segment.views[segment.model].shape;
  if (shape.size() != 4) return;
  segment.batch = shape[0];
  segment.sequence = shape[forward ? 1 : 2];
  segment.heads = shape[forward ? 2 : 1];
  segment.head_dim = shape[3];
}

void GiveRotation(SegmentCall& segment, bool forward, const NormRopeRotation& rotation) {
  segment.rotates = true;
  segment.options = rotation.options;
  segment.rope_first = rotation.first;
  const Extents shape = rotation.cos.shape;
  segment.rope_rows = IsTableRank(shape.size()) ? shape[shape.size() - 2] : 0;
  segment.Give(forward, Operand::kCos, rotation.cos);
  segment.Give(forward, Operand::kSin, rotation.sin);
}

// What both directions of a segment have.
template <class Segment>
SegmentCall CallOf(const Segment& args, bool forward, const NormRopeNames& names) {
  SegmentCall segment;
  segment.norm_type = args.norm_type;
  segment.names = &names;
  const auto give = [&](int operand, const auto& view) {
    if (view) segment.Give(forward, operand, ViewOf(*view));
  };
  give(Operand::kWeight, args.weight);
  give(Operand::kMean, args.mean);
  give(Operand::kRstd, args.rstd);
  if (args.rotation) GiveRotation(segment, forward, *args.rotation);
  return segment;
}

SegmentCall CallOf(const NormRopeBackwardSegment& args) {
  SegmentCall segment = CallOf(args, false, kBackwardNames);
  segment.Give(false, Operand::kIn, args.dy);
  if (args.x) segment.Give(false, Operand::kX, *args.x);
  if (args.dx) segment.Give(false, Operand::kOut, ViewOf(*args.dx));
  if (args.dweight) segment.Give(false, Operand::kDweight, ViewOf(*args.dweight));
  if (args.dbias) segment.Give(false, Operand::kDbias, ViewOf(*args.dbias));
  Measure(segment, false);
  return segment;
}

SegmentCall CallOf(const NormRopeSegment& args) {
  SegmentCall segment = CallOf(args, true, kForwardNames);
  segment.eps = args.eps;
  segment.Give(true, Operand::kIn, args.x);
  if (args.bias) segment.Give(true, Operand::kBias, *args.bias);
  segment.Give(true, Operand::kOut, ViewOf(args.y));
  Measure(segment, true);
  return segment;
}

template <class Args>
NormRopeCall CallOf(const Args& args, bool forward, const char* name) {
  NormRopeCall call;
  call.forward = forward;
  call.name = name;
  call.execution = args.execution;
  call.segments.reserve(args.segments.size());
  for (const auto& segment : args.segments) call.segments.push_back(CallOf(segment));
  return call;
}

}  // namespace

void SegmentCall::Give(bool forward, int operand, const ConstTensorView& view) {
  if (!Uses(forward, norm_type, operand)) return;
  views[operand] = view;
  given[operand] = true;
  if (IsDType(view.dtype) && view.strides.size() == view.shape.size()) {
    bytes[operand] = BytesOf(view).value_or(ByteRange{});
  }
}

bool SegmentCall::wants_outputs(bool forward) const {
  for (int operand = 0; operand < kNormRopeOperands; ++operand) {
    if (given[operand] && IsNormRopeOutput(forward, operand)) return true;
  }
  return false;
}

NormRopeCall NormRopeCall::From(const NormRopeBackwardArgs& args) { return CallOf(args, false, "norm_rope_backward"); }

NormRopeCall NormRopeCall::From(const NormRopeArgs& args) { return CallOf(args, true, "norm_rope"); }

void NormRopeCall::Detach() {
  std::size_t count = 0;
  for (const SegmentCall& segment : segments) {
    for (const ConstTensorView& view : segment.views) count += view.shape.size() + view.strides.size();
  }
  std::shared_ptr<std::int64_t[]> own(new std::int64_t[count]);
  std::int64_t* next = own.get();
  const auto keep = [&next](Extents& span) {
    std::copy(span.begin(), span.end(), next);
    span = Extents(next, span.size());
    next += span.size();
  };
  for (SegmentCall& segment : segments) {
    for (ConstTensorView& view : segment.views) {
      keep(view.shape);
      keep(view.strides);
      view.data = nullptr;
    }
  }
  extents = std::move(own);
}

NormRopeAddresses AddressesOf(const NormRopeCall& call) {
  return {&call, [](const void* source, std::size_t segment, int operand) {
            return static_cast<const NormRopeCall*>(source)->segments[segment].views[operand].data;
          }};
}

NormRopeAddresses AddressesOf(std::span<const NormRopeBackwardPointers> pointers) {
  return {pointers.data(), [](const void* source, std::size_t segment, int operand) -> const void* {
            const auto& p = static_cast<const NormRopeBackwardPointers*>(source)[segment];
            switch (operand) {
              case Operand::kIn: return p.dy;
              case Operand::kX: return p.x;
              case Operand::kWeight: return p.weight;
              case Operand::kMean: return p.mean;
              case Operand::kRstd: return p.rstd;
              case Operand::kCos: return p.cos;
              case Operand::kSin: return p.sin;
              case Operand::kOut: return p.dx;
              case Operand::kDweight: return p.dweight;
              case Operand::kDbias: return p.dbias;
              default: return nullptr;
            }
          }};
}

NormRopeAddresses AddressesOf(std::span<const NormRopePointers> pointers) {
  return {pointers.data(), [](const void* source, std::size_t segment, int operand) -> const void* {
            const auto& p = static_cast<const NormRopePointers*>(source)[segment];
            switch (operand) {
              case Operand::kIn: return p.x;
              case Operand::kWeight: return p.weight;
              case Operand::kBias: return p.bias;
              case Operand::kMean: return p.mean;
              case Operand::kRstd: return p.rstd;
              case Operand::kCos: return p.cos;
              case Operand::kSin: return p.sin;
              case Operand::kOut: return p.y;
              default: return nullptr;
            }
          }};
}

NormRopeAddresses AddressesOf(std::span<const NormRopePointerRow> pointers) {
  return {pointers.data(), [](const void* source, std::size_t segment, int operand) {
            return static_cast<const NormRopePointerRow*>(source)[segment][operand];
          }};
}

}  // namespace internal
}  // namespace gyrograd
