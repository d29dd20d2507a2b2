// What the AVX2 products of integers and of floats share: how packed groups are read, and where
// results go.
//
// For files that are compiled with AVX2, FMA and F16C only, and all in an anonymous namespace, so
// that no copy of it can be linked in for code that runs on other processors.
#pragma once

#include <immintrin.h>

#include "gemm.h"

namespace looseleaf {

namespace {

constexpr int kNumQuads = kGroupSize / kQuadSize;

// The most rows that sums on the stack have room for while a chunk of inputs is worked off.
constexpr std::int64_t kPanelRows = 128;

inline __m256i load_bytes(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

inline __m256 load_scales(const std::uint16_t* bits) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
}

inline __m256 load_scales(const float* scales) { return _mm256_loadu_ps(scales); }

// Quad `j` of a group: byte 4 * lane + i is the weight of output `lane` for input 4 * j + i, as
// layout.md has it before scales. Without sign, but for q6k and q8.
template <typename Group>
inline __m256i nibbles(const Group& group, int j) {
  const __m256i both = load_bytes(group.nibbles[j % 4]);
  return _mm256_and_si256(j < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
}

inline __m256i quad(const Q4Group& group, int j) { return nibbles(group, j); }
inline __m256i quad(const Q4KGroup& group, int j) { return nibbles(group, j); }

// Moves bit `from` of each byte to bit `to`. What moves in from the byte next to it is to be
// masked.
inline __m256i move_bits(__m256i bytes, int from, int to) {
  return from > to ? _mm256_srli_epi16(bytes, from - to) : _mm256_slli_epi16(bytes, to - from);
}

template <typename Group>
inline __m256i five_bits(const Group& group, int j) {
  const __m256i high = move_bits(load_bytes(group.high_bits), j, 4);
  return _mm256_or_si256(nibbles(group, j), _mm256_and_si256(high, _mm256_set1_epi8(16)));
}

inline __m256i quad(const Q5Group& group, int j) { return five_bits(group, j); }
inline __m256i quad(const Q5KGroup& group, int j) { return five_bits(group, j); }

inline __m256i quad(const Q6KGroup& group, int j) {
  const __m256i high = move_bits(load_bytes(group.high_bits[j / 4]), 2 * (j % 4), 4);
  const __m256i value =
      _mm256_or_si256(nibbles(group, j), _mm256_and_si256(high, _mm256_set1_epi8(48)));
  return _mm256_sub_epi8(value, _mm256_set1_epi8(32));
}

inline __m256i quad(const Q8Group& group, int j) { return load_bytes(group.values[j]); }

// How a type's weights are multiplied.
struct Unsigned4 {
  static constexpr bool kSigned = false;
  static constexpr bool kHasMin = true;
  static constexpr int kNumScales = 1;
  // Quads whose products with activations 16 bits hold: a lane adds up two per quad.
  static constexpr int kQuads16 = 8;  // 16 * 15 * 127 = 30,480
};

struct Unsigned5 : Unsigned4 {
  static constexpr int kQuads16 = 4;  // 8 * 31 * 127 = 31,496
};

struct Signed6 {
  static constexpr bool kSigned = true;
  static constexpr bool kHasMin = false;
  static constexpr int kNumScales = 2;
  static constexpr int kQuads16 = 4;  // 8 * 32 * 127 = 32,512
};

struct Signed8 : Signed6 {
  static constexpr int kNumScales = 1;
  static constexpr int kQuads16 = 1;  // 2 * 128 * 127 = 32,512
};

template <typename Group>
struct Traits;
template <>
struct Traits<Q4Group> : Unsigned4 {};
template <>
struct Traits<Q4KGroup> : Unsigned4 {};
template <>
struct Traits<Q5Group> : Unsigned5 {};
template <>
struct Traits<Q5KGroup> : Unsigned5 {};
template <>
struct Traits<Q6KGroup> : Signed6 {};
template <>
struct Traits<Q8Group> : Signed8 {};

// The scales of half `half` of a group; both halves have the same where there is one only.
template <typename Group>
inline __m256 scales(const Group& group, int half) {
  if constexpr (Traits<Group>::kNumScales == 2) {
    return load_scales(group.scales[half]);
  } else {
    return load_scales(group.scales);
  }
}

// Where the results of a product go.
struct Results {
  std::int64_t n;
  float* out;
  std::int64_t out_stride;
  const float* addend;  // null, or what is added at the end
  std::int64_t addend_stride;
};

[[gnu::noinline]] void store_part(__m256 acc, std::int64_t columns, float* out,
                                  const float* addend) {
  float lanes[kTileWidth];
  _mm256_storeu_ps(lanes, acc);
  for (std::int64_t i = 0; i < columns; ++i) {
    out[i] = addend == nullptr ? lanes[i] : lanes[i] + addend[i];
  }
}

// Writes the columns of one tile that exist.
inline void store(const Results& results, __m256 acc, std::int64_t row, std::int64_t tile) {
  const std::int64_t column = tile * kTileWidth;
  float* out = results.out + row * results.out_stride + column;
  const float* addend = results.addend == nullptr
                            ? nullptr
                            : results.addend + row * results.addend_stride + column;
  if (column + kTileWidth > results.n) {
    store_part(acc, results.n - column, out, addend);
    return;
  }
  if (addend != nullptr) acc = _mm256_add_ps(acc, _mm256_loadu_ps(addend));
  _mm256_storeu_ps(out, acc);
}

// Asks for the places of results before they are computed. A store to memory that is in no cache
// waits for its old content, and each row's results lie in other pages than those of the row
// before.
template <int Rows, int Tiles>
inline void prefetch_results(const Results& results, std::int64_t row, std::int64_t tile) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const float* out = results.out + (row + r) * results.out_stride + tile * kTileWidth;
    _mm_prefetch(out, _MM_HINT_T0);
    _mm_prefetch(out + Tiles * kTileWidth - 1, _MM_HINT_T0);
  }
}

// Asks for the weights of the tiles that come next, bit by bit while the present ones are used.
struct Ahead {
  const char* next;
  std::int64_t step;  // bytes for each group of a block

  // For `blocks` blocks of rows on `tiles` tiles at `w`, of `groups` groups each. What is asked for
  // may lie past the end of the matrix, which does no harm.
  template <typename Group>
  Ahead(const Group* w, std::int64_t groups, std::int64_t tiles, std::int64_t blocks)
      : next(reinterpret_cast<const char*>(w + tiles * groups)),
        step((tiles * static_cast<std::int64_t>(sizeof(Group)) + blocks - 1) / blocks) {}

  [[gnu::always_inline]] void ask() {
    constexpr std::int64_t kCacheLine = 64;
    for (std::int64_t i = 0; i < step; i += kCacheLine) _mm_prefetch(next + i, _MM_HINT_T0);
    next += step;
  }
};

}  // namespace

}  // namespace looseleaf
