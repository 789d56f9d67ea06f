// What every operator's header includes: the runtime and the descriptions.
#ifndef GYROGRAD_CANN_ACLNN_ACLNN_BASE_H_
#define GYROGRAD_CANN_ACLNN_ACLNN_BASE_H_

#include "acl/acl.h"
#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

// Optional: the operators work without them. configPath may be null; it is not read.
ACL_FUNC_VISIBILITY aclnnStatus aclnnInit(const char* configPath);
ACL_FUNC_VISIBILITY aclnnStatus aclnnFinalize(void);

#ifdef __cplusplus
}
#endif

#endif  // GYROGRAD_CANN_ACLNN_ACLNN_BASE_H_
