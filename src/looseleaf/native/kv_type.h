// The types of numbers that the KV cache holds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace looseleaf {

// f16: IEEE binary16, for half the memory and half the reading. Numbers are rounded to nearest even
// as they are written; those beyond its range become infinite. All arithmetic stays in float32.
enum class KVType : std::int32_t { f32, f16 };

constexpr std::size_t kv_bytes(KVType type) { return type == KVType::f16 ? 2 : 4; }

}  // namespace looseleaf
