// From the rows of a weight file to the packed layouts of layout.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "weights.h"

namespace looseleaf {

// How a GGUF type is stored, and what it becomes.
struct Source {
  std::string_view name;      // such as "Q4_K"
  WeightType type;            // what it is packed as
  std::int64_t block_inputs;  // inputs per block of the file: `k` is a multiple of it
  std::int64_t block_bytes;

  // Puts rows [row_begin, row_end) of a matrix of `n` rows and `k` inputs into their places in
  // `packed`. `blocks` is where row 0 starts, whatever `row_begin` is: blocks row-major
  // [n][k / block_inputs], aligned or not. Calls for different rows may run at the same time; the
  // one that ends at `n` also writes the zeros that pad the last tile. Once all rows have been
  // packed, all packed_bytes(type, n, k) bytes have been written. Nothing is allocated.
  void (*pack)(const std::byte* blocks, std::int64_t n, std::int64_t k, std::int64_t row_begin,
               std::int64_t row_end, std::byte* packed);
};

// Null for types that are not packed as they are: decode their rows and pack them as "F32".
const Source* find_source(std::string_view name);

// Writes the `k` weights of one output to `out`, with the values that the file's format gives them.
void unpack_row(const PackedWeight& weight, std::int64_t row, float* out);

// The number whose f16 bits are `bits`; exact. NaN stays NaN.
float float_from_f16(std::uint16_t bits);

}  // namespace looseleaf
