// Tensors of a NormRopeConcat problem, its checks, and the reading of the case list.
#include "tests/support/norm_rope_concat_problem.h"

#include <array>
#include <charconv>
#include <fstream>
#include <random>
#include <string_view>

#include "reference/norm_rope_concat.h"
#include "tests/support/verdict.h"

namespace gyrograd::testing {
namespace {

// ---- The case list ----------------------------------------------------------------------------------------------

constexpr std::string_view kHeader =
    "id,dtype,batch,heads,head_dim,seq_query,seq_key,seq_encoder_query,seq_encoder_key,seq_rope,norm_type,"
    "norm_added_type,rope_type,concat_order";
constexpr std::size_t kFields = 14;

std::optional<DType> ParseDType(std::string_view text) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    if (text == Name(dtype)) return dtype;
  }
  return std::nullopt;
}

std::vector<std::string_view> Split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

// The list's numbers: 0 none, 1 interleave, 2 half.
std::optional<RotaryOptions> RotaryOfType(std::int64_t type) {
  if (type == 0) return std::nullopt;
  return RotaryOptions{.mode = type == 1 ? RotaryMode::kInterleave : RotaryMode::kHalf};
}

std::optional<NormRopeConcatProblem> ParseLine(std::string_view line) {
  const std::vector<std::string_view> fields = Split(line);
  if (fields.size() != kFields) return std::nullopt;
  const std::optional<DType> dtype = ParseDType(fields[1]);
  std::array<std::int64_t, kFields - 2> numbers = {};
  for (std::size_t i = 2; i < kFields; ++i) {
    const char* const end = fields[i].data() + fields[i].size();
    const auto [stop, error] = std::from_chars(fields[i].data(), end, numbers[i - 2]);
    if (error != std::errc() || stop != end) return std::nullopt;
  }
  if (!dtype) return std::nullopt;
  NormRopeConcatProblem problem;
  problem.id = fields[0];
  problem.types = {*dtype, *dtype, *dtype};
  std::int64_t norm_type = 0, norm_added_type = 0, rope_type = 0, concat_order = 0;
  const std::array<std::int64_t*, kFields - 2> targets = {
      &problem.batch,           &problem.heads,    &problem.head_dim,
      &problem.seq_query,       &problem.seq_key,  &problem.seq_encoder_query,
      &problem.seq_encoder_key, &problem.seq_rope, &norm_type,
      &norm_added_type,         &rope_type,        &concat_order};
  for (std::size_t i = 0; i < targets.size(); ++i) *targets[i] = numbers[i];
  problem.options.norm_type = static_cast<NormType>(norm_type);
  problem.options.norm_added_type = static_cast<NormType>(norm_added_type);
  problem.options.rotary = RotaryOfType(rope_type);
  problem.options.concat_order = static_cast<ConcatOrder>(concat_order);
  return problem;
}

// ---- Tensors ----------------------------------------------------------------------------------------------------

void FillNormal(Random& random, Tensor* tensor) {
  std::normal_distribution<double> normal;
  tensor->Fill([&](std::int64_t) { return normal(random); });
}

Tensor Joint(const NormRopeConcatProblem& problem, std::int64_t heads, std::int64_t sequence) {
  return Tensor(problem.types.activations, {problem.batch, heads, sequence, problem.head_dim}, problem.joint_layout,
                problem.placement);
}

Tensor Table(const NormRopeConcatProblem& problem, std::int64_t length) {
  return Tensor(problem.types.tables, problem.TablesShape(length), Layout::kContiguous, problem.placement);
}

std::optional<ConstTensorView> Present(const Tensor& x) {
  if (x.shape()[1] == 0) return std::nullopt;
  return x.in();
}

// What the backward of one norm needs and wants, with a stream or without.
NormBackwardTensors NormOf(const StreamTensors& stream, NormType type) {
  NormBackwardTensors norm;
  if (stream.x.shape()[1] != 0) {
    if (HasWeight(type)) norm.weight = stream.weight.in();
    if (HasMean(type)) norm.mean = stream.mean.in();
    if (type != NormType::kNone) norm.rstd = stream.rstd.in();
  }
  if (HasWeight(type)) norm.dweight = stream.dweight.out();
  if (HasBias(type)) norm.dbias = stream.dbias.out();
  return norm;
}

NormTensors ForwardNormOf(const StreamTensors& stream, NormType type, bool statistics) {
  NormTensors norm;
  if (HasWeight(type)) norm.weight = stream.weight.in();
  if (HasBias(type)) norm.bias = stream.bias.in();
  if (statistics && HasMean(type)) norm.mean = stream.mean.out();
  if (statistics && type != NormType::kNone) norm.rstd = stream.rstd.out();
  return norm;
}

