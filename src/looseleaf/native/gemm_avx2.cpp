// The kernels for x86-64 with AVX2, FMA and F16C.
//
// This file alone is compiled with those instructions, and the linker keeps one copy of an inline
// function whichever file it comes from. So all code here is in an anonymous namespace, and calls
// no function that a header defines, the standard library's included.
#include "gemm.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace looseleaf {

namespace {

// Rows and tiles of a block of outputs, which is computed along all of k at once. Each weight
// vector serves all rows, each activation all tiles; more of either do not fit the registers.
constexpr int kRows = 4;
constexpr int kTiles = 2;

// The weights of one input in one tile: what a group is for `f32`.
struct F32Group {
  float values[kTileWidth];
};

// Every lane holds the quad of activations at `values`.
inline __m256i broadcast_quad(const std::int8_t* values) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(values)));
}

inline __m256i load_bytes(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

inline __m256 load_f16(const std::uint16_t* bits) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
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

// acc[r][t] += the products of one group, for `Rows` rows `x_stride` groups apart and `Tiles` tiles
// `w_stride` groups apart.
template <int Rows, int Tiles>
[[gnu::always_inline]] inline void add_group(const Q4Group* w, std::int64_t w_stride,
                                             const QuantizedGroup* x, std::int64_t x_stride,
                                             __m256 (&acc)[Rows][Tiles]) {
  const __m256i mask = _mm256_set1_epi8(15);
  // 16-bit sums hold a whole group: 16 products of at most 15 * 127 make 30,480.
  __m256i dot[Rows][Tiles];
#pragma GCC unroll 8
  for (int p = 0; p < 4; ++p) {
    __m256i low[Tiles], high[Tiles];
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) {
      const __m256i both = load_bytes(w[t * w_stride].nibbles[p]);
      low[t] = _mm256_and_si256(both, mask);
      high[t] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256i quad = broadcast_quad(x[r * x_stride].values + 4 * p);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) {
        const __m256i product = _mm256_maddubs_epi16(low[t], quad);
        dot[r][t] = p == 0 ? product : add_16(dot[r][t], product);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256i quad = broadcast_quad(x[r * x_stride].values + 4 * (p + 4));
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) {
        dot[r][t] = add_16(dot[r][t], _mm256_maddubs_epi16(high[t], quad));
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; ++t) {
    const __m256 w_scale = load_f16(w[t * w_stride].scales);
    const __m256 w_min = load_f16(w[t * w_stride].mins);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256i sum = _mm256_madd_epi16(dot[r][t], _mm256_set1_epi16(1));
      const __m256 scale = _mm256_mul_ps(w_scale, _mm256_broadcast_ss(&x[r * x_stride].scale));
      acc[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[r][t]);
      acc[r][t] = _mm256_fmadd_ps(w_min, _mm256_broadcast_ss(&x[r * x_stride].sum), acc[r][t]);
    }
  }
}

template <int Rows, int Tiles>
[[gnu::always_inline]] inline void add_group(const Q8Group* w, std::int64_t w_stride,
                                             const QuantizedGroup* x, std::int64_t x_stride,
                                             __m256 (&acc)[Rows][Tiles]) {
  __m256i dot[Rows][Tiles];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    __m256i value[Tiles], magnitude[Tiles];
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) {
      value[t] = load_bytes(w[t * w_stride].values[j]);
      // |-128| is 128 as an unsigned byte, and two products of at most 128 * 127 fit 16 bits. The
      // sign moves to the activation, which is never -128.
      magnitude[t] = _mm256_abs_epi8(value[t]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256i quad = broadcast_quad(x[r * x_stride].values + 4 * j);
#pragma GCC unroll 8
      for (int t = 0; t < Tiles; ++t) {
        const __m256i pairs = _mm256_maddubs_epi16(magnitude[t], _mm256_sign_epi8(quad, value[t]));
        const __m256i product = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        dot[r][t] = j == 0 ? product : add_32(dot[r][t], product);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; ++t) {
    const __m256 w_scale = load_f16(w[t * w_stride].scales);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256 scale = _mm256_mul_ps(w_scale, _mm256_broadcast_ss(&x[r * x_stride].scale));
      acc[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][t]), scale, acc[r][t]);
    }
  }
}

