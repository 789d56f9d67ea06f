// Measures the gradient of norm + rotary + concatenation against plain copies of the same bytes: each norm, rotation
// and type, incoming gradients in [B, N, S, D] and in [B, S, N, D] memory, 4096 + 512 positions, 24 heads of 128.
//
//   gyrograd_norm_rope_marks [--quick] [--positions N] [--rounds N] [--threads N] [--csv FILE]
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure.h"
#include "bench/problem.h"
#include "gyrograd/norm_rope_concat.h"

namespace gyrograd::bench {
namespace {

constexpr double kLimit = 1.5;
constexpr std::int64_t kHeads = 24, kHeadDim = 128;

struct Options {
  bool quick = false;
  std::int64_t positions = 4096;  // of the image stream; the text's are an eighth of it
  int rounds = 9;
  int threads = 2;
  std::string csv;
};

struct Tensor {
  std::array<std::int64_t, 4> shape = {}, strides = {};
  std::size_t rank = 4;
  DType dtype = DType::kF32;
  std::byte* data = nullptr;

  ConstTensorView Read() const { return {data, dtype, std::span(shape).first(rank), std::span(strides).first(rank)}; }
  TensorView Write() const { return {data, dtype, std::span(shape).first(rank), std::span(strides).first(rank)}; }
};

// Takes whole cache lines off a piece of memory.
class Shelf {
 public:
  explicit Shelf(std::span<std::byte> room) : room_(room) {}

  std::span<std::byte> Take(std::size_t bytes) {
    const std::span<std::byte> taken = room_.first(bytes);
    room_ = room_.subspan((bytes + 63) / 64 * 64);
    return taken;
  }

 private:
  std::span<std::byte> room_;
};

// Two streams of the memory of one, [1, S + E, heads, D] (or [1, heads, S + E, D]), and the whole.
struct Joint {
  Tensor whole, stream, encoder;
  std::span<std::byte> bytes;
};

class Problem {
 public:
  Problem(const Options& options, DType dtype, NormType norm, std::optional<RotaryMode> mode, bool heads_first,
          Memory* memory)
      : options_(options), dtype_(dtype), inputs_(memory->inputs()), outputs_(memory->outputs()) {
    const bool normed = norm != NormType::kNone;
    for (auto& each : incoming_) each = Take(inputs_, heads_first);
    for (std::size_t i = 0; i < 2 && normed; ++i) rows_[i] = Take(inputs_, false);
    for (auto& each : gradients_) each = Take(outputs_, false);
    for (const Joint& each : incoming_) traffic_.reads.push_back(each.bytes);
    for (std::size_t i = 0; i < 2 && normed; ++i) traffic_.reads.push_back(rows_[i].bytes);
    for (const Joint& each : gradients_) traffic_.writes.push_back(each.bytes);
    TakeSmall(norm, mode.has_value());
    Fill(norm, mode);
  }

  const NormRopeConcatBackwardArgs& args() const { return args_; }
  const Traffic& traffic() const { return traffic_; }

 private:
  std::int64_t encoder() const { return options_.positions / 8; }
  std::int64_t joint() const { return options_.positions + encoder(); }

  Tensor Contiguous(Shelf& shelf, std::vector<std::int64_t> shape, DType dtype) {
    Tensor tensor;
    tensor.rank = shape.size();
    tensor.dtype = dtype;
    const std::vector<std::int64_t> strides = ContiguousStrides(shape);
    std::copy(shape.begin(), shape.end(), tensor.shape.begin());
    std::copy(strides.begin(), strides.end(), tensor.strides.begin());
    std::size_t bytes = SizeOf(dtype);
    for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
    tensor.data = shelf.Take(bytes).data();
    return tensor;
  }

