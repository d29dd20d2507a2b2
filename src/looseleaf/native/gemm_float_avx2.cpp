// Products of float activations with weights of any type, for x86-64 with AVX2, FMA and F16C.
//
// All code here is in an anonymous namespace, for the reason given in gemm_avx2.cpp.
#include "gemm_products_avx2.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "gemm_parts_avx2.h"

namespace looseleaf {

namespace {

// Rows of a block of outputs at most. With two tiles, as many sums as hide the latency of an fma.
constexpr int kRows = 6;

// Inputs whose weights are decoded at a time.
constexpr std::int64_t kChunkInputs = 256;

// One row and few rows have as many sums only with more tiles.
constexpr std::int64_t kFewRows = 3;
constexpr int kTiles = 2;
constexpr int kTilesForFew = 4;

// The weights of one input in one tile.
using Lanes = float[kTileWidth];

// The integers of input `i` of a quad.
template <typename Group>
inline __m256i integers(__m256i quad, int i) {
  if constexpr (Traits<Group>::kSigned) {
    return _mm256_srai_epi32(_mm256_slli_epi32(quad, 24 - 8 * i), 24);
  } else {
    return _mm256_and_si256(_mm256_srli_epi32(quad, 8 * i), _mm256_set1_epi32(255));
  }
}

// Decodes one group: `out` is its kGroupSize inputs.
template <typename Group>
[[gnu::always_inline]] inline void decode_group(const Group& group, Lanes* out) {
#pragma GCC unroll 8
  for (int j = 0; j < kNumQuads; ++j) {
    const __m256 scale = scales(group, j / (kNumQuads / 2));
    const __m256i bytes = quad(group, j);
#pragma GCC unroll 4
    for (int i = 0; i < kQuadSize; ++i) {
      const __m256 value = _mm256_cvtepi32_ps(integers<Group>(bytes, i));
      __m256 weight;
      if constexpr (Traits<Group>::kHasMin) {
        // One rounding, as unpack_row's two: the product is exact.
        weight = _mm256_fmadd_ps(scale, value, load_scales(group.mins));
      } else {
        weight = _mm256_mul_ps(scale, value);
      }
      _mm256_storeu_ps(out[kQuadSize * j + i], weight);
    }
  }
}

// Decodes `inputs` inputs of one tile, from input `begin` on.
template <typename Group>
inline void decode(const Group* tile, std::int64_t begin, std::int64_t inputs, Lanes* out) {
  for (std::int64_t i = 0; i < inputs; i += kGroupSize) {
    decode_group(tile[(begin + i) / kGroupSize], out + i);
  }
}

inline void decode(const F16Input* tile, std::int64_t begin, std::int64_t inputs, Lanes* out) {
  for (std::int64_t i = 0; i < inputs; ++i) {
    _mm256_storeu_ps(out[i], load_scales(tile[begin + i].values));
  }
}

// What all blocks of one product have in common.
struct Product {
  const float* x;
  std::int64_t x_stride;
  Results results;
};

// A part of `inputs` inputs of k, from input `begin` on.
struct Part {
  std::int64_t begin;
  std::int64_t inputs;
  bool first;
  bool last;
};

// The sums of one row in the tiles being worked on.
template <int Tiles>
using Sums = float[Tiles][kTileWidth];

// Rows [row, row + Rows) of `Tiles` tiles, along one part of k. The part's weights begin at `w`,
// tiles `w_stride` inputs apart. What came before is in `sums`, which starts at row `row`, as is
// what the next part goes on from.
template <int Rows, int Tiles>
void block(const Product& p, const Part& part, const Lanes* w, std::int64_t w_stride,
           std::int64_t row, std::int64_t tile, Sums<Tiles>* sums) {
  const float* x = p.x + row * p.x_stride + part.begin;
  __m256 acc[Rows][Tiles] = {};
  if (!part.first) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm256_loadu_ps(sums[r][t]);
    }
  }
  if (part.last) prefetch_results<Rows, Tiles>(p.results, row, tile);
  for (std::int64_t i = 0; i < part.inputs; ++i) {
    __m256 weight[Tiles];
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) weight[t] = _mm256_loadu_ps(w[i + t * w_stride]);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256 input = _mm256_broadcast_ss(x + r * p.x_stride + i);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm256_fmadd_ps(weight[t], input, acc[r][t]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) {
      if (part.last) {
        store(p.results, acc[r][t], row + r, tile + t);
      } else {
        _mm256_storeu_ps(sums[r][t], acc[r][t]);
      }
    }
  }
}

