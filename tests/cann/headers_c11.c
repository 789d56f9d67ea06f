// Every header of the C interface as C11: this file must compile without a warning. The program then checks what only C
// can pass without breaking its own rules: enumerations that hold any number.
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"
#include "acl/acl_base.h"
#include "acl/acl_rt.h"
#include "aclnn/acl_meta.h"
#include "aclnn/aclnn_base.h"
#include "aclnn/opdev/op_errno.h"
#include "aclnnop/aclnn_norm_rope_concat.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "aclnnop/aclnn_util.h"

// The short ways to the same headers.
#include "acl_meta.h"
#include "aclnn_base.h"
#include "aclnn_norm_rope_concat_grad.h"
#include "aclnn_rotary_position_embedding_grad.h"
#include "opdev/op_errno.h"

static int failures = 0;

static void Expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "does not hold: %s\n", what);
  ++failures;
}

// Whether the messages since the last time hold `words`.
static int Said(const char* words) {
  const char* messages = aclGetRecentErrMsg();
  return messages != NULL && strstr(messages, words) != NULL;
}

static void CheckOptions(void) {
  Expect(aclrtSetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, 1) == ACL_SUCCESS, "a known option is accepted");
  Expect(aclrtSetSysParamOpt((aclSysParamOpt)4, 1) == ACL_ERROR_INVALID_PARAM && Said("opt is 4"),
         "option 4 is refused");
  Expect(aclrtCtxSetSysParamOpt((aclSysParamOpt)-7, 1) == ACL_ERROR_INVALID_PARAM && Said("opt is -7"),
         "option -7 is refused");
}

static void CheckTypes(void) {
  char byte = 0;
  Expect(aclDataTypeSize((aclDataType)1000) == 0, "an unknown type has no size");
  Expect(aclrtMemcpy(&byte, 1, &byte, 1, (aclrtMemcpyKind)-9) == ACL_ERROR_INVALID_PARAM && Said("kind is -9"),
         "kind -9 is refused");
  const int64_t shape[] = {1, 1, 1, 2};
  float data[2] = {1, 2};
  aclTensor* type = aclCreateTensor(shape, 4, (aclDataType)1000, NULL, 0, ACL_FORMAT_ND, shape, 4, data);
  aclTensor* format = aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 0, (aclFormat)1000, shape, 4, data);
  aclTensor* good = aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 4, data);
  uint64_t size = 0;
  aclOpExecutor* executor = NULL;
  Expect(aclnnRotaryPositionEmbeddingGetWorkspaceSize(type, good, good, 0, good, &size, &executor) ==
                 ACLNN_ERR_PARAM_INVALID &&
             Said("data type 1000"),
         "an unknown type is refused");
  Expect(aclnnRotaryPositionEmbeddingGetWorkspaceSize(good, format, good, 0, good, &size, &executor) ==
                 ACLNN_ERR_PARAM_INVALID &&
             Said("format 1000"),
         "an unknown format is refused");
  aclDataType read = ACL_FLOAT;
  Expect(aclGetDataType(type, &read) == ACLNN_SUCCESS && (int)read == 1000, "the type is given back");
  aclDestroyTensor(type);
  aclDestroyTensor(format);
  aclDestroyTensor(good);
}

static void CheckBooleans(void) {
  const bool values[] = {true, false};
  aclBoolArray* array = aclCreateBoolArray(values, 2);
  Expect(array != NULL && aclDestroyBoolArray(array) == ACLNN_SUCCESS, "an array of bool");
}

int main(void) {
  CheckOptions();
  CheckTypes();
  CheckBooleans();
  return failures == 0 ? 0 : 1;
}
