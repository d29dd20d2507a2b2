// From the rows of a weight file to the packed layouts of layout.md.
//
// Every pack function takes the rows [row_begin, row_end) of a matrix of `n` rows and `k` inputs,
// and puts them into their places in `packed`. Calls for different rows may run at the same time;
// the one that ends at `n` also writes the zeros that pad the last tile. Once all rows have been
// packed, all packed_bytes(type, n, k) bytes have been written. Nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights.h"

namespace looseleaf {

// GGUF blocks, row-major [n][k / 32]: 18 bytes each for Q4_0, 20 for Q4_1, 34 for Q8_0. `blocks` is
// where row 0 starts, whatever `row_begin` is. A scale of Q4_0 above 8188 has an infinite minimum:
// -8 times as much is beyond f16.
void pack_q4_0(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed);
void pack_q4_1(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed);
void pack_q8_0(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed);

// Floats, row-major [n][k]; any `k`.
void pack_f32(const float* values, std::int64_t n, std::int64_t k, std::int64_t row_begin,
              std::int64_t row_end, std::byte* packed);

// Writes the `k` weights of one output to `out`, with the values that the file's format gives them.
void unpack_row(const PackedWeight& weight, std::int64_t row, float* out);

// The number whose f16 bits are `bits`; exact. NaN stays NaN.
float float_from_f16(std::uint16_t bits);

}  // namespace looseleaf
