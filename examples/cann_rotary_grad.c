/* The rotary backward from C11, through CANN's interface.
 *
 *   cc -std=c11 cann_rotary_grad.c $(pkg-config --cflags --libs gyrograd-cann) && ./a.out
 */
#include <stdio.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"

#define D 8

static aclTensor* Row(float* data) {
  const int64_t shape[] = {1, 1, 1, D};
  return aclCreateTensor(shape, 4, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 4, data);
}

static int Fail(const char* call, int status) {
  const char* message = aclGetRecentErrMsg();
  fprintf(stderr, "%s: %d\n%s\n", call, status, message == NULL ? "" : message);
  return 1;
}

static void Print(const char* name, const float* values) {
  printf("%-4s =", name);
  for (int i = 0; i < D; ++i) printf(" %g", values[i]);
  printf("\n");
}

int main(void) {
  float dy[D], cos[D], sin[D], x[D], dx[D], dcos[D], dsin[D];
  for (int i = 0; i < D; ++i) {
    dy[i] = (float)(i + 1);
    cos[i] = 0;
    sin[i] = 1;
    x[i] = (float)(10 * i);
  }
  float* const data[] = {dy, cos, sin, x, dx, dcos, dsin};
  aclTensor* t[7];
  for (int i = 0; i < 7; ++i) t[i] = Row(data[i]);

  const int64_t mode = 0; /* half */
  uint64_t size = 0;
  aclOpExecutor* executor = NULL;
  aclnnStatus status = aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(t[0], t[1], t[2], t[3], mode, t[4], t[5], t[6],
                                                                        &size, &executor);
  if (status != 0) return Fail("aclnnRotaryPositionEmbeddingGradGetWorkspaceSize", status);

  void* workspace = NULL;
  if (size > 0 && aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS)
    return Fail("aclrtMalloc", 1);
  status = aclnnRotaryPositionEmbeddingGrad(workspace, size, executor, NULL);
  if (workspace != NULL) aclrtFree(workspace);
  for (int i = 0; i < 7; ++i) aclDestroyTensor(t[i]);
  if (status != 0) return Fail("aclnnRotaryPositionEmbeddingGrad", status);

  Print("dx", dx);
  Print("dcos", dcos);
  Print("dsin", dsin);
  return 0;
}
