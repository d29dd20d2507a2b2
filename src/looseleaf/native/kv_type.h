// How the KV cache holds numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace looseleaf {

// f16: IEEE binary16, for half the memory and half the reading. Numbers are rounded to nearest even
// as they are written; those beyond its range become infinite. All arithmetic stays in float32.
//
// int16, int8: integers, and a scale for each token and head. int16 takes the memory of f16 (and a
// little more) and is as exact; int8 takes half of that, and is not. Both are multiplied as integers
// of 16 bits: twice as many at once as floats. They need a block size and a head_dim that are
// multiples of `kIntegerStep`.
enum class KVType : std::int32_t { f32, f16, int16, int8 };

constexpr bool is_integer(KVType type) { return type == KVType::int16 || type == KVType::int8; }

// The type called "f32", "f16", "int16" or "int8". Throws std::invalid_argument for another name.
inline KVType kv_type_of(std::string_view name) {
  if (name == "f32") return KVType::f32;
  if (name == "f16") return KVType::f16;
  if (name == "int16") return KVType::int16;
  if (name == "int8") return KVType::int8;
  throw std::invalid_argument("no type of keys and values is called " + std::string(name));
}

inline constexpr std::int32_t kIntegerStep = 8;

// Throws std::invalid_argument where a type cannot be had.
inline void check_kv_shape(KVType type, std::int32_t head_dim, std::int32_t block_size) {
  if (is_integer(type) && (head_dim % kIntegerStep != 0 || block_size % kIntegerStep != 0)) {
    throw std::invalid_argument("integers need a head_dim and a block size that are multiples of 8");
  }
}

// Of keys or of values: one head in one block.
constexpr std::int64_t kv_head_bytes(KVType type, std::int64_t head_dim, std::int64_t block_size) {
  const std::int64_t numbers = head_dim * block_size;
  switch (type) {
    case KVType::f32: return numbers * 4;
    case KVType::f16: return numbers * 2;
    case KVType::int16: return numbers * 2 + block_size * 4;
    case KVType::int8: return numbers + block_size * 4;
  }
  return 0;
}

}  // namespace looseleaf
