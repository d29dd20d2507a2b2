// Products of activations with packed weights, in the orders of arithmetic of layout.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "quantize.h"
#include "weights.h"

namespace looseleaf {

// One set of kernels. All sets give the same bits. No kernel allocates, throws, or keeps state, so
// any number of threads may call them. Threads share a product by splitting its tiles: a call
// computes columns [8 * tile_begin, 8 * tile_end) of rows [0, rows), and none beyond `weight.n`.
//
// Column `c` of row `r` goes to `out[r * out_stride + c]`, whatever `tile_begin` is. Unless
// `addend` is null, `addend[r * addend_stride + c]` is added to it at the end: a bias where
// `addend_stride` is 0, a residual where it is the length of a row. `addend` may be `out`, if the
// strides are equal too. Else `out` overlaps no input.
struct GemmKernels {
  const char* name;

  // Row `r` of `x`, `k` floats at `x + r * x_stride`, becomes the k / 32 groups from
  // `out + r * (k / 32)` on. `k` is a multiple of 32.
  void (*quantize_rows)(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t k,
                        QuantizedGroup* out);

  // For weights of which is_quantized is true. `x` is what quantize_rows wrote, for weight.k
  // inputs.
  void (*matmul)(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
                 std::int64_t tile_begin, std::int64_t tile_end, float* out,
                 std::int64_t out_stride, const float* addend, std::int64_t addend_stride);

  // For weights of any type: the same bits as with the weights that unpack_row gives, packed as
  // f32. Row `r` of `x` is weight.k floats at `x + r * x_stride`.
  void (*matmul_float)(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                       std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end,
                       float* out, std::int64_t out_stride, const float* addend,
                       std::int64_t addend_stride);
};

// The fastest kernels that this processor can run.
const GemmKernels& gemm_kernels();

// The kernels called "portable" or "avx2"; null if there are none of that name, or if this
// processor cannot run them.
const GemmKernels* gemm_kernels(std::string_view name);

// The tables themselves, which ask nothing of the processor. `gemm_avx2` is null where it was
// compiled without AVX2.
const GemmKernels* gemm_portable();
const GemmKernels* gemm_avx2();

}  // namespace looseleaf
