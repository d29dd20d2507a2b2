// The kernels in plain C++: for processors without better ones, and the reference for those.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gemm.h"
#include "pack.h"

namespace looseleaf {

namespace {

// What a tile adds up for one row.
using Lanes = float[kTileWidth];

void quantize_group(const float* x, QuantizedGroup& out) {
  // Compared as bits: among numbers without sign that is their order, with NaN above infinity.
  std::uint32_t largest = 0;
  for (int i = 0; i < kGroupSize; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  }
  const float scale = std::bit_cast<float>(largest) / 127.0f;
  const bool tiny = scale < std::numeric_limits<float>::min();
  const bool usable = !tiny && scale <= std::numeric_limits<float>::max();
  const float inverse = usable ? 1.0f / scale : 0.0f;
  std::int32_t sum = 0;
  for (int i = 0; i < kGroupSize; ++i) {
    const long value = usable ? std::lrint(x[i] * inverse) : 0;
    out.values[i] = static_cast<std::int8_t>(value);
    sum += static_cast<std::int32_t>(value);
  }
  out.scale = tiny ? 0.0f : scale;
  out.sum = out.scale * static_cast<float>(sum);
}

void quantize_rows(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t k,
                   QuantizedGroup* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < k; i += kGroupSize) quantize_group(x + r * x_stride + i, *out++);
  }
}

void add_group(const Q4Group& w, const QuantizedGroup& x, Lanes& acc) {
  std::int32_t dot[kTileWidth] = {};
  for (int p = 0; p < 4; ++p) {
    for (int lane = 0; lane < kTileWidth; ++lane) {
      for (int i = 0; i < kQuadSize; ++i) {
        const int byte = w.nibbles[p][kQuadSize * lane + i];
        dot[lane] += (byte & 15) * x.values[kQuadSize * p + i] +
                     (byte >> 4) * x.values[kQuadSize * (p + 4) + i];
      }
    }
  }
  for (int lane = 0; lane < kTileWidth; ++lane) {
    const float scale = float_from_f16(w.scales[lane]) * x.scale;
    acc[lane] = std::fma(static_cast<float>(dot[lane]), scale, acc[lane]);
    acc[lane] = std::fma(float_from_f16(w.mins[lane]), x.sum, acc[lane]);
  }
}

void add_group(const Q8Group& w, const QuantizedGroup& x, Lanes& acc) {
  std::int32_t dot[kTileWidth] = {};
  for (int j = 0; j < 8; ++j) {
    for (int lane = 0; lane < kTileWidth; ++lane) {
      for (int i = 0; i < kQuadSize; ++i) {
        dot[lane] += w.values[j][kQuadSize * lane + i] * x.values[kQuadSize * j + i];
      }
    }
  }
  for (int lane = 0; lane < kTileWidth; ++lane) {
    const float scale = float_from_f16(w.scales[lane]) * x.scale;
    acc[lane] = std::fma(static_cast<float>(dot[lane]), scale, acc[lane]);
  }
}

// Writes the columns of one tile that exist, to one row.
void store(const Lanes& acc, std::int64_t tile, std::int64_t n, float* out, const float* addend) {
  const std::int64_t begin = tile * kTileWidth;
  const std::int64_t end = std::min(begin + kTileWidth, n);
  for (std::int64_t column = begin; column < end; ++column) {
    const float value = acc[column - begin];
    out[column] = addend == nullptr ? value : value + addend[column];
  }
}

const float* addend_row(const float* addend, std::int64_t offset) {
  return addend == nullptr ? nullptr : addend + offset;
}

template <typename Group>
void matmul_quantized(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
                      std::int64_t tile_begin, std::int64_t tile_end, float* out,
                      std::int64_t out_stride, const float* addend, std::int64_t addend_stride) {
  const std::int64_t groups = weight.k / kGroupSize;
  for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const Group* w = reinterpret_cast<const Group*>(weight.data) + tile * groups;
    for (std::int64_t r = 0; r < rows; ++r) {
      Lanes acc = {};
      for (std::int64_t g = 0; g < groups; ++g) add_group(w[g], x[r * groups + g], acc);
      store(acc, tile, weight.n, out + r * out_stride, addend_row(addend, r * addend_stride));
    }
  }
}

void matmul_f32(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end, float* out,
                std::int64_t out_stride, const float* addend, std::int64_t addend_stride) {
  for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const float* w = reinterpret_cast<const float*>(weight.data) + tile * kTileWidth * weight.k;
    for (std::int64_t r = 0; r < rows; ++r) {
      Lanes acc = {};
      for (std::int64_t i = 0; i < weight.k; ++i) {
        for (int lane = 0; lane < kTileWidth; ++lane) {
          acc[lane] = std::fma(w[i * kTileWidth + lane], x[r * x_stride + i], acc[lane]);
        }
      }
      store(acc, tile, weight.n, out + r * out_stride, addend_row(addend, r * addend_stride));
    }
  }
}

}  // namespace

const GemmKernels* gemm_portable() {
  static constexpr GemmKernels kKernels = {
      .name = "portable",
      .quantize_rows = quantize_rows,
      .matmul_q4 = matmul_quantized<Q4Group>,
      .matmul_q8 = matmul_quantized<Q8Group>,
      .matmul_f32 = matmul_f32,
  };
  return &kKernels;
}

}  // namespace looseleaf