template <class Args>
void SetTables(const NormRopeConcatTensors& tensors, Args* args) {
  if (!tensors.problem.options.rotary) return;
  args->rope_cos = tensors.rope_cos.in();
  args->rope_sin = tensors.rope_sin.in();
  if (!tensors.problem.seq_encoder_rope) return;
  args->encoder_rope_cos = tensors.encoder_rope_cos.in();
  args->encoder_rope_sin = tensors.encoder_rope_sin.in();
}

// The tensors that a call may only read: unchanged. Those that it writes: guards intact.
struct Memory {
  std::vector<::testing::AssertionResult> results;

  void Read(const std::string& name, const Tensor& tensor) { results.push_back(tensor.Unchanged(name)); }
  void Written(const std::string& name, const Tensor& tensor) { results.push_back(tensor.GuardsIntact(name)); }
};

template <class Body>
void ForEachStream(const NormRopeConcatTensors& tensors, const Body& body) {
  body(std::string("query."), tensors.query);
  body(std::string("key."), tensors.key);
  body(std::string("value."), tensors.value);
  body(std::string("encoder_query."), tensors.encoder_query);
  body(std::string("encoder_key."), tensors.encoder_key);
  body(std::string("encoder_value."), tensors.encoder_value);
}

void ReadTables(const NormRopeConcatTensors& tensors, Memory* memory) {
  memory->Read("rope_cos", tensors.rope_cos);
  memory->Read("rope_sin", tensors.rope_sin);
  memory->Read("encoder_rope_cos", tensors.encoder_rope_cos);
  memory->Read("encoder_rope_sin", tensors.encoder_rope_sin);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const NormRopeConcatProblem& problem) {
  if (!problem.id.empty()) out << problem.id << " ";
  out << problems::ToString(problem);
  if (problem.placement == Placement::kGuarded) return out;
  return out << " " << Name(problem.placement);
}

std::vector<NormRopeConcatProblem> ReadNormRopeConcatProblems(const std::string& path, std::string* error) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line != kHeader) {
    *error = path + ": its first line must be " + std::string(kHeader);
    return {};
  }
  std::vector<NormRopeConcatProblem> problems;
  while (std::getline(file, line)) {
    const std::optional<NormRopeConcatProblem> problem = ParseLine(line);
    if (!problem) {
      *error = path + ": cannot read the line " + line;
      return {};
    }
    problems.push_back(*problem);
  }
  return problems;
}

StreamTensors::StreamTensors(const NormRopeConcatProblem& problem, std::int64_t sequence, std::int64_t heads)
    : x(problem.types.activations, {problem.batch, sequence, heads, problem.head_dim}, problem.stream_layout,
        problem.placement),
      dx(x.dtype(), x.shape(), problem.stream_layout, problem.placement),
      mean(problem.types.statistics(), {problem.batch, sequence, heads, 1}, Layout::kContiguous, problem.placement),
      rstd(mean.dtype(), mean.shape(), Layout::kContiguous, problem.placement),
      weight(problem.types.weights, {problem.head_dim}, Layout::kContiguous, problem.placement),
      bias(weight.dtype(), weight.shape(), Layout::kContiguous, problem.placement),
      dweight(weight.dtype(), weight.shape(), Layout::kContiguous, problem.placement),
      dbias(weight.dtype(), weight.shape(), Layout::kContiguous, problem.placement) {}

NormRopeConcatTensors::NormRopeConcatTensors(const NormRopeConcatProblem& given)
    : problem(given),
      query(given, given.seq_query, given.heads),
      key(given, given.seq_key, given.KeyHeads()),
      value(given, given.seq_key, given.KeyHeads()),
      encoder_query(given, given.seq_encoder_query, given.heads),
      encoder_key(given, given.seq_encoder_key, given.KeyHeads()),
      encoder_value(given, given.seq_encoder_key, given.KeyHeads()),
      joint_query(Joint(given, given.heads, given.seq_query + given.seq_encoder_query)),
      joint_key(Joint(given, given.KeyHeads(), given.seq_key + given.seq_encoder_key)),
      joint_value(joint_key.dtype(), joint_key.shape(), given.joint_layout, given.placement),
      query_output(joint_query.dtype(), joint_query.shape(), given.joint_layout, given.placement),
      key_output(joint_key.dtype(), joint_key.shape(), given.joint_layout, given.placement),
      value_output(joint_key.dtype(), joint_key.shape(), given.joint_layout, given.placement),
      rope_cos(Table(given, given.seq_rope)),
      rope_sin(Table(given, given.seq_rope)),
      encoder_rope_cos(Table(given, given.seq_encoder_rope.value_or(0))),
      encoder_rope_sin(Table(given, given.seq_encoder_rope.value_or(0))) {
  Random random(given.seed);
  for (Tensor* tensor :
       {&joint_query, &joint_key, &joint_value, &rope_cos, &rope_sin, &encoder_rope_cos, &encoder_rope_sin}) {
    FillNormal(random, tensor);
  }
  for (StreamTensors* stream : {&query, &key, &value, &encoder_query, &encoder_key, &encoder_value}) {
    FillNormal(random, &stream->x);
    FillNormal(random, &stream->weight);
    FillNormal(random, &stream->bias);
  }
  for (StreamTensors* stream : {&query, &key}) {
    FillStatistics(stream->x, given.options.norm_type, given.eps, &stream->mean, &stream->rstd);
  }
  for (StreamTensors* stream : {&encoder_query, &encoder_key}) {
    FillStatistics(stream->x, given.options.norm_added_type, given.eps, &stream->mean, &stream->rstd);
  }
}

