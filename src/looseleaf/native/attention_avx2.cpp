// The kernels for x86-64 with AVX2 and FMA.
//
// This file is compiled with those instructions, and the linker keeps one copy of an inline
// function whichever file it comes from. So all code here is in an anonymous namespace, and calls no
// function that a header defines for others too, the standard library's included.
#include "attention.h"

#if defined(__AVX2__) && defined(__FMA__)

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

// Where the vectors of 8 positions that a tile sees of a split start in the caches.
struct Located {
  int first;
  int last;
  const float* keys[kSplitVectors];
  const float* values[kSplitVectors];
};

// A tile on its way through its splits. Positions are relative to the split.
struct Work {
  Work(const AttentionBatch& batch, float* workspace);

  const AttentionBatch& batch;
  AttentionTile tile;
  std::ptrdiff_t head_dim;
  std::ptrdiff_t channels;  // head_dim, rounded up to whole vectors
  std::ptrdiff_t head_floats;
  bool copies;  // block size or head_dim are not made of whole vectors: they are copied first

  float* scores;   // [row][kAttentionSplit], then weights
  float* part;     // [row][channels]: of this split
  float* all;      // [row][channels]: of all splits so far
  float* copied;   // keys as [vector][channel][lane], or values as [position][channels]

  int num_bands;
  Band bands[kAttentionRows];
  int begin[kAttentionRows];  // what a row sees of the split
  int end[kAttentionRows];
  float part_peak[kAttentionRows];
  float part_sum[kAttentionRows];
  float all_peak[kAttentionRows];
  float all_sum[kAttentionRows];
  Located split;
  Located next;  // what comes after, be it of another tile; empty if nothing does
};

Work::Work(const AttentionBatch& batch, float* workspace)
    : batch(batch),
      head_dim(batch.head_dim),
      channels((head_dim + kLanes - 1) / kLanes * kLanes),
      head_floats(head_dim * batch.block_size),
      copies(batch.block_size % kLanes != 0 || head_dim % kLanes != 0) {
  // From a cache line on.
  workspace += (64 - reinterpret_cast<std::uintptr_t>(workspace) % 64) % 64 / sizeof(float);
  scores = workspace;
  part = scores + kAttentionRows * kAttentionSplit;
  all = part + kAttentionRows * channels;
  copied = all + kAttentionRows * channels;
}

void locate(const Work& work, const AttentionTile& tile, int split, Located& located) {
  const int begin = larger(tile.rows[0].begin - split, 0);
  const int end = smaller(tile.rows[tile.num_rows - 1].end - split, kAttentionSplit);
  located.first = begin / kLanes;
  located.last = (end + kLanes - 1) / kLanes;
  if (work.copies) return;
  const int block_size = work.batch.block_size;
  int index = (split + located.first * kLanes) / block_size;
  int offset = (split + located.first * kLanes) % block_size;
  for (int v = located.first; v < located.last; ++v) {
    const std::ptrdiff_t block = tile.block_table[index];
    const std::ptrdiff_t head = (block * work.batch.num_kv_heads + tile.kv_head) * work.head_floats;
    located.keys[v] = work.batch.keys + head + offset;
    located.values[v] = work.batch.values + head + offset * work.head_dim;
    offset += kLanes;
    if (offset == block_size) {
      offset = 0;
      ++index;
    }
  }
}

// Blocks lie anywhere, and the processor's own prefetching ends with a block at the latest. So the
// values of a split are called for while its keys are used, and the next split's keys meanwhile.
void prefetch_keys(const Work& work, int first, int last) {
  const std::ptrdiff_t block_size = work.batch.block_size;
  const std::ptrdiff_t step = block_size == kLanes ? 2 : 1;
  for (int v = first; v < last; ++v) {
    const float* key = work.next.keys[v];
    const bool same_lines = v % 2 == 1 && v > first && key == work.next.keys[v - 1] + kLanes;
    if (same_lines) continue;
    for (std::ptrdiff_t i = 0; i < work.head_dim; i += step) {
      _mm_prefetch(reinterpret_cast<const char*>(key + i * block_size), _MM_HINT_T1);
    }
  }
}

void prefetch_values(const Work& work, int first, int last) {
  for (int v = first; v < last; ++v) {
    const float* value = work.split.values[v];
    for (std::ptrdiff_t i = 0; i < kLanes * work.head_dim; i += 16) {
      _mm_prefetch(reinterpret_cast<const char*>(value + i), _MM_HINT_T1);
    }
  }
}

