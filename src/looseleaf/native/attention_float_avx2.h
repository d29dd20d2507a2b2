// Some rows over one split of keys and values in floats, for x86-64 with AVX2, FMA and F16C.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there.
#pragma once

#include "attention.h"
#include "attention_float_loops_avx2.h"
#include "attention_split_avx2.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

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
  at.part_peak[row] = find_peak(at, row);
  const __m256 peak = _mm256_set1_ps(at.part_peak[row]);
  __m256 sum = _mm256_setzero_ps();
  for (int v = first_seen(at, row); v < end_seen(at, row); ++v) {
    const __m256 score = _mm256_loadu_ps(scores + v * kLanes);
    const __m256 weight = weight_f32(_mm256_sub_ps(score, peak));
    sum = _mm256_add_ps(sum, weight);
    _mm256_storeu_ps(scores + v * kLanes, weight);
  }
  at.part_sum[row] = sum_lanes(sum);
}

// Makes ready for a unit: its bands, and its queries one channel after another.
template <typename T>
void start(Attending<T>& at, const AttentionUnit& unit) {
  start_rows(at, unit);
  at.num_bands = 0;
  for (int row = 0; row < unit.num_rows;) {
    const int count = band_rows(unit.num_rows - row);
    at.bands[at.num_bands++] = {row, count, true, 0, 0};
    float* to = at.queries + row * at.channels;
    for (int r = 0; r < count; ++r) {
      const AttentionRow& of_row = at.rows[row + r];
      const float* query = at.layer.queries + offset_of(at.work, of_row, unit.kv_head);
      for (std::ptrdiff_t i = 0; i < at.head_dim; ++i) to[i * count + r] = query[i];
    }
    row += count;
  }
  // Numbers of f16 are converted once for all rows if there are many, and where they are used if
  // there are few.
  at.copies = at.is_odd || (sizeof(T) == 2 && at.num_bands > 1);
}

// What the bands see of the split.
template <typename T>
void see_bands(Attending<T>& at) {
  for (int i = 0; i < at.num_bands; ++i) {
    Band& band = at.bands[i];
    const int last = band.first + band.count - 1;
    band.common_begin = at.begin[last];
    band.common_end = at.end[band.first];
    band.is_even = at.begin[band.first] == band.common_begin && at.end[last] == band.common_end;
    // Nothing in common: every row by itself, all of it "before".
    if (band.common_begin >= band.common_end) band.common_begin = band.common_end = kAttentionSplit;
  }
}

// Attends to `at.split`, which is the split of that number. `at.next` is located on the way: it is
// of the unit `next`, if that is not null, and its split `next_split`.
template <typename T>
void attend_split(Attending<T>& at, int number, const AttentionUnit* next, int next_split) {
  see_split(at, number);
  see_bands(at);
  const int num_rows = at.unit->num_rows;
  const int begin = at.begin[0];
  const int end = at.end[num_rows - 1];
  const Located<T>& split = at.split;
  for (int v = split.first; v < split.last; v += kKeyVectors) {
    const int stop = smaller(v + kKeyVectors, split.last);
    const char* lines[kKeyVectors];
    Ahead ahead = {nullptr, kLanes * sizeof(T), 0};
    if (!at.is_odd) {
      for (int i = 0; i < stop - v; ++i) {
        lines[i] = reinterpret_cast<const char*>(split.values[v + i]);
      }
      ahead.lines = lines;
    }
    if (at.copies) {
      copy_keys(at, number, v, stop, larger(begin, v * kLanes), smaller(end, stop * kLanes));
      const float* keys[kKeyVectors];
      for (int i = 0; i < kKeyVectors; ++i) keys[i] = at.copied + i * kLanes;
      score_step(at, v, stop - v, keys, kCopiedKeys, ahead);
    } else {
      score_step(at, v, stop - v, split.keys + v, at.block_size, ahead);
    }
  }

  for (int row = 0; row < num_rows; ++row) {
    if (at.begin[row] < at.end[row]) weigh(at, row);
  }

  at.next.first = at.next.last = 0;
  if (next != nullptr) locate(at, *next, next_split, at.next);
  int called = at.next.first;
  for (std::ptrdiff_t i = 0; i < num_rows * at.channels; i += kLanes) {
    _mm256_storeu_ps(at.part + i, _mm256_setzero_ps());
  }
  for (int v = split.first; v < split.last; v += kValueVectors) {
    const int stop = smaller(v + kValueVectors, split.last);
    const char* lines[kValueVectors];
    Ahead ahead = {nullptr, kLanes * sizeof(T), 0};
    if (at.block_size <= kAttentionSplit && called < at.next.last && !at.is_odd) {
      for (int i = 0; i < stop - v; ++i) lines[i] = at.next.ahead[smaller(called + i, at.next.last - 1)];
      ahead.lines = lines;
      called = smaller(called + stop - v, at.next.last);
    }
    for (std::ptrdiff_t channel = 0; channel < at.channels; channel += kValueChannels) {
      const int width = smaller(static_cast<int>(at.channels - channel), kValueChannels);
      if (at.copies) {
        copy_values(at, number, v, stop, larger(begin, v * kLanes), smaller(end, stop * kLanes),
                    channel, width);
        const float* values[kValueVectors];
        for (int i = 0; i < kValueVectors; ++i) {
          values[i] = at.copied + i * kLanes * kValueChannels;
        }
        ahead.first = channel;
        value_step(at, v, stop - v, channel, width, values, kValueChannels, 0, ahead);
      } else {
        value_step(at, v, stop - v, channel, width, split.values + v, at.head_dim, channel,
                   ahead);
      }
    }
  }
  if (!at.is_odd) prefetch_keys(at, called);
}

}  // namespace

}  // namespace looseleaf
