// The kernels for x86-64 with AVX2, FMA and F16C: the table of them, and the quantization of rows.
//
// Files called *_avx2 alone are compiled with those instructions, and the linker keeps one copy of
// an inline function whichever file it comes from. So all code in them is in an anonymous
// namespace, and calls no function that a header for all files defines, the standard library's
// included.
#include "gemm.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "gemm_products_avx2.h"

namespace looseleaf {

namespace {

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
      .matmul = matmul_avx2,
      .matmul_float = matmul_float_avx2,
  };
  return &kKernels;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const GemmKernels* gemm_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
