// Attention over keys and values in paged blocks (Kwon et al., 2023), reading them where they lie.
//
//     positions        0 ......... 127 | 128 ....... 255 | 256 ...     in splits
//     rows of a unit   token 0: the query heads of one KV head | token 1: the same heads | ...
//     a unit           some rows over some splits, of one KV head: what is read serves all its rows
//     a task           a few units, one after another, on one thread
//
// What the units are is planned once per step, for all layers (`attention_plan.h`). A row's
// arithmetic follows from its position alone (see `layout.md`): it is the same however the work is
// cut, for any placement of the blocks, and for any block size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kv_type.h"

namespace looseleaf {

inline constexpr std::int32_t kAttentionRows = 48;    // of a unit, at most
inline constexpr std::int32_t kAttentionSplit = 128;  // positions; part of the arithmetic
// KV heads of a block lie side by side, and are read fastest together: so units that differ in
// nothing else take turns, split by split, if they follow one another in a task and have no more
// rows than one unit may have. This many, at most.
inline constexpr std::int32_t kAttentionHeads = 4;

// What all layers that share a plan have in common.
struct AttentionShape {
  std::int32_t num_heads;
  std::int32_t num_kv_heads;  // query head h reads KV head h / (num_heads / num_kv_heads)
  std::int32_t head_dim;      // fast if a multiple of 8
  std::int32_t block_size;    // fast if a multiple of 8
  std::int32_t window;        // positions a query sees, its own included; 0: all
};

// The new tokens of one sequence. Their keys and values are in the cache already.
struct AttentionSequence {
  const std::int32_t* block_table;  // entries before the window of the first token are not read
  std::int64_t first_row;           // of `queries` and `out`
  std::int32_t first_position;
  std::int32_t num_tokens;
};

// One layer of a step.
struct AttentionLayer {
  float scale;
  float soft_cap;  // scores become soft_cap * tanh(score / soft_cap); 0: they stay
  KVType type;     // of keys and values
  const float* queries;  // [row][num_heads * head_dim]
  const void* keys;      // [block][kv_head][head_dim][block_size]
  const void* values;    // [block][kv_head][block_size][head_dim]
  float* out;            // [row][num_heads * head_dim]
};

// One query head of one token. Rows are listed for KV head 0; for the next one, `offset` is as many
// heads further on as share a KV head.
struct AttentionRow {
  std::int64_t offset;  // in `queries` and `out`
  std::int32_t begin;   // the positions it sees: begin .. end - 1
  std::int32_t end;
  std::int32_t home;
  std::int32_t index;  // in its home
};

// Some rows of one sequence whose results come together. Where several units have a part in them,
// each leaves what it found in `slots` of floats, and the last one to end merges them:
//
//     slot 0   | the splits before `fold_end`, merged already (if a row sees any of them)
//     slot 1   | split `fold_end`
//     slot 2   | split `fold_end + 1` ...                 slots of a row follow one another
struct AttentionHome {
  std::int64_t first_slot;
  std::int32_t first_row;
  std::int32_t num_rows;
  std::int32_t first_split;
  std::int32_t end_split;
  std::int32_t fold_end;
  std::int32_t slots_per_row;
  std::int32_t num_units;  // that have a part in it
};

// Rows over the splits first_split .. end_split - 1, for one KV head. In rows of one sequence,
// `begin` and `end` never fall from one to the next; rows of several see all of these splits.
struct AttentionUnit {
  const std::int32_t* block_table;
  std::int32_t first_row;
  std::int32_t num_rows;
  std::int32_t first_split;
  std::int32_t end_split;
  std::int32_t kv_head;
  bool folds;  // nothing comes before it: its splits are merged as they come
  bool whole;  // nothing comes after it either: it writes the result
};

// A plan as the kernels see it.
struct AttentionWork {
  AttentionShape shape;
  const AttentionUnit* units;
  const std::int64_t* task_begins;  // [num_tasks + 1]: first unit of each
  const AttentionRow* rows;
  const AttentionHome* homes;
  std::int32_t* pending;     // [home][kv_head]: units that have not ended
  float* slots;              // [kv_head][slot][slot_floats]: maximum, sum, 6 unused, then channels
  std::int64_t num_slots;    // per KV head
  std::int64_t slot_floats;  // 8 + head_dim, rounded up to a multiple of 8
};

// Floats of working memory that each thread needs.
std::size_t workspace_floats(const AttentionShape& shape);

struct AttentionKernels {
  const char* name;

  // Compute the tasks begin .. end - 1. Calls with different tasks may run at the same time, each
  // with a workspace of its own; all tasks of one layer must have ended before the next begins.
  void (*run_tasks)(const AttentionLayer& layer, const AttentionWork& work, std::int64_t begin,
                    std::int64_t end, float* workspace);
};

// For the kernels: one unit of those that have a part in a home has ended. True if it was the last,
// which then merges; the count is set for the next layer.
bool end_part(const AttentionWork& work, std::int32_t home, std::int32_t kv_head);

// The fastest kernels that this processor can run.
const AttentionKernels& attention_kernels();

// The kernels called "portable" or "avx2"; null if there are none of that name, or if this
// processor cannot run them.
const AttentionKernels* attention_kernels(std::string_view name);

// The tables themselves, which ask nothing of the processor. `attention_avx2` is null where it was
// compiled without AVX2.
const AttentionKernels* attention_portable();
const AttentionKernels* attention_avx2();

}  // namespace looseleaf
