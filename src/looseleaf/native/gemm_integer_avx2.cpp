// Products of quantized activations with quantized weights, for x86-64 with AVX2, FMA and F16C.
//
// All code here is in an anonymous namespace, for the reason given in gemm_avx2.cpp.
#include "gemm_products_avx2.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "gemm_parts_avx2.h"

namespace looseleaf {

namespace {

// Rows and tiles of a block of outputs. Each weight vector serves all rows, each activation all
// tiles; more of either do not fit the registers.
constexpr int kRows = 4;
constexpr int kTiles = 2;

// From this many rows on, weights are unpacked once for all of them.
constexpr std::int64_t kUnpackRows = 24;

// Groups of two tiles that are unpacked at a time: they stay in the first cache, with the rows'.
constexpr std::int64_t kChunkGroups = 18;

// A group whose quads and scales lie ready.
template <typename Group>
struct alignas(32) Unpacked {
  std::uint8_t quads[kNumQuads][kQuadBytes];
  float scales[Traits<Group>::kNumScales][kTileWidth];
  float mins[kTileWidth];  // where the type has them
};

template <typename Group>
struct Traits<Unpacked<Group>> : Traits<Group> {};

template <typename Group>
inline __m256i quad(const Unpacked<Group>& group, int j) {
  return load_bytes(group.quads[j]);
}

template <typename Group>
inline __m256 scales(const Unpacked<Group>& group, int half) {
  return _mm256_load_ps(group.scales[half % Traits<Group>::kNumScales]);
}

template <typename Group>
[[gnu::always_inline]] inline void unpack(const Group& group, Unpacked<Group>& out) {
#pragma GCC unroll 8
  for (int j = 0; j < kNumQuads; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.quads[j]), quad(group, j));
  }
#pragma GCC unroll 2
  for (int i = 0; i < Traits<Group>::kNumScales; ++i) {
    _mm256_store_ps(out.scales[i], scales(group, i));
  }
  if constexpr (Traits<Group>::kHasMin) _mm256_store_ps(out.mins, load_scales(group.mins));
}

// Every lane holds the quad of activations at `values`.
inline __m256i broadcast_quad(const std::int8_t* values) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(values)));
}

// Adds here and now. The compiler is free to put integer sums in another order, and then computes
// all products of a group first, which do not fit the registers.
inline __m256i add_16(__m256i sum, __m256i product) {
  sum = _mm256_add_epi16(sum, product);
  asm("" : "+x"(sum));
  return sum;
}

inline __m256i add_32(__m256i sum, __m256i product) {
  sum = _mm256_add_epi32(sum, product);
  asm("" : "+x"(sum));
  return sum;
}

// dot[r][t] = or += the products of quads [begin, begin + kQuads16).
template <int Rows, int Tiles, typename Group>
[[gnu::always_inline]] inline void add_quads(const Group* w, std::int64_t w_stride,
                                             const QuantizedGroup* x, std::int64_t x_stride,
                                             int begin, bool first, __m256i (&dot)[Rows][Tiles]) {
  using Kind = Traits<Group>;
  const int last = begin + Kind::kQuads16 - 1;
  __m256i sums[Rows][Tiles];  // in 16 bits
#pragma GCC unroll 8
  for (int j = begin; j <= last; ++j) {
    __m256i value[Tiles], magnitude[Tiles];
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) {
      value[t] = quad(w[t * w_stride], j);
      // |-128| is 128 as an unsigned byte. The sign moves to the activation, which is never -128.
      magnitude[t] = Kind::kSigned ? _mm256_abs_epi8(value[t]) : value[t];
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256i inputs = broadcast_quad(x[r * x_stride].values + kQuadSize * j);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) {
        const __m256i product = _mm256_maddubs_epi16(
            magnitude[t], Kind::kSigned ? _mm256_sign_epi8(inputs, value[t]) : inputs);
        sums[r][t] = j == begin ? product : add_16(sums[r][t], product);
        if (j == last) {
          const __m256i wide = _mm256_madd_epi16(sums[r][t], _mm256_set1_epi16(1));
          dot[r][t] = first ? wide : add_32(dot[r][t], wide);
        }
      }
    }
  }
}

