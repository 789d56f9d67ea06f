// ACLNN_API marks the operators' entry points.
#ifndef GYROGRAD_CANN_ACLNNOP_ACLNN_UTIL_H_
#define GYROGRAD_CANN_ACLNNOP_ACLNN_UTIL_H_

#ifndef ACLNN_API
#if defined(__GNUC__)
#define ACLNN_API __attribute__((visibility("default")))
#else
#define ACLNN_API
#endif
#endif

#endif  // GYROGRAD_CANN_ACLNNOP_ACLNN_UTIL_H_