template <int Rows, int Tiles>
[[gnu::always_inline]] inline void add_group(const F32Group* w, std::int64_t w_stride,
                                             const float* x, std::int64_t x_stride,
                                             __m256 (&acc)[Rows][Tiles]) {
  __m256 weight[Tiles];
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; ++t) weight[t] = _mm256_loadu_ps(w[t * w_stride].values);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const __m256 input = _mm256_broadcast_ss(x + r * x_stride);
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm256_fmadd_ps(weight[t], input, acc[r][t]);
  }
}

[[gnu::noinline]] void store_part(__m256 acc, std::int64_t columns, float* out,
                                  const float* addend) {
  float lanes[kTileWidth];
  _mm256_storeu_ps(lanes, acc);
  for (std::int64_t i = 0; i < columns; ++i) {
    out[i] = addend == nullptr ? lanes[i] : lanes[i] + addend[i];
  }
}

// What all blocks of one product have in common. A `Group` is kGroupSize inputs of a tile, or one
// if it is F32Group; an `Input` is as many of a row.
template <typename Group, typename Input>
struct Product {
  const Group* w;
  const Input* x;
  std::int64_t groups;    // of a tile, so also from one tile to the next
  std::int64_t x_stride;  // from one row to the next
  std::int64_t n;
  float* out;
  std::int64_t out_stride;
  const float* addend;  // null, or what is added at the end
  std::int64_t addend_stride;
};

// Writes the columns of one tile that exist.
template <typename Group, typename Input>
inline void store(const Product<Group, Input>& p, __m256 acc, std::int64_t row, std::int64_t tile) {
  const std::int64_t column = tile * kTileWidth;
  float* out = p.out + row * p.out_stride + column;
  const float* addend =
      p.addend == nullptr ? nullptr : p.addend + row * p.addend_stride + column;
  if (column + kTileWidth > p.n) {
    store_part(acc, p.n - column, out, addend);
    return;
  }
  if (addend != nullptr) acc = _mm256_add_ps(acc, _mm256_loadu_ps(addend));
  _mm256_storeu_ps(out, acc);
}

// Asks for the groups that come `ahead` groups after those at `w`. It may be past the end of the
// matrix, which does no harm.
template <int Tiles, typename Group>
[[gnu::always_inline]] inline void prefetch(const Group* w, std::int64_t w_stride,
                                            std::int64_t ahead) {
  constexpr int kCacheLine = 64;
#pragma GCC unroll 8
  for (int t = 0; t < Tiles; ++t) {
    const char* begin = reinterpret_cast<const char*>(w + t * w_stride + ahead);
#pragma GCC unroll 8
    for (unsigned i = 0; i < sizeof(Group); i += kCacheLine) _mm_prefetch(begin + i, _MM_HINT_T0);
  }
}

template <int Rows, int Tiles, typename Group, typename Input>
void block(const Product<Group, Input>& p, std::int64_t row, std::int64_t tile) {
  const Group* w = p.w + tile * p.groups;
  const Input* x = p.x + row * p.x_stride;
  __m256 acc[Rows][Tiles] = {};
  for (std::int64_t g = 0; g < p.groups; ++g) {
    // The first rows wait for weights to come from memory: they ask for the next tiles' by the way.
    if (row == 0) prefetch<Tiles>(w + g, p.groups, Tiles * p.groups);
    add_group<Rows, Tiles>(w + g, p.groups, x + g, p.x_stride, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < Tiles; ++t) {
      store(p, acc[r][t], row + r, tile + t);
    }
  }
}

