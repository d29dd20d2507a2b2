// The kernels for x86-64 with AVX2, FMA and F16C.
//
// This file is compiled with those instructions, and the linker keeps one copy of an inline
// function whichever file it comes from. So all code here is in an anonymous namespace, and calls no
// function that a header defines for others too, the standard library's included.
#include "attention.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "attention_float_avx2.h"
#include "attention_integer_avx2.h"
#include "attention_split_avx2.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

float* slot_of(const AttentionWork& work, const AttentionRow& row, int kv_head,
               std::ptrdiff_t index) {
  const AttentionHome& home = work.homes[row.home];
  const std::ptrdiff_t slot = home.first_slot + std::ptrdiff_t{row.index} * home.slots_per_row;
  return work.slots + (kv_head * work.num_slots + slot + index) * work.slot_floats;
}

void copy(const float* from, float* to, std::ptrdiff_t count) {
  for (std::ptrdiff_t i = 0; i < count; i += kLanes) {
    _mm256_storeu_ps(to + i, _mm256_loadu_ps(from + i));
  }
}

// Merges the results of a split into those of all before.
template <typename T>
void merge_split(Attending<T>& at, int number) {
  const int num_rows = at.unit->num_rows;
  if (at.row_begin[0] >= number * kAttentionSplit) {  // nothing before, in no row
    float* part = at.part;
    at.part = at.all;
    at.all = part;
    for (int row = 0; row < num_rows; ++row) {
      at.all_peak[row] = at.part_peak[row];
      at.all_sum[row] = at.part_sum[row];
    }
    return;
  }
  float old_shares[kAttentionRows];
  float new_shares[kAttentionRows];
  for (int row = 0; row < num_rows; row += kLanes) {
    const __m256 old_peak = _mm256_loadu_ps(at.all_peak + row);
    const __m256 new_peak = _mm256_loadu_ps(at.part_peak + row);
    const __m256 peak = _mm256_max_ps(new_peak, old_peak);
    _mm256_storeu_ps(old_shares + row, weight_f32(_mm256_sub_ps(old_peak, peak)));
    _mm256_storeu_ps(new_shares + row, weight_f32(_mm256_sub_ps(new_peak, peak)));
  }
  for (int row = 0; row < num_rows; ++row) {
    if (at.begin[row] >= at.end[row]) continue;
    const float* part = at.part + row * at.channels;
    float* all = at.all + row * at.channels;
    if (at.row_begin[row] >= number * kAttentionSplit) {  // nothing before
      at.all_peak[row] = at.part_peak[row];
      at.all_sum[row] = at.part_sum[row];
      copy(part, all, at.channels);
      continue;
    }
    if (at.all_peak[row] < at.part_peak[row]) at.all_peak[row] = at.part_peak[row];
    const __m256 old_share = _mm256_broadcast_ss(old_shares + row);
    const __m256 new_share = _mm256_broadcast_ss(new_shares + row);
    const __m256 old_sum = _mm256_mul_ps(_mm256_broadcast_ss(at.all_sum + row), old_share);
    at.all_sum[row] = _mm256_cvtss_f32(
        _mm256_fmadd_ps(_mm256_broadcast_ss(at.part_sum + row), new_share, old_sum));
    for (std::ptrdiff_t i = 0; i < at.channels; i += kLanes) {
      const __m256 old = _mm256_mul_ps(_mm256_loadu_ps(all + i), old_share);
      _mm256_storeu_ps(all + i, _mm256_fmadd_ps(_mm256_loadu_ps(part + i), new_share, old));
    }
  }
}

void finish(const float* all, float sum, std::ptrdiff_t head_dim, float* out) {
  const __m256 share = _mm256_set1_ps(1.0f / sum);
  std::ptrdiff_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(all + i), share));
  }
  if (i < head_dim) {
    const __m256i rest = first_lanes(static_cast<int>(head_dim - i));
    _mm256_maskstore_ps(out + i, rest, _mm256_mul_ps(_mm256_loadu_ps(all + i), share));
  }
}

void leave(float peak, float sum, const float* values, std::ptrdiff_t channels, float* slot) {
  slot[0] = peak;
  slot[1] = sum;
  copy(values, slot + 8, channels);
}

// Merges what the units left of a home, split by split, and writes the results.
template <typename T>
void merge_home(const Attending<T>& at, int id) {
  const AttentionHome& home = at.work.homes[id];
  const int kv_head = at.unit->kv_head;
  for (int i = 0; i < home.num_rows; ++i) {
    const AttentionRow& row = at.work.rows[home.first_row + i];
    const int first = row.begin / kAttentionSplit;
    const int end = (row.end - 1) / kAttentionSplit + 1;
    int index = first < home.fold_end ? 0 : first - home.fold_end + 1;
    float* slot = slot_of(at.work, row, kv_head, index);
    float* all = slot + 8;
    float peak = slot[0];
    float sum = slot[1];
    while (++index <= end - home.fold_end) {
      slot += at.work.slot_floats;
      const float most = peak < slot[0] ? slot[0] : peak;
      const __m256 old_share = weight_f32(_mm256_set1_ps(peak - most));
      const __m256 new_share = weight_f32(_mm256_set1_ps(slot[0] - most));
      peak = most;
      const __m256 old_sum = _mm256_mul_ps(_mm256_set1_ps(sum), old_share);
      sum = _mm256_cvtss_f32(_mm256_fmadd_ps(_mm256_set1_ps(slot[1]), new_share, old_sum));
      for (std::ptrdiff_t c = 0; c < at.channels; c += kLanes) {
        const __m256 old = _mm256_mul_ps(_mm256_loadu_ps(all + c), old_share);
        _mm256_storeu_ps(all + c, _mm256_fmadd_ps(_mm256_loadu_ps(slot + 8 + c), new_share, old));
      }
    }
    finish(all, sum, at.head_dim, at.layer.out + offset_of(at.work, row, kv_head));
  }
}

