// Streams. They carry no work: whatever is started on one is done on return.
#ifndef GYROGRAD_CANN_STREAM_H_
#define GYROGRAD_CANN_STREAM_H_

#include "acl/acl_base.h"
#include "cann/guard.h"
#include "cann/registry.h"

namespace gyrograd::cann {

struct Stream {
  static constexpr const char* kNone = " is no stream: it was never made, or was destroyed";
};

// Null is the default stream.
inline bool IsStream(aclrtStream stream) { return stream == nullptr || Handles<Stream>().Contains(stream); }

}  // namespace gyrograd::cann

#endif  // GYROGRAD_CANN_STREAM_H_
