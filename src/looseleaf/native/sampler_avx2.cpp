#include "sampler_kernels.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include <algorithm>

#include "exp_f64.h"

namespace looseleaf {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The greater of each lane; a lane of `v` that is NaN does not count.
__m256 most(__m256 v, __m256 so_far) { return _mm256_max_ps(v, so_far); }

float max_lanes(__m256 lanes) {
  __m128 v = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

void block_maxima(const float* row, std::int64_t columns, float* maxima) {
  const __m256 none = _mm256_set1_ps(kMinusInfinity);
  for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, columns);
    __m256 lanes[4] = {none, none, none, none};
    std::int64_t i = begin;
    for (; i + 32 <= end; i += 32) {
      for (int j = 0; j < 4; ++j) lanes[j] = most(_mm256_loadu_ps(row + i + 8 * j), lanes[j]);
    }
    float result = max_lanes(_mm256_max_ps(_mm256_max_ps(lanes[0], lanes[1]),
                                           _mm256_max_ps(lanes[2], lanes[3])));
    for (; i < end; ++i) result = row[i] > result ? row[i] : result;
    *maxima++ = result;
  }
}

__m256d exp_f64(__m256d x) {
  const __m256d shift = _mm256_set1_pd(kExpShift64);
  const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(kLog2E64), shift);
  const __m256d n = _mm256_sub_pd(shifted, shift);
  __m256d r = _mm256_fmadd_pd(n, _mm256_set1_pd(-kLn2High64), x);
  r = _mm256_fmadd_pd(n, _mm256_set1_pd(-kLn2Low64), r);
  __m256d p = _mm256_set1_pd(kExpTerms64[0]);
#pragma GCC unroll 13
  for (int i = 1; i < 14; ++i) p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(kExpTerms64[i]));
  const __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
  p = _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), exponent));
  return _mm256_and_pd(p, _mm256_cmp_pd(x, _mm256_set1_pd(kExpLowest64), _CMP_GE_OQ));
}

// Whether there is a temperature other than 1 to divide by.
template <bool kDivides>
__m256d share(const float* logits, __m256d peak, __m256d temperature) {
  __m256d x = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(logits)), peak);
  if constexpr (kDivides) x = _mm256_div_pd(x, temperature);
  return exp_f64(x);
}

template <bool kDivides>
double sum_shares(const float* logits, std::int64_t count, __m256d peak, __m256d temperature) {
  __m256d low = _mm256_setzero_pd();
  __m256d high = _mm256_setzero_pd();
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    low = _mm256_add_pd(low, share<kDivides>(logits + i, peak, temperature));
    high = _mm256_add_pd(high, share<kDivides>(logits + i + 4, peak, temperature));
  }
  const __m256d pairs = _mm256_hadd_pd(low, high);  // 0+1, 4+5, 2+3, 6+7
  const __m128d fours =
      _mm_add_pd(_mm256_castpd256_pd128(pairs), _mm256_extractf128_pd(pairs, 1));
  double sum = _mm_cvtsd_f64(_mm_add_sd(fours, _mm_unpackhi_pd(fours, fours)));
  if (i < count) {
    float rest[8];
    double values[8];
    for (std::int64_t j = 0; j < 8; ++j) rest[j] = i + j < count ? logits[i + j] : kMinusInfinity;
    _mm256_storeu_pd(values, share<kDivides>(rest, peak, temperature));
    _mm256_storeu_pd(values + 4, share<kDivides>(rest + 4, peak, temperature));
    for (std::int64_t j = 0; i + j < count; ++j) sum += values[j];
  }
  return sum;
}

double sum_shares(const float* logits, std::int64_t count, Scale scale) {
  const __m256d peak = _mm256_set1_pd(scale.peak);
  const __m256d temperature = _mm256_set1_pd(scale.temperature);
  return scale.temperature == 1.0 ? sum_shares<false>(logits, count, peak, temperature)
                                  : sum_shares<true>(logits, count, peak, temperature);
}

void shares(const float* logits, std::int64_t count, Scale scale, double* out) {
  const __m256d peak = _mm256_set1_pd(scale.peak);
  const __m256d temperature = _mm256_set1_pd(scale.temperature);
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    _mm256_storeu_pd(out + i, share<true>(logits + i, peak, temperature));
  }
  if (i < count) {
    float rest[4];
    double values[4];
    for (std::int64_t j = 0; j < 4; ++j) rest[j] = i + j < count ? logits[i + j] : kMinusInfinity;
    _mm256_storeu_pd(values, share<true>(rest, peak, temperature));
    for (std::int64_t j = 0; i + j < count; ++j) out[i + j] = values[j];
  }
}

std::int64_t gather(const float* row, std::int64_t columns, const float* maxima, Band band,
                    Key* out) {
  const __m256 low = _mm256_set1_ps(band.low);
  const __m256 high = _mm256_set1_ps(band.high);
  const __m256 all = _mm256_castsi256_ps(_mm256_set1_epi32(band.all ? -1 : 0));
  Key* next = out;
  for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
    if (!band.all && !(maxima[begin / kBlock] >= band.low)) continue;
    const std::int64_t end = std::min(begin + kBlock, columns);
    std::int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      const __m256 v = _mm256_loadu_ps(row + i);
      const __m256 reaches = _mm256_or_ps(_mm256_cmp_ps(v, low, _CMP_GE_OQ), all);
      const __m256 inside = _mm256_and_ps(_mm256_cmp_ps(v, high, _CMP_NGE_UQ), reaches);
      auto lanes = static_cast<unsigned>(_mm256_movemask_ps(inside));
      for (; lanes != 0; lanes &= lanes - 1) {
        const std::int64_t id = i + __builtin_ctz(lanes);
        *next++ = key_of(row[id], id);
      }
    }
    for (; i < end; ++i) {
      if (!(row[i] >= band.high) && (band.all || row[i] >= band.low)) *next++ = key_of(row[i], i);
    }
  }
  return next - out;
}

}  // namespace

const SamplerKernels* sampler_avx2() {
  static constexpr SamplerKernels kKernels = {
      .name = "avx2",
      .block_maxima = block_maxima,
      .shares = shares,
      .sum_shares = sum_shares,
      .gather = gather,
  };
  return &kKernels;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const SamplerKernels* sampler_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
