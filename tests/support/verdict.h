// Comparisons with the witnesses as verdicts of tests.
#ifndef GYROGRAD_TESTS_SUPPORT_VERDICT_H_
#define GYROGRAD_TESTS_SUPPORT_VERDICT_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reference/compare.h"

namespace gyrograd::testing {

// Failure names the output and its worst mismatch.
inline ::testing::AssertionResult Verdict(const std::string& what, const reference::Comparison& comparison) {
  if (comparison.ok) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << what << " has " << comparison.mismatches
                                       << " mismatches: " << comparison.message;
}

// The first failure of some results, each evaluated already.
inline ::testing::AssertionResult FirstFailure(const std::vector<::testing::AssertionResult>& results) {
  for (const auto& result : results) {
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

// A failure with the problem's line.
template <class Problem>
::testing::AssertionResult InProblem(const ::testing::AssertionResult& result, const Problem& problem) {
  if (result) return result;
  return ::testing::AssertionFailure() << result.message() << "; problem " << problem;
}

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_VERDICT_H_
