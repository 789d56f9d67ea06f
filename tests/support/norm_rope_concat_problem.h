// A NormRopeConcat problem for tests, such as a line of cases/norm_rope_concat_grad.csv; its tensors; and the checks of
// the results against the two witnesses, segment by segment.
#ifndef GYROGRAD_TESTS_SUPPORT_NORM_ROPE_CONCAT_PROBLEM_H_
#define GYROGRAD_TESTS_SUPPORT_NORM_ROPE_CONCAT_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gyrograd/norm_rope_concat.h"
#include "problems/norm_rope_concat.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/tensor.h"

namespace gyrograd::testing {

struct NormRopeConcatProblem : problems::NormRopeConcatProblem {
  std::string id;  // in the list
  Placement placement = Placement::kGuarded;
};

// The id, where there is one, and the problem's line of text.
std::ostream& operator<<(std::ostream& out, const NormRopeConcatProblem& problem);

// The problems of a list; none, and *error says why, where it cannot be read.
std::vector<NormRopeConcatProblem> ReadNormRopeConcatProblems(const std::string& path, std::string* error);

// One of the two streams of query, key or value, as the backward or the forward sees it.
struct StreamTensors {
  StreamTensors(const NormRopeConcatProblem& problem, std::int64_t sequence, std::int64_t heads);

  Tensor x, dx;           // [B, S, N, D]
  Tensor mean, rstd;      // [B, S, N, 1]
  Tensor weight, bias;    // [D]
  Tensor dweight, dbias;  // [D]
};

// All tensors of forward and backward, of standard normal data; the saved statistics are those of the inputs. Outputs
// hold guard bytes.
struct NormRopeConcatTensors {
  explicit NormRopeConcatTensors(const NormRopeConcatProblem& problem);

  // Everything that the options define is wanted.
  NormRopeConcatBackwardArgs BackwardArgs() const;
  // Writes the joint tensors, and with `statistics` the streams' mean and rstd.
  NormRopeConcatArgs ForwardArgs(bool statistics = true) const;

  // What is wrong with the results of BackwardArgs() or ForwardArgs(), with guards and inputs.
  ::testing::AssertionResult CheckBackward() const;
  ::testing::AssertionResult CheckForward() const;

  NormRopeConcatProblem problem;
  StreamTensors query, key, value, encoder_query, encoder_key, encoder_value;
  Tensor joint_query, joint_key, joint_value;                     // incoming gradients
  Tensor query_output, key_output, value_output;                  // of the forward
  Tensor rope_cos, rope_sin, encoder_rope_cos, encoder_rope_sin;  // [L, R], or rank 4
};

// Makes the tensors, calls the library and checks everything.
::testing::AssertionResult CheckBackward(const NormRopeConcatProblem& problem);
::testing::AssertionResult CheckForward(const NormRopeConcatProblem& problem);

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_NORM_ROPE_CONCAT_PROBLEM_H_