  Joint Take(Shelf& shelf, bool heads_first) {
    Joint joint_tensors;
    Tensor& whole = joint_tensors.whole;
    whole = Contiguous(shelf,
                       heads_first ? std::vector<std::int64_t>{1, kHeads, joint(), kHeadDim}
                                   : std::vector<std::int64_t>{1, joint(), kHeads, kHeadDim},
                       dtype_);
    const auto size = static_cast<std::int64_t>(SizeOf(dtype_));
    joint_tensors.bytes = {whole.data, static_cast<std::size_t>(joint() * kHeads * kHeadDim * size)};
    joint_tensors.stream = joint_tensors.encoder = whole;
    joint_tensors.stream.shape[1] = options_.positions;
    joint_tensors.encoder.shape[1] = encoder();
    joint_tensors.encoder.data += options_.positions * kHeads * kHeadDim * size;
    return joint_tensors;
  }

  // An incoming gradient is [B, N, S, D], however it lies.
  static ConstTensorView Incoming(Tensor& tensor, bool heads_first) {
    if (!heads_first) std::swap(tensor.shape[1], tensor.shape[2]);
    if (!heads_first) std::swap(tensor.strides[1], tensor.strides[2]);
    return tensor.Read();
  }

  void TakeSmall(NormType norm, bool turns) {
    const DType statistics = dtype_ == DType::kF64 ? DType::kF64 : DType::kF32;
    for (std::size_t i = 0; i < 4 && norm != NormType::kNone; ++i) {
      const std::int64_t length = i < 2 ? options_.positions : encoder();
      means_[i] = Contiguous(inputs_, {1, length, kHeads, 1}, statistics);
      rstds_[i] = Contiguous(inputs_, {1, length, kHeads, 1}, statistics);
      weights_[i] = Contiguous(inputs_, {kHeadDim}, dtype_);
      dweights_[i] = Contiguous(outputs_, {kHeadDim}, dtype_);
      dbiases_[i] = Contiguous(outputs_, {kHeadDim}, dtype_);
    }
    if (!turns) return;
    cos_ = Contiguous(inputs_, {joint(), kHeadDim}, dtype_);
    sin_ = Contiguous(inputs_, {joint(), kHeadDim}, dtype_);
  }

  void Fill(NormType norm, std::optional<RotaryMode> mode) {
    const bool heads_first = incoming_[0].whole.shape[1] == kHeads;
    args_.grad_query_output = Incoming(incoming_[0].whole, heads_first);
    args_.grad_key_output = Incoming(incoming_[1].whole, heads_first);
    args_.grad_value_output = Incoming(incoming_[2].whole, heads_first);
    if (norm != NormType::kNone) {
      args_.query = rows_[0].stream.Read();
      args_.encoder_query = rows_[0].encoder.Read();
      args_.key = rows_[1].stream.Read();
      args_.encoder_key = rows_[1].encoder.Read();
    }
    args_.dquery = gradients_[0].stream.Write();
    args_.dencoder_query = gradients_[0].encoder.Write();
    args_.dkey = gradients_[1].stream.Write();
    args_.dencoder_key = gradients_[1].encoder.Write();
    args_.dvalue = gradients_[2].stream.Write();
    args_.dencoder_value = gradients_[2].encoder.Write();
    NormBackwardTensors* const norms[] = {&args_.norm_query, &args_.norm_key, &args_.norm_added_query,
                                          &args_.norm_added_key};
    const bool affine = norm == NormType::kLayerAffine || norm == NormType::kRmsAffine;
    for (std::size_t i = 0; i < 4 && norm != NormType::kNone; ++i) {
      norms[i]->mean = means_[i].Read();
      norms[i]->rstd = rstds_[i].Read();
      if (!affine) continue;
      norms[i]->weight = weights_[i].Read();
      norms[i]->dweight = dweights_[i].Write();
      if (norm == NormType::kLayerAffine) norms[i]->dbias = dbiases_[i].Write();
    }
    args_.options.norm_type = args_.options.norm_added_type = norm;
    if (mode) {
      args_.options.rotary = RotaryOptions{.mode = *mode};
      args_.rope_cos = cos_.Read();
      args_.rope_sin = sin_.Read();
    }
    args_.execution.num_threads = options_.threads;
  }

