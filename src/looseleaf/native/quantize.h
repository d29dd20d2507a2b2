// Activations as the integer kernels read them.
#pragma once

#include <cstdint>

#include "weights.h"

namespace looseleaf {

// 32 inputs of one row: `x[i]` is about `scale * values[i]`, and `sum` is `scale` times the sum of
// `values`. The values lie within -127..127. Where an input is infinite or NaN, the scale is too,
// so that every product with the row is NaN. A row is k / kGroupSize of these, one after another.
struct QuantizedGroup {
  float scale;
  float sum;
  std::int8_t values[kGroupSize];
};
static_assert(sizeof(QuantizedGroup) == 40);

}  // namespace looseleaf
