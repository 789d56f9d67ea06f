// Control and status words of the processor that a caller may have set, in every thread of the pool.
#ifndef GYROGRAD_TESTS_SUPPORT_ENVIRONMENT_H_
#define GYROGRAD_TESTS_SUPPORT_ENVIRONMENT_H_

#if defined(__SSE__)

#include <omp.h>
#include <xmmintrin.h>

#include <cstddef>
#include <vector>

namespace gyrograd::testing {

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

}  // namespace gyrograd::testing

#endif  // defined(__SSE__)

#endif  // GYROGRAD_TESTS_SUPPORT_ENVIRONMENT_H_
