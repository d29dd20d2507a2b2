#include "attention.h"

#include <algorithm>
#include <cmath>

#include "cpu.h"
#include "vecmath.h"

namespace looseleaf {

namespace {

std::int64_t num_tiles(const AttentionBatch& batch, const AttentionSequence& sequence) {
  const std::int64_t group = batch.num_heads / batch.num_kv_heads;
  return (sequence.num_tokens * group + kAttentionRows - 1) / kAttentionRows;
}

// Running maximum, sum of weights and weighted values of a row: over a split, or over all so far.
struct Partial {
  float peak;
  float sum;
  float* values;
};

// One row over the positions begin .. end - 1, which lie in one split. `scores` has room for one.
void attend_split(const AttentionBatch& batch, const AttentionTile& tile, const AttentionRow& row,
                  std::ptrdiff_t begin, std::ptrdiff_t end, float* scores, Partial& part) {
  const std::ptrdiff_t head_dim = batch.head_dim;
  const std::ptrdiff_t block_size = batch.block_size;
  const std::ptrdiff_t split = begin / kAttentionSplit * kAttentionSplit;
  const auto head_of = [&](const float* cache, std::ptrdiff_t position) {
    const std::ptrdiff_t block = tile.block_table[position / block_size];
    return cache + (block * batch.num_kv_heads + tile.kv_head) * head_dim * block_size;
  };

  for (std::ptrdiff_t p = begin; p < end;) {
    const std::ptrdiff_t offset = p % block_size;
    const std::ptrdiff_t count = std::min(block_size - offset, end - p);
    const float* keys = head_of(batch.keys, p) + offset;
    float* score = scores + (p - split);
    std::fill(score, score + count, 0.0f);
    for (std::ptrdiff_t channel = 0; channel < head_dim; ++channel) {
      const float q = row.query[channel];
      for (std::ptrdiff_t i = 0; i < count; ++i) score[i] = std::fma(q, keys[i], score[i]);
      keys += block_size;
    }
    p += count;
  }

  part.peak = -kInfinity;
  for (std::ptrdiff_t i = begin - split; i < end - split; ++i) {
    scores[i] *= batch.scale;
    if (batch.soft_cap != 0.0f) {
      scores[i] = batch.soft_cap * tanh_f32(scores[i] * (1.0f / batch.soft_cap));
    }
    part.peak = std::max(part.peak, scores[i]);
  }

  float lanes[8] = {};
  for (std::ptrdiff_t i = begin - split; i < end - split; ++i) {
    scores[i] = exp_f32(scores[i] - part.peak);
    lanes[i % 8] += scores[i];
  }
  part.sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
             ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));

  std::fill(part.values, part.values + head_dim, 0.0f);
  for (std::ptrdiff_t p = begin; p < end; ++p) {
    const float weight = scores[p - split];
    const float* values = head_of(batch.values, p) + p % block_size * head_dim;
    for (std::ptrdiff_t channel = 0; channel < head_dim; ++channel) {
      part.values[channel] = std::fma(weight, values[channel], part.values[channel]);
    }
  }
}

void merge(std::ptrdiff_t head_dim, const Partial& part, Partial& all) {
  const float peak = std::max(all.peak, part.peak);
  const float old_share = exp_f32(all.peak - peak);
  const float new_share = exp_f32(part.peak - peak);
  all.peak = peak;
  all.sum = std::fma(part.sum, new_share, all.sum * old_share);
  for (std::ptrdiff_t i = 0; i < head_dim; ++i) {
    all.values[i] = std::fma(part.values[i], new_share, all.values[i] * old_share);
  }
}

void attend(const AttentionBatch& batch, const AttentionTile& tile, const AttentionRow& row,
            float* workspace) {
  const std::ptrdiff_t head_dim = batch.head_dim;
  float* scores = workspace;
  Partial part = {0.0f, 0.0f, scores + kAttentionSplit};
  Partial all = {0.0f, 0.0f, part.values + head_dim};
  for (std::ptrdiff_t begin = row.begin; begin < row.end;) {
    const std::ptrdiff_t split_end = (begin / kAttentionSplit + 1) * kAttentionSplit;
    const std::ptrdiff_t end = std::min<std::ptrdiff_t>(split_end, row.end);
    if (begin == row.begin) {
      attend_split(batch, tile, row, begin, end, scores, all);
    } else {
      attend_split(batch, tile, row, begin, end, scores, part);
      merge(head_dim, part, all);
    }
    begin = end;
  }
  const float share = 1.0f / all.sum;
  for (std::ptrdiff_t i = 0; i < head_dim; ++i) row.out[i] = all.values[i] * share;
}

