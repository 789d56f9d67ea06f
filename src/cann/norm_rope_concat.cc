// The fused operators of the C interface, norm, rotary and concatenation: first phases check, plan and register; second
// phases run.
#include "gyrograd/norm_rope_concat.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aclnnop/aclnn_norm_rope_concat.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"
#include "cann/executor.h"
#include "cann/first_phase.h"
#include "cann/guard.h"
#include "cann/profiles.h"
#include "cann/tensor.h"

namespace gyrograd::cann {
namespace {

// ---- argument lists

// What calls for a tensor that is not always required.
enum class Need { kNone, kNormType, kNormAddedType, kRopeType, kEncoderQuery, kEncoderKey };

// One tensor of an argument list. Statistics (means, rstds) are f32; all others are of one type.
struct Parameter {
  const char* name;
  std::size_t rank;
  Need need = Need::kNone;
  bool required = false;
  bool statistic = false;
};

constexpr Parameter Required(const char* name) { return {.name = name, .rank = 4, .required = true}; }
constexpr Parameter Stream(const char* name, Need need = Need::kNone) { return {name, 4, need}; }
constexpr Parameter Vector(const char* name, Need need) { return {name, 1, need}; }
constexpr Parameter Table(const char* name) { return {name, 2, Need::kRopeType}; }
constexpr Parameter Statistic(const char* name, Need need) {
  return {.name = name, .rank = 4, .need = need, .statistic = true};
}

// The four norms, in the order of every list: query, key, encoder query, encoder key.
constexpr std::size_t kNorms = 4;

// An operator's list of tensors, and the codes that it gives for rules of its own.
struct Signature {
  std::span<const Parameter> parameters;
  std::size_t num_inputs;
  std::array<std::size_t, kNorms> streams;  // the inputs that are normalised
  std::size_t sin;
  bool backward;
  int rank_code;  // a wrong rank
  int rule_code;  // a missing tensor, any other shape
};

namespace grad {
enum Index : std::size_t {
  kGradQueryOutput,
  kGradKeyOutput,
  kGradValueOutput,
  kQuery,
  kKey,
  kEncoderQuery,
  kEncoderKey,
  kWeights,  // then mean and rstd; so for each norm
  kSin = kWeights + 3 * kNorms,
  kCos,
  kGradQuery,
  kGradKey,
  kGradValue,
  kGradEncoderQuery,
  kGradEncoderKey,
  kGradEncoderValue,
  kGradWeights,  // then the bias's; so for each norm
  kCount = kGradWeights + 2 * kNorms,
};
constexpr std::size_t Weight(std::size_t norm) { return kWeights + 3 * norm; }
constexpr std::size_t Mean(std::size_t norm) { return Weight(norm) + 1; }
constexpr std::size_t Rstd(std::size_t norm) { return Weight(norm) + 2; }
constexpr std::size_t GradWeight(std::size_t norm) { return kGradWeights + 2 * norm; }
constexpr std::size_t GradBias(std::size_t norm) { return GradWeight(norm) + 1; }

constexpr std::array<Parameter, kCount> kParameters{{
    Required("gradQueryOutput"),
    Required("gradKeyOutput"),
    Required("gradValueOutput"),
    Required("query"),
    Required("key"),
    Stream("encoderQuery"),
    Stream("encoderKey"),
    Vector("normQueryWeight", Need::kNormType),
    Statistic("normQueryMean", Need::kNormType),
    Statistic("normQueryRstd", Need::kNormType),
    Vector("normKeyWeight", Need::kNormType),
    Statistic("normKeyMean", Need::kNormType),
    Statistic("normKeyRstd", Need::kNormType),
    Vector("normAddedQueryWeight", Need::kNormAddedType),
    Statistic("normAddedQueryMean", Need::kNormAddedType),
    Statistic("normAddedQueryRstd", Need::kNormAddedType),
    Vector("normAddedKeyWeight", Need::kNormAddedType),
    Statistic("normAddedKeyMean", Need::kNormAddedType),
    Statistic("normAddedKeyRstd", Need::kNormAddedType),
    Table("ropeSin"),
    Table("ropeCos"),
    Required("gradQuery"),
    Required("gradKey"),
    Required("gradValue"),
    Stream("gradEncoderQuery", Need::kEncoderQuery),
    Stream("gradEncoderKey", Need::kEncoderKey),
    Stream("gradEncoderValue", Need::kEncoderKey),
    Vector("gradNormQueryWeight", Need::kNormType),
    Vector("gradNormQueryBias", Need::kNormType),
    Vector("gradNormKeyWeight", Need::kNormType),
    Vector("gradNormKeyBias", Need::kNormType),
    Vector("gradNormAddedQueryWeight", Need::kNormAddedType),
    Vector("gradNormAddedQueryBias", Need::kNormAddedType),
    Vector("gradNormAddedKeyWeight", Need::kNormAddedType),
    Vector("gradNormAddedKeyBias", Need::kNormAddedType),
}};
constexpr Signature kSignature{kParameters,
                               kGradQuery,
                               {kQuery, kKey, kEncoderQuery, kEncoderKey},
                               kSin,
                               true,
                               ACLNN_ERR_INNER_NULLPTR,
                               ACLNN_ERR_INNER_NULLPTR};
}  // namespace grad

namespace forward {
enum Index : std::size_t {
  kQuery,
  kKey,
  kValue,
  kEncoderQuery,
  kEncoderKey,
  kEncoderValue,
  kWeights,  // then the bias; so for each norm
  kSin = kWeights + 2 * kNorms,
  kCos,
  kQueryOutput,
  kKeyOutput,
  kValueOutput,
  kMeans,  // then the rstd; so for each norm
  kCount = kMeans + 2 * kNorms,
};
constexpr std::size_t Weight(std::size_t norm) { return kWeights + 2 * norm; }
constexpr std::size_t Bias(std::size_t norm) { return Weight(norm) + 1; }
constexpr std::size_t Mean(std::size_t norm) { return kMeans + 2 * norm; }
constexpr std::size_t Rstd(std::size_t norm) { return Mean(norm) + 1; }

constexpr std::array<Parameter, kCount> kParameters{{
    Required("query"),
    Required("key"),
    Required("value"),
    Stream("encoderQuery"),
    Stream("encoderKey"),
    Stream("encoderValue"),
    Vector("normQueryWeight", Need::kNormType),
    Vector("normQueryBias", Need::kNormType),
    Vector("normKeyWeight", Need::kNormType),
    Vector("normKeyBias", Need::kNormType),
    Vector("normAddedQueryWeight", Need::kNormAddedType),
    Vector("normAddedQueryBias", Need::kNormAddedType),
    Vector("normAddedKeyWeight", Need::kNormAddedType),
    Vector("normAddedKeyBias", Need::kNormAddedType),
    Table("ropeSin"),
    Table("ropeCos"),
    Required("queryOutput"),
    Required("keyOutput"),
    Required("valueOutput"),
    Statistic("normQueryMean", Need::kNormType),
    Statistic("normQueryRstd", Need::kNormType),
    Statistic("normKeyMean", Need::kNormType),
    Statistic("normKeyRstd", Need::kNormType),
    Statistic("normAddedQueryMean", Need::kNormAddedType),
    Statistic("normAddedQueryRstd", Need::kNormAddedType),
    Statistic("normAddedKeyMean", Need::kNormAddedType),
    Statistic("normAddedKeyRstd", Need::kNormAddedType),
}};
constexpr Signature kSignature{kParameters,
                               kQueryOutput,
                               {kQuery, kKey, kEncoderQuery, kEncoderKey},
                               kSin,
                               false,
                               ACLNN_ERR_PARAM_INVALID,
                               ACLNN_ERR_INNER_TILING_ERROR};
}  // namespace forward

static_assert(grad::kCount <= kMaxTensors && forward::kCount <= kMaxTensors);

// ---- calls

struct Attributes {
  std::int64_t norm_type;
  std::int64_t norm_added_type;
  std::int64_t rope_type;
  std::int64_t concat_order;
  double eps = 0;
  bool training = false;

