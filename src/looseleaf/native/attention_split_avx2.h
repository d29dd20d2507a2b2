// Some rows over one split, for x86-64 with AVX2, FMA and F16C: where its blocks lie, scores,
// weights, weighted values.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there.
#pragma once

#include "attention.h"
#include "attention_loops_avx2.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

// Rows whose sums are in registers together.
struct Band {
  int first;
  int count;
  bool is_even;      // all rows see the same positions of the split
  int common_begin;  // those that all rows see
  int common_end;
};

// Where the vectors of 8 positions that a unit sees of a split start in the caches.
template <typename T>
struct Located {
  int first;
  int last;
  const T* keys[kSplitVectors];
  const T* values[kSplitVectors];
  const char* ahead[kSplitVectors];  // each one's share of the keys, to be called for
};

// A unit on its way through its splits. `T` is the type of the caches.
template <typename T>
struct Attending {
  Attending(const AttentionLayer& layer, const AttentionWork& work, float* workspace);

  const AttentionLayer& layer;
  const AttentionWork& work;
  const AttentionUnit* unit;
  const AttentionRow* rows;
  std::ptrdiff_t head_dim;
  std::ptrdiff_t channels;  // head_dim, rounded up to whole vectors
  std::ptrdiff_t head_numbers;
  std::ptrdiff_t block_size;
  bool is_odd;   // block size or head_dim are not made of whole vectors
  bool copies;   // keys and values are copied, as floats in whole vectors, before they are used
  float scale;

  float* queries;  // [band][channel][row of the band]
  float* scores;   // [row][kScoreStride], then weights
  float* part;     // [row][channels]: of this split
  float* all;      // [row][channels]: of all splits so far
  float* copied;   // keys as [channel][vector][lane], or values as [position][kValueChannels]

  int num_bands;
  Band bands[kAttentionRows];
  int row_begin[kAttentionRows];  // what a row sees of the unit's splits
  int row_end[kAttentionRows];
  int begin[kAttentionRows];  // of the split, relative to its start
  int end[kAttentionRows];
  float part_peak[kAttentionRows];
  float part_sum[kAttentionRows];
  float all_peak[kAttentionRows];
  float all_sum[kAttentionRows];
  Located<T> split;
  Located<T> next;  // what comes after, be it of another unit; empty if nothing does
};

template <typename T>
void locate(const Attending<T>& at, const AttentionUnit& unit, int split, Located<T>& located) {
  const AttentionRow* rows = at.work.rows + unit.first_row;
  const int start = split * kAttentionSplit;
  const int begin = larger(rows[0].begin - start, 0);
  const int end = smaller(rows[unit.num_rows - 1].end - start, kAttentionSplit);
  located.first = begin / kLanes;
  located.last = (end + kLanes - 1) / kLanes;
  if (at.is_odd) return;
  const int block_size = static_cast<int>(at.block_size);
  int index = (start + located.first * kLanes) / block_size;
  int offset = (start + located.first * kLanes) % block_size;
  const std::ptrdiff_t num_kv_heads = at.work.shape.num_kv_heads;
  for (int v = located.first; v < located.last; ++v) {
    const std::ptrdiff_t block = unit.block_table[index];
    const std::ptrdiff_t head = (block * num_kv_heads + unit.kv_head) * at.head_numbers;
    located.keys[v] = static_cast<const T*>(at.layer.keys) + head + offset;
    const std::ptrdiff_t share = head + offset * at.head_dim;
    located.values[v] = static_cast<const T*>(at.layer.values) + share;
    located.ahead[v] = reinterpret_cast<const char*>(static_cast<const T*>(at.layer.keys) + share);
    offset += kLanes;
    if (offset == block_size) {
      offset = 0;
      ++index;
    }
  }
}

// Blocks lie anywhere, and the processor's own prefetching ends with a block at the latest. So the
// values of a split are called for while its keys are used, and the next split's keys meanwhile.
// This here is for keys that the loops do not call for: where a block is larger than a split, what
// a vector needs is not one piece; and there may be more of them than vectors at work.
template <typename T>
void prefetch_keys(const Attending<T>& at, int first) {
  constexpr std::ptrdiff_t kLineBytes = 64;
  const bool is_piece = at.block_size <= kAttentionSplit;
  const auto size = static_cast<std::ptrdiff_t>(sizeof(T));
  const std::ptrdiff_t step = is_piece ? kLineBytes : at.block_size * size;
  const std::ptrdiff_t bytes = at.head_dim * size * (is_piece ? kLanes : at.block_size);
  for (int v = first; v < at.next.last; ++v) {
    const char* line = is_piece ? at.next.ahead[v] : reinterpret_cast<const char*>(at.next.keys[v]);
    for (std::ptrdiff_t i = 0; i < bytes; i += step) _mm_prefetch(line + i, _MM_HINT_T1);
  }
}

