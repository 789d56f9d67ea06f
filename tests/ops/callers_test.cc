// Who may call an operator, and from where: many threads at once, threads that come and go, parallel regions and tasks
// of the caller's own, a thread that signals interrupt, one with a floating-point environment of its own, a forked
// child. Each of the six calls gives the bits of a quiet run on one thread.
#include <gtest/gtest.h>
#include <omp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/environment.h"
#include "tests/support/norm_rope_concat_problem.h"
#include "tests/support/norm_rope_problem.h"
#include "tests/support/problem.h"

namespace gyrograd::testing {
namespace {

using Bits = std::vector<std::uint64_t>;
using Outputs = std::vector<const Tensor*>;

// ---- The six calls ----------------------------------------------------------------------------------------------

// Few table elements and many terms: the sums are made in a workspace.
Problem RotaryProblem(int threads) {
  Problem problem = MakeProblem(RotaryMode::kInterleaveHalf, {DType::kBF16, DType::kF32}, {9000, 8}, {1});
  problem.execution.num_threads = threads;
  return problem;
}

struct RotaryBackwardCall {
  using Tensors = BackwardTensors;
  using Plan = RotaryBackwardPlan;
  static Tensors Make(int threads) { return Tensors(RotaryProblem(threads)); }
  static Status Compute(const Tensors& tensors) { return RotaryBackward(tensors.Args()); }
  static Status Create(const Tensors& tensors, Plan* plan) { return Plan::Create(tensors.Args(), plan); }
  static Status Run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t size) {
    return plan.Run(tensors.Pointers(), workspace, size);
  }
  static Outputs OutputsOf(const Tensors& tensors) { return {&tensors.dx, &tensors.dcos, &tensors.dsin}; }
  static ::testing::AssertionResult Check(const Tensors& tensors) { return tensors.Check(); }
};

struct RotaryForwardCall {
  using Tensors = ForwardTensors;
  using Plan = RotaryPlan;
  static Tensors Make(int threads) { return Tensors(RotaryProblem(threads)); }
  static Status Compute(const Tensors& tensors) { return Rotary(tensors.Args()); }
  static Status Create(const Tensors& tensors, Plan* plan) { return Plan::Create(tensors.Args(), plan); }
  static Status Run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t size) {
    return plan.Run({tensors.x.data(), tensors.cos.data(), tensors.sin.data(), tensors.y.data()}, workspace, size);
  }
  static Outputs OutputsOf(const Tensors& tensors) { return {&tensors.y}; }
  static ::testing::AssertionResult Check(const Tensors& tensors) { return tensors.Check(); }
};

NormRopeProblem SegmentProblem(int threads) {
  NormRopeProblem problem;
  problem.norm_type = NormType::kLayerAffine;
  problem.types = {DType::kF16, DType::kF32, DType::kF16};
  problem.batch = 2;
  problem.sequence = 90;
  problem.heads = 5;
  problem.head_dim = 64;
  problem.rotary = RotaryOptions{.mode = RotaryMode::kHalf};
  problem.first = 11;
  problem.length = 70;
  problem.execution.num_threads = threads;
  return problem;
}

// What the two directions of a segment share.
template <class TensorsOfDirection, class PlanOfDirection>
struct SegmentCall {
  using Tensors = TensorsOfDirection;
  using Plan = PlanOfDirection;
  static Tensors Make(int threads) { return Tensors(SegmentProblem(threads)); }
  static Status Compute(const Tensors& tensors) { return testing::Compute(tensors); }
  static Status Create(const Tensors& tensors, Plan* plan) {
    const decltype(tensors.Segment()) segments[] = {tensors.Segment()};
    return Plan::Create({segments, tensors.problem.execution}, plan);
  }
  static Status Run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t size) {
    const decltype(tensors.Pointers()) pointers[] = {tensors.Pointers()};
    return plan.Run(pointers, workspace, size);
  }
  static ::testing::AssertionResult Check(const Tensors& tensors) { return tensors.Check(); }
};

struct NormRopeBackwardCall : SegmentCall<NormRopeBackwardTensors, NormRopeBackwardPlan> {
  static Outputs OutputsOf(const Tensors& tensors) { return {&tensors.dx, &tensors.dweight, &tensors.dbias}; }
};

