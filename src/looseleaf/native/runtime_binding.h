// What of the runtime Python sees.
#pragma once

#include <nanobind/nanobind.h>

namespace looseleaf {

void bind_runtime(nanobind::module_& m);

}  // namespace looseleaf
