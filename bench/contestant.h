// A problem ready to be timed: its tensors in memory, its plan, and the bytes that it has to move.
#ifndef GYROGRAD_BENCH_CONTESTANT_H_
#define GYROGRAD_BENCH_CONTESTANT_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "bench/roof.h"
#include "gyrograd/status.h"
#include "problems/norm_rope_concat.h"
#include "problems/rotary.h"

namespace gyrograd::bench {

struct Contestant {
  std::string problem;           // its line of text
  std::function<Status()> call;  // validates, plans and runs
  std::function<Status()> run;   // runs the plan
  Traffic traffic;               // all of its inputs and outputs
  std::size_t workspace_bytes = 0;
};

// The backward of the problem, on inputs of ordinary values, every page touched. The contestant's functions keep its
// memory alive.
Status MakeContestant(const problems::RotaryProblem& problem, Contestant* contestant);
Status MakeContestant(const problems::NormRopeConcatProblem& problem, Contestant* contestant);

// That of the operator which the text names.
Status MakeContestant(std::string_view problem, Contestant* contestant);

}  // namespace gyrograd::bench

#endif  // GYROGRAD_BENCH_CONTESTANT_H_
