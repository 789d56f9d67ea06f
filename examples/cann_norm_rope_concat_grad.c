/* The backward of norm, rotary and concatenation from C11, through CANN's interface: one image row, normalised and
 * rotated, and one text row, which passes.
 *
 *   cc -std=c11 cann_norm_rope_concat_grad.c $(pkg-config --cflags --libs gyrograd-cann) && ./a.out
 */
#include <stdio.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_norm_rope_concat_grad.h"

#define D 4
#define TENSORS 32

static aclTensor* tensors[TENSORS];
static int made = 0;

static aclTensor* Tensor(const int64_t* shape, uint64_t rank, float* data) {
  return tensors[made++] = aclCreateTensor(shape, rank, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, rank, data);
}

static aclTensor* Joint(float* data) { return Tensor((int64_t[]){1, 1, 2, D}, 4, data); } /* [B, N, S, D] */
static aclTensor* Row(float* data) { return Tensor((int64_t[]){1, 1, 1, D}, 4, data); }   /* [B, S, N, D] */
static aclTensor* Statistic(float* data) { return Tensor((int64_t[]){1, 1, 1, 1}, 4, data); }
static aclTensor* Vector(float* data) { return Tensor((int64_t[]){D}, 1, data); }
static aclTensor* Table(float* data) { return Tensor((int64_t[]){1, D}, 2, data); }

static int Fail(const char* call, int status) {
  const char* message = aclGetRecentErrMsg();
  fprintf(stderr, "%s: %d\n%s\n", call, status, message == NULL ? "" : message);
  return 1;
}

static void Print(const char* name, const float* values) {
  printf("%-19s =", name);
  for (int i = 0; i < D; ++i) printf(" %g", values[i]);
  printf("\n");
}

int main(void) {
  float grad[2 * D] = {1, 2, 3, 4, 5, 6, 7, 8}; /* of the outputs: the image's row, then the text's */
  float x[D] = {1, 3, 1, 3}, mean = 2, rstd = 1, weight[D] = {1, 2, 1, 2};
  float text[D] = {9, 9, 9, 9};
  float sin[D] = {1, 1, 1, 1}, cos[D] = {0, 0, 0, 0};
  float query[D], key[D], value[D], text_query[D], text_key[D], text_value[D];
  float query_weight[D], query_bias[D], key_weight[D], key_bias[D];

  const int64_t norm = 2 /* LayerNorm with weight and bias */, text_norm = 0 /* none */;
  const int64_t rope = 2 /* half */, order = 0 /* image, then text */;
  uint64_t size = 0;
  aclOpExecutor* executor = NULL;
  aclTensor *g = Joint(grad), *rows = Row(x), *w = Vector(weight), *m = Statistic(&mean), *r = Statistic(&rstd);
  aclTensor* t = Row(text);
  aclnnStatus status = aclnnNormRopeConcatBackwardGetWorkspaceSize(
      g, g, g, rows, rows, t, t, w, m, r, w, m, r, /* the text has no norm: no weight, mean, rstd */
      NULL, NULL, NULL, NULL, NULL, NULL, Table(sin), Table(cos), norm, text_norm, rope, order, Row(query), Row(key),
      Row(value), Row(text_query), Row(text_key), Row(text_value), Vector(query_weight), Vector(query_bias),
      Vector(key_weight), Vector(key_bias), NULL, NULL, NULL, NULL, &size, &executor);
  if (status != 0) return Fail("aclnnNormRopeConcatBackwardGetWorkspaceSize", status);

  void* workspace = NULL;
  if (size > 0 && aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS)
    return Fail("aclrtMalloc", 1);
  status = aclnnNormRopeConcatBackward(workspace, size, executor, NULL);
  if (workspace != NULL) aclrtFree(workspace);
  for (int i = 0; i < made; ++i) aclDestroyTensor(tensors[i]);
  if (status != 0) return Fail("aclnnNormRopeConcatBackward", status);

  Print("gradQuery", query);
  Print("gradValue", value);
  Print("gradEncoderQuery", text_query);
  Print("gradNormQueryWeight", query_weight);
  Print("gradNormQueryBias", query_bias);
  return 0;
}
