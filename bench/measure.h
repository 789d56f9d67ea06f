// One measurement: a run of the library and three copying loops of the same traffic take turns round by round.
//
// The roof is the loop with the least median time; the ratio is the median over the rounds of the library's time
// through the roof's in the same round.
#ifndef GYROGRAD_BENCH_MEASURE_H_
#define GYROGRAD_BENCH_MEASURE_H_

#include <cstddef>
#include <functional>
#include <string>

#include "bench/roof.h"
#include "gyrograd/status.h"

namespace gyrograd::bench {

struct Result {
  double seconds = 0;
  double roof_seconds = 0;
  double ratio = 0;
  Roof roof = Roof::kStreaming;
  std::size_t bytes_read = 0;
  std::size_t bytes_written = 0;
};

[[noreturn]] void Fail(const std::string& message);

// Ends the program where a run is refused. `name` stands in the message.
Result Measure(const std::string& name, const std::function<Status()>& run, const Traffic& traffic, int rounds,
               int threads);

}  // namespace gyrograd::bench

#endif  // GYROGRAD_BENCH_MEASURE_H_
