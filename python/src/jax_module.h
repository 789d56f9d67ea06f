// The handlers of the operators' custom calls in XLA programs, and what a tracer asks for.
#ifndef GYROGRAD_PYTHON_JAX_MODULE_H_
#define GYROGRAD_PYTHON_JAX_MODULE_H_

#include <nanobind/nanobind.h>

namespace gyrograd::python {

void DefineJax(nanobind::module_& module);

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_JAX_MODULE_H_
