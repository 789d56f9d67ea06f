// Batches of calls in a child process: memory that must not be touched ends the child alone, and the test fails with
// the problem's name.
#ifndef GYROGRAD_TESTS_SUPPORT_CHILD_H_
#define GYROGRAD_TESTS_SUPPORT_CHILD_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <sstream>
#include <string>

namespace gyrograd::testing {

// What a child tells: memory of both processes.
struct ChildReport {
  // Before each call: what it is, in case that it ends the child.
  template <class Problem>
  void Start(const char* call, const Problem& which) {
    std::ostringstream text;
    text << call << " of " << which;
    std::snprintf(problem, sizeof problem, "%s", text.str().c_str());
    ++calls;
  }
  // Instead of an expectation: why the call that was started last is wrong.
  void Fail(const std::string& why) {
    if (failures++ == 0) std::snprintf(first_failure, sizeof first_failure, "%s: %s", problem, why.c_str());
  }

  char problem[2048];
  char first_failure[4096];
  int failures;
  int calls;
};

// batch(report) in a child. The calling process must not have called the library before: OpenMP's pool does not survive
// a fork, and the child's calls would stay on one thread.
inline ::testing::AssertionResult InChild(const std::function<void(ChildReport&)>& batch) {
  void* const shared = mmap(nullptr, sizeof(ChildReport), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return ::testing::AssertionFailure() << "no memory to share with a child";
  auto& report = *new (shared) ChildReport{};
  const pid_t child = fork();
  if (child == 0) {
    batch(report);
    _exit(0);
  }
  int status = 0;
  const bool waited = child > 0 && waitpid(child, &status, 0) == child;
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  if (!waited) {
    result = ::testing::AssertionFailure() << "no child: " << std::strerror(errno);
  } else if (status != 0) {
    result = ::testing::AssertionFailure()
             << (WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit") << " in " << report.problem;
  } else if (report.failures > 0 || report.calls == 0) {
    result = ::testing::AssertionFailure()
             << report.failures << " of " << report.calls << " calls failed, the first one: " << report.first_failure;
  }
  munmap(shared, sizeof(ChildReport));
  return result;
}

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_CHILD_H_