float number(float x) { return x; }
float number(std::uint16_t x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x))); }

// Copies the keys of the vectors first .. last - 1, of which the positions begin .. end - 1 of the
// split are seen: zeros elsewhere. `stride` of the copy is that from a channel to the next.
constexpr int kCopiedKeys = kKeyVectors * kLanes;

template <typename T>
void copy_keys(Attending<T>& at, int split, int first, int last, int begin, int end) {
  if (!at.is_odd) {
    for (int v = first; v < last; ++v) {
      const T* from = at.split.keys[v];
      float* to = at.copied + (v - first) * kLanes;
      for (std::ptrdiff_t i = 0; i < at.head_dim; ++i) {
        _mm256_storeu_ps(to + i * kCopiedKeys, load(from + i * at.block_size));
      }
    }
    return;
  }
  for (std::ptrdiff_t i = 0; i < kCopiedKeys * at.head_dim; ++i) at.copied[i] = 0.0f;
  for (int position = begin; position < end; ++position) {
    const std::ptrdiff_t absolute = split * kAttentionSplit + position;
    const std::ptrdiff_t block = at.unit->block_table[absolute / at.block_size];
    const T* from = static_cast<const T*>(at.layer.keys) + absolute % at.block_size +
                    (block * at.work.shape.num_kv_heads + at.unit->kv_head) * at.head_numbers;
    float* to = at.copied + (position - first * kLanes);
    for (std::ptrdiff_t i = 0; i < at.head_dim; ++i) {
      to[i * kCopiedKeys] = number(from[i * at.block_size]);
    }
  }
}

// Copies `count` channels of the values, a multiple of 8, from `channel` on.
template <typename T>
void copy_values(Attending<T>& at, int split, int first, int last, int begin, int end,
                 std::ptrdiff_t channel, int count) {
  if (!at.is_odd) {
    for (int v = first; v < last; ++v) {
      for (int i = 0; i < kLanes; ++i) {
        const T* from = at.split.values[v] + i * at.head_dim + channel;
        float* to = at.copied + ((v - first) * kLanes + i) * kValueChannels;
        for (int c = 0; c < count; c += kLanes) _mm256_storeu_ps(to + c, load(from + c));
      }
    }
    return;
  }
  for (int position = begin; position < end; ++position) {
    const std::ptrdiff_t absolute = split * kAttentionSplit + position;
    const std::ptrdiff_t block = at.unit->block_table[absolute / at.block_size];
    const T* from = static_cast<const T*>(at.layer.values) +
                    absolute % at.block_size * at.head_dim +
                    (block * at.work.shape.num_kv_heads + at.unit->kv_head) * at.head_numbers;
    float* to = at.copied + (position - first * kLanes) * kValueChannels;
    for (int c = 0; c < count; ++c) {
      to[c] = channel + c < at.head_dim ? number(from[channel + c]) : 0.0f;
    }
  }
}

// Scores of all rows at `count` vectors, of which the first is the split's `first`.
template <typename T, typename Key>
void score_step(const Attending<T>& at, int first, int count, const Key* const* keys,
                std::ptrdiff_t stride, Ahead ahead) {
  const __m256 scale = _mm256_set1_ps(at.scale);
  const std::ptrdiff_t head_dim = at.head_dim;
  for (int i = 0; i < at.num_bands; ++i) {
    const Band& band = at.bands[i];
    const float* query = at.queries + band.first * at.channels;
    float* scores = at.scores + band.first * kScoreStride + first * kLanes;
    switch (band.count) {
      case 1: score_band<1>(query, keys, count, stride, head_dim, scale, scores, ahead); break;
      case 2: score_band<2>(query, keys, count, stride, head_dim, scale, scores, ahead); break;
      case 3: score_band<3>(query, keys, count, stride, head_dim, scale, scores, ahead); break;
      default: score_band<4>(query, keys, count, stride, head_dim, scale, scores, ahead); break;
    }
    ahead = kNothingAhead;
  }
}

