// Some rows over one split of keys and values in integers, for x86-64 with AVX2 and FMA. Integers of
// 8 bits become such of 16 as they are loaded.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there. Block size
// and head_dim are multiples of 8, so every 8 positions are one piece. What a row does not see has
// weight 0, and an integer times 0 is 0 whatever it is: so all rows take the same positions.
#pragma once

#include "attention.h"
#include "attention_split_avx2.h"
#include "kv_integer.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

constexpr int kWeightVectors = kWeightGroup / kLanes;
constexpr int kWeightGroups = kAttentionSplit / kWeightGroup;
constexpr int kKeyPairs = kKeyGroup / 2;
// From the weights of a row, which take the place of its scores, to those of the next.
constexpr int kWeightStride = kScoreStride * 2;

// Two numbers of 16 bits for one lane.
__m256i pair(const std::int16_t* from) {
  std::int32_t both;
  __builtin_memcpy(&both, from, sizeof(both));
  return _mm256_set1_epi32(both);
}

__m256i integers(const std::int16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
__m256i integers(const std::int8_t* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Integers may be added in any order, and left to itself the compiler finds one that needs more
// registers than there are, and keeps the sums in memory.
void add_products(__m256i& sum, __m256i a, __m256i b) {
  __m256i products;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
}

// Six rows by two vectors, or three by four: as many sums as registers hold next to what is
// multiplied.
template <int Rows>
constexpr int kIntegerVectors = Rows > 3 ? 2 : 4;

int integer_band_rows(int left) {
  if (left <= 6) return left;
  return left < 9 ? 4 : 6;
}

struct IntegerScaleAVX2 {
  float scale;
  float inverse;
};

// `integer_scale` of kv_integer.h.
IntegerScaleAVX2 scale_for(float largest, int most) {
  const float scale = largest / static_cast<float>(most);
  if (scale < kLeastScale) return {0.0f, 0.0f};
  if (!(scale <= kMostScale)) return {scale, 0.0f};
  return {scale, 1.0f / scale};
}

template <typename T>
std::int16_t* queries_of(const Attending<T>& at, int row) {
  return reinterpret_cast<std::int16_t*>(at.queries) + row * at.head_dim;
}

// Writes a row's query as integers, in pairs of channels `rows` pairs apart; returns its scale.
float put_query(const float* query, std::ptrdiff_t head_dim, int rows, std::int16_t* to) {
  __m256i most = _mm256_setzero_si256();
  for (std::ptrdiff_t i = 0; i < head_dim; i += kLanes) {
    most = _mm256_max_epi32(most, magnitudes(_mm256_loadu_ps(query + i)));
  }
  const IntegerScaleAVX2 scale = scale_for(max_magnitude(most), kQueryMost);
  const __m256 inverse = _mm256_set1_ps(scale.inverse);
  for (std::ptrdiff_t i = 0; i < head_dim; i += kLanes) {
    alignas(32) std::int32_t numbers[kLanes] = {};
    if (scale.inverse != 0.0f) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(query + i), inverse);
      _mm256_store_si256(reinterpret_cast<__m256i*>(numbers), _mm256_cvtps_epi32(x));
    }
    for (int j = 0; j < kLanes; j += 2) {
      std::int16_t* out = to + (i + j) * rows;
      out[0] = static_cast<std::int16_t>(numbers[j]);
      out[1] = static_cast<std::int16_t>(numbers[j + 1]);
    }
  }
  return scale.scale;
}

