#include "pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "groups.h"

namespace looseleaf {

namespace {

// Blocks of a file, as ggml defines them. Its f16 numbers are at even places, so nothing is padded.

struct BlockQ4_0 {
  static constexpr std::int64_t kInputs = 32;
  std::uint16_t scale;
  std::uint8_t nibbles[16];  // inputs i (low half) and i + 16 (high half)
};
static_assert(sizeof(BlockQ4_0) == 18);

struct BlockQ4_1 {
  static constexpr std::int64_t kInputs = 32;
  std::uint16_t scale;
  std::uint16_t min;
  std::uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ5_0 {
  static constexpr std::int64_t kInputs = 32;
  std::uint16_t scale;
  std::uint8_t high_bits[4];  // the fifth bit of input i is bit i
  std::uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

struct BlockQ5_1 {
  static constexpr std::int64_t kInputs = 32;
  std::uint16_t scale;
  std::uint16_t min;
  std::uint8_t high_bits[4];
  std::uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

struct BlockQ8_0 {
  static constexpr std::int64_t kInputs = 32;
  std::uint16_t scale;
  std::int8_t values[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

struct BlockQ4_K {
  static constexpr std::int64_t kInputs = 256;
  std::uint16_t scale;  // of the scales
  std::uint16_t min;    // of the minimums, which are subtracted
  std::uint8_t scales_and_mins[12];
  std::uint8_t nibbles[4][32];  // groups 2 * p (low half) and 2 * p + 1 (high half)
};
static_assert(sizeof(BlockQ4_K) == 144);

struct BlockQ5_K {
  static constexpr std::int64_t kInputs = 256;
  std::uint16_t scale;
  std::uint16_t min;
  std::uint8_t scales_and_mins[12];
  std::uint8_t high_bits[32];  // the fifth bit of input i of group g is bit g of byte i
  std::uint8_t nibbles[4][32];
};
static_assert(sizeof(BlockQ5_K) == 176);

struct BlockQ6_K {
  static constexpr std::int64_t kInputs = 256;
  // Four groups are 64 bytes of nibbles: two groups in the low halves, two in the high ones; and 32
  // bytes of high bits, two for each group, the first group's lowest.
  std::uint8_t nibbles[2][64];
  std::uint8_t high_bits[2][32];
  std::int8_t scales[16];
  std::uint16_t scale;
};
static_assert(sizeof(BlockQ6_K) == 210);

// The f16 bits of -2^power times an f16 number: exact, infinite where that is beyond f16.
std::uint16_t times_minus_power(std::uint16_t bits, std::uint32_t power) {
  const std::uint32_t sign = ~bits & 0x8000u;
  const std::uint32_t exponent = bits & 0x7c00u;
  std::uint32_t magnitude = bits & 0x7fffu;
  if (exponent == 0) {
    // A subnormal's bits are a multiple of 2^-24, and so are those of the first normal numbers.
    magnitude <<= power;
    const int excess = std::max(static_cast<int>(std::bit_width(magnitude)) - 11, 0);
    magnitude = static_cast<std::uint32_t>(excess << 10) + (magnitude >> excess);
  } else if (exponent != 0x7c00u) {
    magnitude = std::min(magnitude + (power << 10), 0x7c00u);
  }
  return static_cast<std::uint16_t>(sign | magnitude);
}

// Quads p and p + 4 share bytes, as inputs i and i + 16 do in `nibbles`.
template <typename Group>
void put_nibbles(const std::uint8_t (&nibbles)[16], std::int64_t lane, Group& group) {
  for (int p = 0; p < 4; ++p) {
    std::memcpy(group.nibbles[p] + kQuadSize * lane, nibbles + kQuadSize * p, kQuadSize);
  }
}

// Bit i of `bits` is the fifth bit of input i.
template <typename Group>
void put_high_bits(std::uint32_t bits, std::int64_t lane, Group& group) {
  for (int i = 0; i < kQuadSize; ++i) {
    std::uint32_t byte = 0;
    for (int j = 0; j < 8; ++j) byte |= (bits >> (kQuadSize * j + i) & 1u) << j;
    group.high_bits[kQuadSize * lane + i] = static_cast<std::uint8_t>(byte);
  }
}

std::uint32_t bits_of(const std::uint8_t (&bytes)[4]) {
  return static_cast<std::uint32_t>(bytes[0] | bytes[1] << 8 | bytes[2] << 16) |
         static_cast<std::uint32_t>(bytes[3]) << 24;
}

// Each `put` writes group `g` of a block into one lane.

void put(const BlockQ4_0& block, int, std::int64_t lane, Q4Group& group) {
  put_nibbles(block.nibbles, lane, group);
  group.scales[lane] = block.scale;
  group.mins[lane] = times_minus_power(block.scale, 3);
}

void put(const BlockQ4_1& block, int, std::int64_t lane, Q4Group& group) {
  put_nibbles(block.nibbles, lane, group);
  group.scales[lane] = block.scale;
  group.mins[lane] = block.min;
}

void put(const BlockQ5_0& block, int, std::int64_t lane, Q5Group& group) {
  put_nibbles(block.nibbles, lane, group);
  put_high_bits(bits_of(block.high_bits), lane, group);
  group.scales[lane] = block.scale;
  group.mins[lane] = times_minus_power(block.scale, 4);
}

void put(const BlockQ5_1& block, int, std::int64_t lane, Q5Group& group) {
  put_nibbles(block.nibbles, lane, group);
  put_high_bits(bits_of(block.high_bits), lane, group);
  group.scales[lane] = block.scale;
  group.mins[lane] = block.min;
}

void put(const BlockQ8_0& block, int, std::int64_t lane, Q8Group& group) {
  group.scales[lane] = block.scale;
  for (int j = 0; j < 8; ++j) {
    std::memcpy(group.values[j] + kQuadSize * lane, block.values + kQuadSize * j, kQuadSize);
  }
}

// What Q4_K and Q5_K have in common. The 12 bytes are 8 scales and 8 minimums of 6 bits: four whole
// scales, four whole minimums, then the low nibbles of the other eight, whose top bits lie above
// the first eight.
template <typename Block, typename Group>
void put_pairs(const Block& block, int g, std::int64_t lane, Group& group) {
  const std::uint8_t* packed = block.scales_and_mins;
  int scale = packed[g % 4];
  int min = packed[4 + g % 4];
  if (g < 4) {
    scale &= 63;
    min &= 63;
  } else {
    scale = (scale >> 6) << 4 | (packed[4 + g] & 15);
    min = (min >> 6) << 4 | packed[4 + g] >> 4;
  }
  // Exact: 11 bits of an f16 number times 6.
  group.scales[lane] = float_from_f16(block.scale) * static_cast<float>(scale);
  group.mins[lane] = -(float_from_f16(block.min) * static_cast<float>(min));
  std::uint8_t nibbles[16];
  for (int i = 0; i < 16; ++i) {
    const int first = block.nibbles[g / 2][i];
    const int second = block.nibbles[g / 2][i + 16];
    nibbles[i] = static_cast<std::uint8_t>(g % 2 == 0 ? (first & 15) | (second & 15) << 4
                                                      : first >> 4 | (second & 0xf0));
  }
  put_nibbles(nibbles, lane, group);
}

void put(const BlockQ4_K& block, int g, std::int64_t lane, Q4KGroup& group) {
  put_pairs(block, g, lane, group);
}

void put(const BlockQ5_K& block, int g, std::int64_t lane, Q5KGroup& group) {
  put_pairs(block, g, lane, group);
  std::uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (block.high_bits[i] >> g & 1u) << i;
  put_high_bits(bits, lane, group);
}

void put(const BlockQ6_K& block, int g, std::int64_t lane, Q6KGroup& group) {
  const std::uint8_t* low = block.nibbles[g / 4] + g % 2 * 32;
  const std::uint8_t* high = block.high_bits[g / 4];
  const int low_shift = g % 4 < 2 ? 0 : 4;
  const int high_shift = g % 4 * 2;
  std::uint8_t nibbles[16];
  for (int i = 0; i < 16; ++i) {
    nibbles[i] = static_cast<std::uint8_t>((low[i] >> low_shift & 15) |
                                           (low[i + 16] >> low_shift & 15) << 4);
  }
  put_nibbles(nibbles, lane, group);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kQuadSize; ++i) {
      int byte = 0;
      for (int p = 0; p < 4; ++p) {
        byte |= (high[16 * half + kQuadSize * p + i] >> high_shift & 3) << 2 * p;
      }
      group.high_bits[half][kQuadSize * lane + i] = static_cast<std::uint8_t>(byte);
    }
    // Exact: 11 bits of an f16 number times 8.
    group.scales[half][lane] =
        float_from_f16(block.scale) * static_cast<float>(block.scales[2 * g + half]);
  }
}

// Types without groups are blocks of one input.

struct BlockF16 {
  static constexpr std::int64_t kInputs = 1;
  std::uint16_t value;
};

struct BlockF32 {
  static constexpr std::int64_t kInputs = 1;
  float value;
};

void put(const BlockF16& block, int, std::int64_t lane, F16Input& input) {
  input.values[lane] = block.value;
}

void put(const BlockF32& block, int, std::int64_t lane, F32Input& input) {
  input.values[lane] = block.value;
}

template <typename Block, typename Group>
void pack_blocks(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
                 std::int64_t row_end, std::byte* packed) {
  constexpr std::int64_t kInputs = kIsInput<Group> ? 1 : kGroupSize;
  constexpr int kGroupsPerBlock = static_cast<int>(Block::kInputs / kInputs);
  const std::int64_t groups = k / kInputs;
  const std::int64_t blocks_per_row = k / Block::kInputs;
  auto tile_of = [&](std::int64_t row) {
    return reinterpret_cast<Group*>(packed) + row / kTileWidth * groups;
  };
  const std::byte* next = blocks + row_begin * blocks_per_row * std::int64_t{sizeof(Block)};
  Block block{};  // copied, for a block in a file need not be aligned
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    Group* group = tile_of(row);
    for (std::int64_t b = 0; b < blocks_per_row; ++b, next += sizeof(Block)) {
      std::memcpy(&block, next, sizeof(Block));
      for (int g = 0; g < kGroupsPerBlock; ++g) put(block, g, row % kTileWidth, *group++);
    }
  }
  if (row_begin >= row_end || row_end < n) return;
  block = {};
  for (std::int64_t row = n; row < num_tiles(n) * kTileWidth; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) {
      Group& group = tile_of(row)[g];
      put(block, 0, row % kTileWidth, group);
      // All zeros: a minimum that follows from its scale would be -0.
      if constexpr (!kIsInput<Group> && has_min<Group>()) group.mins[row % kTileWidth] = 0;
    }
  }
}

template <typename Block, typename Group>
constexpr Source source(std::string_view name, WeightType type) {
  return {name, type, Block::kInputs, sizeof(Block), pack_blocks<Block, Group>};
}

constexpr Source kSources[] = {
    source<BlockQ4_0, Q4Group>("Q4_0", WeightType::q4),
    source<BlockQ4_1, Q4Group>("Q4_1", WeightType::q4),
    source<BlockQ4_K, Q4KGroup>("Q4_K", WeightType::q4k),
    source<BlockQ5_0, Q5Group>("Q5_0", WeightType::q5),
    source<BlockQ5_1, Q5Group>("Q5_1", WeightType::q5),
    source<BlockQ5_K, Q5KGroup>("Q5_K", WeightType::q5k),
    source<BlockQ6_K, Q6KGroup>("Q6_K", WeightType::q6k),
    source<BlockQ8_0, Q8Group>("Q8_0", WeightType::q8),
    source<BlockF16, F16Input>("F16", WeightType::f16),
    source<BlockF32, F32Input>("F32", WeightType::f32),
};

}  // namespace

const Source* find_source(std::string_view name) {
  const auto* found = std::find_if(std::begin(kSources), std::end(kSources),
                                   [&](const Source& source) { return source.name == name; });
  return found == std::end(kSources) ? nullptr : found;
}

}  // namespace looseleaf
