// The measurements of kernels, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace looseleaf {

void bind_bench(nanobind::module_& m);

}  // namespace looseleaf
