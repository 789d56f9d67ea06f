// Random problems of every operator in groups: one for each direction, mode or norm, and types.
#ifndef GYROGRAD_TESTS_GOLDEN_PROBLEMS_H_
#define GYROGRAD_TESTS_GOLDEN_PROBLEMS_H_

#include <functional>
#include <string>
#include <vector>

#include "gyrograd/execution.h"
#include "gyrograd/rotary.h"
#include "tests/golden/numbers.h"
#include "tests/golden/tensors.h"

namespace gyrograd::golden {

struct Group {
  std::string name;
  // Draws a problem and computes it.
  std::function<Outcome(Numbers&, CpuTarget)> run;
};

inline constexpr int kProblemsOfGroup = 20;

std::vector<Group> RotaryGroups();
std::vector<Group> NormRopeGroups();
std::vector<Group> NormRopeConcatGroups();
std::vector<Group> AllGroups();

// ---- What the operators' problems share -------------------------------------------------------------------------

// Channels that `unit` divides; most often few, around the width of a vector, or many.
std::int64_t ChooseChannels(Numbers& numbers, std::int64_t unit);
// A rotation of all of a row's channels, or of some; `mode` fits a row of that many, at least 4.
RotaryOptions ChooseRotation(Numbers& numbers, RotaryMode mode, std::int64_t channels);
// The tables' last extent.
std::int64_t TableWidth(const RotaryOptions& options, std::int64_t channels);
Execution ChooseExecution(Numbers& numbers, CpuTarget target);
std::string Words(const RotaryOptions& options);

// Types of activations, weights and tables.
struct Types {
  DType activations, weights, tables;
};

}  // namespace gyrograd::golden

#endif  // GYROGRAD_TESTS_GOLDEN_PROBLEMS_H_
