// Packed weight matrices: the types and sizes of the layouts in layout.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace looseleaf {

// Packed weights are kept on disk: to be raised whenever any type is laid out, or computed from the
// file's own, in another way than before.
inline constexpr int kLayoutVersion = 1;

inline constexpr std::int64_t kTileWidth = 8;   // outputs per tile: one SIMD lane each
inline constexpr std::int64_t kGroupSize = 32;  // inputs that share a scale, or two
inline constexpr std::int64_t kQuadSize = 4;    // inputs whose products are added up in one lane
inline constexpr std::int64_t kQuadBytes = kTileWidth * kQuadSize;  // a quad, one byte per weight

enum class WeightType { q4, q4k, q5, q5k, q6k, q8, f16, f32 };

// One (tile, group) of each quantized type. Numbers of 16 bits are the bits of f16 numbers.
struct Q4Group {
  std::uint8_t nibbles[4][kQuadBytes];
  std::uint16_t scales[kTileWidth];
  std::uint16_t mins[kTileWidth];
};
static_assert(sizeof(Q4Group) == 160);

struct Q4KGroup {
  std::uint8_t nibbles[4][kQuadBytes];
  float scales[kTileWidth];
  float mins[kTileWidth];
};
static_assert(sizeof(Q4KGroup) == 192);

struct Q5Group {
  std::uint8_t nibbles[4][kQuadBytes];
  std::uint8_t high_bits[kQuadBytes];
  std::uint16_t scales[kTileWidth];
  std::uint16_t mins[kTileWidth];
};
static_assert(sizeof(Q5Group) == 192);

struct Q5KGroup {
  std::uint8_t nibbles[4][kQuadBytes];
  std::uint8_t high_bits[kQuadBytes];
  float scales[kTileWidth];
  float mins[kTileWidth];
};
static_assert(sizeof(Q5KGroup) == 224);

struct Q6KGroup {
  std::uint8_t nibbles[4][kQuadBytes];
  std::uint8_t high_bits[2][kQuadBytes];
  float scales[2][kTileWidth];  // of inputs 0..15 and 16..31
};
static_assert(sizeof(Q6KGroup) == 256);

struct Q8Group {
  std::int8_t values[8][kQuadBytes];
  std::uint16_t scales[kTileWidth];
};
static_assert(sizeof(Q8Group) == 272);

// The weights of one input in one tile: all there is of types without groups.
struct F16Input {
  std::uint16_t values[kTileWidth];
};

struct F32Input {
  float values[kTileWidth];
};

// A matrix of `n` outputs by `k` inputs, not owned. `data` holds packed_bytes(type, n, k) bytes and
// is aligned to 4 at least; kernels are fastest when it is aligned to 64.
struct PackedWeight {
  WeightType type;
  std::int64_t n;
  std::int64_t k;
  const std::byte* data;
};

constexpr std::int64_t num_tiles(std::int64_t n) { return (n + kTileWidth - 1) / kTileWidth; }

// Whether weights are small integers with scales, for which products with quantized activations
// exist. Their `k` is a multiple of kGroupSize.
constexpr bool is_quantized(WeightType type) {
  return type != WeightType::f16 && type != WeightType::f32;
}

// Bytes of one tile along kGroupSize inputs.
constexpr std::size_t group_bytes(WeightType type) {
  switch (type) {
    case WeightType::q4:
      return sizeof(Q4Group);
    case WeightType::q4k:
      return sizeof(Q4KGroup);
    case WeightType::q5:
      return sizeof(Q5Group);
    case WeightType::q5k:
      return sizeof(Q5KGroup);
    case WeightType::q6k:
      return sizeof(Q6KGroup);
    case WeightType::q8:
      return sizeof(Q8Group);
    case WeightType::f16:
      return sizeof(F16Input) * static_cast<std::size_t>(kGroupSize);
    case WeightType::f32:
      return sizeof(F32Input) * static_cast<std::size_t>(kGroupSize);
  }
  return 0;
}

// Bytes of a packed matrix, the padding of its last tile included.
constexpr std::size_t packed_bytes(WeightType type, std::int64_t n, std::int64_t k) {
  const auto inputs = static_cast<std::size_t>(num_tiles(n)) * static_cast<std::size_t>(k);
  constexpr auto group = static_cast<std::size_t>(kGroupSize);
  // Exact for any `k`: only types without groups have a remainder, and theirs divides.
  return inputs / group * group_bytes(type) + inputs % group * (group_bytes(type) / group);
}

}  // namespace looseleaf
