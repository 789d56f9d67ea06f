// Hashes of what the library computes for thousands of random problems: the same on every CPU target and machine, and
// from one version of the library to the next.
//
//   golden print                     all hashes, one line a group of problems, where all targets of this machine agree
//   golden check FILE [TARGET...]    compares with the file's, on the targets named or on all
//   golden each TARGET [WORDS]       one line a problem, of the groups whose name holds the words
//   golden run COUNT [TARGET...]     computes the first problems of each group, for a memory checker
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "tests/golden/problems.h"

namespace gyrograd::golden {
namespace {

constexpr const char* kUsage =
    "usage: golden print | check FILE [TARGET...] | each TARGET [WORDS] | run COUNT [TARGET...]\n";

// Problem number `index` of a group, which no other group changes.
Outcome Compute(const Group& group, int index, CpuTarget target) {
  Numbers numbers(Mix(HashOf(group.name) + static_cast<std::uint64_t>(index)));
  Outcome outcome = group.run(numbers, target);
  if (!outcome.error.empty()) {
    std::fprintf(stderr, "%s, problem %d on %s:%s\n  %s\n", group.name.c_str(), index, Name(target),
                 outcome.problem.c_str(), outcome.error.c_str());
  }
  return outcome;
}

// "rotary_backward half f32/f32: 20 problems 0123456789abcdef"; with its problems' errors, where they have any.
std::string LineOf(const Group& group, CpuTarget target) {
  std::uint64_t hash = 0;
  std::string errors;
  for (int i = 0; i < kProblemsOfGroup; ++i) {
    const Outcome outcome = Compute(group, i, target);
    hash = Mix(hash + outcome.hash) + hash * 0x2545f4914f6cdd1d;
    errors += outcome.error;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return group.name + ": " + std::to_string(kProblemsOfGroup) + " problems " + digits + errors;
}

std::vector<std::string> ReadLines(const char* path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('#')) lines.push_back(line);
  }
  return lines;
}

int Print() {
  std::printf(
      "# Hashes of what the library computes for random problems, a group a line: make golden writes this file.\n");
  bool agreed = true;
  for (const Group& group : AllGroups()) {
    const std::vector<CpuTarget> targets = AvailableCpuTargets();
    const std::string line = LineOf(group, targets.front());
    for (const CpuTarget target : targets) {
      if (const std::string other = LineOf(group, target); other != line) {
        std::fprintf(stderr, "%s: %s\n%s: %s\n", Name(targets.front()), line.c_str(), Name(target), other.c_str());
        agreed = false;
      }
    }
    std::printf("%s\n", line.c_str());
  }
  return agreed ? 0 : 1;
}

// How many groups differ from the file's lines.
int CheckTarget(const std::vector<std::string>& want, CpuTarget target) {
  const std::vector<Group> groups = AllGroups();
  int bad = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string line = LineOf(groups[i], target);
    if (i < want.size() && line == want[i]) continue;
    if (++bad <= 10) std::printf("- %s\n+ %s\n", i < want.size() ? want[i].c_str() : "(no line)", line.c_str());
  }
  if (want.size() > groups.size()) {
    std::printf("%zu lines that no group answers to\n", want.size() - groups.size());
    ++bad;
  }
  std::printf("%s: %zu groups, %zu problems, %d groups differ\n", Name(target), groups.size(),
              groups.size() * kProblemsOfGroup, bad);
  return bad;
}

int Check(const char* path, const std::vector<CpuTarget>& targets) {
  const std::vector<std::string> want = ReadLines(path);
  int bad = 0;
  for (const CpuTarget target : targets) bad += CheckTarget(want, target);
  return bad == 0 ? 0 : 1;
}

int Each(CpuTarget target, const std::string& words) {
  for (const Group& group : AllGroups()) {
    if (group.name.find(words) == std::string::npos) continue;
    for (int i = 0; i < kProblemsOfGroup; ++i) {
      const Outcome outcome = Compute(group, i, target);
      std::printf("%016llx %s, problem %d:%s\n", static_cast<unsigned long long>(outcome.hash), group.name.c_str(), i,
                  outcome.problem.c_str());
    }
  }
  return 0;
}

int Run(int count, const std::vector<CpuTarget>& targets) {
  int done = 0, failed = 0;
  for (const CpuTarget target : targets) {
    for (const Group& group : AllGroups()) {
      for (int i = 0; i < count; ++i, ++done) failed += Compute(group, i, target).error.empty() ? 0 : 1;
    }
  }
  std::printf("%d problems computed, %d failed\n", done, failed);
  return failed == 0 && done > 0 ? 0 : 1;
}

// The targets of these names, or all; none where a name is not one that this machine runs.
std::vector<CpuTarget> TargetsOf(std::span<const std::string> names) {
  const std::vector<CpuTarget> all = AvailableCpuTargets();
  if (names.empty()) return all;
  std::vector<CpuTarget> targets;
  for (const std::string& name : names) {
    const auto found = std::find_if(all.begin(), all.end(), [&](CpuTarget target) { return name == Name(target); });
    if (found == all.end()) return {};
    targets.push_back(*found);
  }
  return targets;
}

int Usage() {
  std::fputs(kUsage, stderr);
  std::fputs("targets of this machine:", stderr);
  for (const CpuTarget target : AvailableCpuTargets()) std::fprintf(stderr, " %s", Name(target));
  std::fputs("\n", stderr);
  return 2;
}

int Main(std::span<const std::string> arguments) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "print" && arguments.size() == 1) return Print();
  if (arguments.size() < 2) return Usage();
  const bool each = command == "each";
  const std::vector<CpuTarget> targets = TargetsOf(each ? arguments.subspan(1, 1) : arguments.subspan(2));
  if (targets.empty()) return Usage();
  if (command == "check") return Check(arguments[1].c_str(), targets);
  if (command == "run") return Run(std::atoi(arguments[1].c_str()), targets);
  if (each && arguments.size() <= 3) return Each(targets[0], arguments.size() == 3 ? arguments[2] : "");
  return Usage();
}

}  // namespace
}  // namespace gyrograd::golden

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return gyrograd::golden::Main(arguments);
}
