// How fast this machine streams memory: the limit for decoding, which reads every weight per step.
#pragma once

#include <cstddef>

namespace looseleaf {

// Bytes per second at which `num_threads` threads together read `num_bytes` of memory once, best
// of `repeats`. The buffer should be several times the last-level cache.
double read_bandwidth(std::size_t num_bytes, int num_threads, int repeats);

}  // namespace looseleaf
