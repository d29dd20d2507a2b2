// A traced program (see program/op.py) as the runtime takes it.
#pragma once

#include <cstdint>

namespace looseleaf {

enum class OpKind : std::int32_t {
  embed,
  linear,
  rms_norm,
  rope,
  write_kv,
  paged_attention,
  add,
  silu_mul,
  sampled_rows,
  logits,
};

// One op. Fields that a kind does not have stay as they are here.
struct OpRecord {
  OpKind kind;
  std::int32_t target = -1;  // buffers
  std::int32_t first = -1;
  std::int32_t second = -1;
  std::int32_t weight = -1;  // a matrix for embed and linear, a vector for rms_norm, a rope table
  std::int32_t bias = -1;    // a vector
  std::int32_t layer = 0;
  std::int32_t window = 0;
  float number = 0.0F;  // eps of rms_norm, scale of attention
};

struct BufferRecord {
  bool sampled;  // a row per row of logits wanted, not per token
  std::int64_t columns;
};

struct RopeTable {
  std::int32_t rotary_dim;
  const float* cosines;  // [position][rotary_dim / 2]
  const float* sines;
};

}  // namespace looseleaf
