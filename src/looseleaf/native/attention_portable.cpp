#include <algorithm>
#include <cmath>
#include <cstddef>

#include "attention.h"
#include "cpu.h"
#include "half.h"
#include "kv_integer.h"
#include "vecmath.h"

namespace looseleaf {

namespace {

float number(float x) { return x; }
float number(std::uint16_t x) { return f32_from_f16(x); }

// Running maximum, sum of weights and weighted values of a row: over a split, or over several.
struct Partial {
  float peak;
  float sum;
  float* values;
};

// A unit at work. `T` is the type of the cache.
template <typename T>
struct Attending {
  const AttentionLayer& layer;
  const AttentionWork& work;
  const AttentionUnit& unit;
  float* scores;  // of one row in one split, then weights

  const T* head_of(const void* cache, std::ptrdiff_t position) const {
    const AttentionShape& shape = work.shape;
    const std::ptrdiff_t block = unit.block_table[position / shape.block_size];
    const std::ptrdiff_t head = block * shape.num_kv_heads + unit.kv_head;
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(cache) +
                                      head * kv_head_bytes(layer.type, shape.head_dim,
                                                           shape.block_size));
  }
};

std::ptrdiff_t offset_of(const AttentionShape& shape, const AttentionRow& row,
                         std::int32_t kv_head) {
  const std::ptrdiff_t group = shape.num_heads / shape.num_kv_heads;
  return row.offset + kv_head * group * shape.head_dim;
}

// What the scores of a split become: weights, their maximum and their sum.
void weigh(const AttentionLayer& layer, float* scores, std::ptrdiff_t begin, std::ptrdiff_t end,
           Partial& part) {
  part.peak = -kInfinity;
  const float cap = layer.soft_cap;
  for (std::ptrdiff_t i = begin; i < end; ++i) {
    if (cap != 0.0f) scores[i] = cap * tanh_f32(scores[i] * (1.0f / cap));
    part.peak = std::max(part.peak, scores[i]);
  }
  float lanes[8] = {};
  for (std::ptrdiff_t i = begin; i < end; ++i) {
    scores[i] = weight_f32(scores[i] - part.peak);
    lanes[i % 8] += scores[i];
  }
  part.sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
             ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// One row over the positions begin .. end - 1, which lie in one split.
template <typename T>
void attend_split(const Attending<T>& at, const float* query, std::ptrdiff_t begin,
                  std::ptrdiff_t end, Partial& part) {
  const std::ptrdiff_t head_dim = at.work.shape.head_dim;
  const std::ptrdiff_t block_size = at.work.shape.block_size;
  const std::ptrdiff_t split = begin / kAttentionSplit * kAttentionSplit;
  float* scores = at.scores;
  for (std::ptrdiff_t p = begin; p < end;) {
    const std::ptrdiff_t offset = p % block_size;
    const std::ptrdiff_t count = std::min(block_size - offset, end - p);
    const T* keys = at.head_of(at.layer.keys, p) + offset;
    float* score = scores + (p - split);
    std::fill(score, score + count, 0.0f);
    for (std::ptrdiff_t channel = 0; channel < head_dim; ++channel) {
      const float q = query[channel];
      for (std::ptrdiff_t i = 0; i < count; ++i) score[i] = std::fma(q, number(keys[i]), score[i]);
      keys += block_size;
    }
    for (std::ptrdiff_t i = 0; i < count; ++i) score[i] *= at.layer.scale;
    p += count;
  }
  weigh(at.layer, scores, begin - split, end - split, part);
  std::fill(part.values, part.values + head_dim, 0.0f);
  for (std::ptrdiff_t p = begin; p < end; ++p) {
    const float weight = scores[p - split];
    const T* values = at.head_of(at.layer.values, p) + p % block_size * head_dim;
    for (std::ptrdiff_t channel = 0; channel < head_dim; ++channel) {
      part.values[channel] = std::fma(weight, number(values[channel]), part.values[channel]);
    }
  }
}

template <typename T>
const float* scales_of(const AttentionShape& shape, const T* head) {
  return reinterpret_cast<const float*>(head + std::ptrdiff_t{shape.head_dim} * shape.block_size);
}

// The same in integers.
template <typename T>
  requires kIsInteger<T>
void attend_split(const Attending<T>& at, const float* query, std::ptrdiff_t begin,
                  std::ptrdiff_t end, Partial& part) {
  const AttentionShape& shape = at.work.shape;
  const std::ptrdiff_t head_dim = shape.head_dim;
  const std::ptrdiff_t block_size = shape.block_size;
  const std::ptrdiff_t split = begin / kAttentionSplit * kAttentionSplit;
  float* scores = at.scores - split;  // by position

  std::fill(scores + begin, scores + end, 0.0f);
  const IntegerScale of_query = integer_scale(largest_magnitude(query, head_dim), kQueryMost);
  for (std::ptrdiff_t first = 0; first < head_dim; first += kKeyGroup) {
    const std::ptrdiff_t count = std::min<std::ptrdiff_t>(kKeyGroup, head_dim - first);
    std::int16_t queries[kKeyGroup];
    for (std::ptrdiff_t i = 0; i < count; ++i) queries[i] = to_integer(query[first + i], of_query);
    for (std::ptrdiff_t p = begin; p < end; ++p) {
      const T* keys = at.head_of(at.layer.keys, p) + p % block_size * 2;
      std::int32_t sum = 0;
      for (std::ptrdiff_t i = 0; i < count; ++i) {
        sum += queries[i] * keys[(first + i) / 2 * block_size * 2 + i % 2];
      }
      scores[p] += static_cast<float>(sum);
    }
  }
  const float factor = of_query.scale * at.layer.scale;
  for (std::ptrdiff_t p = begin; p < end; ++p) {
    const float* scales = scales_of(shape, at.head_of(at.layer.keys, p));
    scores[p] *= scales[p % block_size] * factor;
  }

  weigh(at.layer, at.scores, begin - split, end - split, part);

  std::fill(part.values, part.values + head_dim, 0.0f);
  for (std::ptrdiff_t first = begin; first < end;) {
    const std::ptrdiff_t last = std::min<std::ptrdiff_t>((first / kWeightGroup + 1) * kWeightGroup, end);
    for (std::ptrdiff_t p = first; p < last; ++p) {
      scores[p] *= scales_of(shape, at.head_of(at.layer.values, p))[p % block_size];
    }
    const IntegerScale scale =
        integer_scale(largest_magnitude(scores + first, last - first), kWeightMost);
    std::int16_t weights[kWeightGroup];
    for (std::ptrdiff_t p = first; p < last; ++p) weights[p - first] = to_integer(scores[p], scale);
    for (std::ptrdiff_t channel = 0; channel < head_dim; ++channel) {
      std::int32_t sum = 0;
      for (std::ptrdiff_t p = first; p < last; ++p) {
        const std::ptrdiff_t offset = p % block_size;
        const T* values = at.head_of(at.layer.values, p);
        sum += weights[p - first] * values[(offset / 2 * head_dim + channel) * 2 + offset % 2];
      }
      part.values[channel] = std::fma(static_cast<float>(sum), scale.scale, part.values[channel]);
    }
    first = last;
  }
}

void merge(std::ptrdiff_t head_dim, const Partial& part, Partial& all) {
  const float peak = std::max(all.peak, part.peak);
  const float old_share = weight_f32(all.peak - peak);
  const float new_share = weight_f32(part.peak - peak);
  all.peak = peak;
  all.sum = std::fma(part.sum, new_share, all.sum * old_share);
  for (std::ptrdiff_t i = 0; i < head_dim; ++i) {
    all.values[i] = std::fma(part.values[i], new_share, all.values[i] * old_share);
  }
}

void finish(std::ptrdiff_t head_dim, const Partial& all, float* out) {
  const float share = 1.0f / all.sum;
  for (std::ptrdiff_t i = 0; i < head_dim; ++i) out[i] = all.values[i] * share;
}

float* slot_of(const AttentionWork& work, const AttentionRow& row, std::int32_t kv_head,
               std::ptrdiff_t index) {
  const AttentionHome& home = work.homes[row.home];
  const std::ptrdiff_t slot = home.first_slot + std::ptrdiff_t{row.index} * home.slots_per_row;
  return work.slots + (kv_head * work.num_slots + slot + index) * work.slot_floats;
}

void leave(std::ptrdiff_t head_dim, const Partial& part, float* slot) {
  slot[0] = part.peak;
  slot[1] = part.sum;
  std::copy(part.values, part.values + head_dim, slot + 8);
}

void merge_home(const AttentionLayer& layer, const AttentionWork& work, std::int32_t id,
                std::int32_t kv_head) {
  const AttentionHome& home = work.homes[id];
  for (std::int32_t i = 0; i < home.num_rows; ++i) {
    const AttentionRow& row = work.rows[home.first_row + i];
    const std::ptrdiff_t first = row.begin / kAttentionSplit;
    const std::ptrdiff_t end = (row.end - 1) / kAttentionSplit + 1;
    std::ptrdiff_t next = first < home.fold_end ? 0 : first - home.fold_end + 1;
    float* slot = slot_of(work, row, kv_head, next);
    Partial all = {slot[0], slot[1], slot + 8};
    while (++next <= end - home.fold_end) {
      slot += work.slot_floats;
      merge(work.shape.head_dim, {slot[0], slot[1], slot + 8}, all);
    }
    finish(work.shape.head_dim, all, layer.out + offset_of(work.shape, row, kv_head));
  }
}

template <typename T>
void attend(const Attending<T>& at, const AttentionRow& row) {
  const AttentionUnit& unit = at.unit;
  const std::ptrdiff_t head_dim = at.work.shape.head_dim;
  const std::ptrdiff_t offset = offset_of(at.work.shape, row, unit.kv_head);
  const std::int32_t first = std::max(row.begin, unit.first_split * kAttentionSplit);
  const std::int32_t last = std::min(row.end, unit.end_split * kAttentionSplit);
  if (first >= last) return;
  Partial part = {0.0f, 0.0f, at.scores + kAttentionSplit};
  Partial all = {0.0f, 0.0f, part.values + head_dim};
  for (std::int32_t begin = first; begin < last;) {
    const std::int32_t split = begin / kAttentionSplit;
    const std::int32_t end = std::min((split + 1) * kAttentionSplit, last);
    if (!unit.folds) {
      attend_split(at, at.layer.queries + offset, begin, end, part);
      const std::int32_t index = split - at.work.homes[row.home].fold_end + 1;
      leave(head_dim, part, slot_of(at.work, row, unit.kv_head, index));
    } else if (begin == first) {
      attend_split(at, at.layer.queries + offset, begin, end, all);
    } else {
      attend_split(at, at.layer.queries + offset, begin, end, part);
      merge(head_dim, part, all);
    }
    begin = end;
  }
  if (unit.whole) {
    finish(head_dim, all, at.layer.out + offset);
  } else if (unit.folds) {
    leave(head_dim, all, slot_of(at.work, row, unit.kv_head, 0));
  }
}

template <typename T>
void run_units(const AttentionLayer& layer, const AttentionWork& work, std::int64_t begin,
               std::int64_t end, float* workspace) {
  for (std::int64_t i = begin; i < end; ++i) {
    const AttentionUnit& unit = work.units[i];
    const Attending<T> at = {layer, work, unit, workspace};
    const AttentionRow* rows = work.rows + unit.first_row;
    for (std::int32_t row = 0; row < unit.num_rows; ++row) attend(at, rows[row]);
    if (unit.whole) continue;
    for (std::int32_t row = 0; row < unit.num_rows; ++row) {
      const std::int32_t home = rows[row].home;
      if (row > 0 && home == rows[row - 1].home) continue;
      if (end_part(work, home, unit.kv_head)) merge_home(layer, work, home, unit.kv_head);
    }
  }
}

void run_tasks(const AttentionLayer& layer, const AttentionWork& work, std::int64_t begin,
               std::int64_t end, float* workspace) {
  const std::int64_t first = work.task_begins[begin];
  const std::int64_t last = work.task_begins[end];
  switch (layer.type) {
    case KVType::f32: run_units<float>(layer, work, first, last, workspace); return;
    case KVType::f16: run_units<std::uint16_t>(layer, work, first, last, workspace); return;
    case KVType::int16: run_units<std::int16_t>(layer, work, first, last, workspace); return;
    case KVType::int8: run_units<std::int8_t>(layer, work, first, last, workspace); return;
  }
}

}  // namespace

std::size_t workspace_floats(const AttentionShape& shape) {
  // Per row: its query, scores, values of a split and of several. Once: keys of 32 positions in all
  // channels, or values of 64 positions in 32 channels.
  const std::size_t channels = (static_cast<std::size_t>(shape.head_dim) + 7) / 8 * 8;
  const std::size_t copied = std::max<std::size_t>(32 * channels, 64 * 32);
  return kAttentionRows * (kAttentionSplit + 16 + 3 * channels) + copied + 16;
}

const AttentionKernels* attention_portable() {
  static constexpr AttentionKernels kKernels = {
      .name = "portable",
      .run_tasks = run_tasks,
  };
  return &kKernels;
}

const AttentionKernels* attention_kernels(std::string_view name) {
  if (name == "portable") return attention_portable();
  return name == "avx2" && runs_avx2_kernels() ? attention_avx2() : nullptr;
}

const AttentionKernels& attention_kernels() {
  const AttentionKernels* avx2 = attention_kernels("avx2");
  return avx2 != nullptr ? *avx2 : *attention_portable();
}

}  // namespace looseleaf
