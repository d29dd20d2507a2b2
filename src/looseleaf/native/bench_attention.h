// A measurement of attention alone, as one layer of a decoding step has it.
#pragma once

#include <cstdint>

#include "kv_type.h"

namespace looseleaf {

struct AttentionBench {
  std::int32_t num_sequences;
  std::int32_t context;  // positions that each sequence's new token sees, its own included
  std::int32_t shared;   // of these, the first ones that all sequences have in the same blocks
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  bool contiguous;  // a sequence's blocks lie one after another, in order; else they are shuffled
  KVType type;
};

// Seconds per call, the mean of `repeats`, with one new token for each sequence. Planning is not
// timed: a model plans once for all its layers. Only whole blocks are shared.
double bench_attention(const AttentionBench& bench, int num_threads, int repeats);

}  // namespace looseleaf