// Copies the keys of the positions begin .. end - 1 of the split into whole vectors, zeros between.
void copy_keys(Work& work, int split, int first_vector, int begin, int end) {
  const std::ptrdiff_t block_size = work.batch.block_size;
  for (int i = 0; i < kKeyVectors * kLanes * work.channels; ++i) work.copied[i] = 0.0f;
  for (int position = begin; position < end; ++position) {
    const std::ptrdiff_t block = work.tile.block_table[(split + position) / block_size];
    const float* from = work.batch.keys + (split + position) % block_size +
                        (block * work.batch.num_kv_heads + work.tile.kv_head) * work.head_floats;
    float* to = work.copied + (position / kLanes - first_vector) * work.head_dim * kLanes +
                position % kLanes;
    for (std::ptrdiff_t i = 0; i < work.head_dim; ++i) to[i * kLanes] = from[i * block_size];
  }
  const std::ptrdiff_t vector_floats = kLanes * work.head_dim;
  for (int v = 0; v < kKeyVectors; ++v) work.split.keys[v] = work.copied + v * vector_floats;
}

void copy_values(Work& work, int split, int first_vector, int begin, int end) {
  const std::ptrdiff_t block_size = work.batch.block_size;
  for (int position = begin; position < end; ++position) {
    const std::ptrdiff_t block = work.tile.block_table[(split + position) / block_size];
    const float* from = work.batch.values + (split + position) % block_size * work.head_dim +
                        (block * work.batch.num_kv_heads + work.tile.kv_head) * work.head_floats;
    float* to = work.copied + (position - first_vector * kLanes) * work.channels;
    for (std::ptrdiff_t i = 0; i < work.head_dim; ++i) to[i] = from[i];
    for (std::ptrdiff_t i = work.head_dim; i < work.channels; ++i) to[i] = 0.0f;
  }
  const std::ptrdiff_t vector_floats = kLanes * work.channels;
  for (int v = 0; v < kValueVectors; ++v) work.split.values[v] = work.copied + v * vector_floats;
}

void score_step(const Work& work, int first, int last, const float* const* keys,
                std::ptrdiff_t stride) {
  const __m256 scale = _mm256_set1_ps(work.batch.scale);
  const int count = last - first;
  const std::ptrdiff_t head_dim = work.head_dim;
  for (int i = 0; i < work.num_bands; ++i) {
    const Band& band = work.bands[i];
    const float* queries[4];
    for (int r = 0; r < band.count; ++r) queries[r] = work.tile.rows[band.first + r].query;
    float* scores = work.scores + band.first * kAttentionSplit + first * kLanes;
    switch (band.count) {
      case 1: score_band<1>(queries, keys, count, stride, head_dim, scale, scores); break;
      case 2: score_band<2>(queries, keys, count, stride, head_dim, scale, scores); break;
      case 3: score_band<3>(queries, keys, count, stride, head_dim, scale, scores); break;
      default: score_band<4>(queries, keys, count, stride, head_dim, scale, scores); break;
    }
  }
}

// The rows of a band need not see the same positions: those that all see are taken together, those
// before and after row by row. So no row ever touches what it does not see.
void value_step(const Work& work, int first, int last, const float* const* values,
                std::ptrdiff_t stride) {
  const int start = first * kLanes;
  const int stop = last * kLanes;
  const std::ptrdiff_t channels = work.channels;
  for (std::ptrdiff_t channel = 0; channel < channels; channel += kValueChannels) {
    const std::ptrdiff_t next = channel + kValueChannels;
    const std::ptrdiff_t most = next < channels ? next : channels;
    for (int i = 0; i < work.num_bands; ++i) {
      const Band& band = work.bands[i];
      const float* weights = work.scores + band.first * kAttentionSplit + start;
      float* sums = work.part + band.first * channels;
      const auto add_row = [&](int r, int from, int to) {
        const int begin = larger(work.begin[band.first + r], from) - start;
        const int end = smaller(work.end[band.first + r], to) - start;
        if (begin >= end) return;
        add_values_band<1>(weights + r * kAttentionSplit, values, stride, channel, most, begin, end,
                           sums + r * channels, channels);
      };
      if (!band.is_even) {
        const int to = smaller(band.common_begin, stop);
        for (int r = 0; r < band.count; ++r) add_row(r, start, to);
      }
      const int begin = larger(band.common_begin, start) - start;
      const int end = smaller(band.common_end, stop) - start;
      if (begin < end) {
        switch (band.count) {
          case 1:
            add_values_band<1>(weights, values, stride, channel, most, begin, end, sums, channels);
            break;
          case 2:
            add_values_band<2>(weights, values, stride, channel, most, begin, end, sums, channels);
            break;
          case 3:
            add_values_band<3>(weights, values, stride, channel, most, begin, end, sums, channels);
            break;
          default:
            add_values_band<4>(weights, values, stride, channel, most, begin, end, sums, channels);
            break;
        }
      }
      if (!band.is_even) {
        const int from = larger(band.common_end, start);
        for (int r = 0; r < band.count; ++r) add_row(r, from, stop);
      }
    }
  }
}

