// Handles that are none, as a C program comes by them: an address, a destroyed tensor, a float array, a tensor
// destroyed twice. Every call refuses them and names the argument; none crashes.
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnn/opdev/op_errno.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"

#define D 8

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

static aclTensor* Row(float* data) {
  const int64_t shape[] = {1, 1, 1, D};
  return aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 4, data);
}

// The first phase on good tensors but for dy and dxOut.
static aclnnStatus Plan(const aclTensor* dy, const aclTensor* dx) {
  static float data[4][D];
  aclTensor* t[4];
  for (int i = 0; i < 4; ++i) t[i] = Row(data[i]);
  uint64_t size = 0;
  aclOpExecutor* executor = NULL;
  const aclnnStatus status =
      aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(dy, t[0], t[1], NULL, 0, dx, t[2], t[3], &size, &executor);
  for (int i = 0; i < 4; ++i) aclDestroyTensor(t[i]);
  if (executor != NULL) aclDestroyAclOpExecutor(executor);
  return status;
}

static void CheckFirstPhase(void) {
  static float data[2][D];
  const float values[] = {1, 2, 3};
  aclTensor* good = Row(data[0]);
  aclTensor* destroyed = Row(data[1]);
  aclFloatArray* array = aclCreateFloatArray(values, 3);
  aclDestroyTensor(destroyed);
  aclTensor* const bad[] = {(aclTensor*)16, (aclTensor*)data, destroyed, (aclTensor*)array};
  for (int i = 0; i < 4; ++i) {
    Expect(Plan(bad[i], good) == ACLNN_ERR_PARAM_INVALID && Said("dy is no tensor"), "a bad dy is refused");
    Expect(Plan(good, bad[i]) == ACLNN_ERR_PARAM_INVALID && Said("dxOut is no tensor"), "a bad dxOut is refused");
  }
  Expect(Plan(NULL, good) == ACLNN_ERR_PARAM_NULLPTR && Said("dy is null"), "null is null");
  Expect(aclDestroyFloatArray(array) == ACLNN_SUCCESS, "the array is still there");
  Expect(aclDestroyTensor(good) == ACLNN_SUCCESS, "so is the good tensor");
}

static void CheckDestroyed(void) {
  float data[D] = {1, 2, 3};
  aclTensor* tensor = Row(data);
  Expect(aclDestroyTensor(tensor) == ACLNN_SUCCESS, "a tensor is destroyed");
  Expect(aclDestroyTensor(tensor) == ACLNN_ERR_PARAM_INVALID && Said("tensor is no tensor"), "but once");
  int64_t* extents = NULL;
  uint64_t rank = 0;
  Expect(aclGetViewShape(tensor, &extents, &rank) == ACLNN_ERR_PARAM_INVALID && extents == NULL, "and has no shape");
}

int main(void) {
  CheckFirstPhase();
  CheckDestroyed();
  return failures == 0 ? 0 : 1;
}
