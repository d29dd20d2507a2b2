// Attention over keys and values in paged blocks (Kwon et al., 2023), reading them where they lie.
//
//     rows of a tile   token 0: the query heads of one KV head | token 1: the same heads | ...
//     positions        0 ......... 255 | 256 ....... 511 | 512 ...     in splits
//     steps            | 0 .. 31 | 32 .. 63 | ...                      a step serves all rows
//
// The work is cut into units: a unit is a tile of at most `kAttentionRows` query rows of one
// sequence and one KV head, so that what is read of the cache serves all of them. A row's arithmetic
// follows from its position alone (see `layout.md`): it is the same in any tile, chunk or batch, for
// any placement of the blocks, and for any block size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace looseleaf {

inline constexpr std::int32_t kAttentionRows = 24;
inline constexpr std::int32_t kAttentionSplit = 256;  // positions; part of the arithmetic

// The new tokens of one sequence. Their keys and values are in the cache already.
struct AttentionSequence {
  const std::int32_t* block_table;  // entries before the window of the first token are not read
  std::int64_t first_row;           // of `queries` and `out`
  std::int32_t first_position;
  std::int32_t num_tokens;
};

// One layer of a step.
struct AttentionBatch {
  std::int32_t num_heads;
  std::int32_t num_kv_heads;  // query head h reads KV head h / (num_heads / num_kv_heads)
  std::int32_t head_dim;      // fast if a multiple of 8
  std::int32_t block_size;    // fast if a multiple of 8
  float scale;
  float soft_cap;       // scores become soft_cap * tanh(score / soft_cap); 0: they stay
  std::int32_t window;  // positions a query sees, its own included; 0: all
  std::int32_t num_sequences;
  const AttentionSequence* sequences;
  const float* queries;  // [row][num_heads * head_dim]
  const float* keys;     // [block][kv_head][head_dim][block_size]
  const float* values;   // [block][kv_head][block_size][head_dim]
  float* out;            // [row][num_heads * head_dim]
};

// One query head of one token.
struct AttentionRow {
  const float* query;
  float* out;
  std::int32_t begin;  // the positions it sees: begin .. end - 1
  std::int32_t end;
};

// What a unit computes. `begin` and `end` of the rows never fall from one row to the next.
struct AttentionTile {
  const std::int32_t* block_table;
  std::int32_t kv_head;
  std::int32_t num_rows;
  AttentionRow rows[kAttentionRows];
};

// Where a unit is: in sequence `sequence`, the `unit`-th of its own.
struct AttentionCursor {
  std::int32_t sequence;
  std::int64_t unit;
};

// How many units there are to share among threads. Those of a sequence follow one another, and
// among them those of a KV head, earlier tokens first (the later, the longer they take).
std::int64_t num_units(const AttentionBatch& batch);

// Floats of working memory that each thread needs.
std::size_t workspace_floats(const AttentionBatch& batch);

struct AttentionKernels {
  const char* name;

  // Compute the units begin .. end - 1. Calls with different units may run at the same time, each
  // with a workspace of its own. A few units a call are best: the next one's keys are prefetched.
  void (*run_units)(const AttentionBatch& batch, std::int64_t begin, std::int64_t end,
                    float* workspace);
};

// For the kernels: the unit `index`, and the tile at a cursor, which moves on to the next.
AttentionCursor find_unit(const AttentionBatch& batch, std::int64_t index);
void next_tile(const AttentionBatch& batch, AttentionCursor& cursor, AttentionTile& tile);

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
