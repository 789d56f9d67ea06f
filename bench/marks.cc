// Measures the rotary gradient against plain copies of the same bytes: a grid of problems, or one that is named.
//
//   gyrograd_marks [--quick] [--size memory|cache] [--total-bytes N] [--rounds N] [--threads N] [--csv FILE]
//                  [MODE TYPE SHAPE TABLE_SHAPE dx|tables|dx+tables]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure.h"
#include "bench/problem.h"
#include "core/machine.h"

namespace gyrograd::bench {
namespace {

constexpr RotaryMode kModes[] = {RotaryMode::kHalf, RotaryMode::kInterleave, RotaryMode::kQuarter,
                                 RotaryMode::kInterleaveHalf};
constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::int64_t kCacheBytes = 1 << 20;
constexpr std::int64_t kMostBytes = 1'500'000'000;

struct Mark {
  std::string_view name;
  std::string_view words;
  bool dx;
  bool tables;
  double limit;
};
constexpr Mark kMarks[] = {
    {"P1", "dx", true, false, 1.10},
    {"P2", "dx + dcos + dsin", true, true, 1.20},
    {"P3", "dcos + dsin", false, true, 1.20},
};

struct Options {
  bool quick = false;
  bool cache = false;
  std::int64_t total_bytes = 0;
  int rounds = 9;
  int threads = 2;
  std::string csv;
  std::vector<std::string_view> problem;
};

Result Measure(const Problem& problem, const Options& options, Memory* memory) {
  const Tensors tensors(problem, memory);
  RotaryBackwardPlan plan;
  const Status created = RotaryBackwardPlan::Create(tensors.Args(options.threads), &plan);
  if (!created.ok()) Fail(ToString(problem) + ": " + created.message());
  std::vector<std::byte> workspace(plan.workspace_size());
  const RotaryBackwardPointers pointers = tensors.Pointers();
  return Measure(
      ToString(problem), [&] { return plan.Run(pointers, workspace.data(), workspace.size()); }, tensors.BytesMoved(),
      options.rounds, options.threads);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The ratio that counts: in cache the marks are others than at memory size.
double Limit(const Mark& mark, DType dtype, bool cache) {
  if (!cache) return mark.limit;
  return dtype == DType::kF32 ? 1.3 : 3.0;
}

class Report {
 public:
  explicit Report(const std::string& csv) {
    if (csv.empty()) return;
    file_.open(csv);
    if (!file_) Fail("cannot write " + csv);
    file_
        << "mark,size,mode,type,layout,shape,table_shape,outputs,bytes_read,bytes_written,ms,roof_ms,roof,ratio,limit,"
           "verdict\n";
  }

  void Add(std::string_view mark, bool cache, std::string_view layout, const Problem& problem, const Result& result,
           double limit) {
    const bool pass = result.ratio <= limit;
    if (file_.is_open()) {
      std::string text = ToString(problem);  // mode type shape table_shape outputs
      std::array<std::string, 5> word;
      for (std::string& each : word) {
        each = text.substr(0, text.find(' '));
        text.erase(0, each.size() + 1);
      }
      file_ << mark << ',' << (cache ? "cache" : "memory") << ',' << word[0] << ',' << word[1] << ',' << layout << ','
            << word[2] << ',' << word[3] << ',' << word[4] << ',' << result.bytes_read << ',' << result.bytes_written
            << ',' << result.seconds * 1e3 << ',' << result.roof_seconds * 1e3 << ',' << Name(result.roof) << ','
            << result.ratio << ',' << limit << ',' << (pass ? "pass" : "short") << std::endl;
    }
    Tally& tally = tallies_[std::string(mark) + " " + Name(problem.dtype)];
    tally.ratios.push_back(result.ratio);
    tally.passed += pass ? 1 : 0;
  }

  void PrintSummary() const {
    std::printf("\n%-10s %9s %9s %9s   %s\n", "", "best", "median", "worst", "within the mark");
    for (const auto& [name, tally] : tallies_) {
      const auto [best, worst] = std::ranges::minmax(tally.ratios);
      std::printf("%-10s %9.2f %9.2f %9.2f   %zu of %zu\n", name.c_str(), best, Median(tally.ratios), worst,
                  tally.passed, tally.ratios.size());
    }
  }

 private:
  struct Tally {
    std::vector<double> ratios;
    std::size_t passed = 0;
  };
  std::ofstream file_;
  std::map<std::string, Tally> tallies_;
};

void RunGrid(const Options& options) {
  std::int64_t total = options.total_bytes;
  if (total == 0) {
    total = options.cache ? kCacheBytes : std::min(4 * internal::LastLevelCacheBytes(), kMostBytes);
  }
  const std::size_t room = static_cast<std::size_t>(total) + (1 << 16);
  Memory memory(room, room);
  Report report(options.csv);
  std::printf(
      "%.0f MB in all, %d threads, %d rounds; time through the fastest copy of the same bytes, * over the mark\n",
      static_cast<double>(total) / 1e6, options.threads, options.rounds);
  for (const Mark& mark : kMarks) {
    std::printf("\n%s %-16s %-16s", mark.name.data(), mark.words.data(), "");
    for (const DType dtype : kTypes) std::printf("  %s ms  x roof ", Name(dtype));
    std::printf("\n");
    for (const RotaryMode mode : kModes) {
      for (const std::string_view layout : kLayouts) {
        if (options.quick && (layout != "BSND 1S1D" || mode > RotaryMode::kInterleave)) continue;
        std::printf("   %-16s %-16s", Name(mode), layout.data());
        for (const DType dtype : kTypes) {
          Problem problem;
          problem.mode = mode;
          problem.dtype = dtype;
          problem.dx = mark.dx;
          problem.tables = mark.tables;
          SetShapes(layout, total, &problem);
          const Result result = Measure(problem, options, &memory);
          const double limit = Limit(mark, dtype, options.cache);
          report.Add(mark.name, options.cache, layout, problem, result, limit);
          std::printf("  %8.3f %5.2f%s", result.seconds * 1e3, result.ratio, result.ratio <= limit ? " " : "*");
          std::fflush(stdout);
        }
        std::printf("\n");
      }
    }
  }
  report.PrintSummary();
}

void RunOne(const Options& options) {
  const std::optional<Problem> problem = ParseProblem(options.problem);
  if (!problem) Fail("a problem is MODE TYPE SHAPE TABLE_SHAPE OUTPUTS, such as: half bf16 2x64x8x128 1x64x1x128 dx");
  Memory memory(Tensors::InputBytes(*problem), Tensors::OutputBytes(*problem));
  const Result result = Measure(*problem, options, &memory);
  std::printf("%s: %.3f ms; roof (%s, %zu bytes read, %zu written) %.3f ms; ratio %.2f\n", ToString(*problem).c_str(),
              result.seconds * 1e3, Name(result.roof), result.bytes_read, result.bytes_written,
              result.roof_seconds * 1e3, result.ratio);
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
      const std::int64_t parsed = std::atoll(value());
      if (parsed <= 0) Fail(std::string(word) + " needs a number above 0");
      return parsed;
    };
    if (word == "--quick") {
      options.quick = true;
    } else if (word == "--size") {
      options.cache = std::string_view(value()) == "cache";
    } else if (word == "--total-bytes") {
      options.total_bytes = number();
    } else if (word == "--rounds") {
      options.rounds = static_cast<int>(number());
    } else if (word == "--threads") {
      options.threads = static_cast<int>(number());
    } else if (word == "--csv") {
      options.csv = value();
    } else if (word.starts_with("-")) {
      Fail("unknown option " + std::string(word));
    } else {
      options.problem.push_back(word);
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
  const Options options = ParseOptions({argv + 1, static_cast<std::size_t>(argc - 1)});
  if (options.problem.empty()) {
    RunGrid(options);
  } else {
    RunOne(options);
  }
  return 0;
}
