#include "bench_binding.h"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bench_attention.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace looseleaf {

namespace {

double attention(std::int32_t num_sequences, std::int32_t context, std::int32_t shared,
                 std::int32_t num_heads, std::int32_t num_kv_heads, std::int32_t head_dim,
                 std::int32_t block_size, bool contiguous, int threads, int repeats,
                 const std::string& kv_type) {
  const KVType type = kv_type_of(kv_type);
  check_kv_shape(type, head_dim, block_size);
  nb::gil_scoped_release release;
  return bench_attention({num_sequences, context, shared, num_heads, num_kv_heads, head_dim,
                          block_size, contiguous, type},
                         threads, repeats);
}

}  // namespace

void bind_bench(nb::module_& m) {
  m.def("bench_attention", &attention, "num_sequences"_a, "context"_a, "shared"_a, "num_heads"_a,
        "num_kv_heads"_a, "head_dim"_a, "block_size"_a, "contiguous"_a, "threads"_a, "repeats"_a,
        "kv_type"_a,
        "Seconds of one layer's attention for one new token of each sequence; the first `shared` "
        "tokens are in blocks that all hold, blocks lie in order or shuffled.");
}

}  // namespace looseleaf