struct NormRopeForwardCall : SegmentCall<NormRopeForwardTensors, NormRopePlan> {
  static Outputs OutputsOf(const Tensors& tensors) { return {&tensors.y, &tensors.mean, &tensors.rstd}; }
};

NormRopeConcatTensors JointTensors(int threads) {
  NormRopeConcatProblem problem;
  problem.types = {DType::kF32, DType::kF32, DType::kF32};
  problem.batch = 2;
  problem.heads = 3;
  problem.head_dim = 64;
  problem.seq_query = problem.seq_key = 60;
  problem.seq_encoder_query = problem.seq_encoder_key = 20;
  problem.seq_rope = 70;
  problem.options.norm_type = problem.options.norm_added_type = NormType::kLayerAffine;
  problem.options.rotary = RotaryOptions{.mode = RotaryMode::kInterleave};
  problem.options.concat_order = ConcatOrder::kEncoderFirst;
  problem.execution.num_threads = threads;
  return NormRopeConcatTensors(problem);
}

struct ConcatBackwardCall {
  using Tensors = NormRopeConcatTensors;
  using Plan = NormRopeConcatBackwardPlan;
  static Tensors Make(int threads) { return JointTensors(threads); }
  static Status Compute(const Tensors& tensors) { return NormRopeConcatBackward(tensors.BackwardArgs()); }
  static Status Create(const Tensors& tensors, Plan* plan) { return Plan::Create(tensors.BackwardArgs(), plan); }
  static Status Run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t size) {
    return plan.Run(tensors.BackwardArgs(), workspace, size);
  }
  static Outputs OutputsOf(const Tensors& tensors) {
    Outputs outputs = {&tensors.value.dx, &tensors.encoder_value.dx};
    for (const StreamTensors* stream : {&tensors.query, &tensors.key, &tensors.encoder_query, &tensors.encoder_key}) {
      for (const Tensor* tensor : {&stream->dx, &stream->dweight, &stream->dbias}) outputs.push_back(tensor);
    }
    return outputs;
  }
  static ::testing::AssertionResult Check(const Tensors& tensors) { return tensors.CheckBackward(); }
};

struct ConcatForwardCall {
  using Tensors = NormRopeConcatTensors;
  using Plan = NormRopeConcatPlan;
  static Tensors Make(int threads) { return JointTensors(threads); }
  static Status Compute(const Tensors& tensors) { return NormRopeConcat(tensors.ForwardArgs()); }
  static Status Create(const Tensors& tensors, Plan* plan) { return Plan::Create(tensors.ForwardArgs(), plan); }
  static Status Run(const Plan& plan, const Tensors& tensors, void* workspace, std::size_t size) {
    return plan.Run(tensors.ForwardArgs(), workspace, size);
  }
  static Outputs OutputsOf(const Tensors& tensors) {
    Outputs outputs = {&tensors.query_output, &tensors.key_output, &tensors.value_output};
    for (const StreamTensors* stream : {&tensors.query, &tensors.key, &tensors.encoder_query, &tensors.encoder_key}) {
      for (const Tensor* tensor : {&stream->mean, &stream->rstd}) outputs.push_back(tensor);
    }
    return outputs;
  }
  static ::testing::AssertionResult Check(const Tensors& tensors) { return tensors.CheckForward(); }
};

using Calls = ::testing::Types<RotaryBackwardCall, RotaryForwardCall, NormRopeBackwardCall, NormRopeForwardCall,
                               ConcatBackwardCall, ConcatForwardCall>;

struct CallNames {
  template <class Call>
  static std::string GetName(int index) {
    constexpr const char* kNames[] = {"RotaryBackward", "Rotary",         "NormRopeBackward",
                                      "NormRope",       "ConcatBackward", "Concat"};
    return kNames[index];
  }
};

// What a quiet run gives, and calls on tensors of the same values.
template <class Call>
class Callers : public ::testing::Test {
 protected:
  using Tensors = typename Call::Tensors;

  static constexpr int kThreads = 3;  // of a call

  void SetUp() override {
    const Tensors quiet = Call::Make(1);
    ASSERT_TRUE(Ok(Call::Compute(quiet)));
    ASSERT_TRUE(Call::Check(quiet));
    want_ = BitsOf(quiet);
    typename Call::Plan plan;
    ASSERT_TRUE(Ok(Call::Create(Call::Make(kThreads), &plan)));
    ASSERT_NE(plan.Describe().find("threads: 3\n"), std::string::npos) << "too small for " << kThreads << " threads";
  }

