// The version that CMakeLists.txt declares.
#include "gyrograd/execution.h"

namespace gyrograd {

const char* Version() { return GYROGRAD_VERSION; }

}  // namespace gyrograd
