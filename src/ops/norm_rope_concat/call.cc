// What a joint call is made of, and the names of its arguments.
#include "ops/norm_rope_concat/call.h"

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

// ---- arguments

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

const NormRopeNames& NormRopeConcatCall::names(int stream) const {
  return kNames[forward][has_encoder_tables()][stream];
}

Argument NormRopeConcatCall::joint_argument(int joint) const { return argument(kJointNames[forward][joint]); }

Argument NormRopeConcatCall::table_argument(int table) const { return argument(kTableNames[table]); }

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

}  // namespace internal
}  // namespace gyrograd
