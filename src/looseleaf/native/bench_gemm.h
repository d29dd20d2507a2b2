// How long a product takes as a model would run it.
#pragma once

#include <cstdint>

#include "weights.h"

namespace looseleaf {

// Seconds of one product of `rows` rows with a matrix of `n` outputs and `k` inputs, the median of
// `repeats`, on `threads` threads that share its tiles. `k` is a multiple of kGroupSize. Weights
// and activations are random; making them is not timed, nor is quantizing the activations, which is
// done where the type's weights are quantized. The matrices are used in turn and are 64 MiB at
// least in all, so that what does not fit the caches comes from memory, as in a model.
double bench_matmul(WeightType type, std::int64_t n, std::int64_t k, std::int64_t rows, int threads,
                    int repeats);

}  // namespace looseleaf