  // Of a checked rope_type.
  std::optional<RotaryMode> rope_mode() const {
    if (rope_type == 0) return std::nullopt;
    return rope_type == 1 ? RotaryMode::kInterleave : RotaryMode::kHalf;
  }
  NormType norm(std::size_t index) const { return static_cast<NormType>(index < 2 ? norm_type : norm_added_type); }
};

using Tensors = std::array<Tensor, kMaxTensors>;

// The tensors of a call by their places in the argument list, and which of them its types and streams call for.
struct Call {
  const Signature* signature;
  Attributes attributes;
  Tensors tensors{};
  std::array<bool, kMaxTensors> used{};

  const Tensor& stream(std::size_t norm) const { return tensors[signature->streams[norm]]; }
  bool has_rows(std::size_t norm) const;
};

// Whether the stream has rows to normalise: its last extent does not count.
bool Call::has_rows(std::size_t norm) const {
  if (!stream(norm)) return false;
  const std::vector<std::int64_t>& shape = stream(norm)->view_shape;
  return std::ranges::none_of(shape | std::views::take(3), [](std::int64_t extent) { return extent == 0; });
}

bool IsLayer(NormType type) { return type == NormType::kLayer || type == NormType::kLayerAffine; }
bool IsAffine(NormType type) { return type == NormType::kLayerAffine || type == NormType::kRmsAffine; }
bool IsRms(NormType type) { return type == NormType::kRms || type == NormType::kRmsAffine; }

// The part of `used` that both operators share.
Call MakeCall(const Signature& signature, const Attributes& attributes, std::span<const aclTensor* const> handles) {
  Call call{&signature, attributes};
  std::ranges::transform(handles, call.tensors.begin(), LookUp);
  for (std::size_t i = 0; i < handles.size(); ++i) call.used[i] = signature.parameters[i].required;
  for (const std::size_t stream : signature.streams) call.used[stream] = call.tensors[stream].given;
  call.used[signature.sin] = call.used[signature.sin + 1] = attributes.rope_type != 0;
  return call;
}

Call GradCall(const Attributes& attributes, const std::array<const aclTensor*, grad::kCount>& handles) {
  using namespace grad;  // NOLINT: the indices of this operator
  Call call = MakeCall(kSignature, attributes, handles);
  call.used[kGradEncoderQuery] = call.tensors[kEncoderQuery].given;
  call.used[kGradEncoderKey] = call.used[kGradEncoderValue] = call.tensors[kEncoderKey].given;
  for (std::size_t norm = 0; norm < kNorms; ++norm) {
    const NormType type = attributes.norm(norm);
    const bool rows = call.has_rows(norm);
    const bool affine = type == NormType::kLayerAffine;
    call.used[Weight(norm)] = affine && rows;
    call.used[Mean(norm)] = call.used[Rstd(norm)] = IsLayer(type) && rows;
    call.used[GradWeight(norm)] = call.used[GradBias(norm)] = affine && call.stream(norm).given;
  }
  return call;
}

// An RMS norm's rstd, which CANN does not write: programs may pass a dummy in its place. A handle that is none is
// looked at, and so refused.
bool IsWanted(const Tensor& rstd) { return rstd.given && (!rstd || (rstd->view_shape.size() == 4 && !IsEmpty(rstd))); }

Call ForwardCall(const Attributes& attributes, const std::array<const aclTensor*, forward::kCount>& handles) {
  using namespace forward;  // NOLINT: the indices of this operator
  Call call = MakeCall(kSignature, attributes, handles);
  call.used[kEncoderValue] = call.tensors[kEncoderValue].given;
  for (std::size_t norm = 0; norm < kNorms; ++norm) {
    const NormType type = attributes.norm(norm);
    const bool rows = call.has_rows(norm);
    const bool saved = attributes.training && rows;
    call.used[Weight(norm)] = IsAffine(type) && rows;
    call.used[Bias(norm)] = type == NormType::kLayerAffine && rows;
    call.used[Mean(norm)] = IsLayer(type) && saved;
    call.used[Rstd(norm)] = saved && (IsLayer(type) || (IsRms(type) && IsWanted(call.tensors[Rstd(norm)])));
  }
  return call;
}

// The same call, with what it uses alone.
std::shared_ptr<const Call> Kept(const Call& call) {
  const auto kept = std::make_shared<Call>(call);
  for (std::size_t i = 0; i < kMaxTensors; ++i) {
    if (!call.used[i]) kept->tensors[i] = {};
  }
  return kept;
}

// ---- rules

template <class Predicate>
std::vector<Argument> ArgumentsThat(const Call& call, const Predicate& predicate) {
  std::vector<Argument> arguments;
  for (std::size_t i = 0; i < call.signature->parameters.size(); ++i) {
    if (predicate(i)) arguments.push_back({call.signature->parameters[i].name, &call.tensors[i]});
  }
  return arguments;
}

// An attribute whose values are 0 .. last.
struct Choice {
  const char* name;
  std::int64_t value;
  std::int64_t last;
  int code;
};

Outcome CheckAttributes(const Call& call) {
  const Attributes& a = call.attributes;
  const int code = call.signature->rule_code;
  const int joining_code = call.signature->backward ? code : ACLNN_ERR_RUNTIME_ERROR;
  const std::int64_t last_norm = call.signature->backward ? 2 : 4;
  const Choice choices[] = {{"normType", a.norm_type, last_norm, code},
                            {"normAddedType", a.norm_added_type, last_norm, code},
                            {"ropeType", a.rope_type, 2, joining_code},
                            {"concatOrder", a.concat_order, 1, joining_code}};
  for (const Choice& choice : choices) {
    if (choice.value >= 0 && choice.value <= choice.last) continue;
    return {choice.code, std::string(choice.name) + " is " + std::to_string(choice.value) + "; it must be 0 to " +
                             std::to_string(choice.last)};
  }
  return {};
}

// What calls for the tensor, in the caller's words.
std::string Asker(const Call& call, const Parameter& parameter) {
  const Attributes& a = call.attributes;
  const bool saved = parameter.statistic && !call.signature->backward;
  const std::string when = saved ? " with isTraining" : "";
  switch (parameter.need) {
    case Need::kNormType: return "normType " + std::to_string(a.norm_type) + when;
    case Need::kNormAddedType: return "normAddedType " + std::to_string(a.norm_added_type) + when;
    case Need::kRopeType: return "ropeType " + std::to_string(a.rope_type);
    case Need::kEncoderQuery: return "encoderQuery";
    case Need::kEncoderKey: return "encoderKey";
    case Need::kNone: break;
  }
  return "the operator";
}

Outcome CheckMissing(const Call& call) {
  for (std::size_t i = 0; i < call.signature->parameters.size(); ++i) {
    if (!call.used[i] || call.tensors[i].given) continue;
    const Parameter& parameter = call.signature->parameters[i];
    return {call.signature->rule_code,
            std::string(parameter.name) + " is null; " + Asker(call, parameter) + " needs it"};
  }
  return {};
}

Outcome CheckRanks(const Call& call) {
  for (std::size_t i = 0; i < call.signature->parameters.size(); ++i) {
    if (!call.used[i]) continue;
    const Parameter& parameter = call.signature->parameters[i];
    const std::size_t rank = call.tensors[i]->view_shape.size();
    if (rank == parameter.rank) continue;
    return {call.signature->rank_code, std::string(parameter.name) + " has rank " + std::to_string(rank) +
                                           "; it must be " + std::to_string(parameter.rank)};
  }
  return {};
}

// Everything before the plan.
Outcome CheckCall(const Call& call) {
  const auto present = [&](std::size_t i) { return call.used[i] && call.tensors[i].given; };
  const auto statistic = [&](std::size_t i) { return call.signature->parameters[i].statistic; };
  const std::vector<Argument> all = ArgumentsThat(call, present);
  Profile profile = Profile::kNative;  // the products' rules are this interface's: the name alone is checked
  Outcome outcome = CheckHandles(all);
  if (outcome.ok()) outcome = CheckData(all);
  if (outcome.ok()) outcome = CheckFormats(all);
  if (outcome.ok()) {
    outcome = CheckOneType(ArgumentsThat(call, [&](std::size_t i) { return present(i) && !statistic(i); }));
  }
  if (outcome.ok()) {
    outcome = CheckFloat(ArgumentsThat(call, [&](std::size_t i) { return present(i) && statistic(i); }));
  }
  if (outcome.ok()) outcome = ReadProfile(&profile);
  if (outcome.ok()) outcome = CheckAttributes(call);
  if (outcome.ok()) outcome = CheckMissing(call);
  if (outcome.ok()) outcome = CheckRanks(call);
  if (outcome.ok()) outcome = CheckStorage(all, call.signature->rule_code);
  return outcome;
}

// Of a call whose shapes agree.
NormRopeConcatProblem ProblemOf(const Call& call) {
  const std::vector<std::int64_t>& query = call.stream(0)->view_shape;
  const std::vector<std::int64_t>& key = call.stream(1)->view_shape;
  const auto length = [&](std::size_t norm) { return call.stream(norm) ? call.stream(norm)->view_shape[1] : 0; };
  const std::size_t sin = call.signature->sin;
  NormRopeConcatProblem problem;
  problem.batch = query[0];
  problem.heads = query[2];
  problem.key_heads = key[2];
  problem.head_dim = query[3];
  problem.seq_query = length(0);
  problem.seq_key = length(1);
  problem.seq_encoder_query = length(2);
  problem.seq_encoder_key = length(3);
  problem.seq_rope = call.used[sin] ? call.tensors[sin]->view_shape[0] : 0;
  problem.norm_type = call.attributes.norm_type;
  problem.norm_added_type = call.attributes.norm_added_type;
  problem.rope_mode = call.attributes.rope_mode();
  problem.concat_order = call.attributes.concat_order;
  problem.dtype = DTypeOf(call.stream(0));
  problem.backward = call.signature->backward;
  return problem;
}

// What the products, and so this interface under every profile, refuse beyond the C++ one. Products agree.
Outcome CheckLimits(const Call& call) {
  const ProfileVerdict verdict = ExplainNormRopeConcat(ProblemOf(call), Profile::kAscend950);
  return verdict.accepted ? Outcome{} : Outcome{call.signature->rule_code, verdict.rule};
}

// ---- the C++ interface's arguments

std::optional<ConstTensorView> In(const Call& call, Addresses addresses, std::size_t i) {
  if (!call.used[i]) return std::nullopt;
  return ConstViewOf(call.tensors[i], addresses[i]);
}

std::optional<TensorView> Out(const Call& call, Addresses addresses, std::size_t i) {
  if (!call.used[i]) return std::nullopt;
  return ViewOf(call.tensors[i], addresses[i]);
}

NormRopeConcatOptions OptionsOf(const Attributes& attributes) {
  NormRopeConcatOptions options;
  options.norm_type = attributes.norm(0);
  options.norm_added_type = attributes.norm(2);
  if (const auto mode = attributes.rope_mode()) options.rotary.emplace().mode = *mode;
  options.concat_order = static_cast<ConcatOrder>(attributes.concat_order);
  return options;
}

NormRopeConcatBackwardArgs GradArgs(const Call& call, Addresses addresses) {
  using namespace grad;  // NOLINT: the indices of this operator
  const auto in = [&](std::size_t i) { return In(call, addresses, i); };
  const auto out = [&](std::size_t i) { return Out(call, addresses, i); };
  const auto norm = [&](std::size_t n) -> NormBackwardTensors {
    return {in(Weight(n)), in(Mean(n)), in(Rstd(n)), out(GradWeight(n)), out(GradBias(n))};
  };
  NormRopeConcatBackwardArgs args;
  args.grad_query_output = in(kGradQueryOutput);
  args.grad_key_output = in(kGradKeyOutput);
  args.grad_value_output = in(kGradValueOutput);
  args.query = in(kQuery);
  args.key = in(kKey);
  args.encoder_query = in(kEncoderQuery);
  args.encoder_key = in(kEncoderKey);
  args.rope_sin = in(kSin);
  args.rope_cos = in(kCos);
  args.norm_query = norm(0);
  args.norm_key = norm(1);
  args.norm_added_query = norm(2);
  args.norm_added_key = norm(3);
  args.dquery = out(kGradQuery);
  args.dkey = out(kGradKey);
  args.dvalue = out(kGradValue);
  args.dencoder_query = out(kGradEncoderQuery);
  args.dencoder_key = out(kGradEncoderKey);
  args.dencoder_value = out(kGradEncoderValue);
  args.options = OptionsOf(call.attributes);
  return args;
}

NormRopeConcatArgs ForwardArgs(const Call& call, Addresses addresses) {
  using namespace forward;  // NOLINT: the indices of this operator
  const auto in = [&](std::size_t i) { return In(call, addresses, i); };
  const auto out = [&](std::size_t i) { return Out(call, addresses, i); };
  const auto norm = [&](std::size_t n) -> NormTensors {
    return {in(Weight(n)), in(Bias(n)), out(Mean(n)), out(Rstd(n))};
  };
  NormRopeConcatArgs args;
  args.query = in(kQuery);
  args.key = in(kKey);
  args.value = in(kValue);
  args.encoder_query = in(kEncoderQuery);
  args.encoder_key = in(kEncoderKey);
  args.encoder_value = in(kEncoderValue);
  args.rope_sin = in(kSin);
  args.rope_cos = in(kCos);
  args.norm_query = norm(0);
  args.norm_key = norm(1);
  args.norm_added_query = norm(2);
  args.norm_added_key = norm(3);
  args.eps = static_cast<float>(call.attributes.eps);
  args.query_output = out(kQueryOutput);
  args.key_output = out(kKeyOutput);
  args.value_output = out(kValueOutput);
  args.options = OptionsOf(call.attributes);
  return args;
}

// ---- phases

Executor ExecutorOf(Operator op, const Call& call) {
  Executor executor;
  executor.op = op;
  for (std::size_t i = 0; i < call.signature->parameters.size(); ++i) {
    if (i < call.signature->num_inputs) {
      executor.AddInput(call.tensors[i], call.used[i]);
    } else {
      executor.AddOutput(call.tensors[i], call.used[i]);
    }
  }
  return executor;
}

template <class Plan, class Args>
Outcome FirstPhase(Operator op, const Call& call, Args (*args_of)(const Call&, Addresses),
                   Status (*validate)(const Args&), std::uint64_t* workspace_size, aclOpExecutor** handle) {
  Outcome outcome =
      CheckNotNull(ArgumentsThat(call, [&](std::size_t i) { return call.signature->parameters[i].required; }));
  if (outcome.ok()) outcome = CheckPhaseOneOutputs(workspace_size, handle);
  if (outcome.ok()) outcome = CheckCall(call);
  if (!outcome.ok()) return outcome;
  const std::shared_ptr<const Call> own = Kept(call);
  Executor executor = ExecutorOf(op, call);
  Plan plan;
  outcome = MakePlan(
      op, args_of(*own, executor.addresses()), validate, call.signature->rule_code, [&] { return CheckLimits(*own); },
      &plan);
  if (!outcome.ok()) return outcome;
  executor.workspace_size = plan.workspace_size();
  executor.run =
      std::make_shared<const RunFunction>([own, plan, args_of](Addresses addresses, void* workspace, std::size_t size) {
        return plan.Run(args_of(*own, addresses), workspace, size);
      });
  return HandOver(std::move(executor), workspace_size, handle);
}

}  // namespace
}  // namespace gyrograd::cann

