// The argument lists of the fused operators, their arrays, and the checks of the results.
#include "tests/cann/norm_rope_concat_support.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "reference/elements.h"
#include "reference/norm_rope.h"
#include "reference/norm_rope_concat.h"

namespace gyrograd::testing {
namespace {

constexpr FusedParameter kGrad[] = {
    {"gradQueryOutput", Role::kJoint, Part::kQuery, true},
    {"gradKeyOutput", Role::kJoint, Part::kKey, true},
    {"gradValueOutput", Role::kJoint, Part::kKey, true},
    {"query", Role::kStream, Part::kQuery, true},
    {"key", Role::kStream, Part::kKey, true},
    {"encoderQuery", Role::kStream, Part::kEncoderQuery, false},
    {"encoderKey", Role::kStream, Part::kEncoderKey, false},
    {"normQueryWeight", Role::kVector, Part::kQuery, false},
    {"normQueryMean", Role::kStatistic, Part::kQuery, false},
    {"normQueryRstd", Role::kStatistic, Part::kQuery, false},
    {"normKeyWeight", Role::kVector, Part::kKey, false},
    {"normKeyMean", Role::kStatistic, Part::kKey, false},
    {"normKeyRstd", Role::kStatistic, Part::kKey, false},
    {"normAddedQueryWeight", Role::kVector, Part::kEncoderQuery, false},
    {"normAddedQueryMean", Role::kStatistic, Part::kEncoderQuery, false},
    {"normAddedQueryRstd", Role::kStatistic, Part::kEncoderQuery, false},
    {"normAddedKeyWeight", Role::kVector, Part::kEncoderKey, false},
    {"normAddedKeyMean", Role::kStatistic, Part::kEncoderKey, false},
    {"normAddedKeyRstd", Role::kStatistic, Part::kEncoderKey, false},
    {"ropeSin", Role::kTable, Part::kQuery, false},
    {"ropeCos", Role::kTable, Part::kQuery, false},
    {"gradQuery", Role::kStream, Part::kQuery, true},
    {"gradKey", Role::kStream, Part::kKey, true},
    {"gradValue", Role::kStream, Part::kKey, true},
    {"gradEncoderQuery", Role::kStream, Part::kEncoderQuery, false},
    {"gradEncoderKey", Role::kStream, Part::kEncoderKey, false},
    {"gradEncoderValue", Role::kStream, Part::kEncoderKey, false},
    {"gradNormQueryWeight", Role::kVector, Part::kQuery, false},
    {"gradNormQueryBias", Role::kVector, Part::kQuery, false},
    {"gradNormKeyWeight", Role::kVector, Part::kKey, false},
    {"gradNormKeyBias", Role::kVector, Part::kKey, false},
    {"gradNormAddedQueryWeight", Role::kVector, Part::kEncoderQuery, false},
    {"gradNormAddedQueryBias", Role::kVector, Part::kEncoderQuery, false},
    {"gradNormAddedKeyWeight", Role::kVector, Part::kEncoderKey, false},
    {"gradNormAddedKeyBias", Role::kVector, Part::kEncoderKey, false},
};

constexpr FusedParameter kForward[] = {
    {"query", Role::kStream, Part::kQuery, true},
    {"key", Role::kStream, Part::kKey, true},
    {"value", Role::kStream, Part::kKey, true},
    {"encoderQuery", Role::kStream, Part::kEncoderQuery, false},
    {"encoderKey", Role::kStream, Part::kEncoderKey, false},
    {"encoderValue", Role::kStream, Part::kEncoderKey, false},
    {"normQueryWeight", Role::kVector, Part::kQuery, false},
    {"normQueryBias", Role::kVector, Part::kQuery, false},
    {"normKeyWeight", Role::kVector, Part::kKey, false},
    {"normKeyBias", Role::kVector, Part::kKey, false},
    {"normAddedQueryWeight", Role::kVector, Part::kEncoderQuery, false},
    {"normAddedQueryBias", Role::kVector, Part::kEncoderQuery, false},
    {"normAddedKeyWeight", Role::kVector, Part::kEncoderKey, false},
    {"normAddedKeyBias", Role::kVector, Part::kEncoderKey, false},
    {"ropeSin", Role::kTable, Part::kQuery, false},
    {"ropeCos", Role::kTable, Part::kQuery, false},
    {"queryOutput", Role::kJoint, Part::kQuery, true},
    {"keyOutput", Role::kJoint, Part::kKey, true},
    {"valueOutput", Role::kJoint, Part::kKey, true},
    {"normQueryMean", Role::kStatistic, Part::kQuery, false},
    {"normQueryRstd", Role::kStatistic, Part::kQuery, false},
    {"normKeyMean", Role::kStatistic, Part::kKey, false},
    {"normKeyRstd", Role::kStatistic, Part::kKey, false},
    {"normAddedQueryMean", Role::kStatistic, Part::kEncoderQuery, false},
    {"normAddedQueryRstd", Role::kStatistic, Part::kEncoderQuery, false},
    {"normAddedKeyMean", Role::kStatistic, Part::kEncoderKey, false},
    {"normAddedKeyRstd", Role::kStatistic, Part::kEncoderKey, false},
};

constexpr std::size_t kGradTensors = std::size(kGrad);
constexpr std::size_t kForwardTensors = std::size(kForward);

std::int64_t LengthOf(Part part, const FusedShape& shape) {
  switch (part) {
    case Part::kQuery: return shape.query;
    case Part::kKey: return shape.key;
    case Part::kEncoderQuery: return shape.encoder_query.value_or(0);
    case Part::kEncoderKey: return shape.encoder_key.value_or(0);
  }
  return 0;
}

// The saved 1 / sqrt(variance) is positive.
void MakePositive(Array& array) {
  for (std::size_t at = 0; at < array.bytes().size(); at += reference::ElementSize(array.dtype())) {
    std::byte* element = array.bytes().data() + at;
    reference::Store(0.25 + std::fabs(reference::Load(element, array.dtype())) / 4, element, array.dtype());
  }
}

template <std::size_t... In, std::size_t... Out>
aclnnStatus PlanGrad(FusedGradProblem& p, std::index_sequence<In...>, std::index_sequence<Out...>) {
  const FusedAttributes& a = p.attributes;
  return aclnnNormRopeConcatBackwardGetWorkspaceSize(
      p.arrays[In].handle()..., a.norm_type, a.norm_added_type, a.rope_type, a.concat_order,
      p.arrays[kGradInputs + Out].handle()..., &p.workspace_size, &p.executor);
}

template <std::size_t... In, std::size_t... Out>
aclnnStatus PlanForward(FusedForwardProblem& p, std::index_sequence<In...>, std::index_sequence<Out...>) {
  const FusedAttributes& a = p.attributes;
  return aclnnNormRopeConcatGetWorkspaceSize(
      p.arrays[In].handle()..., a.norm_type, a.norm_added_type, a.rope_type, a.concat_order, a.eps, a.training,
      p.arrays[kForwardInputs + Out].handle()..., &p.workspace_size, &p.executor);
}

NormRopeConcatOptions OptionsOf(const FusedAttributes& attributes) {
  NormRopeConcatOptions options;
  options.norm_type = static_cast<NormType>(attributes.norm_type);
  options.norm_added_type = static_cast<NormType>(attributes.norm_added_type);
  if (attributes.rope_type == 1) options.rotary = RotaryOptions{.mode = RotaryMode::kInterleave};
  if (attributes.rope_type == 2) options.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
  options.concat_order = static_cast<ConcatOrder>(attributes.concat_order);
  return options;
}

constexpr std::pair<const char*, Part> kNorms[] = {
    {"Query", Part::kQuery}, {"Key", Part::kKey}, {"AddedQuery", Part::kEncoderQuery}, {"AddedKey", Part::kEncoderKey}};

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

ConstTensorView In(const TensorView& view) { return {view.data, view.dtype, view.shape, view.strides}; }

::testing::AssertionResult Bounded(const std::string& name, const std::optional<TensorView>& got,
                                   const reference::BoundedValues& want) {
  if (!got) return ::testing::AssertionSuccess();
  return Matches(name, reference::CompareBounded(In(*got), want));
}

::testing::AssertionResult CheckSegment(const std::string& name, const NormRopeBackwardSegment& segment) {
  const reference::NormRopeGradients want = reference::NormRopeBackward(segment);
  ::testing::AssertionResult result = Bounded("gradient of " + name, segment.dx, want.dx);
  if (result) result = Bounded("gradient of " + name + "'s weight", segment.dweight, want.dweight);
  if (result) result = Bounded("gradient of " + name + "'s bias", segment.dbias, want.dbias);
  return result;
}

::testing::AssertionResult CheckSegment(const std::string& name, const NormRopeSegment& segment) {
  const reference::NormStatistics statistics = reference::ExactStatistics(segment);
  if (auto mean = Bounded(name + "'s mean", segment.mean, statistics.mean); !mean) return mean;
  if (auto rstd = Bounded(name + "'s rstd", segment.rstd, statistics.rstd); !rstd) return rstd;
  NormRopeSegment wanted = segment;
  const Shape strides = ContiguousStrides(Shape(segment.y.shape.begin(), segment.y.shape.end()));
  std::size_t bytes = reference::ElementSize(segment.y.dtype);
  for (const std::int64_t extent : segment.y.shape) bytes *= static_cast<std::size_t>(extent);
  std::vector<std::byte> memory(bytes);
  wanted.y.data = memory.data();
  wanted.y.strides = strides;
  if (segment.rstd) {
    reference::NormRopeFromStatistics(wanted);
  } else {
    reference::NormRope(wanted);
  }
  return Matches(name + "'s output", reference::CompareBits(In(segment.y), In(wanted.y)));
}

template <class Problem>
::testing::AssertionResult CheckProblem(Problem& problem) {
  if (auto unchanged = problem.OnlyChanged(problem.Wanted()); !unchanged) return unchanged;
  const auto segments = reference::SegmentsOf(problem.Args());
  for (const auto& stream : segments.streams) {
    if (auto result = CheckSegment(stream.name, stream.segment); !result) return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

std::span<const FusedParameter> GradParameters() { return kGrad; }
std::span<const FusedParameter> ForwardParameters() { return kForward; }

Shape ShapeOf(const FusedParameter& parameter, const FusedShape& shape) {
  const std::int64_t length = LengthOf(parameter.part, shape);
  const std::int64_t joint = parameter.part == Part::kQuery ? shape.joint_query() : shape.joint_key();
  switch (parameter.role) {
    case Role::kJoint: return {shape.batch, shape.heads, joint, shape.head_dim};
    case Role::kStream: return {shape.batch, length, shape.heads, shape.head_dim};
    case Role::kStatistic: return {shape.batch, length, shape.heads, 1};
    case Role::kVector: return {shape.head_dim};
    case Role::kTable: return {shape.rope, shape.head_dim};
  }
  return {};
}

FusedArrays::FusedArrays(std::span<const FusedParameter> list, DType type, const FusedShape& extents,
                         const FusedAttributes& values, std::uint64_t seed)
    : parameters(list), dtype(type), shape(extents), attributes(values) {
  Random random(seed);
  for (const FusedParameter& parameter : parameters) {
    const bool statistic = parameter.role == Role::kStatistic;
    arrays.emplace_back(statistic ? DType::kF32 : dtype, ShapeOf(parameter, shape), random);
    if (std::string_view(parameter.name).ends_with("Rstd")) MakePositive(arrays.back());
    before.push_back(arrays.back().bytes());
  }
  for (const char* name : {"encoderQuery", "encoderKey", "encoderValue"}) {
    const auto found = std::ranges::find(parameters, std::string_view(name), &FusedParameter::name);
    if (found != parameters.end() && !has(found->part)) Omit(name);
  }
}

std::size_t FusedArrays::IndexOf(std::string_view name) const {
  const auto found = std::ranges::find(parameters, name, &FusedParameter::name);
  EXPECT_NE(found, parameters.end()) << name;
  return static_cast<std::size_t>(found - parameters.begin());
}

std::int64_t FusedArrays::norm(Part part) const {
  return part == Part::kQuery || part == Part::kKey ? attributes.norm_type : attributes.norm_added_type;
}

bool FusedArrays::has(Part part) const {
  if (part == Part::kEncoderQuery) return shape.encoder_query.has_value();
  return part != Part::kEncoderKey || shape.encoder_key.has_value();
}

::testing::AssertionResult FusedArrays::OnlyChanged(const std::vector<std::string>& names) const {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (Contains(names, parameters[i].name) || arrays[i].bytes() == before[i]) continue;
    return ::testing::AssertionFailure() << parameters[i].name << " has changed";
  }
  return ::testing::AssertionSuccess();
}

aclnnStatus FusedGradProblem::Plan() {
  return PlanGrad(*this, std::make_index_sequence<kGradInputs>(),
                  std::make_index_sequence<kGradTensors - kGradInputs>());
}

aclnnStatus FusedGradProblem::Run() { return RunWithWorkspace(aclnnNormRopeConcatBackward, workspace_size, executor); }

::testing::AssertionResult FusedGradProblem::PlanAndRun() { return PlanAndRunProblem(*this); }

std::vector<std::string> FusedGradProblem::Wanted() const {
  std::vector<std::string> names = {"gradQuery", "gradKey", "gradValue"};
  if (has(Part::kEncoderQuery)) names.push_back("gradEncoderQuery");
  if (has(Part::kEncoderKey)) names.insert(names.end(), {"gradEncoderKey", "gradEncoderValue"});
  for (const auto& [name, part] : kNorms) {
    if (!has(part) || norm(part) != 2) continue;
    names.push_back("gradNorm" + std::string(name) + "Weight");
    names.push_back("gradNorm" + std::string(name) + "Bias");
  }
  return names;
}

NormRopeConcatBackwardArgs FusedGradProblem::Args() {
  const std::vector<std::string> wanted = Wanted();
  const auto in = [this](const std::string& name) { return (*this)[name].in(); };
  const auto out = [&](const std::string& name) -> std::optional<TensorView> {
    if (!Contains(wanted, name)) return std::nullopt;
    return (*this)[name].out();
  };
  NormRopeConcatBackwardArgs args;
  args.grad_query_output = in("gradQueryOutput");
  args.grad_key_output = in("gradKeyOutput");
  args.grad_value_output = in("gradValueOutput");
  args.query = in("query");
  args.key = in("key");
  if (has(Part::kEncoderQuery)) args.encoder_query = in("encoderQuery");
  if (has(Part::kEncoderKey)) args.encoder_key = in("encoderKey");
  args.rope_cos = in("ropeCos");
  args.rope_sin = in("ropeSin");
  NormBackwardTensors* const norms[] = {&args.norm_query, &args.norm_key, &args.norm_added_query, &args.norm_added_key};
  for (std::size_t i = 0; i < std::size(kNorms); ++i) {
    const auto& [name, part] = kNorms[i];
    if (!has(part) || norm(part) == 0) continue;
    const std::string norm_name = "norm" + std::string(name);
    const std::string grad_name = "gradNorm" + std::string(name);
    *norms[i] = {in(norm_name + "Weight"), in(norm_name + "Mean"), in(norm_name + "Rstd"), out(grad_name + "Weight"),
                 out(grad_name + "Bias")};
  }
  args.dquery = out("gradQuery");
  args.dkey = out("gradKey");
  args.dvalue = out("gradValue");
  args.dencoder_query = out("gradEncoderQuery");
  args.dencoder_key = out("gradEncoderKey");
  args.dencoder_value = out("gradEncoderValue");
  args.options = OptionsOf(attributes);
  return args;
}

::testing::AssertionResult FusedGradProblem::Check() { return CheckProblem(*this); }

aclnnStatus FusedForwardProblem::Plan() {
  return PlanForward(*this, std::make_index_sequence<kForwardInputs>(),
                     std::make_index_sequence<kForwardTensors - kForwardInputs>());
}

aclnnStatus FusedForwardProblem::Run() { return RunWithWorkspace(aclnnNormRopeConcat, workspace_size, executor); }

::testing::AssertionResult FusedForwardProblem::PlanAndRun() { return PlanAndRunProblem(*this); }

std::vector<std::string> FusedForwardProblem::Wanted() const {
  std::vector<std::string> names = {"queryOutput", "keyOutput", "valueOutput"};
  for (const auto& [name, part] : kNorms) {
    if (!has(part) || !attributes.training || norm(part) == 0) continue;
    if (norm(part) <= 2) names.push_back("norm" + std::string(name) + "Mean");
    names.push_back("norm" + std::string(name) + "Rstd");
  }
  return names;
}

NormRopeConcatArgs FusedForwardProblem::Args() {
  const std::vector<std::string> wanted = Wanted();
  const auto in = [this](const std::string& name) { return (*this)[name].in(); };
  const auto out = [&](const std::string& name) -> std::optional<TensorView> {
    if (!Contains(wanted, name)) return std::nullopt;
    return (*this)[name].out();
  };
  NormRopeConcatArgs args;
  args.query = in("query");
  args.key = in("key");
  args.value = in("value");
  if (has(Part::kEncoderQuery)) args.encoder_query = in("encoderQuery");
  if (has(Part::kEncoderKey)) args.encoder_key = in("encoderKey");
  if (has(Part::kEncoderKey)) args.encoder_value = in("encoderValue");
  args.rope_cos = in("ropeCos");
  args.rope_sin = in("ropeSin");
  NormTensors* const norms[] = {&args.norm_query, &args.norm_key, &args.norm_added_query, &args.norm_added_key};
  for (std::size_t i = 0; i < std::size(kNorms); ++i) {
    const auto& [name, part] = kNorms[i];
    if (!has(part) || norm(part) == 0) continue;
    const std::string norm_name = "norm" + std::string(name);
    *norms[i] = {in(norm_name + "Weight"), in(norm_name + "Bias"), out(norm_name + "Mean"), out(norm_name + "Rstd")};
  }
  args.eps = static_cast<float>(attributes.eps);
  args.query_output = out("queryOutput");
  args.key_output = out("keyOutput");
  args.value_output = out("valueOutput");
  args.options = OptionsOf(attributes);
  return args;
}

::testing::AssertionResult FusedForwardProblem::Check() { return CheckProblem(*this); }

}  // namespace gyrograd::testing