// Rows [row, rows) of `Tiles` tiles: as many at once as `Rows`, then the rest in smaller blocks.
template <int Rows, int Tiles, typename Group, typename Input>
void all_rows(const Product<Group, Input>& p, std::int64_t row, std::int64_t rows,
              std::int64_t tile) {
  for (; row + Rows <= rows; row += Rows) block<Rows, Tiles>(p, row, tile);
  if constexpr (Rows > 1) all_rows<Rows - 1, Tiles>(p, row, rows, tile);
}

template <typename Group, typename Input>
void multiply(const Product<Group, Input>& p, std::int64_t rows, std::int64_t tile,
              std::int64_t tile_end) {
  // Few rows only stream the weights: memory is fastest when read in one place at a time.
  if (rows > kRows) {
    for (; tile + kTiles <= tile_end; tile += kTiles) all_rows<kRows, kTiles>(p, 0, rows, tile);
  }
  for (; tile < tile_end; ++tile) all_rows<kRows, 1>(p, 0, rows, tile);
}

template <typename Group>
void matmul_quantized(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
                      std::int64_t tile_begin, std::int64_t tile_end, float* out,
                      std::int64_t out_stride, const float* addend, std::int64_t addend_stride) {
  const std::int64_t groups = weight.k / kGroupSize;
  const Product<Group, QuantizedGroup> product = {
      reinterpret_cast<const Group*>(weight.data), x, groups, groups, weight.n, out, out_stride,
      addend, addend_stride};
  multiply(product, rows, tile_begin, tile_end);
}

void matmul_f32(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end, float* out,
                std::int64_t out_stride, const float* addend, std::int64_t addend_stride) {
  const Product<F32Group, float> product = {
      reinterpret_cast<const F32Group*>(weight.data), x, weight.k, x_stride, weight.n, out,
      out_stride, addend, addend_stride};
  multiply(product, rows, tile_begin, tile_end);
}

inline void quantize_group(const float* x, QuantizedGroup& out) {
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  __m256 in[4];
  // Compared as bits: among numbers without sign that is their order, with NaN above infinity.
  __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    in[i] = _mm256_loadu_ps(x + 8 * i);
    largest = _mm256_max_epi32(largest,
                               _mm256_and_si256(_mm256_castps_si256(in[i]), magnitude_bits));
  }
  __m128i top = _mm256_extracti128_si256(largest, 1);
  top = _mm_max_epi32(top, _mm256_castsi256_si128(largest));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
  top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
  const float scale = _mm_cvtss_f32(_mm_castsi128_ps(top)) / 127.0f;
  if (!(scale >= __FLT_MIN__ && scale <= __FLT_MAX__)) {
    out.scale = scale < __FLT_MIN__ ? 0.0f : scale;
    out.sum = out.scale * 0.0f;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.values), _mm256_setzero_si256());
    return;
  }
  const __m256 inverse = _mm256_set1_ps(1.0f / scale);
  __m256i q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(in[i], inverse));
  // Packing works within 128-bit halves: the permutation puts the eight parts back in order.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]),
                                            _mm256_packs_epi32(q[2], q[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.values),
                      _mm256_permutevar8x32_epi32(packed, order));
  const __m256i sums = _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  out.scale = scale;
  out.sum = scale * static_cast<float>(_mm_cvtsi128_si32(sum));
}

void quantize_rows(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t k,
                   QuantizedGroup* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < k; i += kGroupSize) quantize_group(x + r * x_stride + i, *out++);
  }
}

}  // namespace

const GemmKernels* gemm_avx2() {
  static constexpr GemmKernels kKernels = {
      .name = "avx2",
      .quantize_rows = quantize_rows,
      .matmul_q4 = matmul_quantized<Q4Group>,
      .matmul_q8 = matmul_quantized<Q8Group>,
      .matmul_f32 = matmul_f32,
  };
  return &kKernels;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const GemmKernels* gemm_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