using namespace gyrograd::cann;  // NOLINT: this file defines the C interface over them

extern "C" {

aclnnStatus aclnnNormRopeConcatBackwardGetWorkspaceSize(
    const aclTensor* gradQueryOutput, const aclTensor* gradKeyOutput, const aclTensor* gradValueOutput,
    const aclTensor* query, const aclTensor* key, const aclTensor* encoderQuery, const aclTensor* encoderKey,
    const aclTensor* normQueryWeight, const aclTensor* normQueryMean, const aclTensor* normQueryRstd,
    const aclTensor* normKeyWeight, const aclTensor* normKeyMean, const aclTensor* normKeyRstd,
    const aclTensor* normAddedQueryWeight, const aclTensor* normAddedQueryMean, const aclTensor* normAddedQueryRstd,
    const aclTensor* normAddedKeyWeight, const aclTensor* normAddedKeyMean, const aclTensor* normAddedKeyRstd,
    const aclTensor* ropeSin, const aclTensor* ropeCos, int64_t normType, int64_t normAddedType, int64_t ropeType,
    int64_t concatOrder, const aclTensor* gradQuery, const aclTensor* gradKey, const aclTensor* gradValue,
    const aclTensor* gradEncoderQuery, const aclTensor* gradEncoderKey, const aclTensor* gradEncoderValue,
    const aclTensor* gradNormQueryWeight, const aclTensor* gradNormQueryBias, const aclTensor* gradNormKeyWeight,
    const aclTensor* gradNormKeyBias, const aclTensor* gradNormAddedQueryWeight,
    const aclTensor* gradNormAddedQueryBias, const aclTensor* gradNormAddedKeyWeight,
    const aclTensor* gradNormAddedKeyBias, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Guard(__func__, kAclnnCodes, [&] {
    const Call call = GradCall({normType, normAddedType, ropeType, concatOrder}, {gradQueryOutput,
                                                                                  gradKeyOutput,
                                                                                  gradValueOutput,
                                                                                  query,
                                                                                  key,
                                                                                  encoderQuery,
                                                                                  encoderKey,
                                                                                  normQueryWeight,
                                                                                  normQueryMean,
                                                                                  normQueryRstd,
                                                                                  normKeyWeight,
                                                                                  normKeyMean,
                                                                                  normKeyRstd,
                                                                                  normAddedQueryWeight,
                                                                                  normAddedQueryMean,
                                                                                  normAddedQueryRstd,
                                                                                  normAddedKeyWeight,
                                                                                  normAddedKeyMean,
                                                                                  normAddedKeyRstd,
                                                                                  ropeSin,
                                                                                  ropeCos,
                                                                                  gradQuery,
                                                                                  gradKey,
                                                                                  gradValue,
                                                                                  gradEncoderQuery,
                                                                                  gradEncoderKey,
                                                                                  gradEncoderValue,
                                                                                  gradNormQueryWeight,
                                                                                  gradNormQueryBias,
                                                                                  gradNormKeyWeight,
                                                                                  gradNormKeyBias,
                                                                                  gradNormAddedQueryWeight,
                                                                                  gradNormAddedQueryBias,
                                                                                  gradNormAddedKeyWeight,
                                                                                  gradNormAddedKeyBias});
    return FirstPhase<gyrograd::NormRopeConcatBackwardPlan>(Operator::kNormRopeConcatBackward, call, GradArgs,
                                                            gyrograd::ValidateNormRopeConcatBackward, workspaceSize,
                                                            executor);
  });
}

aclnnStatus aclnnNormRopeConcatBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                        aclrtStream stream) {
  return RunSecondPhase(__func__, Operator::kNormRopeConcatBackward, workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnNormRopeConcatGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* encoderQuery,
    const aclTensor* encoderKey, const aclTensor* encoderValue, const aclTensor* normQueryWeight,
    const aclTensor* normQueryBias, const aclTensor* normKeyWeight, const aclTensor* normKeyBias,
    const aclTensor* normAddedQueryWeight, const aclTensor* normAddedQueryBias, const aclTensor* normAddedKeyWeight,
    const aclTensor* normAddedKeyBias, const aclTensor* ropeSin, const aclTensor* ropeCos, int64_t normType,
    int64_t normAddedType, int64_t ropeType, int64_t concatOrder, double eps, bool isTraining,
    const aclTensor* queryOutput, const aclTensor* keyOutput, const aclTensor* valueOutput,
    const aclTensor* normQueryMean, const aclTensor* normQueryRstd, const aclTensor* normKeyMean,
    const aclTensor* normKeyRstd, const aclTensor* normAddedQueryMean, const aclTensor* normAddedQueryRstd,
    const aclTensor* normAddedKeyMean, const aclTensor* normAddedKeyRstd, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  return Guard(__func__, kAclnnCodes, [&] {
    const Call call =
        ForwardCall({normType, normAddedType, ropeType, concatOrder, eps, isTraining}, {query,
                                                                                        key,
                                                                                        value,
                                                                                        encoderQuery,
                                                                                        encoderKey,
                                                                                        encoderValue,
                                                                                        normQueryWeight,
                                                                                        normQueryBias,
                                                                                        normKeyWeight,
                                                                                        normKeyBias,
                                                                                        normAddedQueryWeight,
                                                                                        normAddedQueryBias,
                                                                                        normAddedKeyWeight,
                                                                                        normAddedKeyBias,
                                                                                        ropeSin,
                                                                                        ropeCos,
                                                                                        queryOutput,
                                                                                        keyOutput,
                                                                                        valueOutput,
                                                                                        normQueryMean,
                                                                                        normQueryRstd,
                                                                                        normKeyMean,
                                                                                        normKeyRstd,
                                                                                        normAddedQueryMean,
                                                                                        normAddedQueryRstd,
                                                                                        normAddedKeyMean,
                                                                                        normAddedKeyRstd});
    return FirstPhase<gyrograd::NormRopeConcatPlan>(Operator::kNormRopeConcat, call, ForwardArgs,
                                                    gyrograd::ValidateNormRopeConcat, workspaceSize, executor);
  });
}

aclnnStatus aclnnNormRopeConcat(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream) {
  return RunSecondPhase(__func__, Operator::kNormRopeConcat, workspace, workspaceSize, executor, stream);
}

}  // extern "C"