// Leaves the results of a split, or of all splits, for others to merge.
template <typename T>
void leave_split(const Attending<T>& at, int number) {
  for (int row = 0; row < at.unit->num_rows; ++row) {
    if (at.begin[row] >= at.end[row]) continue;
    const int index = number - at.work.homes[at.rows[row].home].fold_end + 1;
    leave(at.part_peak[row], at.part_sum[row], at.part + row * at.channels, at.channels,
          slot_of(at.work, at.rows[row], at.unit->kv_head, index));
  }
}

template <typename T>
void leave_all(const Attending<T>& at) {
  for (int row = 0; row < at.unit->num_rows; ++row) {
    if (at.row_begin[row] >= at.row_end[row]) continue;
    leave(at.all_peak[row], at.all_sum[row], at.all + row * at.channels, at.channels,
          slot_of(at.work, at.rows[row], at.unit->kv_head, 0));
  }
}

// What a unit found goes where it belongs.
template <typename T>
void end(const Attending<T>& at) {
  const AttentionUnit& unit = *at.unit;
  if (unit.whole) {
    for (int row = 0; row < unit.num_rows; ++row) {
      finish(at.all + row * at.channels, at.all_sum[row], at.head_dim,
             at.layer.out + offset_of(at.work, at.rows[row], unit.kv_head));
    }
    return;
  }
  if (unit.folds) leave_all(at);
  for (int row = 0; row < unit.num_rows; ++row) {
    const int home = at.rows[row].home;
    if (row > 0 && home == at.rows[row - 1].home) continue;
    if (end_part(at.work, home, unit.kv_head)) merge_home(at, home);
  }
}

// How many units, from the first on, take turns.
int num_together(const AttentionUnit* first, const AttentionUnit* last) {
  int count = 1;
  for (const AttentionUnit* unit = first + 1; unit != last && count < kAttentionHeads; ++unit) {
    const bool is_same = unit->first_row == first->first_row &&
                         unit->first_split == first->first_split &&
                         unit->end_split == first->end_split;
    if (!is_same || (count + 1) * first->num_rows > kAttentionRows) break;
    ++count;
  }
  return count;
}

// Computes `count` units by turns. The first split of the first is located; locates that of the
// next one after them, if there is one.
template <typename T>
void attend(Attending<T>* at, const AttentionUnit* units, int count, const AttentionUnit* next) {
  for (int i = 0; i < count; ++i) {
    place_rows(at[i], i * units->num_rows);
    start(at[i], units[i]);
  }
  for (int split = units->first_split; split < units->end_split; ++split) {
    for (int i = 0; i < count; ++i) {
      const int other = i + 1 < count ? i + 1 : 0;
      if (other > 0) {
        attend_split(at[i], split, &units[other], split);
      } else if (split + 1 < units->end_split) {
        attend_split(at[i], split, units, split + 1);
      } else {
        attend_split(at[i], split, next, next != nullptr ? next->first_split : 0);
      }
      if (units->folds) {
        merge_split(at[i], split);
      } else {
        leave_split(at[i], split);
      }
      at[other].split = at[i].next;
    }
  }
  for (int i = 0; i < count; ++i) end(at[i]);
}

template <typename T>
void run_units(const AttentionLayer& layer, const AttentionWork& work, const AttentionUnit* first,
               const AttentionUnit* last, float* workspace) {
  if (first == last) return;
  Attending<T> at[kAttentionHeads] = {{layer, work, workspace},
                                      {layer, work, workspace},
                                      {layer, work, workspace},
                                      {layer, work, workspace}};
  locate(at[0], *first, first->first_split, at[0].split);
  while (first != last) {
    const int count = num_together(first, last);
    const AttentionUnit* next = first + count;
    attend(at, first, count, next != last ? next : nullptr);
    first = next;
  }
}

void run_tasks(const AttentionLayer& layer, const AttentionWork& work, std::int64_t begin,
               std::int64_t end, float* workspace) {
  const AttentionUnit* first = work.units + work.task_begins[begin];
  const AttentionUnit* last = work.units + work.task_begins[end];
  switch (layer.type) {
    case KVType::f32: run_units<float>(layer, work, first, last, workspace); return;
    case KVType::f16: run_units<std::uint16_t>(layer, work, first, last, workspace); return;
    case KVType::int16: run_units<std::int16_t>(layer, work, first, last, workspace); return;
    case KVType::int8: run_units<std::int8_t>(layer, work, first, last, workspace); return;
  }
}

}  // namespace

const AttentionKernels* attention_avx2() {
  static constexpr AttentionKernels kKernels = {
      .name = "avx2",
      .run_tasks = run_tasks,
  };
  return &kKernels;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const AttentionKernels* attention_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