void run_units(const AttentionBatch& batch, std::int64_t begin, std::int64_t end,
               float* workspace) {
  if (begin >= end) return;
  AttentionCursor cursor = find_unit(batch, begin);
  AttentionTile tile;
  for (std::int64_t unit = begin; unit < end; ++unit) {
    next_tile(batch, cursor, tile);
    for (std::int32_t i = 0; i < tile.num_rows; ++i) attend(batch, tile, tile.rows[i], workspace);
  }
}

}  // namespace

std::int64_t num_units(const AttentionBatch& batch) {
  std::int64_t total = 0;
  for (std::int32_t i = 0; i < batch.num_sequences; ++i) {
    total += num_tiles(batch, batch.sequences[i]) * batch.num_kv_heads;
  }
  return total;
}

std::size_t workspace_floats(const AttentionBatch& batch) {
  // Per row: scores, values of a split and of all. Once: values of 64 positions or keys of 32, in
  // order.
  const std::size_t channels = (static_cast<std::size_t>(batch.head_dim) + 7) / 8 * 8;
  return kAttentionRows * (kAttentionSplit + 2 * channels) + 64 * channels + 16;
}

AttentionCursor find_unit(const AttentionBatch& batch, std::int64_t index) {
  AttentionCursor cursor = {0, index};
  for (; cursor.sequence < batch.num_sequences; ++cursor.sequence) {
    const std::int64_t units =
        num_tiles(batch, batch.sequences[cursor.sequence]) * batch.num_kv_heads;
    if (cursor.unit < units) break;
    cursor.unit -= units;
  }
  return cursor;
}

void next_tile(const AttentionBatch& batch, AttentionCursor& cursor, AttentionTile& tile) {
  while (batch.sequences[cursor.sequence].num_tokens == 0) ++cursor.sequence;
  const AttentionSequence& sequence = batch.sequences[cursor.sequence];
  const std::int64_t tiles = num_tiles(batch, sequence);
  const std::int32_t group = batch.num_heads / batch.num_kv_heads;
  tile.block_table = sequence.block_table;
  tile.kv_head = static_cast<std::int32_t>(cursor.unit / tiles);
  const std::int64_t first = cursor.unit % tiles * kAttentionRows;
  const std::int64_t rows_left = std::int64_t{sequence.num_tokens} * group - first;
  tile.num_rows = static_cast<std::int32_t>(std::min<std::int64_t>(kAttentionRows, rows_left));
  for (std::int32_t i = 0; i < tile.num_rows; ++i) {
    const std::int64_t token = (first + i) / group;
    const std::int64_t head = std::int64_t{tile.kv_head} * group + (first + i) % group;
    const std::int64_t start =
        ((sequence.first_row + token) * batch.num_heads + head) * batch.head_dim;
    const std::int32_t end = sequence.first_position + static_cast<std::int32_t>(token) + 1;
    const std::int32_t begin = batch.window > 0 ? std::max(0, end - batch.window) : 0;
    tile.rows[i] = {batch.queries + start, batch.out + start, begin, end};
  }
  if (++cursor.unit == tiles * batch.num_kv_heads) cursor = {cursor.sequence + 1, 0};
}

const AttentionKernels* attention_portable() {
  static constexpr AttentionKernels kKernels = {
      .name = "portable",
      .run_units = run_units,
  };
  return &kKernels;
}

const AttentionKernels* attention_kernels(std::string_view name) {
  if (name == "portable") return attention_portable();
  if (name != "avx2") return nullptr;
  int missing = 2;
  for (const auto& [feature, supported] : cpu_features()) {
    if (supported && (feature == "avx2" || feature == "fma")) --missing;
  }
  return missing == 0 ? attention_avx2() : nullptr;
}

const AttentionKernels& attention_kernels() {
  const AttentionKernels* avx2 = attention_kernels("avx2");
  return avx2 != nullptr ? *avx2 : *attention_portable();
}

}  // namespace looseleaf