  static Bits BitsOf(const Tensors& tensors) {
    Bits bits;
    for (const Tensor* output : Call::OutputsOf(tensors)) {
      const Bits more = output->Bits();
      bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
  }

  static void Clear(const Tensors& tensors) {
    for (const Tensor* output : Call::OutputsOf(tensors)) output->Clear();
  }

  // Calls with cleared outputs: were the right bits written?
  bool IsRight(const Tensors& tensors) const {
    Clear(tensors);
    return Call::Compute(tensors).ok() && BitsOf(tensors) == want_;
  }

  // One set of tensors for each of several callers.
  static std::deque<Tensors> MakeMany(int count, int threads = kThreads) {
    std::deque<Tensors> many;
    for (int i = 0; i < count; ++i) many.push_back(Call::Make(threads));
    return many;
  }

  Bits want_;
};

TYPED_TEST_SUITE(Callers, Calls, CallNames);

// ---- Threads ----------------------------------------------------------------------------------------------------

TYPED_TEST(Callers, ShareAPlanInSixteenThreads) {
  constexpr int kCallers = 16;
  const auto many = this->MakeMany(kCallers);
  typename TypeParam::Plan plan;
  ASSERT_TRUE(Ok(TypeParam::Create(many[0], &plan)));
  std::barrier start(kCallers);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (const auto& tensors : many) {
    threads.emplace_back([&] {
      const typename TypeParam::Plan copy = plan;
      std::vector<std::byte> workspace(plan.workspace_size());
      start.arrive_and_wait();
      for (int repeat = 0; repeat < 4; ++repeat) {
        const typename TypeParam::Plan& either = repeat % 2 == 0 ? plan : copy;
        this->Clear(tensors);
        const Status status = TypeParam::Run(either, tensors, workspace.data(), workspace.size());
        right += status.ok() && this->BitsOf(tensors) == this->want_;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4 * kCallers);
}

// Of this process, as the kernel counts them.
int ThreadsOfThisProcess() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Threads:")) return std::stoi(line.substr(8));
  }
  return -1;
}

// Threads that a call starts end with the thread that called, or wait for another: hundreds do not pile up.
TYPED_TEST(Callers, ComeAndGo) {
  constexpr int kAtOnce = 4, kRounds = 75;
  const auto many = this->MakeMany(kAtOnce);
  ASSERT_TRUE(this->IsRight(many[0]));
  const int before = ThreadsOfThisProcess();
  ASSERT_GT(before, 0);
  std::atomic<int> right{0};
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (const auto& tensors : many) threads.emplace_back([&] { right += this->IsRight(tensors); });
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(right, kAtOnce * kRounds);
  const int most = before + kAtOnce * this->kThreads;
  for (int wait = 0; wait < 1000 && ThreadsOfThisProcess() > most; ++wait) usleep(10000);
  EXPECT_LE(ThreadsOfThisProcess(), most);
}

// ---- Parallel regions of the caller's ---------------------------------------------------------------------------

// OpenMP's settings of this thread, put back at the end.
class OpenMpSettings {
 public:
  OpenMpSettings(int levels, bool dynamic) : levels_(omp_get_max_active_levels()), dynamic_(omp_get_dynamic()) {
    omp_set_max_active_levels(levels);
    omp_set_dynamic(dynamic);
  }
  ~OpenMpSettings() {
    omp_set_max_active_levels(levels_);
    omp_set_dynamic(dynamic_);
  }
  OpenMpSettings(const OpenMpSettings&) = delete;
  OpenMpSettings& operator=(const OpenMpSettings&) = delete;

 private:
  int levels_;
  int dynamic_;
};

// Runs `body` with nested regions off and on, and with teams that OpenMP may make smaller than asked for.
void UnderOpenMpSettings(const std::function<void()>& body) {
  for (const int levels : {1, 3}) {
    for (const bool dynamic : {false, true}) {
      SCOPED_TRACE("levels " + std::to_string(levels) + (dynamic ? ", dynamic" : ""));
      const OpenMpSettings settings(levels, dynamic);
      body();
    }
  }
}

TYPED_TEST(Callers, InsideParallelRegions) {
  constexpr int kTeam = 4;
  const auto many = this->MakeMany(kTeam);
  UnderOpenMpSettings([&] {
    std::atomic<int> right{0};
#pragma omp parallel for num_threads(kTeam) schedule(static, 1)
    for (int i = 0; i < kTeam; ++i) right += this->IsRight(many[i]);
    EXPECT_EQ(right, kTeam);
  });
}

TYPED_TEST(Callers, InsideTasks) {
  constexpr int kTasks = 6;
  const auto many = this->MakeMany(kTasks);
  UnderOpenMpSettings([&] {
    std::atomic<int> right{0};
#pragma omp parallel num_threads(3)
#pragma omp single
    for (int i = 0; i < kTasks; ++i) {
#pragma omp task firstprivate(i) shared(right, many)
      right += this->IsRight(many[i]);
    }
    EXPECT_EQ(right, kTasks);
  });
}

// ---- Signals ----------------------------------------------------------------------------------------------------

std::atomic<bool> in_call{false};
std::atomic<int> interruptions{0};

extern "C" void CountInterruption(int) {
  if (in_call.load(std::memory_order_relaxed)) interruptions.fetch_add(1, std::memory_order_relaxed);
}

// SIGALRM every 300 microseconds.
class Alarms {
 public:
  Alarms() {
    struct sigaction action = {};
    action.sa_handler = CountInterruption;
    sigaction(SIGALRM, &action, &before_);
    Set(300);
  }
  ~Alarms() {
    Set(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

 private:
  static void Set(int microseconds) {
    const itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, nullptr);
  }

  struct sigaction before_ = {};
};

TYPED_TEST(Callers, AreInterrupted) {
  const auto tensors = TypeParam::Make(this->kThreads);
  interruptions = 0;
  int calls = 0, right = 0;
  {
    const Alarms alarms;
    for (; interruptions < 20 && calls < 100000; ++calls) {
      this->Clear(tensors);
      in_call = true;
      const Status status = TypeParam::Compute(tensors);
      in_call = false;
      right += status.ok() && this->BitsOf(tensors) == this->want_;
    }
  }
  EXPECT_EQ(right, calls);
  EXPECT_GE(interruptions, 20);
}

// ---- The floating-point environment -----------------------------------------------------------------------------

template <class Call, class IsRight>
auto CallBetween(const IsRight& is_right) {
  return [&is_right](const auto& enter, const auto& leave, int threads) {
    const typename Call::Tensors tensors = Call::Make(threads);
    for (const Tensor* output : Call::OutputsOf(tensors)) output->Clear();
    enter();
    const Status status = Call::Compute(tensors);
    leave();
    EXPECT_TRUE(Ok(status));
    EXPECT_TRUE(is_right(tensors));
  };
}

TYPED_TEST(Callers, KeepTheirFloatingPointEnvironment) {
  const auto has_the_bits = [this](const auto& tensors) { return this->BitsOf(tensors) == this->want_; };
  const auto call = CallBetween<TypeParam>(has_the_bits);
  ExpectRoundingModesAreKept(call);
  ExpectExceptionFlagsAreKept(call);
#if defined(__SSE__)
  for (const unsigned word : kControlWords) {
    unsigned after = 0;
    call([word] { _mm_setcsr(word); },
         [&after] {
           after = _mm_getcsr();
           _mm_setcsr(kDefaultControlWord);
         },
         3);
    EXPECT_EQ(after, word);
  }
#endif
}

// ---- Children ---------------------------------------------------------------------------------------------------

// What body() says in a forked child, which has a minute for it.
::testing::AssertionResult InAChild(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid == -1) return ::testing::AssertionFailure() << "no child";
  if (pid == 0) {
    alarm(60);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return ::testing::AssertionFailure() << "lost the child";
  if (WIFSIGNALED(status)) return ::testing::AssertionFailure() << "ended by signal " << WTERMSIG(status);
  return WEXITSTATUS(status) == 0 ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "other bits";
}

// A child lacks the threads that its parent's OpenMP has started.
TYPED_TEST(Callers, AreForked) {
  const auto tensors = TypeParam::Make(this->kThreads);
  const auto is_right = [&] { return this->IsRight(tensors); };
  ASSERT_TRUE(is_right());
  EXPECT_TRUE(InAChild(is_right));
  EXPECT_TRUE(InAChild([&] { return is_right() && InAChild(is_right); }));
  EXPECT_TRUE(is_right());  // the parent goes on with all its threads
}

}  // namespace
}  // namespace gyrograd::testing
