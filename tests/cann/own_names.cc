// A program may have status names of its own beside the headers: this file must compile.
#include "aclnnop/aclnn_norm_rope_concat.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"

#define ACLNN_ERR_PARAM_NULLPTR 161001
#define ACLNN_ERR_PARAM_INVALID static_cast<aclnnStatus>(161002)
constexpr aclnnStatus ACLNN_SUCCESS = 0;

int main() {
  aclOpExecutor* executor = nullptr;
  const aclnnStatus status = aclnnRotaryPositionEmbeddingGrad(nullptr, 0, executor, nullptr);
  const aclDataType type = aclDataType::ACL_FLOAT;
  const aclFormat format = aclFormat::ACL_FORMAT_ND;
  return status == ACLNN_ERR_PARAM_NULLPTR && status != ACLNN_ERR_PARAM_INVALID && type == ACL_FLOAT &&
                 format == ACL_FORMAT_ND
             ? ACLNN_SUCCESS
             : 1;
}
