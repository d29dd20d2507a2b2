#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "weights.h"

namespace looseleaf {

// The type called `name`, such as "q4k"; throws std::invalid_argument for any other name.
WeightType weight_type(const std::string& name);

// Adds what packs, unpacks and multiplies matrices, and what measures it.
void bind_weights(nanobind::module_& m);

}  // namespace looseleaf