// Scores of `Rows` rows at `Vectors` times 8 positions. `query` is [pair of channels][Rows][2];
// `stride` leads from a pair of channels of the keys to the next.
template <int Rows, int Vectors, bool LooksAhead, typename T>
[[gnu::noinline]] void score(const std::int16_t* query, const T* const* keys,
           const float* const* key_scales, std::ptrdiff_t stride, std::ptrdiff_t num_pairs,
           const float* factors, float* scores, const char* const* ahead) {
  const T* key[Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) key[v] = keys[v];
  const std::int16_t* last = query + num_pairs * Rows * 2;
  std::ptrdiff_t line = 0;
  for (std::ptrdiff_t group = 0; group < num_pairs; group += kKeyPairs) {
    const std::int16_t* stop = last;
    if (group + kKeyPairs < num_pairs) stop = query + kKeyPairs * Rows * 2;
    __m256i sum[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_setzero_si256();
    }
#pragma GCC unroll 1
    for (; query != stop; query += Rows * 2) {
      if constexpr (LooksAhead) {
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) _mm_prefetch(ahead[v] + line, _MM_HINT_T1);
        line += 16 * sizeof(T);  // a vector's values, spread over the pairs
      }
      __m256i k[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        k[v] = integers(key[v]);
        key[v] += stride;
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m256i q = pair(query + r * 2);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) add_products(sum[r][v], q, k[v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(factors + r);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        float* to = scores + r * kScoreStride + v * kLanes;
        __m256 total = _mm256_cvtepi32_ps(sum[r][v]);
        if (group > 0) total = _mm256_add_ps(_mm256_loadu_ps(to), total);
        if (stop == last) {
          const __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(key_scales[v]), factor);
          total = _mm256_mul_ps(total, scale);
        }
        _mm256_storeu_ps(to, total);
      }
    }
  }
}

template <int Rows, typename T>
void score_band(const std::int16_t* query, const T* const* keys,
                const float* const* key_scales, int num_vectors, std::ptrdiff_t stride,
                std::ptrdiff_t num_pairs, const float* factors, float* scores,
                const char* const* ahead) {
  constexpr int kMost = kIntegerVectors<Rows>;
  int v = 0;
  for (; v + kMost <= num_vectors; v += kMost) {
    if (ahead != nullptr) {
      score<Rows, kMost, true>(query, keys + v, key_scales + v, stride, num_pairs, factors,
                               scores + v * kLanes, ahead + v);
    } else {
      score<Rows, kMost, false>(query, keys + v, key_scales + v, stride, num_pairs, factors,
                                scores + v * kLanes, nullptr);
    }
  }
  for (; v < num_vectors; ++v) {
    score<Rows, 1, false>(query, keys + v, key_scales + v, stride, num_pairs, factors,
                          scores + v * kLanes, nullptr);
  }
}

// The largest lane of each of four vectors.
__m128i max_of_each(const __m256i (&vectors)[4]) {
  const __m256i low = _mm256_max_epi32(_mm256_unpacklo_epi32(vectors[0], vectors[1]),
                                       _mm256_unpackhi_epi32(vectors[0], vectors[1]));
  const __m256i high = _mm256_max_epi32(_mm256_unpacklo_epi32(vectors[2], vectors[3]),
                                        _mm256_unpackhi_epi32(vectors[2], vectors[3]));
  const __m256i all = _mm256_max_epi32(_mm256_unpacklo_epi64(low, high),
                                       _mm256_unpackhi_epi64(low, high));
  return _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// Turns a row's scores into weights, each times the scale of the value there, and these into
// integers: in all groups that the unit sees something of, 0 where the row does not.
template <typename T>
void weigh_integers(Attending<T>& at, int row) {
  float* scores = at.scores + row * kScoreStride;
  const int first_group = at.split.first / kWeightVectors;
  const int end_group = (at.split.last + kWeightVectors - 1) / kWeightVectors;
  const bool sees = at.begin[row] < at.end[row];
  const int first = sees ? first_seen(at, row) : 0;
  const int end = sees ? end_seen(at, row) : 0;
  if (sees) at.part_peak[row] = find_peak(at, row);
  const __m256 peak = _mm256_set1_ps(at.part_peak[row]);
  __m256 sum = _mm256_setzero_ps();
  __m256i largest[kWeightGroups];
  for (int group = 0; group < kWeightGroups; ++group) {
    __m256i most = _mm256_setzero_si256();
    const int stop = group < end_group ? (group + 1) * kWeightVectors : 0;
    for (int v = larger(group, first_group) * kWeightVectors; v < stop; ++v) {
      __m256 scaled = _mm256_setzero_ps();
      if (v >= first && v < end) {
        const __m256 score = _mm256_loadu_ps(scores + v * kLanes);
        const __m256 weight = weight_f32(_mm256_sub_ps(score, peak));
        sum = _mm256_add_ps(sum, weight);
        scaled = _mm256_mul_ps(weight, _mm256_loadu_ps(at.split.value_scales[v]));
        // What is hidden may have any scale, NaN too.
        if (v == first || v == end - 1) scaled = _mm256_and_ps(scaled, seen_lanes(at, row, v));
        most = _mm256_max_epi32(most, magnitudes(scaled));
      }
      _mm256_storeu_ps(scores + v * kLanes, scaled);
    }
    largest[group] = most;
  }
  at.part_sum[row] = sum_lanes(sum);

  // `integer_scale` of kv_integer.h, of all groups at once.
  const __m128 most = _mm_castsi128_ps(max_of_each(largest));
  __m128 scale = _mm_div_ps(most, _mm_set1_ps(static_cast<float>(kWeightMost)));
  scale = _mm_andnot_ps(_mm_cmplt_ps(scale, _mm_set1_ps(kLeastScale)), scale);
  const __m128 is_usable = _mm_and_ps(_mm_cmpge_ps(scale, _mm_set1_ps(kLeastScale)),
                                      _mm_cmple_ps(scale, _mm_set1_ps(kMostScale)));
  alignas(16) float inverses[kWeightGroups];
  alignas(16) std::int32_t masks[kWeightGroups];
  _mm_storeu_ps(at.weight_scales + row * kWeightGroups, scale);
  _mm_store_ps(inverses, _mm_div_ps(_mm_set1_ps(1.0f), scale));
  _mm_store_si128(reinterpret_cast<__m128i*>(masks), _mm_castps_si128(is_usable));
  for (int group = first_group; group < end_group; ++group) {
    const __m256 inverse = _mm256_broadcast_ss(inverses + group);
    const __m256i mask = _mm256_set1_epi32(masks[group]);
    const float* from = scores + group * kWeightGroup;
    __m256i numbers[kWeightVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kWeightVectors; ++i) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(from + i * kLanes), inverse);
      numbers[i] = _mm256_and_si256(_mm256_cvtps_epi32(x), mask);
    }
    // Behind what is still to be read.
    auto* to = reinterpret_cast<__m256i*>(reinterpret_cast<std::int16_t*>(scores) +
                                          group * kWeightGroup);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i both = _mm256_packs_epi32(numbers[2 * i], numbers[2 * i + 1]);
      _mm256_storeu_si256(to + i, _mm256_permute4x64_epi64(both, 0xD8));
    }
  }
}

