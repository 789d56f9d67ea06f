// Norm, rotary position embedding and concatenation of query, key and value (multimodal attention: an image stream, and
// a text stream called the encoder's).
#ifndef GYROGRAD_CANN_ACLNNOP_ACLNN_NORM_ROPE_CONCAT_H_
#define GYROGRAD_CANN_ACLNNOP_ACLNN_NORM_ROPE_CONCAT_H_

#include "aclnn/aclnn_base.h"
#include "aclnnop/aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

// First phase: checks everything, plans, and keeps copies of the descriptions (never of data). Shapes, types, ropeType,
// concatOrder and what may be null as for aclnnNormRopeConcatBackwardGetWorkspaceSize, and:
//   encoderKey, encoderValue    of one length; null counts as length 0
//   norm...Weight, norm...Bias  [D]; weight needed at types 2 and 4, bias at type 2
//   normType, normAddedType     also 3 RMSNorm, 4 RMSNorm with weight
//   eps                         narrowed to float; at least 0
//   isTraining                  false: means and rstds are left alone
//   queryOutput                 [B, N, Sq + Seq, D]; each output may be its inputs' memory, row by row
//   keyOutput, valueOutput      [B, N, Sk + Sek, D]
//   norm...Mean, norm...Rstd    [B, S, N, 1] of the stream, ACL_FLOAT; needed at types 1 and 2 when isTraining. The
//                               rstd is written at types 3 and 4 where it is given with rank 4 and has elements.
// Returns 0, 161001 (a tensor that is always required is null, data, workspaceSize or executor), 161002 (a handle that
// is no tensor's, type, format, a wrong rank, memory shared or misaligned), 361001 (ropeType, concatOrder), 561002
// (normType, normAddedType, eps, a tensor that the types need is null, shapes that contradict each other), 561000
// (memory).
ACLNN_API aclnnStatus aclnnNormRopeConcatGetWorkspaceSize(
    const aclTensor* query, const aclTensor* key, const aclTensor* value, const aclTensor* encoderQuery,
    const aclTensor* encoderKey, const aclTensor* encoderValue, const aclTensor* normQueryWeight,
    const aclTensor* normQueryBias, const aclTensor* normKeyWeight, const aclTensor* normKeyBias,
    const aclTensor* normAddedQueryWeight, const aclTensor* normAddedQueryBias, const aclTensor* normAddedKeyWeight,
    const aclTensor* normAddedKeyBias, const aclTensor* ropeSin, const aclTensor* ropeCos, int64_t normType,
    int64_t normAddedType, int64_t ropeType, int64_t concatOrder, double eps, bool isTraining,
    const aclTensor* queryOutput, const aclTensor* keyOutput, const aclTensor* valueOutput,
    const aclTensor* normQueryMean, const aclTensor* normQueryRstd, const aclTensor* normKeyMean,
    const aclTensor* normKeyRstd, const aclTensor* normAddedQueryMean, const aclTensor* normAddedQueryRstd,
    const aclTensor* normAddedKeyMean, const aclTensor* normAddedKeyRstd, uint64_t* workspaceSize,
    aclOpExecutor** executor);

// Second phase: computes, and is done on return. Releases a single-use executor, unless the workspace is refused.
ACLNN_API aclnnStatus aclnnNormRopeConcat(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                          aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif  // GYROGRAD_CANN_ACLNNOP_ACLNN_NORM_ROPE_CONCAT_H_
