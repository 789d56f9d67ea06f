// A NormRopeConcat problem for tests, the checker and benches: a line of cases/norm_rope_concat_grad.csv and what goes
// beyond it; its tensors; and the checks of the results against the two witnesses, segment by segment.
#ifndef GYROGRAD_TESTS_SUPPORT_NORM_ROPE_CONCAT_PROBLEM_H_
#define GYROGRAD_TESTS_SUPPORT_NORM_ROPE_CONCAT_PROBLEM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gyrograd/norm_rope_concat.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/tensor.h"

namespace gyrograd::testing {

struct NormRopeConcatProblem {
  std::string id;
  NormRopeTypes types = {};
  std::int64_t batch = 1, heads = 1, head_dim = 2;
  std::int64_t seq_query = 0, seq_key = 0, seq_encoder_query = 0, seq_encoder_key = 0;  // of encoders: 0 is absent
  std::int64_t seq_rope = 0;
  NormRopeConcatOptions options = {};
  // Beyond the case list: heads of key and value, and the length of the encoder streams' own tables.
  std::optional<std::int64_t> key_heads = {};
  std::optional<std::int64_t> seq_encoder_rope = {};
  bool tables_per_batch = false;  // tables [B or 1, N or 1, L, R] rather than [L, R]
  bool tables_per_head = false;
  Layout joint_layout = Layout::kContiguous;   // of the outputs of the forward and their gradients
  Layout stream_layout = Layout::kContiguous;  // of the six inputs and their gradients
  double eps = 1e-5;
  std::uint64_t seed = 1;
  Execution execution = {};

  std::int64_t KeyHeads() const { return key_heads.value_or(heads); }
};

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
