// All code here is in an anonymous namespace, for the reason given in gemm_avx2.cpp.
#include "peak_loops.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

namespace looseleaf {

namespace {

// Sums that do not wait for each other: more than the latency of an fma times two per cycle.
constexpr int kSums = 10;

std::int64_t int8_madds(std::int64_t rounds) {
  __m256i sums[kSums] = {};
  __m256i one = _mm256_set1_epi8(1);
  __m256i other = _mm256_set1_epi8(2);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) {
      // As far as the compiler knows, operands and sums change here, so that it computes all.
      asm volatile("" : "+x"(one), "+x"(other));
      sums[s] = _mm256_add_epi16(sums[s], _mm256_maddubs_epi16(one, other));
      asm volatile("" : "+x"(sums[s]));
    }
  }
  return rounds * kSums * 32;
}

std::int64_t f32_flops(std::int64_t rounds) {
  __m256 sums[kSums] = {};
  __m256 one = _mm256_set1_ps(1.0f);
  __m256 other = _mm256_set1_ps(0.5f);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) {
      asm volatile("" : "+x"(one), "+x"(other));
      sums[s] = _mm256_fmadd_ps(one, other, sums[s]);
      asm volatile("" : "+x"(sums[s]));
    }
  }
  return rounds * kSums * 8 * 2;
}

}  // namespace

const PeakLoops* peak_loops_avx2() {
  static constexpr PeakLoops kLoops = {int8_madds, f32_flops};
  return &kLoops;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const PeakLoops* peak_loops_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
