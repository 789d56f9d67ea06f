// Which products take a problem, in gyrograd._core.
#ifndef GYROGRAD_PYTHON_EXPLAIN_H_
#define GYROGRAD_PYTHON_EXPLAIN_H_

#include <nanobind/nanobind.h>

namespace gyrograd::python {

void DefineExplain(nanobind::module_& module);

}  // namespace gyrograd::python

#endif  // GYROGRAD_PYTHON_EXPLAIN_H_