// Turns a row's scores into weights.
void weigh(Work& work, int row) {
  float* scores = work.scores + row * kAttentionSplit;
  const int first = work.begin[row] / kLanes * kLanes;
  const int end = work.end[row];
  if (work.batch.soft_cap != 0.0f) {
    const __m256 cap = _mm256_set1_ps(work.batch.soft_cap);
    const __m256 inverse = _mm256_set1_ps(1.0f / work.batch.soft_cap);
    for (int i = first; i < end; i += kLanes) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(scores + i), inverse);
      _mm256_storeu_ps(scores + i, _mm256_mul_ps(cap, tanh_f32(x)));
    }
  }
  const __m256 hidden = _mm256_set1_ps(-kInfinity);
  const __m256 before = _mm256_castsi256_ps(first_lanes(work.begin[row] - first));
  float* edge = scores + first;
  _mm256_storeu_ps(edge, _mm256_blendv_ps(_mm256_loadu_ps(edge), hidden, before));
  const int last = (end - 1) / kLanes * kLanes;
  const __m256 seen = _mm256_castsi256_ps(first_lanes(end - last));
  edge = scores + last;
  _mm256_storeu_ps(edge, _mm256_blendv_ps(hidden, _mm256_loadu_ps(edge), seen));

  __m256 peaks = hidden;
  for (int i = first; i < end; i += kLanes) {
    peaks = _mm256_max_ps(_mm256_loadu_ps(scores + i), peaks);
  }
  work.part_peak[row] = max_lanes(peaks);
  const __m256 peak = _mm256_set1_ps(work.part_peak[row]);
  __m256 sum = _mm256_setzero_ps();
  for (int i = first; i < end; i += kLanes) {
    const __m256 weight = exp_f32(_mm256_sub_ps(_mm256_loadu_ps(scores + i), peak));
    sum = _mm256_add_ps(sum, weight);
    _mm256_storeu_ps(scores + i, weight);
  }
  work.part_sum[row] = sum_lanes(sum);
}

void merge(Work& work, int row, bool is_first) {
  const float* part = work.part + row * work.channels;
  float* all = work.all + row * work.channels;
  if (is_first) {
    work.all_peak[row] = work.part_peak[row];
    work.all_sum[row] = work.part_sum[row];
    for (std::ptrdiff_t i = 0; i < work.channels; i += kLanes) {
      _mm256_storeu_ps(all + i, _mm256_loadu_ps(part + i));
    }
    return;
  }
  const float peak = work.all_peak[row] < work.part_peak[row] ? work.part_peak[row]
                                                              : work.all_peak[row];
  const __m256 old_share = exp_f32(_mm256_set1_ps(work.all_peak[row] - peak));
  const __m256 new_share = exp_f32(_mm256_set1_ps(work.part_peak[row] - peak));
  work.all_peak[row] = peak;
  const __m256 old_sum = _mm256_mul_ps(_mm256_set1_ps(work.all_sum[row]), old_share);
  work.all_sum[row] = _mm256_cvtss_f32(
      _mm256_fmadd_ps(_mm256_set1_ps(work.part_sum[row]), new_share, old_sum));
  for (std::ptrdiff_t i = 0; i < work.channels; i += kLanes) {
    const __m256 old = _mm256_mul_ps(_mm256_loadu_ps(all + i), old_share);
    _mm256_storeu_ps(all + i, _mm256_fmadd_ps(_mm256_loadu_ps(part + i), new_share, old));
  }
}

// What the rows see of the split at `split`.
void find_visible(Work& work, int split) {
  for (int row = 0; row < work.tile.num_rows; ++row) {
    work.begin[row] = clamp(work.tile.rows[row].begin - split, 0, kAttentionSplit);
    work.end[row] = clamp(work.tile.rows[row].end - split, 0, kAttentionSplit);
  }
  for (int i = 0; i < work.num_bands; ++i) {
    Band& band = work.bands[i];
    const int last = band.first + band.count - 1;
    band.common_begin = work.begin[last];
    band.common_end = work.end[band.first];
    band.is_even = work.begin[band.first] == band.common_begin && work.end[last] == band.common_end;
    // Nothing in common: every row by itself, all of it "before".
    if (band.common_begin >= band.common_end) band.common_begin = band.common_end = kAttentionSplit;
  }
}

