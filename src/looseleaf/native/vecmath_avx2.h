// `vecmath.h` in 8 lanes, bit for bit, and what else the AVX2 files share.
//
// For files that are compiled with AVX2 and FMA only: the functions are static, so that no copy of
// them can be linked in for code that runs on other processors.
#pragma once

#include <immintrin.h>

#include "vecmath.h"

namespace looseleaf {

static inline __m256 exp_f32(__m256 x) {
  const __m256 shift = _mm256_set1_ps(kExpShift);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_set1_ps(kExp7);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ);
  const __m256 high = _mm256_cmp_ps(x, _mm256_set1_ps(kExpHighest), _CMP_NLE_UQ);
  p = _mm256_blendv_ps(p, _mm256_add_ps(x, _mm256_set1_ps(kInfinity)), high);
  return _mm256_andnot_ps(low, p);
}

static inline __m256 weight_f32(__m256 x) {
  const __m256 shift = _mm256_set1_ps(kWeightShift);
  x = _mm256_max_ps(_mm256_set1_ps(kWeightLowest), x);  // of a NaN, the second: itself
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), shift);
  const __m256 n = _mm256_sub_ps(shifted, shift);
  const __m256 f = _mm256_fmsub_ps(x, _mm256_set1_ps(kLog2E), n);
  __m256 p = _mm256_set1_ps(kWeight5);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kWeight4));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kWeight3));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kWeight2));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kWeight1));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

static inline __m256 tanh_f32(__m256 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 size = _mm256_andnot_ps(sign, x);
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 p = _mm256_set1_ps(kTanh9);
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanh7));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanh5));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanh3));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanh1));
  p = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 divisor = _mm256_add_ps(exp_f32(_mm256_add_ps(size, size)), one);
  const __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), divisor));
  const __m256 is_small = _mm256_cmp_ps(size, _mm256_set1_ps(kTanhSmall), _CMP_LT_OQ);
  return _mm256_blendv_ps(_mm256_or_ps(large, _mm256_and_ps(sign, x)), p, is_small);
}

// ((0+4)+(2+6)) + ((1+5)+(3+7))
static inline float sum_lanes(__m256 lanes) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

static inline float max_lanes(__m256 lanes) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

// A bit pattern compared as an integer: a NaN is the largest of all. Of magnitudes.
static inline float max_magnitude(__m256i lanes) {
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1));
  return _mm_cvtss_f32(_mm_castsi128_ps(most));
}

static inline __m256i magnitudes(__m256 x) {
  return _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x));
}

// All ones in the first `count` (0..8) lanes: for masked loads and stores at the end of a row.
static inline __m256i first_lanes(int count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}

}  // namespace looseleaf