// acc[r][t] += the products of one group, for `Rows` rows `x_stride` groups apart and `Tiles` tiles
// `w_stride` groups apart.
template <int Rows, int Tiles, typename Group>
[[gnu::always_inline]] inline void add_group(const Group* w, std::int64_t w_stride,
                                             const QuantizedGroup* x, std::int64_t x_stride,
                                             __m256 (&acc)[Rows][Tiles]) {
  using Kind = Traits<Group>;
  constexpr int kHalfQuads = kNumQuads / Kind::kNumScales;
#pragma GCC unroll 2
  for (int half = 0; half < Kind::kNumScales; ++half) {
    __m256i dot[Rows][Tiles];
    const int first = half * kHalfQuads;
#pragma GCC unroll 8
    for (int j = first; j < first + kHalfQuads; j += Kind::kQuads16) {
      add_quads(w, w_stride, x, x_stride, j, j == first, dot);
    }
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) {
      const __m256 w_scale = scales(w[t * w_stride], half);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m256 scale = _mm256_mul_ps(w_scale, _mm256_broadcast_ss(&x[r * x_stride].scale));
        acc[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][t]), scale, acc[r][t]);
        if constexpr (Kind::kHasMin) {
          const __m256 w_min = load_scales(w[t * w_stride].mins);
          acc[r][t] = _mm256_fmadd_ps(w_min, _mm256_broadcast_ss(&x[r * x_stride].sum), acc[r][t]);
        }
      }
    }
  }
}

// What the blocks of one product have in common.
struct Product {
  const QuantizedGroup* x;
  std::int64_t groups;  // of a row and of a tile, so also from one to the next
  Results results;
};

// A part of `groups` groups along k, from group `begin` on.
struct Part {
  std::int64_t begin;
  std::int64_t groups;
  bool first;
  bool last;
};

// The sums of one row in the tiles being worked on.
template <int Tiles>
using Sums = float[Tiles][kTileWidth];

