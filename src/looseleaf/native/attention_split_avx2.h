// Some rows over one split, for x86-64 with AVX2: where its blocks lie, what the rows see of it, and
// their largest scores. What floats and integers have in common.
//
// For attention_avx2.cpp alone, and in an anonymous namespace for the reason given there.
#pragma once

#include "attention.h"
#include "kv_integer.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

constexpr int kLanes = 8;
// From the scores of a row to those of the next: rows that are not apart by a power of two do not
// crowd into few sets of the cache.
constexpr int kScoreStride = kAttentionSplit + 16;

constexpr int kSplitVectors = kAttentionSplit / kLanes;

// The keys that are read once for all rows, in vectors of 8 positions: they stay in the first-level
// cache.
constexpr int kKeyVectors = 4;

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a < b ? b : a; }
constexpr int clamp(int x, int low, int high) { return smaller(larger(x, low), high); }

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
  const float* key_scales[kSplitVectors];    // of integers alone
  const float* value_scales[kSplitVectors];  // the same
};

// A unit on its way through its splits. `T` is the type of the caches.
template <typename T>
struct Attending {
  Attending(const AttentionLayer& layer, const AttentionWork& work, float* workspace);

  const AttentionLayer& layer;
  const AttentionWork& work;
  float* memory;  // from a cache line on
  const AttentionUnit* unit;
  const AttentionRow* rows;
  std::ptrdiff_t head_dim;
  std::ptrdiff_t channels;  // head_dim, rounded up to whole vectors
  std::ptrdiff_t head_numbers;
  std::ptrdiff_t block_size;
  bool is_odd;   // block size or head_dim are not made of whole vectors
  bool copies;   // keys and values are copied, as floats in whole vectors, before they are used
  float scale;

  float* queries;  // [band][channel][row of the band], or integers in pairs of channels
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
  float factors[kAttentionRows];  // of integers alone: of a row's query, and the layer's scale
  float weight_scales[kAttentionRows * kAttentionSplit / kWeightGroup];  // of integers alone
  Located<T> split;
  Located<T> next;  // what comes after, be it of another unit; empty if nothing does
};

template <typename T>
Attending<T>::Attending(const AttentionLayer& layer, const AttentionWork& work, float* workspace)
    : layer(layer),
      work(work),
      memory(workspace),
      head_dim(work.shape.head_dim),
      channels((head_dim + kLanes - 1) / kLanes * kLanes),
      head_numbers((head_dim + kScaleNumbers<T>) * work.shape.block_size),
      block_size(work.shape.block_size),
      is_odd(block_size % kLanes != 0 || head_dim % kLanes != 0),
      scale(layer.scale) {
  memory += (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64 / sizeof(float);
}

// Where the rows of a unit have their memory: behind the first `row` rows, which others have.
template <typename T>
void place_rows(Attending<T>& at, int row) {
  float* rows = at.memory + kAttentionRows * kScoreStride;
  const std::ptrdiff_t of_all = kAttentionRows * at.channels;
  at.scores = at.memory + row * kScoreStride;
  at.part = rows + row * at.channels;
  at.all = at.part + of_all;
  at.queries = at.all + of_all;
  at.copied = rows + 3 * of_all;
}

std::ptrdiff_t offset_of(const AttentionWork& work, const AttentionRow& row, int kv_head) {
  const std::ptrdiff_t group = work.shape.num_heads / work.shape.num_kv_heads;
  return row.offset + kv_head * group * work.shape.head_dim;
}

// The rows of a unit, and what they see of it.
template <typename T>
void start_rows(Attending<T>& at, const AttentionUnit& unit) {
  at.unit = &unit;
  at.rows = at.work.rows + unit.first_row;
  const int first = unit.first_split * kAttentionSplit;
  const int end = unit.end_split * kAttentionSplit;
  for (int row = 0; row < unit.num_rows; ++row) {
    at.row_begin[row] = clamp(at.rows[row].begin, first, end);
    at.row_end[row] = clamp(at.rows[row].end, first, end);
  }
}

// What the rows see of the split.
template <typename T>
void see_split(Attending<T>& at, int split) {
  const int start = split * kAttentionSplit;
  for (int row = 0; row < at.unit->num_rows; ++row) {
    at.begin[row] = clamp(at.row_begin[row] - start, 0, kAttentionSplit);
    at.end[row] = clamp(at.row_end[row] - start, 0, kAttentionSplit);
  }
}

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
    if constexpr (kIsInteger<T>) {
      located.keys[v] += offset;  // there are two numbers at each position
      const std::ptrdiff_t scales =
          head + at.head_dim * at.block_size + offset * kScaleNumbers<T>;
      located.key_scales[v] =
          reinterpret_cast<const float*>(static_cast<const T*>(at.layer.keys) + scales);
      located.value_scales[v] =
          reinterpret_cast<const float*>(static_cast<const T*>(at.layer.values) + scales);
      _mm_prefetch(located.key_scales[v], _MM_HINT_T0);
      _mm_prefetch(located.value_scales[v], _MM_HINT_T0);
    }
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
  const std::ptrdiff_t row_bytes = at.block_size * size * (kIsInteger<T> ? 2 : 1);
  const std::ptrdiff_t step = is_piece ? kLineBytes : row_bytes;
  const std::ptrdiff_t bytes = at.head_dim * size * (is_piece ? kLanes : at.block_size);
  for (int v = first; v < at.next.last; ++v) {
    const char* line = is_piece ? at.next.ahead[v] : reinterpret_cast<const char*>(at.next.keys[v]);
    for (std::ptrdiff_t i = 0; i < bytes; i += step) _mm_prefetch(line + i, _MM_HINT_T1);
  }
}

// The vectors of a split, or part of them, that a row sees something of.
template <typename T>
int first_seen(const Attending<T>& at, int row) { return at.begin[row] / kLanes; }
template <typename T>
int end_seen(const Attending<T>& at, int row) { return (at.end[row] + kLanes - 1) / kLanes; }

// Lanes of the vector that a row sees.
template <typename T>
__m256 seen_lanes(const Attending<T>& at, int row, int vector) {
  const int start = vector * kLanes;
  return _mm256_castsi256_ps(_mm256_andnot_si256(first_lanes(at.begin[row] - start),
                                                 first_lanes(at.end[row] - start)));
}

// The largest score of a row. Caps the scores before, and makes those of hidden positions in the
// vectors at the edges minus infinity.
template <typename T>
float find_peak(Attending<T>& at, int row) {
  float* scores = at.scores + row * kScoreStride;
  const int first = first_seen(at, row);
  const int end = end_seen(at, row);
  const float soft_cap = at.layer.soft_cap;
  if (soft_cap != 0.0f) {
    const __m256 cap = _mm256_set1_ps(soft_cap);
    const __m256 inverse = _mm256_set1_ps(1.0f / soft_cap);
    for (int v = first; v < end; ++v) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(scores + v * kLanes), inverse);
      _mm256_storeu_ps(scores + v * kLanes, _mm256_mul_ps(cap, tanh_f32(x)));
    }
  }
  const __m256 hidden = _mm256_set1_ps(-kInfinity);
  for (const int v : {first, end - 1}) {
    float* edge = scores + v * kLanes;
    _mm256_storeu_ps(edge,
                     _mm256_blendv_ps(hidden, _mm256_loadu_ps(edge), seen_lanes(at, row, v)));
  }
  __m256 peaks = hidden;
  for (int v = first; v < end; ++v) {
    peaks = _mm256_max_ps(_mm256_loadu_ps(scores + v * kLanes), peaks);
  }
  return max_lanes(peaks);
}

}  // namespace

}  // namespace looseleaf
