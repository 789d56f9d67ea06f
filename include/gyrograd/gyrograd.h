// Everything public in one include.
#ifndef GYROGRAD_GYROGRAD_H_
#define GYROGRAD_GYROGRAD_H_

#include "gyrograd/execution.h"
#include "gyrograd/norm_rope.h"
#include "gyrograd/norm_rope_concat.h"
#include "gyrograd/rotary.h"
#include "gyrograd/status.h"
#include "gyrograd/tensor_view.h"

#endif  // GYROGRAD_GYROGRAD_H_
