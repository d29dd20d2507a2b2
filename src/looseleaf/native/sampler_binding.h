// What of sampling Python sees.
#pragma once

#include <nanobind/nanobind.h>

namespace looseleaf {

void bind_sampler(nanobind::module_& m);

}  // namespace looseleaf
