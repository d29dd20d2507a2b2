// The loops behind peak.h.
#pragma once

#include <cstdint>

namespace looseleaf {

// Each does `rounds` rounds and returns how many operations these were.
struct PeakLoops {
  std::int64_t (*int8_madds)(std::int64_t rounds);
  std::int64_t (*f32_flops)(std::int64_t rounds);
};

// Null where it was compiled without AVX2.
const PeakLoops* peak_loops_avx2();

}  // namespace looseleaf
