// Rotary position embedding.
#ifndef GYROGRAD_CANN_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_H_
#define GYROGRAD_CANN_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_H_

#include "aclnn/aclnn_base.h"
#include "aclnnop/aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

// First phase: checks everything, plans, and keeps copies of the descriptions (never of data). Shapes, types, modes and
// results as for aclnnRotaryPositionEmbeddingGradGetWorkspaceSize; out is of x's shape and may be x's memory.
ACLNN_API aclnnStatus aclnnRotaryPositionEmbeddingGetWorkspaceSize(const aclTensor* x, const aclTensor* cos,
                                                                   const aclTensor* sin, int64_t mode, aclTensor* out,
                                                                   uint64_t* workspaceSize, aclOpExecutor** executor);

// Second phase: computes, and is done on return. Releases a single-use executor, unless the workspace is refused.
ACLNN_API aclnnStatus aclnnRotaryPositionEmbedding(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                   aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif  // GYROGRAD_CANN_ACLNNOP_ACLNN_ROTARY_POSITION_EMBEDDING_H_