// Rows [row, rows): as many at once as `Rows`, then the rest in smaller blocks.
template <int Rows, int Tiles>
void all_rows(const Product& p, const Part& part, const Lanes* w, std::int64_t w_stride,
              std::int64_t row, std::int64_t rows, std::int64_t tile, Sums<Tiles>* sums) {
  for (; row + Rows <= rows; row += Rows, sums += Rows) {
    block<Rows, Tiles>(p, part, w, w_stride, row, tile, sums);
  }
  if constexpr (Rows > 1) all_rows<Rows - 1, Tiles>(p, part, w, w_stride, row, rows, tile, sums);
}

// Rows [row, row_end), at most kPanelRows, of `Tiles` tiles, whose weights are decoded chunk by
// chunk.
template <int Rows, int Tiles, typename Group>
[[gnu::noinline]] void panel(const Product& p, const Group* w, std::int64_t w_stride,
                             std::int64_t k, std::int64_t row, std::int64_t row_end,
                             std::int64_t tile) {
  constexpr std::int64_t kInputs = kChunkInputs * kTiles / Tiles;
  alignas(32) Lanes chunk[Tiles][kInputs];
  Sums<Tiles> sums[kPanelRows];
  for (std::int64_t begin = 0; begin < k; begin += kInputs) {
    const std::int64_t inputs = k - begin < kInputs ? k - begin : kInputs;
    for (int t = 0; t < Tiles; ++t) decode(w + t * w_stride, begin, inputs, chunk[t]);
    const Part part = {begin, inputs, begin == 0, begin + inputs == k};
    all_rows<Rows, Tiles>(p, part, chunk[0], kInputs, row, row_end, tile, sums);
  }
}

// Floats need no decoding, and are multiplied where they are.
template <int Rows, int Tiles>
void panel(const Product& p, const F32Input* w, std::int64_t w_stride, std::int64_t k,
           std::int64_t row, std::int64_t row_end, std::int64_t tile) {
  const Part whole = {0, k, true, true};
  Sums<Tiles> unused[kPanelRows];
  all_rows<Rows, Tiles>(p, whole, &w->values, w_stride, row, row_end, tile, unused);
}

template <typename Group>
void multiply(const PackedWeight& weight, const Product& p, std::int64_t rows,
              std::int64_t tile_begin, std::int64_t tile_end) {
  constexpr bool kHasGroups = sizeof(Group) > sizeof(F32Input);
  const std::int64_t k = weight.k;
  const std::int64_t stride = kHasGroups ? k / kGroupSize : k;
  const Group* w = reinterpret_cast<const Group*>(weight.data);
  for (std::int64_t row = 0; row < rows; row += kPanelRows) {
    const std::int64_t row_end = row + kPanelRows < rows ? row + kPanelRows : rows;
    std::int64_t tile = tile_begin;
    if (row_end - row <= kFewRows) {
      for (; tile + kTilesForFew <= tile_end; tile += kTilesForFew) {
        panel<kFewRows, kTilesForFew>(p, w + tile * stride, stride, k, row, row_end, tile);
      }
    }
    for (; tile + kTiles <= tile_end; tile += kTiles) {
      panel<kRows, kTiles>(p, w + tile * stride, stride, k, row, row_end, tile);
    }
    for (; tile < tile_end; ++tile) {
      panel<kRows, 1>(p, w + tile * stride, stride, k, row, row_end, tile);
    }
  }
}

}  // namespace

void matmul_float_avx2(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                       std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end,
                       float* out, std::int64_t out_stride, const float* addend,
                       std::int64_t addend_stride) {
  const Product p = {x, x_stride, {weight.n, out, out_stride, addend, addend_stride}};
  switch (weight.type) {
    case WeightType::q4:
      return multiply<Q4Group>(weight, p, rows, tile_begin, tile_end);
    case WeightType::q4k:
      return multiply<Q4KGroup>(weight, p, rows, tile_begin, tile_end);
    case WeightType::q5:
      return multiply<Q5Group>(weight, p, rows, tile_begin, tile_end);
    case WeightType::q5k:
      return multiply<Q5KGroup>(weight, p, rows, tile_begin, tile_end);
    case WeightType::q6k:
      return multiply<Q6KGroup>(weight, p, rows, tile_begin, tile_end);
    case WeightType::q8:
      return multiply<Q8Group>(weight, p, rows, tile_begin, tile_end);
    case WeightType::f16:
      return multiply<F16Input>(weight, p, rows, tile_begin, tile_end);
    case WeightType::f32:
      return multiply<F32Input>(weight, p, rows, tile_begin, tile_end);
  }
}

}  // namespace looseleaf

#endif