// Weighted values of all rows at `count` vectors from `first` on, in `width` channels from `channel`
// on; these are the channels from `from` on in `values`. The rows of a band need not see the same
// positions: those that all see are taken together, those before and after row by row. So no row
// ever touches what it does not see.
template <typename T, typename Value>
void value_step(const Attending<T>& at, int first, int count, std::ptrdiff_t channel, int width,
                const Value* const* values, std::ptrdiff_t stride, std::ptrdiff_t from,
                Ahead ahead) {
  const int start = first * kLanes;
  const int stop = (first + count) * kLanes;
  const std::ptrdiff_t channels = at.channels;
  for (int i = 0; i < at.num_bands; ++i) {
    const Band& band = at.bands[i];
    const float* weights = at.scores + band.first * kScoreStride + start;
    float* sums = at.part + band.first * channels + channel;
    const auto add_row = [&](int r, int low, int high) {
      const int begin = larger(at.begin[band.first + r], low) - start;
      const int end = smaller(at.end[band.first + r], high) - start;
      if (begin >= end) return;
      add_values_band<1>(weights + r * kScoreStride, values, stride, from, width, begin, end,
                         sums + r * channels, channels, kNothingAhead);
    };
    if (!band.is_even) {
      const int high = smaller(band.common_begin, stop);
      for (int r = 0; r < band.count; ++r) add_row(r, start, high);
    }
    const int begin = larger(band.common_begin, start) - start;
    const int end = smaller(band.common_end, stop) - start;
    if (begin < end) {
      switch (band.count) {
        case 1:
          add_values_band<1>(weights, values, stride, from, width, begin, end, sums, channels,
                             ahead);
          break;
        case 2:
          add_values_band<2>(weights, values, stride, from, width, begin, end, sums, channels,
                             ahead);
          break;
        case 3:
          add_values_band<3>(weights, values, stride, from, width, begin, end, sums, channels,
                             ahead);
          break;
        default:
          add_values_band<4>(weights, values, stride, from, width, begin, end, sums, channels,
                             ahead);
          break;
      }
      ahead = kNothingAhead;
    }
    if (!band.is_even) {
      const int low = larger(band.common_end, start);
      for (int r = 0; r < band.count; ++r) add_row(r, low, stop);
    }
  }
}

// Turns a row's scores into weights.
template <typename T>
void weigh(Attending<T>& at, int row) {
  float* scores = at.scores + row * kScoreStride;
  const int first = at.begin[row] / kLanes * kLanes;
  const int end = at.end[row];
  const float soft_cap = at.layer.soft_cap;
  if (soft_cap != 0.0f) {
    const __m256 cap = _mm256_set1_ps(soft_cap);
    const __m256 inverse = _mm256_set1_ps(1.0f / soft_cap);
    for (int i = first; i < end; i += kLanes) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(scores + i), inverse);
      _mm256_storeu_ps(scores + i, _mm256_mul_ps(cap, tanh_f32(x)));
    }
  }
  const __m256 hidden = _mm256_set1_ps(-kInfinity);
  if (at.begin[row] != first) {
    const __m256 before = _mm256_castsi256_ps(first_lanes(at.begin[row] - first));
    float* edge = scores + first;
    _mm256_storeu_ps(edge, _mm256_blendv_ps(_mm256_loadu_ps(edge), hidden, before));
  }
  if (end % kLanes != 0) {
    const __m256 seen = _mm256_castsi256_ps(first_lanes(end % kLanes));
    float* edge = scores + end / kLanes * kLanes;
    _mm256_storeu_ps(edge, _mm256_blendv_ps(hidden, _mm256_loadu_ps(edge), seen));
  }

  __m256 peaks = hidden;
  for (int i = first; i < end; i += kLanes) {
    peaks = _mm256_max_ps(_mm256_loadu_ps(scores + i), peaks);
  }
  at.part_peak[row] = max_lanes(peaks);
  const __m256 peak = _mm256_set1_ps(at.part_peak[row]);
  __m256 sum = _mm256_setzero_ps();
  for (int i = first; i < end; i += kLanes) {
    const __m256 weight = weight_f32(_mm256_sub_ps(_mm256_loadu_ps(scores + i), peak));
    sum = _mm256_add_ps(sum, weight);
    _mm256_storeu_ps(scores + i, weight);
  }
  at.part_sum[row] = sum_lanes(sum);
}

}  // namespace

}  // namespace looseleaf
