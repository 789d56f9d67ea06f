// The backward of norm, rotary position embedding and concatenation of query, key and value (multimodal attention: an
// image stream, and a text stream called the encoder's).
#ifndef GYROGRAD_CANN_ACLNNOP_ACLNN_NORM_ROPE_CONCAT_GRAD_H_
#define GYROGRAD_CANN_ACLNNOP_ACLNN_NORM_ROPE_CONCAT_GRAD_H_

#include "aclnn/aclnn_base.h"
#include "aclnnop/aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

// First phase: checks everything, plans, and keeps copies of the descriptions (never of data).
//   gradQueryOutput                   [B, N, Sq + Seq, D], ACL_FLOAT, ACL_FLOAT16 or ACL_BF16; all tensors but means
//                                     and rstds are of its type; D is even, 1 .. 1024
//   gradKeyOutput, gradValueOutput    [B, N, Sk + Sek, D]
//   query, key                        [B, Sq, N, D], [B, Sk, N, D]
//   encoderQuery, encoderKey          [B, Seq, N, D], [B, Sek, N, D]; null: that stream is absent, Seq or Sek is 0
//   norm...Weight                     [D]; needed at type 2
//   norm...Mean, norm...Rstd          [B, S, N, 1] of the stream, ACL_FLOAT; needed at types 1 and 2
//   ropeSin, ropeCos                  [seqRope, D], 1 <= seqRope <= min(Sq + Seq, Sk + Sek) (0 where that is 0); needed
//                                     unless ropeType is 0. The sine comes first.
//   normType, normAddedType           of query and key, of encoderQuery and encoderKey: 0 none, 1 LayerNorm,
//                                     2 LayerNorm with weight and bias
//   ropeType                          0 none, 1 interleave, 2 half
//   concatOrder                       0: [query, encoderQuery], 1: [encoderQuery, query]; so for key and value
//   gradQuery, gradKey, gradValue     [B, Sq, N, D], [B, Sk, N, D], [B, Sk, N, D]; may be the input's memory, or its
//                                     own rows of the incoming gradient, the same element in the same place
//   gradEncoderQuery                  encoderQuery's shape; needed where encoderQuery is given
//   gradEncoderKey, gradEncoderValue  encoderKey's shape; needed where encoderKey is given
//   gradNorm...Weight, ...Bias        [D]; needed at type 2 where the stream is given
//   workspaceSize                     bytes that the second phase needs at any address
// What the types and the streams do not call for may be null or any tensor: it is neither checked nor touched. A stream
// without elements needs no weight, mean or rstd; its weight's and bias's gradients are 0.
// Returns 0, 161001 (a tensor that is always required is null, data, workspaceSize or executor), 161002 (a handle that
// is no tensor's, type, format, memory shared or misaligned), 561103 (attribute, a tensor that the types need is null,
// shape), 561000 (memory).
ACLNN_API aclnnStatus aclnnNormRopeConcatBackwardGetWorkspaceSize(
    const aclTensor* gradQueryOutput, const aclTensor* gradKeyOutput, const aclTensor* gradValueOutput,
    const aclTensor* query, const aclTensor* key, const aclTensor* encoderQuery, const aclTensor* encoderKey,
    const aclTensor* normQueryWeight, const aclTensor* normQueryMean, const aclTensor* normQueryRstd,
    const aclTensor* normKeyWeight, const aclTensor* normKeyMean, const aclTensor* normKeyRstd,
    const aclTensor* normAddedQueryWeight, const aclTensor* normAddedQueryMean, const aclTensor* normAddedQueryRstd,
    const aclTensor* normAddedKeyWeight, const aclTensor* normAddedKeyMean, const aclTensor* normAddedKeyRstd,
    const aclTensor* ropeSin, const aclTensor* ropeCos, int64_t normType, int64_t normAddedType, int64_t ropeType,
    int64_t concatOrder, const aclTensor* gradQuery, const aclTensor* gradKey, const aclTensor* gradValue,
    const aclTensor* gradEncoderQuery, const aclTensor* gradEncoderKey, const aclTensor* gradEncoderValue,
    const aclTensor* gradNormQueryWeight, const aclTensor* gradNormQueryBias, const aclTensor* gradNormKeyWeight,
    const aclTensor* gradNormKeyBias, const aclTensor* gradNormAddedQueryWeight,
    const aclTensor* gradNormAddedQueryBias, const aclTensor* gradNormAddedKeyWeight,
    const aclTensor* gradNormAddedKeyBias, uint64_t* workspaceSize, aclOpExecutor** executor);

// Second phase: computes, and is done on return. Releases a single-use executor, unless the workspace is refused.
ACLNN_API aclnnStatus aclnnNormRopeConcatBackward(void* workspace, uint64_t workspaceSize, aclOpExecutor* executor,
                                                  aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif  // GYROGRAD_CANN_ACLNNOP_ACLNN_NORM_ROPE_CONCAT_GRAD_H_