// Adds weights times values at `count` times 8 positions of one group to `Vectors` times 8 channels
// of `Rows` rows, which start at 0 if this is the `first` group. `values[i]` is where the i-th 8
// positions start, at these channels.
template <int Rows, int Vectors, bool LooksAhead, typename T>
[[gnu::noinline]] void add_values(const std::int16_t* weights, const T* const* values, int count,
                std::ptrdiff_t channel, std::ptrdiff_t head_dim, bool first, const float* scales,
                float* sums, const char* const* ahead) {
  __m256i sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_setzero_si256();
  }
  for (int i = 0; i < count; ++i) {
    const T* value = values[i] + channel * 2;
    const char* line = nullptr;
    if constexpr (LooksAhead) line = ahead[i] + channel * 8 * static_cast<std::ptrdiff_t>(sizeof(T));
#pragma GCC unroll 1
    for (int p = 0; p < kLanes / 2; ++p, weights += 2, value += head_dim * 2) {
      if constexpr (LooksAhead) {
        _mm_prefetch(line, _MM_HINT_T1);
        constexpr std::ptrdiff_t kStep = 32 * sizeof(T);
        if constexpr (Vectors > 2) _mm_prefetch(line + kStep * kLanes / 2, _MM_HINT_T1);
        line += kStep;
      }
      __m256i x[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) x[v] = integers(value + v * kLanes * 2);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m256i w = pair(weights + r * kWeightStride);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          add_products(sum[r][v], w, x[v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const __m256 scale = _mm256_broadcast_ss(scales + r * kWeightGroups);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      float* to = sums + r * head_dim + channel + v * kLanes;
      const __m256 before = first ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
      _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][v]), scale, before));
    }
  }
}

