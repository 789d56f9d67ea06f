// The floating-point environment that the promises about bits assume, for the length of a scope: round to nearest,
// denormals kept on the way in and out, traps masked. The thread's own control and status words come back at the end.
#ifndef GYROGRAD_CORE_FP_ENVIRONMENT_H_
#define GYROGRAD_CORE_FP_ENVIRONMENT_H_

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace gyrograd::internal {

#if defined(__SSE__)

class FpEnvironment {
 public:
  FpEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FpEnvironment() { _mm_setcsr(saved_); }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
  unsigned saved_;
};

#elif defined(__aarch64__)

class FpEnvironment {
 public:
  FpEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    asm volatile("mrs %0, fpsr" : "=r"(status_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~FpEnvironment() {
    asm volatile("msr fpcr, %0" : : "r"(control_));
    asm volatile("msr fpsr, %0" : : "r"(status_));
  }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
  std::uint64_t control_;
  std::uint64_t status_;
};

#else

class FpEnvironment {
 public:
  FpEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FpEnvironment() { std::fesetenv(&saved_); }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

#endif

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_FP_ENVIRONMENT_H_
