// The two inner loops of attention for x86-64 with AVX2 and FMA: scores, and weighted values.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there.
#pragma once

#include "attention.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

constexpr int kLanes = 8;
constexpr int kSplitVectors = kAttentionSplit / kLanes;

// What is read once for all rows, of a size that stays in the first-level cache: of keys,
// `kKeyVectors` times 8 positions; of values, `kValueVectors` times 8 in `kValueChannels` channels.
constexpr int kKeyVectors = 4;
constexpr int kValueVectors = 8;
constexpr int kValueChannels = 32;

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a < b ? b : a; }
constexpr int clamp(int x, int low, int high) { return smaller(larger(x, low), high); }

// Three rows by four vectors fill the registers and need fewest loads; four rows by two do nearly.
int band_rows(int left) {
  if (left < 3 || left == 4) return left;
  const int rest = left % 3;
  return rest == 1 || (rest == 2 && left >= 8) ? 4 : 3;
}

template <int Rows>
constexpr int kBandVectors = Rows == 4 ? 2 : 4;

// Scores of `Rows` rows at `Vectors` times 8 positions.
template <int Rows, int Vectors>
void score(const float* const* queries, const float* const* keys, std::ptrdiff_t stride,
           std::ptrdiff_t head_dim, __m256 scale, float* scores) {
  const float* query[Rows];
  const float* key[Vectors];
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) key[v] = keys[v];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    query[r] = queries[r];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_setzero_ps();
  }
  std::ptrdiff_t at = 0;
  for (std::ptrdiff_t channel = 0; channel < head_dim; ++channel, at += stride) {
    __m256 q[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) q[r] = _mm256_broadcast_ss(query[r] + channel);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const __m256 k = _mm256_loadu_ps(key[v] + at);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[r][v] = _mm256_fmadd_ps(q[r], k, sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      _mm256_storeu_ps(scores + r * kAttentionSplit + v * kLanes, _mm256_mul_ps(sum[r][v], scale));
    }
  }
}

template <int Rows>
void score_band(const float* const* queries, const float* const* keys, int num_vectors,
                std::ptrdiff_t stride, std::ptrdiff_t head_dim, __m256 scale, float* scores) {
  constexpr int kMost = kBandVectors<Rows>;
  for (int v = 0; v < num_vectors; v += kMost) {
    float* out = scores + v * kLanes;
    switch (smaller(num_vectors - v, kMost)) {
      case 1: score<Rows, 1>(queries, keys + v, stride, head_dim, scale, out); break;
      case 2: score<Rows, 2>(queries, keys + v, stride, head_dim, scale, out); break;
      case 3:
        score<Rows, smaller(3, kMost)>(queries, keys + v, stride, head_dim, scale, out);
        break;
      default: score<Rows, kMost>(queries, keys + v, stride, head_dim, scale, out); break;
    }
  }
}

// Adds weights times values at the positions begin .. end - 1 to `Vectors` times 8 channels, from
// `channel` on, of `Rows` rows. `values[i]` is where the i-th 8 positions start.
template <int Rows, int Vectors>
void add_values(const float* weights, const float* const* values, std::ptrdiff_t stride,
                std::ptrdiff_t channel, unsigned begin, unsigned end, float* sums,
                std::ptrdiff_t channels) {
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_loadu_ps(sums + r * channels + v * kLanes);
  }
  for (unsigned position = begin; position < end;) {
    const float* value = values[position / kLanes] + channel + position % kLanes * stride;
    const unsigned whole = (position / kLanes + 1) * kLanes;
    const unsigned stop = whole < end ? whole : end;
    for (; position < stop; ++position, value += stride) {
      __m256 w[Rows];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        w[r] = _mm256_broadcast_ss(weights + r * kAttentionSplit + position);
      }
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const __m256 x = _mm256_loadu_ps(value + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sum[r][v] = _mm256_fmadd_ps(w[r], x, sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) _mm256_storeu_ps(sums + r * channels + v * kLanes, sum[r][v]);
  }
}

// The same for any number of channels, up to `last`.
template <int Rows>
void add_values_band(const float* weights, const float* const* values, std::ptrdiff_t stride,
                     std::ptrdiff_t channel, std::ptrdiff_t last, int begin, int end, float* sums,
                     std::ptrdiff_t channels) {
  constexpr int kMost = kBandVectors<Rows>;
  const unsigned from = static_cast<unsigned>(begin);
  const unsigned to = static_cast<unsigned>(end);
  for (; channel < last; channel += kMost * kLanes) {
    float* sum = sums + channel;
    switch (smaller(static_cast<int>(last - channel) / kLanes, kMost)) {
      case 1: add_values<Rows, 1>(weights, values, stride, channel, from, to, sum, channels); break;
      case 2: add_values<Rows, 2>(weights, values, stride, channel, from, to, sum, channels); break;
      case 3:
        add_values<Rows, smaller(3, kMost)>(weights, values, stride, channel, from, to, sum,
                                            channels);
        break;
      default:
        add_values<Rows, kMost>(weights, values, stride, channel, from, to, sum, channels);
        break;
    }
  }
}

}  // namespace

}  // namespace looseleaf
