// The norm and rotary operators in gyrograd._core.
#ifndef GYROGRAD_PYTHON_NORM_ROPE_MODULE_H_
#define GYROGRAD_PYTHON_NORM_ROPE_MODULE_H_

#include <nanobind/nanobind.h>

namespace gyrograd::python {

void DefineNormRope(nanobind::module_& module);

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_NORM_ROPE_MODULE_H_
