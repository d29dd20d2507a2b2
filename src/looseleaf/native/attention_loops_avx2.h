// The two inner loops of attention for x86-64 with AVX2, FMA and F16C: scores, and weighted values.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there.
#pragma once

#include "attention.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

constexpr int kLanes = 8;
// From the scores of a row to those of the next: rows that are not apart by a power of two do not
// crowd into few sets of the cache.
constexpr int kScoreStride = kAttentionSplit + 16;

constexpr int kSplitVectors = kAttentionSplit / kLanes;

// What is read once for all rows, of a size that stays in the first-level cache: of keys,
// `kKeyVectors` times 8 positions; of values, `kValueVectors` times 8 in `kValueChannels` channels.
constexpr int kKeyVectors = 4;
constexpr int kValueVectors = 8;
constexpr int kValueChannels = 32;

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a < b ? b : a; }
constexpr int clamp(int x, int low, int high) { return smaller(larger(x, low), high); }

__m256 load(const float* from) { return _mm256_loadu_ps(from); }
__m256 load(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Three rows by four vectors fill the registers and need fewest loads; four rows by two do nearly.
// More pointers or more code in a loop than here make the compiler run out of registers.
int band_rows(int left) {
  if (left < 3 || left == 4) return left;
  const int rest = left % 3;
  return rest == 1 || (rest == 2 && left >= 8) ? 4 : 3;
}

template <int Rows>
constexpr int kBandVectors = Rows == 4 ? 2 : 4;

// Scores of `Rows` rows at `Vectors` times 8 positions. `query` is [channel][Rows].
template <int Rows, int Vectors, typename T>
void score(const float* query, const T* const* keys, std::ptrdiff_t stride,
           std::ptrdiff_t head_dim, __m256 scale, float* scores) {
  const T* key[Vectors];
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) key[v] = keys[v];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_setzero_ps();
  }
  for (const float* end = query + head_dim * Rows; query != end; query += Rows) {
    __m256 q[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) q[r] = _mm256_broadcast_ss(query + r);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const __m256 k = load(key[v]);
      key[v] += stride;
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[r][v] = _mm256_fmadd_ps(q[r], k, sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      _mm256_storeu_ps(scores + r * kScoreStride + v * kLanes, _mm256_mul_ps(sum[r][v], scale));
    }
  }
}

template <int Rows, typename T>
void score_band(const float* query, const T* const* keys, int num_vectors, std::ptrdiff_t stride,
                std::ptrdiff_t head_dim, __m256 scale, float* scores) {
  constexpr int kMost = kBandVectors<Rows>;
  for (int v = 0; v < num_vectors; v += kMost) {
    float* out = scores + v * kLanes;
    switch (smaller(num_vectors - v, kMost)) {
      case 1: score<Rows, 1>(query, keys + v, stride, head_dim, scale, out); break;
      case 2: score<Rows, 2>(query, keys + v, stride, head_dim, scale, out); break;
      case 3:
        score<Rows, smaller(3, kMost)>(query, keys + v, stride, head_dim, scale, out);
        break;
      default: score<Rows, kMost>(query, keys + v, stride, head_dim, scale, out); break;
    }
  }
}

// Adds weights times values at the positions begin .. end - 1 to `Vectors` times 8 channels, from
// `channel` on, of `Rows` rows. `values[i]` is where the i-th 8 positions start.
template <int Rows, int Vectors, typename T>
void add_values(const float* weights, const T* const* values, std::ptrdiff_t stride,
                std::ptrdiff_t channel, int begin, int end, float* sums, std::ptrdiff_t channels) {
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_loadu_ps(sums + r * channels + v * kLanes);
  }
  const float* weight = weights + begin;
  const float* last = weights + end;
  const T* const* next = values + begin / kLanes;
  const T* value = *next + channel + begin % kLanes * stride;
  const float* stop = weight + (kLanes - begin % kLanes);
  for (;;) {
    if (stop > last) stop = last;
    for (; weight != stop; ++weight, value += stride) {
      __m256 w[Rows];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) w[r] = _mm256_broadcast_ss(weight + r * kScoreStride);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const __m256 x = load(value + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sum[r][v] = _mm256_fmadd_ps(w[r], x, sum[r][v]);
      }
    }
    if (weight == last) break;
    value = *++next + channel;
    stop += kLanes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) _mm256_storeu_ps(sums + r * channels + v * kLanes, sum[r][v]);
  }
}

// The same for any number of channels: `count`, from `channel` on in the values, and from 0 on in
// the sums.
template <int Rows, typename T>
void add_values_band(const float* weights, const T* const* values, std::ptrdiff_t stride,
                     std::ptrdiff_t channel, int count, int begin, int end, float* sums,
                     std::ptrdiff_t channels) {
  constexpr int kMost = kBandVectors<Rows>;
  for (int i = 0; i < count; i += kMost * kLanes) {
    const std::ptrdiff_t from = channel + i;
    float* sum = sums + i;
    switch (smaller((count - i) / kLanes, kMost)) {
      case 1:
        add_values<Rows, 1>(weights, values, stride, from, begin, end, sum, channels);
        break;
      case 2:
        add_values<Rows, 2>(weights, values, stride, from, begin, end, sum, channels);
        break;
      case 3:
        add_values<Rows, smaller(3, kMost)>(weights, values, stride, from, begin, end, sum,
                                            channels);
        break;
      default:
        add_values<Rows, kMost>(weights, values, stride, from, begin, end, sum, channels);
        break;
    }
  }
}

}  // namespace

}  // namespace looseleaf
