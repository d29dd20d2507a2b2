// The AVX2 products, which gemm_avx2.cpp puts into its table; declared as in gemm.h.
#pragma once

#include "gemm.h"

namespace looseleaf {

void matmul_avx2(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
                 std::int64_t tile_begin, std::int64_t tile_end, float* out,
                 std::int64_t out_stride, const float* addend, std::int64_t addend_stride);

void matmul_float_avx2(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                       std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end,
                       float* out, std::int64_t out_stride, const float* addend,
                       std::int64_t addend_stride);

}  // namespace looseleaf