NormRopeConcatBackwardArgs NormRopeConcatTensors::BackwardArgs() const {
  const NormType norm = problem.options.norm_type, added = problem.options.norm_added_type;
  NormRopeConcatBackwardArgs args;
  args.grad_query_output = joint_query.in();
  args.grad_key_output = joint_key.in();
  args.grad_value_output = joint_value.in();
  args.query = query.x.in();
  args.key = key.x.in();
  args.encoder_query = Present(encoder_query.x);
  args.encoder_key = Present(encoder_key.x);
  SetTables(*this, &args);
  args.norm_query = NormOf(query, norm);
  args.norm_key = NormOf(key, norm);
  args.norm_added_query = NormOf(encoder_query, added);
  args.norm_added_key = NormOf(encoder_key, added);
  args.dquery = query.dx.out();
  args.dkey = key.dx.out();
  args.dvalue = value.dx.out();
  if (args.encoder_query) args.dencoder_query = encoder_query.dx.out();
  if (args.encoder_key) args.dencoder_key = encoder_key.dx.out();
  if (args.encoder_key) args.dencoder_value = encoder_value.dx.out();
  args.options = problem.options;
  args.execution = problem.execution;
  return args;
}

NormRopeConcatArgs NormRopeConcatTensors::ForwardArgs(bool statistics) const {
  const NormType norm = problem.options.norm_type, added = problem.options.norm_added_type;
  NormRopeConcatArgs args;
  args.query = query.x.in();
  args.key = key.x.in();
  args.value = value.x.in();
  args.encoder_query = Present(encoder_query.x);
  args.encoder_key = Present(encoder_key.x);
  args.encoder_value = Present(encoder_value.x);
  SetTables(*this, &args);
  args.norm_query = ForwardNormOf(query, norm, statistics);
  args.norm_key = ForwardNormOf(key, norm, statistics);
  if (args.encoder_query) args.norm_added_query = ForwardNormOf(encoder_query, added, statistics);
  if (args.encoder_key) args.norm_added_key = ForwardNormOf(encoder_key, added, statistics);
  args.eps = problem.eps;
  args.query_output = query_output.out();
  args.key_output = key_output.out();
  args.value_output = value_output.out();
  args.options = problem.options;
  args.execution = problem.execution;
  return args;
}

::testing::AssertionResult NormRopeConcatTensors::CheckBackward() const {
  Memory memory;
  const auto segments = reference::SegmentsOf(BackwardArgs());
  for (const auto& [name, segment] : segments.streams) {
    memory.results.push_back(CheckSegment(std::string(name) + ".", segment, reference::NormRopeBackward(segment)));
  }
  memory.Read("grad_query_output", joint_query);
  memory.Read("grad_key_output", joint_key);
  memory.Read("grad_value_output", joint_value);
  ReadTables(*this, &memory);
  ForEachStream(*this, [&](const std::string& name, const StreamTensors& stream) {
    memory.Read(name + "x", stream.x);
    memory.Read(name + "mean", stream.mean);
    memory.Read(name + "rstd", stream.rstd);
    memory.Read(name + "weight", stream.weight);
    memory.Written(name + "dx", stream.dx);
    memory.Written(name + "dweight", stream.dweight);
    memory.Written(name + "dbias", stream.dbias);
  });
  return InProblem(FirstFailure(memory.results), problem);
}

::testing::AssertionResult NormRopeConcatTensors::CheckForward() const {
  Memory memory;
  const auto segments = reference::SegmentsOf(ForwardArgs());
  for (const auto& [name, segment] : segments.streams) {
    memory.results.push_back(CheckSegment(std::string(name) + ".", segment));
  }
  memory.Written("query_output", query_output);
  memory.Written("key_output", key_output);
  memory.Written("value_output", value_output);
  ReadTables(*this, &memory);
  ForEachStream(*this, [&](const std::string& name, const StreamTensors& stream) {
    memory.Read(name + "x", stream.x);
    memory.Read(name + "weight", stream.weight);
    memory.Read(name + "bias", stream.bias);
    memory.Written(name + "mean", stream.mean);
    memory.Written(name + "rstd", stream.rstd);
  });
  return InProblem(FirstFailure(memory.results), problem);
}

}  // namespace gyrograd::testing
