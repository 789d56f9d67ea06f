// Every header of the C interface as C11: this file must compile without a warning.
#include "acl/acl.h"
#include "acl/acl_base.h"
#include "acl/acl_rt.h"
#include "aclnn/acl_meta.h"
#include "aclnn/aclnn_base.h"
#include "aclnn/opdev/op_errno.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "aclnnop/aclnn_util.h"

// The short ways to the same headers.
#include "acl_meta.h"
#include "aclnn_base.h"
#include "aclnn_rotary_position_embedding_grad.h"
#include "opdev/op_errno.h"

int main(void) {
  uint64_t workspace_size = 0;
  aclOpExecutor* executor = NULL;
  const bool values[] = {true, false};
  aclBoolArray* array = aclCreateBoolArray(values, 2);
  const aclnnStatus status =
      aclnnRotaryPositionEmbeddingGetWorkspaceSize(NULL, NULL, NULL, 0, NULL, &workspace_size, &executor);
  aclDestroyBoolArray(array);
  return status == ACLNN_ERR_PARAM_NULLPTR && aclGetRecentErrMsg() != NULL && ACL_SUCCESS == 0 ? 0 : 1;
}
