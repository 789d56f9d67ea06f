// The backward of rotary position embedding: dx, and the gradients of the tables where x is given.
#ifndef GYROGRAD_CANN_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_GRAD_H_
#define GYROGRAD_CANN_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_GRAD_H_

#include "aclnn/aclnn_base.h"
#include "aclnnop/aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

// First phase: checks everything, plans, and keeps copies of the descriptions (never of data).
//   dy         rank 3 or 4, ACL_FLOAT, ACL_FLOAT16 or ACL_BF16; all tensors are of its type
//   cos, sin   one shape, dy's rank; each extent dy's or 1, the last one dy's (D)
//   xOptional  dy's shape, or null: then dcosOut and dsinOut must be given all the same, and are left untouched
//   mode       0 half, 1 interleave, 2 quarter, 3 interleave-half; D divides by 2 (quarter: 4)
//   dxOut      dy's shape; may be dy's or x's memory, the same element in the same place
//   dcosOut, dsinOut  the tables' shape; may be cos's and sin's memory, as above
//   workspaceSize     bytes that the second phase needs at any address; often 0
// Returns 0, 161001 (null), 161002 (a handle that is no tensor's, type, format, memory shared or misaligned), 561002
// (mode, shape), 561000 (memory).
ACLNN_API aclnnStatus aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(
    const aclTensor* dy, const aclTensor* cos, const aclTensor* sin, const aclTensor* xOptional, int64_t mode,
    const aclTensor* dxOut, const aclTensor* dcosOut, const aclTensor* dsinOut, uint64_t* workspaceSize,
    aclOpExecutor** executor);

// Second phase: computes, and is done on return. Releases a single-use executor, unless the workspace is refused.
ACLNN_API aclnnStatus aclnnRotaryPositionEmbeddingGrad(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                       aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif  // GYROGRAD_CANN_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_GRAD_H_
