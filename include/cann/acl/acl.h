// The ACL interface: base types and the runtime.
#ifndef GYROGRAD_CANN_ACL_ACL_H_
#define GYROGRAD_CANN_ACL_ACL_H_

#include "acl/acl_base.h"
#include "acl/acl_rt.h"

#endif  // GYROGRAD_CANN_ACL_ACL_H_
