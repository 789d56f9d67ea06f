// Norm and rotary, forward and backward: lists of segments and joint calls, of any norms, rotations, absent streams,
// weights, subsets of outputs, strides, types, aliases and ways to run, right and wrong. The first byte says which.
#include "fuzz/norm_rope.h"
#include "reference/norm_rope.h"

namespace gyrograd::fuzz {

void DemandSegment(const std::string& name, const NormRopeBackwardSegment& segment, const std::string& words) {
  const auto result = testing::CheckSegment(name, segment, reference::NormRopeBackward(segment));
  if (!result) Report(std::string(result.message()) + "\n" + words);
}

void DemandSegment(const std::string& name, const NormRopeSegment& segment, const std::string& words) {
  const auto result = testing::CheckSegment(name, segment);
  if (!result) Report(std::string(result.message()) + "\n" + words);
}

NormType ChooseBadNormType(Bytes& bytes) {
  constexpr int kTypes[] = {5, -1, 258};
  return static_cast<NormType>(bytes.Of(kTypes));
}

}  // namespace gyrograd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gyrograd::fuzz;
  Bytes bytes(data, size);
  if (bytes.OneIn(2)) {
    TryNormRopeConcat(bytes);
  } else {
    TryNormRope(bytes);
  }
  return 0;
}
