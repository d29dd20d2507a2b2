// The kernels in plain C++: for processors without better ones, and the reference for those.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gemm.h"
#include "groups.h"

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

template <typename Group>
void add_group(const Group& w, const QuantizedGroup& x, Lanes& acc) {
  constexpr int kNumScales = num_scales<Group>();
  constexpr int kInputs = kGroupSize / kNumScales;
  for (int lane = 0; lane < kTileWidth; ++lane) {
    for (int part = 0; part < kNumScales; ++part) {
      std::int32_t dot = 0;
      for (int i = part * kInputs; i < (part + 1) * kInputs; ++i) {
        dot += integer_of(w, lane, i) * x.values[i];
      }
      const float scale = scale_of(w, lane, part * kInputs) * x.scale;
      acc[lane] = std::fma(static_cast<float>(dot), scale, acc[lane]);
    }
    if constexpr (has_min<Group>()) acc[lane] = std::fma(min_of(w, lane), x.sum, acc[lane]);
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

// Writes the columns of one tile that exist, to one row.
void store(const Results& results, const Lanes& acc, std::int64_t row, std::int64_t tile) {
  const std::int64_t begin = tile * kTileWidth;
  const std::int64_t end = std::min(begin + kTileWidth, results.n);
  float* out = results.out + row * results.out_stride;
  for (std::int64_t column = begin; column < end; ++column) {
    const float value = acc[column - begin];
    const float* addend = results.addend;
    out[column] =
        addend == nullptr ? value : value + addend[row * results.addend_stride + column];
  }
}

template <typename Group>
void multiply(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
              std::int64_t tile_begin, std::int64_t tile_end, const Results& results) {
  const std::int64_t groups = weight.k / kGroupSize;
  for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const Group* w = reinterpret_cast<const Group*>(weight.data) + tile * groups;
    for (std::int64_t r = 0; r < rows; ++r) {
      Lanes acc = {};
      for (std::int64_t g = 0; g < groups; ++g) add_group(w[g], x[r * groups + g], acc);
      store(results, acc, r, tile);
    }
  }
}

void matmul(const PackedWeight& weight, const QuantizedGroup* x, std::int64_t rows,
            std::int64_t tile_begin, std::int64_t tile_end, float* out, std::int64_t out_stride,
            const float* addend, std::int64_t addend_stride) {
  const Results results = {weight.n, out, out_stride, addend, addend_stride};
  with_group_type(weight.type, [&](auto group) {
    using Group = typename decltype(group)::type;
    if constexpr (!kIsInput<Group>) {
      multiply<Group>(weight, x, rows, tile_begin, tile_end, results);
    }
  });
}

template <typename Group>
void multiply_float(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                    std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end,
                    const Results& results) {
  constexpr std::int64_t kInputs = kIsInput<Group> ? 1 : kGroupSize;
  const std::int64_t groups = weight.k / kInputs;
  for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const Group* w = reinterpret_cast<const Group*>(weight.data) + tile * groups;
    for (std::int64_t r = 0; r < rows; ++r) {
      Lanes acc = {};
      for (std::int64_t i = 0; i < weight.k; ++i) {
        for (int lane = 0; lane < kTileWidth; ++lane) {
          const float value = weight_of(w[i / kInputs], lane, static_cast<int>(i % kInputs));
          acc[lane] = std::fma(value, x[r * x_stride + i], acc[lane]);
        }
      }
      store(results, acc, r, tile);
    }
  }
}

void matmul_float(const PackedWeight& weight, const float* x, std::int64_t x_stride,
                  std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end, float* out,
                  std::int64_t out_stride, const float* addend, std::int64_t addend_stride) {
  const Results results = {weight.n, out, out_stride, addend, addend_stride};
  with_group_type(weight.type, [&](auto group) {
    multiply_float<typename decltype(group)::type>(weight, x, x_stride, rows, tile_begin, tile_end,
                                                   results);
  });
}

}  // namespace

const GemmKernels* gemm_portable() {
  static constexpr GemmKernels kKernels = {
      .name = "portable",
      .quantize_rows = quantize_rows,
      .matmul = matmul,
      .matmul_float = matmul_float,
  };
  return &kKernels;
}

}  // namespace looseleaf
