// Packed weight matrices: the types and sizes of the layouts in layout.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace looseleaf {

// Packed weights are kept on disk: to be raised whenever any type is laid out, or computed from the
// file's own, in another way than before.
inline constexpr int kLayoutVersion = 1;

inline constexpr std::int64_t kTileWidth = 8;   // outputs per tile: one SIMD lane each
inline constexpr std::int64_t kGroupSize = 32;  // inputs that share a scale
inline constexpr std::int64_t kQuadSize = 4;    // inputs whose products are added up in one lane

enum class WeightType { q4, q8, f32 };

// One (tile, group) of a `q4` matrix. Scales and minimums are the bits of f16 numbers.
struct Q4Group {
  std::uint8_t nibbles[4][kTileWidth * kQuadSize];
  std::uint16_t scales[kTileWidth];
  std::uint16_t mins[kTileWidth];
};
static_assert(sizeof(Q4Group) == 160);

// One (tile, group) of a `q8` matrix.
struct Q8Group {
  std::int8_t values[8][kTileWidth * kQuadSize];
  std::uint16_t scales[kTileWidth];
};
static_assert(sizeof(Q8Group) == 272);

// A matrix of `n` outputs by `k` inputs, not owned. `data` holds packed_bytes(type, n, k) bytes and
// is aligned to 4 at least; kernels are fastest when it is aligned to 64.
struct PackedWeight {
  WeightType type;
  std::int64_t n;
  std::int64_t k;
  const std::byte* data;
};

constexpr std::int64_t num_tiles(std::int64_t n) { return (n + kTileWidth - 1) / kTileWidth; }

// Bytes of a packed matrix, the padding of its last tile included. `k` is a multiple of kGroupSize,
// unless `type` is f32.
constexpr std::size_t packed_bytes(WeightType type, std::int64_t n, std::int64_t k) {
  const auto tiles = static_cast<std::size_t>(num_tiles(n));
  const auto inputs = static_cast<std::size_t>(k);
  constexpr auto group = static_cast<std::size_t>(kGroupSize);
  switch (type) {
    case WeightType::q4:
      return tiles * (inputs / group) * sizeof(Q4Group);
    case WeightType::q8:
      return tiles * (inputs / group) * sizeof(Q8Group);
    case WeightType::f32:
      return tiles * inputs * sizeof(float) * static_cast<std::size_t>(kTileWidth);
  }
  return 0;
}

}  // namespace looseleaf