  const Options& options_;
  DType dtype_;
  Shelf inputs_, outputs_;
  std::array<Joint, 3> incoming_, gradients_;
  std::array<Joint, 2> rows_;
  std::array<Tensor, 4> means_, rstds_, weights_, dweights_, dbiases_;
  Tensor cos_, sin_;
  Traffic traffic_;
  NormRopeConcatBackwardArgs args_;
};

void RunGrid(const Options& options) {
  const auto room = static_cast<std::size_t>(options.positions / 8 * 9 * kHeads * kHeadDim) * sizeof(float);
  Memory memory(5 * room + room / 4 + (1 << 20), 3 * room + (1 << 20));
  std::ofstream csv;
  if (!options.csv.empty()) csv.open(options.csv);
  if (csv.is_open())
    csv << "mark,norm,rotation,memory,type,bytes_read,bytes_written,ms,roof_ms,roof,ratio,limit,verdict\n";
  std::printf("P4 norm + rotary + concat, (1, %lld + %lld, %lld, %lld), %d threads, %d rounds; * over %.1f\n",
              static_cast<long long>(options.positions), static_cast<long long>(options.positions / 8),
              static_cast<long long>(kHeads), static_cast<long long>(kHeadDim), options.threads, options.rounds,
              kLimit);
  std::printf("   %-13s %-11s %-6s", "norm", "rotation", "memory");
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) std::printf("  %s ms  x roof ", Name(dtype));
  std::printf("\n");
  for (const NormType norm :
       {NormType::kNone, NormType::kLayer, NormType::kLayerAffine, NormType::kRms, NormType::kRmsAffine}) {
    if (options.quick && norm != NormType::kLayerAffine) continue;
    for (const std::optional<RotaryMode> mode :
         {std::optional<RotaryMode>(), std::optional(RotaryMode::kInterleave), std::optional(RotaryMode::kHalf)}) {
      const std::string rotation = mode ? Name(*mode) : "none";
      for (const bool heads_first : {true, false}) {
        std::printf("   %-13s %-11s %-6s", Name(norm), rotation.c_str(), heads_first ? "BNSD" : "BSND");
        for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
          const Problem problem(options, dtype, norm, mode, heads_first, &memory);
          NormRopeConcatBackwardPlan plan;
          const Status created = NormRopeConcatBackwardPlan::Create(problem.args(), &plan);
          if (!created.ok()) Fail(created.message());
          std::vector<std::byte> workspace(plan.workspace_size());
          const Result result = Measure(
              std::string(Name(norm)) + " " + rotation,
              [&] { return plan.Run(problem.args(), workspace.data(), workspace.size()); }, problem.traffic(),
              options.rounds, options.threads);
          std::printf("  %8.3f %5.2f%s", result.seconds * 1e3, result.ratio, result.ratio <= kLimit ? " " : "*");
          std::fflush(stdout);
          if (!csv.is_open()) continue;
          csv << "P4," << Name(norm) << ',' << rotation << ',' << (heads_first ? "BNSD" : "BSND") << ',' << Name(dtype)
              << ',' << result.bytes_read << ',' << result.bytes_written << ',' << result.seconds * 1e3 << ','
              << result.roof_seconds * 1e3 << ',' << Name(result.roof) << ',' << result.ratio << ',' << kLimit << ','
              << (result.ratio <= kLimit ? "pass" : "short") << std::endl;
        }
        std::printf("\n");
      }
    }
  }
}

Options ParseOptions(std::span<char*> words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const auto value = [&] {
      if (++i == words.size()) Fail(std::string(word) + " needs a value");
      return words[i];
    };
    const auto number = [&] {
      const int parsed = std::atoi(value());
      if (parsed <= 0) Fail(std::string(word) + " needs a number above 0");
      return parsed;
    };
    if (word == "--quick") {
      options.quick = true;
    } else if (word == "--positions") {
      options.positions = (number() + 7) / 8 * 8;
    } else if (word == "--rounds") {
      options.rounds = number();
    } else if (word == "--threads") {
      options.threads = number();
    } else if (word == "--csv") {
      options.csv = value();
    } else {
      Fail("unknown option " + std::string(word));
    }
  }
  return options;
}

}  // namespace
}  // namespace gyrograd::bench

int main(int argc, char** argv) {
  using namespace gyrograd::bench;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) Fail("the copying loops need AVX2");
#endif
  RunGrid(ParseOptions({argv + 1, static_cast<std::size_t>(argc - 1)}));
  return 0;
}