// Rows [row, row + Rows) of `Tiles` tiles, along one part of k. The weights of the part begin at
// `w` and are `w_stride` groups apart. What came before is in `sums`, which starts at row `row`, as
// is what the next part goes on from.
template <int Rows, int Tiles, typename Group>
void block(const Product& p, const Part& part, const Group* w, std::int64_t w_stride,
           std::int64_t row, std::int64_t tile, Sums<Tiles>* sums, Ahead& ahead) {
  const QuantizedGroup* x = p.x + row * p.groups + part.begin;
  __m256 acc[Rows][Tiles] = {};
  if (!part.first) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm256_loadu_ps(sums[r][t]);
    }
  }
  if (part.last) prefetch_results<Rows, Tiles>(p.results, row, tile);
  for (std::int64_t g = 0; g < part.groups; ++g) {
    ahead.ask();
    add_group<Rows, Tiles>(w + g, w_stride, x + g, p.groups, acc);
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
template <int Rows, int Tiles, typename Group>
void all_rows(const Product& p, const Part& part, const Group* w, std::int64_t w_stride,
              std::int64_t row, std::int64_t rows, std::int64_t tile, Sums<Tiles>* sums,
              Ahead& ahead) {
  for (; row + Rows <= rows; row += Rows, sums += Rows) {
    block<Rows, Tiles>(p, part, w, w_stride, row, tile, sums, ahead);
  }
  if constexpr (Rows > 1) {
    all_rows<Rows - 1, Tiles>(p, part, w, w_stride, row, rows, tile, sums, ahead);
  }
}

// A few rows, whose weights are unpacked where they are used.
template <int Rows, int Tiles, typename Group>
void stream_block(const Product& p, const Group* w, std::int64_t row, std::int64_t tile,
                  Ahead& ahead) {
  const QuantizedGroup* x = p.x + row * p.groups;
  __m256 acc[Rows][Tiles] = {};
  prefetch_results<Rows, Tiles>(p.results, row, tile);
  for (std::int64_t g = 0; g < p.groups; ++g) {
    ahead.ask();
    add_group<Rows, Tiles>(w + g, p.groups, x + g, p.groups, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) store(p.results, acc[r][t], row + r, tile + t);
  }
}

template <int Rows, int Tiles, typename Group>
void stream(const Product& p, const Group* w, std::int64_t row, std::int64_t rows,
            std::int64_t tile, Ahead& ahead) {
  for (; row + Rows <= rows; row += Rows) stream_block<Rows, Tiles>(p, w, row, tile, ahead);
  if constexpr (Rows > 1) stream<Rows - 1, Tiles>(p, w, row, rows, tile, ahead);
}

// Rows [row, row_end), at most kPanelRows, of `Tiles` tiles, whose weights are unpacked chunk by
// chunk.
template <int Tiles, typename Group>
[[gnu::noinline]] void panel(const Product& p, const Group* w, std::int64_t row,
                             std::int64_t row_end, std::int64_t tile, Ahead& ahead) {
  Unpacked<Group> chunk[Tiles][kChunkGroups];
  Sums<Tiles> sums[kPanelRows];
  for (std::int64_t begin = 0; begin < p.groups; begin += kChunkGroups) {
    const std::int64_t left = p.groups - begin;
    const std::int64_t groups = left < kChunkGroups ? left : kChunkGroups;
    for (int t = 0; t < Tiles; ++t) {
      const Group* from = w + t * p.groups + begin;
      for (std::int64_t g = 0; g < groups; ++g) unpack(from[g], chunk[t][g]);
    }
    const Part part = {begin, groups, begin == 0, groups == left};
    all_rows<kRows, Tiles>(p, part, chunk[0], kChunkGroups, row, row_end, tile, sums, ahead);
  }
}

template <typename Group>
void multiply(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
              std::int64_t tile_begin, std::int64_t tile_end, const Results& results) {
  const std::int64_t groups = weight.k / kGroupSize;
  const Product p = {x, groups, results};
  const Group* w = reinterpret_cast<const Group*>(weight.data);
  for (std::int64_t row = 0; row < rows; row += kPanelRows) {
    const std::int64_t count = rows - row < kPanelRows ? rows - row : kPanelRows;
    const std::int64_t blocks = (count + kRows - 1) / kRows;
    // Weights whose bytes are values as they are need no unpacking.
    const bool unpacks = count >= kUnpackRows && Traits<Group>::kQuads16 > 1;
    std::int64_t tile = tile_begin;
    if (count > kRows) {
      for (; tile + kTiles <= tile_end; tile += kTiles) {
        Ahead ahead(w + tile * groups, groups, kTiles, blocks);
        if (unpacks) {
          panel<kTiles>(p, w + tile * groups, row, row + count, tile, ahead);
        } else {
          stream<kRows, kTiles>(p, w + tile * groups, row, row + count, tile, ahead);
        }
      }
    }
    // Few rows only stream the weights: memory is fastest when read in one place at a time.
    for (; tile < tile_end; ++tile) {
      Ahead ahead(w + tile * groups, groups, 1, blocks);
      stream<kRows, 1>(p, w + tile * groups, row, row + count, tile, ahead);
    }
  }
}

}  // namespace

void matmul_avx2(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
                 std::int64_t tile_begin, std::int64_t tile_end, float* out,
                 std::int64_t out_stride, const float* addend, std::int64_t addend_stride) {
  const Results results = {weight.n, out, out_stride, addend, addend_stride};
  switch (weight.type) {
    case WeightType::q4:
      return multiply<Q4Group>(weight, x, rows, tile_begin, tile_end, results);
    case WeightType::q4k:
      return multiply<Q4KGroup>(weight, x, rows, tile_begin, tile_end, results);
    case WeightType::q5:
      return multiply<Q5Group>(weight, x, rows, tile_begin, tile_end, results);
    case WeightType::q5k:
      return multiply<Q5KGroup>(weight, x, rows, tile_begin, tile_end, results);
    case WeightType::q6k:
      return multiply<Q6KGroup>(weight, x, rows, tile_begin, tile_end, results);
    case WeightType::q8:
      return multiply<Q8Group>(weight, x, rows, tile_begin, tile_end, results);
    case WeightType::f16:
    case WeightType::f32:
      return;  // not quantized: for matmul_float
  }
}

}  // namespace looseleaf

#endif
