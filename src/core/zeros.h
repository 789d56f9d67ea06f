// Sums over nothing: zeros in every element of a view.
#ifndef GYROGRAD_CORE_ZEROS_H_
#define GYROGRAD_CORE_ZEROS_H_

#include "gyrograd/tensor_view.h"

namespace gyrograd::internal {

// Writes to `data` as `view` lies; the view's own data is not looked at.
void WriteZeros(const ConstTensorView& view, void* data);

}  // namespace gyrograd::internal

#endif  // GYROGRAD_CORE_ZEROS_H_
