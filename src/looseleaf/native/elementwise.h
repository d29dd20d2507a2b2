// What happens to rows of floats between matrix products, and the write into the paged cache.
//
// Layouts and orders of arithmetic are those of `layout.md`: every table gives the same bits. No
// kernel allocates or keeps anything; threads share the work by calling with parts of the rows.
#pragma once

#include <cstdint>
#include <string_view>

#include "kv_type.h"

namespace looseleaf {

// Keys and values of one layer, and where new rows go: slot = block * block_size + offset.
struct KVWrite {
  const float* keys;    // [num_tokens][num_kv_heads * head_dim], rotated
  const float* values;  // the same
  const std::int64_t* slots;  // [num_tokens], all different
  std::int64_t num_tokens;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  KVType type;        // of the caches
  void* key_cache;    // [block][kv_head][head_dim][block_size]
  void* value_cache;  // [block][kv_head][block_size][head_dim]
};

// The heads of some rows, and tables of the rotation's cosines and sines (scaling included).
struct RopeCall {
  float* rows;  // changed in place: [num_tokens][row_stride], heads at the start of each row
  std::int64_t num_tokens;
  std::int64_t row_stride;  // in floats
  std::int32_t num_heads;
  std::int32_t head_dim;
  std::int32_t rotary_dim;  // even, at most head_dim; channels from there on stay as they are
  const std::int32_t* positions;  // [num_tokens]
  const float* cosines;           // [position][rotary_dim / 2]
  const float* sines;             // the same
};

struct ElementwiseKernels {
  const char* name;

  // out = x / sqrt(mean(x^2) + eps) * weight for each row of `num_columns`. `out` may be `x`.
  void (*rms_norm)(const float* x, const float* weight, float* out, std::int64_t num_rows,
                   std::int64_t num_columns, float eps);

  // out = silu(gate) * up. `out` may be either.
  void (*silu_mul)(const float* gate, const float* up, float* out, std::int64_t count);

  // out = left + right. `out` may be either.
  void (*add)(const float* left, const float* right, float* out, std::int64_t count);

  void (*rope)(const RopeCall& call);

  void (*write_kv)(const KVWrite& call);
};

// The fastest kernels that this processor can run.
const ElementwiseKernels& elementwise_kernels();

// The kernels called "portable" or "avx2"; null if there are none of that name, or if this
// processor cannot run them.
const ElementwiseKernels* elementwise_kernels(std::string_view name);

// The tables themselves, which ask nothing of the processor. `elementwise_avx2` is null where it
// was compiled without AVX2.
const ElementwiseKernels* elementwise_portable();
const ElementwiseKernels* elementwise_avx2();

}  // namespace looseleaf
