#include "pack.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace looseleaf {

namespace {

struct BlockQ4_0 {
  std::uint16_t scale;
  std::uint8_t nibbles[16];  // inputs i (low half) and i + 16 (high half)
};
static_assert(sizeof(BlockQ4_0) == 18);

struct BlockQ4_1 {
  std::uint16_t scale;
  std::uint16_t min;
  std::uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ8_0 {
  std::uint16_t scale;
  std::int8_t values[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

// The f16 bits of -8 times an f16 number: exact, infinite where that is beyond f16.
std::uint16_t times_minus_8(std::uint16_t bits) {
  const std::uint32_t sign = ~bits & 0x8000u;
  const std::uint32_t exponent = bits & 0x7c00u;
  std::uint32_t magnitude = bits & 0x7fffu;
  if (exponent == 0) {
    // A subnormal's bits are a multiple of 2^-24, and so are those of the first normal numbers.
    magnitude <<= 3;
    const int excess = std::max(static_cast<int>(std::bit_width(magnitude)) - 11, 0);
    magnitude = static_cast<std::uint32_t>(excess << 10) + (magnitude >> excess);
  } else if (exponent != 0x7c00u) {
    magnitude += 3u << 10;
    if (magnitude >= 0x7c00u) magnitude = 0x7c00u;
  }
  return static_cast<std::uint16_t>(sign | magnitude);
}

void put(const BlockQ4_1& block, std::int64_t lane, Q4Group& group) {
  group.scales[lane] = block.scale;
  group.mins[lane] = block.min;
  // The file pairs input i with i + 16, as quads p and p + 4 do: bytes only move.
  for (int p = 0; p < 4; ++p) {
    std::memcpy(group.nibbles[p] + kQuadSize * lane, block.nibbles + kQuadSize * p, kQuadSize);
  }
}

void put(const BlockQ4_0& block, std::int64_t lane, Q4Group& group) {
  BlockQ4_1 with_min{block.scale, times_minus_8(block.scale), {}};
  std::memcpy(with_min.nibbles, block.nibbles, sizeof(block.nibbles));
  put(with_min, lane, group);
}

void put(const BlockQ8_0& block, std::int64_t lane, Q8Group& group) {
  group.scales[lane] = block.scale;
  for (int j = 0; j < 8; ++j) {
    std::memcpy(group.values[j] + kQuadSize * lane, block.values + kQuadSize * j, kQuadSize);
  }
}

void put_zero(std::int64_t lane, Q4Group& group) { put(BlockQ4_1{}, lane, group); }
void put_zero(std::int64_t lane, Q8Group& group) { put(BlockQ8_0{}, lane, group); }

template <typename Block, typename Group>
void pack_blocks(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
                 std::int64_t row_end, std::byte* packed) {
  const std::int64_t groups = k / kGroupSize;
  auto tile_of = [&](std::int64_t row) {
    return reinterpret_cast<Group*>(packed) + row / kTileWidth * groups;
  };
  const std::byte* next = blocks + row_begin * groups * static_cast<std::int64_t>(sizeof(Block));
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    for (std::int64_t g = 0; g < groups; ++g, next += sizeof(Block)) {
      Block block;  // copied, for a block in a file need not be aligned
      std::memcpy(&block, next, sizeof(Block));
      put(block, row % kTileWidth, tile_of(row)[g]);
    }
  }
  if (row_begin >= row_end || row_end < n) return;
  for (std::int64_t row = n; row < num_tiles(n) * kTileWidth; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) put_zero(row % kTileWidth, tile_of(row)[g]);
  }
}

}  // namespace

void pack_q4_0(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed) {
  pack_blocks<BlockQ4_0, Q4Group>(blocks, n, k, row_begin, row_end, packed);
}

void pack_q4_1(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed) {
  pack_blocks<BlockQ4_1, Q4Group>(blocks, n, k, row_begin, row_end, packed);
}

void pack_q8_0(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed) {
  pack_blocks<BlockQ8_0, Q8Group>(blocks, n, k, row_begin, row_end, packed);
}

void pack_f32(const float* values, std::int64_t n, std::int64_t k, std::int64_t row_begin,
              std::int64_t row_end, std::byte* packed) {
  auto* out = reinterpret_cast<float*>(packed);
  auto lane_of = [&](std::int64_t row) {
    return out + row / kTileWidth * kTileWidth * k + row % kTileWidth;
  };
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    float* lane = lane_of(row);
    for (std::int64_t i = 0; i < k; ++i) lane[i * kTileWidth] = values[row * k + i];
  }
  if (row_begin >= row_end || row_end < n) return;
  for (std::int64_t row = n; row < num_tiles(n) * kTileWidth; ++row) {
    float* lane = lane_of(row);
    for (std::int64_t i = 0; i < k; ++i) lane[i * kTileWidth] = 0;
  }
}

void unpack_row(const PackedWeight& weight, std::int64_t row, float* out) {
  const std::int64_t lane = row % kTileWidth;
  const std::int64_t tile = row / kTileWidth;
  const std::int64_t groups = weight.k / kGroupSize;
  switch (weight.type) {
    case WeightType::q4: {
      const Q4Group* group = reinterpret_cast<const Q4Group*>(weight.data) + tile * groups;
      for (std::int64_t g = 0; g < groups; ++g, ++group, out += kGroupSize) {
        const float scale = float_from_f16(group->scales[lane]);
        const float min = float_from_f16(group->mins[lane]);
        for (std::int64_t i = 0; i < kGroupSize / 2; ++i) {
          const int byte = group->nibbles[i / kQuadSize][kQuadSize * lane + i % kQuadSize];
          out[i] = scale * static_cast<float>(byte & 15) + min;
          out[i + kGroupSize / 2] = scale * static_cast<float>(byte >> 4) + min;
        }
      }
      return;
    }
    case WeightType::q8: {
      const Q8Group* group = reinterpret_cast<const Q8Group*>(weight.data) + tile * groups;
      for (std::int64_t g = 0; g < groups; ++g, ++group, out += kGroupSize) {
        const float scale = float_from_f16(group->scales[lane]);
        for (std::int64_t i = 0; i < kGroupSize; ++i) {
          const int value = group->values[i / kQuadSize][kQuadSize * lane + i % kQuadSize];
          out[i] = scale * static_cast<float>(value);
        }
      }
      return;
    }
    case WeightType::f32: {
      const float* values = reinterpret_cast<const float*>(weight.data);
      values += tile * kTileWidth * weight.k + lane;
      for (std::int64_t i = 0; i < weight.k; ++i) out[i] = values[i * kTileWidth];
      return;
    }
  }
}

float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // subnormals are multiples of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t rebiased = exponent == 0x1f ? 0xffu : exponent + 127 - 15;
  return std::bit_cast<float>(sign | rebiased << 23 | mantissa << 13);
}

}  // namespace looseleaf
