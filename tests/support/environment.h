// What a caller may have set of the floating-point environment, and that a call keeps it; on x86, in every thread of
// the pool.
#ifndef GYROGRAD_TESTS_SUPPORT_ENVIRONMENT_H_
#define GYROGRAD_TESTS_SUPPORT_ENVIRONMENT_H_

#include <gtest/gtest.h>

#include <cfenv>
#if defined(__SSE__)
#include <omp.h>
#include <xmmintrin.h>
#endif

#include <cstddef>
#include <vector>

namespace gyrograd::testing {

// run_under(enter, leave, threads) calls the library between enter() and leave().
template <class RunUnder>
void ExpectRoundingModesAreKept(const RunUnder& run_under) {
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    for (const int threads : {1, 3}) {
      int after = -1;
      run_under([mode] { std::fesetround(mode); },
                [&after] {
                  after = std::fegetround();
                  std::fesetround(FE_TONEAREST);
                },
                threads);
      EXPECT_EQ(after, mode);
    }
  }
}

template <class RunUnder>
void ExpectExceptionFlagsAreKept(const RunUnder& run_under) {
  for (const int flags : {0, FE_INEXACT | FE_UNDERFLOW, FE_ALL_EXCEPT}) {
    int after = -1;
    run_under(
        [flags] {
          std::feclearexcept(FE_ALL_EXCEPT);
          std::feraiseexcept(flags);
        },
        [&after] {
          after = std::fetestexcept(FE_ALL_EXCEPT);
          std::feclearexcept(FE_ALL_EXCEPT);
        },
        2);
    EXPECT_EQ(after, flags);
  }
}

#if defined(__SSE__)

inline constexpr unsigned kDefaultControlWord = 0x1f80;

// Flushing, rounding, flags, unmasked traps.
inline constexpr unsigned kControlWords[] = {
    0x1f80 | 0x8000,           // flush to zero
    0x1f80 | 0x0040,           // denormals are zero
    0x1f80 | 0x8040,           // both
    0x1f80 | 0x2000,           // down
    0x1f80 | 0x4000,           // up
    0x1f80 | 0x6000,           // towards zero
    0x1f80 | 0x003f,           // all flags set
    0x0000,                    // every trap unmasked
    0x8040 | 0x2000 | 0x0020,  // all at once, with one flag
};

inline constexpr unsigned kFlagBits = 0x3f;  // of a control word
inline constexpr int kPoolThreads = 3;

inline std::vector<unsigned> ControlWordsOfThreads() {
  std::vector<unsigned> words(kPoolThreads);
#pragma omp parallel num_threads(kPoolThreads)
  words[static_cast<std::size_t>(omp_get_thread_num())] = _mm_getcsr();
  return words;
}

inline void SetControlWordsOfThreads(unsigned word) {
#pragma omp parallel num_threads(kPoolThreads)
  _mm_setcsr(word);
  _mm_setcsr(word);
}

#endif  // defined(__SSE__)

}  // namespace gyrograd::testing

#endif  // GYROGRAD_TESTS_SUPPORT_ENVIRONMENT_H_