template <int Rows, typename T>
void add_values_band(const std::int16_t* weights, const T* const* values, int count,
                     std::ptrdiff_t head_dim, bool first, const float* scales, float* sums,
                     const char* const* ahead) {
  constexpr int kMost = kIntegerVectors<Rows>;
  std::ptrdiff_t channel = 0;
  for (; channel + kMost * kLanes <= head_dim; channel += kMost * kLanes) {
    if (ahead != nullptr) {
      add_values<Rows, kMost, true>(weights, values, count, channel, head_dim, first, scales, sums,
                                    ahead);
    } else {
      add_values<Rows, kMost, false>(weights, values, count, channel, head_dim, first, scales,
                                     sums, nullptr);
    }
  }
  for (; channel < head_dim; channel += kLanes) {
    add_values<Rows, 1, false>(weights, values, count, channel, head_dim, first, scales, sums,
                               nullptr);
  }
}

template <int N>
struct Number {
  static constexpr int kValue = N;
};

// Calls use(Number<N>{}) for a band of N rows.
template <typename Use>
void with_rows(int rows, const Use& use) {
  switch (rows) {
    case 1: use(Number<1>{}); break;
    case 2: use(Number<2>{}); break;
    case 3: use(Number<3>{}); break;
    case 4: use(Number<4>{}); break;
    case 5: use(Number<5>{}); break;
    default: use(Number<6>{}); break;
  }
}

template <typename T>
  requires kIsInteger<T>
void start(Attending<T>& at, const AttentionUnit& unit) {
  start_rows(at, unit);
  at.num_bands = 0;
  for (int row = 0; row < unit.num_rows;) {
    const int count = integer_band_rows(unit.num_rows - row);
    at.bands[at.num_bands++] = {row, count, true, 0, 0};
    std::int16_t* to = queries_of(at, row);
    for (int r = 0; r < count; ++r) {
      const AttentionRow& of_row = at.rows[row + r];
      const float* query = at.layer.queries + offset_of(at.work, of_row, unit.kv_head);
      at.factors[row + r] = put_query(query, at.head_dim, count, to + r * 2) * at.scale;
    }
    row += count;
  }
}

template <typename T>
  requires kIsInteger<T>
void attend_split(Attending<T>& at, int number, const AttentionUnit* next, int next_split) {
  see_split(at, number);
  const int num_rows = at.unit->num_rows;
  const std::ptrdiff_t head_dim = at.head_dim;
  const Located<T>& split = at.split;
  for (int v = split.first; v < split.last; v += kKeyVectors) {
    const int count = smaller(v + kKeyVectors, split.last) - v;
    const char* lines[kKeyVectors];
    for (int i = 0; i < count; ++i) lines[i] = reinterpret_cast<const char*>(split.values[v + i]);
    for (int i = 0; i < at.num_bands; ++i) {
      const Band& band = at.bands[i];
      with_rows(band.count, [&](auto rows) {
        score_band<decltype(rows)::kValue>(
            queries_of(at, band.first), split.keys + v, split.key_scales + v, count,
            at.block_size * 2, head_dim / 2, at.factors + band.first,
            at.scores + band.first * kScoreStride + v * kLanes, i == 0 ? lines : nullptr);
      });
    }
  }

  for (int row = 0; row < num_rows; ++row) weigh_integers(at, row);

  at.next.first = at.next.last = 0;
  if (next != nullptr) locate(at, *next, next_split, at.next);
  int called = at.next.first;
  for (int v = split.first; v < split.last;) {
    const int group = v / kWeightVectors;
    const int count = smaller((group + 1) * kWeightVectors, split.last) - v;
    const char* lines[kWeightVectors];
    const bool looks_ahead = at.block_size <= kAttentionSplit && called < at.next.last;
    for (int i = 0; looks_ahead && i < count; ++i) {
      lines[i] = at.next.ahead[smaller(called + i, at.next.last - 1)];
    }
    if (looks_ahead) called = smaller(called + count, at.next.last);
    for (int i = 0; i < at.num_bands; ++i) {
      const Band& band = at.bands[i];
      const auto* weights =
          reinterpret_cast<const std::int16_t*>(at.scores + band.first * kScoreStride) +
          v * kLanes;
      with_rows(band.count, [&](auto rows) {
        add_values_band<decltype(rows)::kValue>(
            weights, split.values + v, count, head_dim, v == split.first,
            at.weight_scales + band.first * kWeightGroups + group, at.part + band.first * head_dim,
            i == 0 && looks_ahead ? lines : nullptr);
      });
    }
    v += count;
  }
  prefetch_keys(at, called);
}

}  // namespace

}  // namespace looseleaf
