// The two inner loops of attention for x86-64 with AVX2, FMA and F16C: scores, and weighted values.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there.
#pragma once

#include "attention_split_avx2.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

// The values that are read once for all rows, of a size that stays in the first-level cache:
// `kValueVectors` times 8 positions in `kValueChannels` channels.
constexpr int kValueVectors = 8;
constexpr int kValueChannels = 32;

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

// What a loop calls for on its way, to be used later. Called for all at once, it would fill the
// queue of cache misses, and hold up the loads behind; in the loops it costs nothing. Of `lines`
// there is one for each vector of 8 positions: where its `8 * head_dim` numbers in the cache start.
struct Ahead {
  const char* const* lines;  // null: nothing is called for
  std::ptrdiff_t bytes;      // of 8 numbers
  std::ptrdiff_t first;      // the channel that a loop over values calls 0
};

constexpr Ahead kNothingAhead = {nullptr, 0, 0};

void prefetch(const char* line, std::ptrdiff_t next) {
  _mm_prefetch(line, _MM_HINT_T1);
  _mm_prefetch(line + next, _MM_HINT_T1);
}

// Scores of `Rows` rows at `Vectors` times 8 positions. `query` is [channel][Rows].
template <int Rows, int Vectors, bool LooksAhead, typename T>
void score(const float* query, const T* const* keys, std::ptrdiff_t stride,
           std::ptrdiff_t head_dim, __m256 scale, float* scores, Ahead ahead) {
  const T* key[Vectors];
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) key[v] = keys[v];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_setzero_ps();
  }
  const float* last = query + head_dim * Rows;
  const std::ptrdiff_t step = ahead.bytes * Vectors;
  for (int i = 0; query != last; ++i) {
    // One vector's lines after another's.
    const float* stop = last;
    const char* line = nullptr;
    if constexpr (LooksAhead) {
      line = ahead.lines[i];
      if (i + 1 < Vectors) stop = query + head_dim / Vectors * Rows;
    }
    for (; query != stop; query += Rows) {
      __m256 q[Rows];
      if constexpr (LooksAhead) {
        prefetch(line, step / 2);
        line += step;
      }
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
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      _mm256_storeu_ps(scores + r * kScoreStride + v * kLanes, _mm256_mul_ps(sum[r][v], scale));
    }
  }
}

template <int Rows, bool LooksAhead, typename T>
void score_some(const float* query, const T* const* keys, int num_vectors, std::ptrdiff_t stride,
                std::ptrdiff_t head_dim, __m256 scale, float* scores, Ahead ahead) {
  constexpr int kMost = kBandVectors<Rows>;
  for (int v = 0; v < num_vectors; v += kMost) {
    float* out = scores + v * kLanes;
    const T* const* from = keys + v;
    const Ahead there = {LooksAhead ? ahead.lines + v : nullptr, ahead.bytes, 0};
    switch (smaller(num_vectors - v, kMost)) {
      case 1:
        score<Rows, 1, LooksAhead>(query, from, stride, head_dim, scale, out, there);
        break;
      case 2:
        score<Rows, 2, LooksAhead>(query, from, stride, head_dim, scale, out, there);
        break;
      case 3:
        score<Rows, smaller(3, kMost), LooksAhead>(query, from, stride, head_dim, scale, out,
                                                   there);
        break;
      default:
        score<Rows, kMost, LooksAhead>(query, from, stride, head_dim, scale, out, there);
        break;
    }
  }
}

template <int Rows, typename T>
void score_band(const float* query, const T* const* keys, int num_vectors, std::ptrdiff_t stride,
                std::ptrdiff_t head_dim, __m256 scale, float* scores, Ahead ahead) {
  if (ahead.lines != nullptr) {
    score_some<Rows, true>(query, keys, num_vectors, stride, head_dim, scale, scores, ahead);
  } else {
    score_some<Rows, false>(query, keys, num_vectors, stride, head_dim, scale, scores, ahead);
  }
}

// Adds weights times values at the positions begin .. end - 1 to `Vectors` times 8 channels, from
// `channel` on, of `Rows` rows. `values[i]` is where the i-th 8 positions start.
template <int Rows, int Vectors, bool LooksAhead, typename T>
void add_values(const float* weights, const T* const* values, std::ptrdiff_t stride,
                std::ptrdiff_t channel, int begin, int end, float* sums, std::ptrdiff_t channels,
                Ahead ahead) {
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_loadu_ps(sums + r * channels + v * kLanes);
  }
  const float* weight = weights + begin;
  const float* last = weights + end;
  const float* stop = weight + (kLanes - begin % kLanes);
  const T* value = values[begin / kLanes] + channel + begin % kLanes * stride;
  const std::ptrdiff_t step = ahead.bytes * Vectors;
  for (int i = begin / kLanes;;) {
    const char* line = nullptr;
    if constexpr (LooksAhead) line = ahead.lines[i] + (ahead.first + channel) * ahead.bytes;
    if (stop > last) stop = last;
    for (; weight != stop; ++weight, value += stride) {
      __m256 w[Rows];
      if constexpr (LooksAhead) {
        prefetch(line, step / 2);
        line += step;
      }
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
    value = values[++i] + channel;
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
template <int Rows, bool LooksAhead, typename T>
void add_values_some(const float* weights, const T* const* values, std::ptrdiff_t stride,
                     std::ptrdiff_t channel, int count, int begin, int end, float* sums,
                     std::ptrdiff_t channels, Ahead ahead) {
  constexpr int kMost = kBandVectors<Rows>;
  for (int i = 0; i < count; i += kMost * kLanes) {
    const std::ptrdiff_t from = channel + i;
    float* sum = sums + i;
    switch (smaller((count - i) / kLanes, kMost)) {
      case 1:
        add_values<Rows, 1, LooksAhead>(weights, values, stride, from, begin, end, sum, channels,
                                        ahead);
        break;
      case 2:
        add_values<Rows, 2, LooksAhead>(weights, values, stride, from, begin, end, sum, channels,
                                        ahead);
        break;
      case 3:
        add_values<Rows, smaller(3, kMost), LooksAhead>(weights, values, stride, from, begin, end,
                                                        sum, channels, ahead);
        break;
      default:
        add_values<Rows, kMost, LooksAhead>(weights, values, stride, from, begin, end, sum,
                                            channels, ahead);
        break;
    }
  }
}

template <int Rows, typename T>
void add_values_band(const float* weights, const T* const* values, std::ptrdiff_t stride,
                     std::ptrdiff_t channel, int count, int begin, int end, float* sums,
                     std::ptrdiff_t channels, Ahead ahead) {
  if (ahead.lines != nullptr) {
    add_values_some<Rows, true>(weights, values, stride, channel, count, begin, end, sums,
                                channels, ahead);
  } else {
    add_values_some<Rows, false>(weights, values, stride, channel, count, begin, end, sums,
                                 channels, ahead);
  }
}

}  // namespace

}  // namespace looseleaf