// Attends to `work.split`, which starts at `start`. `work.next` is located on the way: it is of
// `next_tile`, if that is not null, from `next_start` on.
void attend_split(Work& work, int start, const AttentionTile* next_tile, int next_start) {
  find_visible(work, start);
  const int num_rows = work.tile.num_rows;
  const int begin = work.begin[0];
  const int end = work.end[num_rows - 1];
  const Located& split = work.split;
  for (int v = split.first; v < split.last; v += kKeyVectors) {
    const int stop = smaller(v + kKeyVectors, split.last);
    if (work.copies) {
      copy_keys(work, start, v, larger(begin, v * kLanes), smaller(end, stop * kLanes));
      score_step(work, v, stop, split.keys, kLanes);
    } else {
      prefetch_values(work, v, stop);
      score_step(work, v, stop, split.keys + v, work.batch.block_size);
    }
  }

  for (int row = 0; row < num_rows; ++row) {
    if (work.begin[row] < work.end[row]) weigh(work, row);
  }

  work.next.first = work.next.last = 0;
  if (next_tile != nullptr) locate(work, *next_tile, next_start, work.next);
  int called = work.next.first;
  for (std::ptrdiff_t i = 0; i < num_rows * work.channels; i += kLanes) {
    _mm256_storeu_ps(work.part + i, _mm256_setzero_ps());
  }
  for (int v = split.first; v < split.last; v += kValueVectors) {
    const int stop = smaller(v + kValueVectors, split.last);
    if (work.copies) {
      copy_values(work, start, v, larger(begin, v * kLanes), smaller(end, stop * kLanes));
      value_step(work, v, stop, split.values, work.channels);
    } else {
      const int to = stop == split.last ? work.next.last
                                        : smaller(called + kValueVectors, work.next.last);
      prefetch_keys(work, called, to);
      called = to;
      value_step(work, v, stop, split.values + v, work.head_dim);
    }
  }

  for (int row = 0; row < num_rows; ++row) {
    const bool is_first = work.tile.rows[row].begin >= start;
    if (work.begin[row] < work.end[row]) merge(work, row, is_first);
  }
}

void finish(const Work& work, int row) {
  const __m256 share = _mm256_set1_ps(1.0f / work.all_sum[row]);
  const float* all = work.all + row * work.channels;
  float* out = work.tile.rows[row].out;
  std::ptrdiff_t i = 0;
  for (; i + kLanes <= work.head_dim; i += kLanes) {
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(all + i), share));
  }
  if (i < work.head_dim) {
    const __m256i rest = first_lanes(static_cast<int>(work.head_dim - i));
    _mm256_maskstore_ps(out + i, rest, _mm256_mul_ps(_mm256_loadu_ps(all + i), share));
  }
}

int first_split(const AttentionTile& tile) { return tile.rows[0].begin / kAttentionSplit; }

// Leaves `work.split` at the start of `next_tile`, if there is one.
void attend(Work& work, const AttentionTile* next_tile) {
  work.num_bands = 0;
  for (int row = 0; row < work.tile.num_rows;) {
    Band& band = work.bands[work.num_bands++];
    band.first = row;
    band.count = band_rows(work.tile.num_rows - row);
    row += band.count;
  }
  const int last = (work.tile.rows[work.tile.num_rows - 1].end - 1) / kAttentionSplit;
  for (int split = first_split(work.tile); split <= last; ++split) {
    const int start = split * kAttentionSplit;
    if (split < last) {
      attend_split(work, start, &work.tile, start + kAttentionSplit);
    } else if (next_tile != nullptr) {
      attend_split(work, start, next_tile, first_split(*next_tile) * kAttentionSplit);
    } else {
      attend_split(work, start, nullptr, 0);
    }
    work.split = work.next;
  }
  for (int row = 0; row < work.tile.num_rows; ++row) finish(work, row);
}

void run_units(const AttentionBatch& batch, std::int64_t begin, std::int64_t end,
               float* workspace) {
  if (begin >= end) return;
  Work work(batch, workspace);
  AttentionCursor cursor = find_unit(batch, begin);
  next_tile(batch, cursor, work.tile);
  locate(work, work.tile, first_split(work.tile) * kAttentionSplit, work.split);
  for (std::int64_t unit = begin + 1; unit < end; ++unit) {
    AttentionTile next;
    next_tile(batch, cursor, next);
    attend(work, &next);
    work.tile = next;
  }
  attend(work, nullptr);
}

}  // namespace

const AttentionKernels* attention_avx2() {
  static constexpr AttentionKernels kKernels = {
      .name = "avx2",
      .run_units = run_units,
  };
  return &kKernels;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const AttentionKernels* attention_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
