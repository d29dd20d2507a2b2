#include "weights_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bench_gemm.h"
#include "gemm.h"
#include "pack.h"
#include "peak.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace looseleaf {

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

constexpr std::pair<const char*, WeightType> kTypes[] = {
    {"q4", WeightType::q4},   {"q4k", WeightType::q4k}, {"q5", WeightType::q5},
    {"q5k", WeightType::q5k}, {"q6k", WeightType::q6k}, {"q8", WeightType::q8},
    {"f16", WeightType::f16}, {"f32", WeightType::f32},
};

const Source& source_or_throw(const std::string& name) {
  const Source* source = find_source(name);
  if (source == nullptr) throw std::invalid_argument("weights of type " + name + " are not packed");
  return *source;
}

// A matrix in `packed`; throws if that has another size.
PackedWeight packed_weight(const std::string& type, std::int64_t n, std::int64_t k,
                           const Array<const std::uint8_t>& packed) {
  const WeightType kind = weight_type(type);
  if (n < 1 || k < 1 || (is_quantized(kind) && k % kGroupSize != 0)) {
    throw std::invalid_argument("a packed matrix has an impossible shape");
  }
  if (packed.size() != packed_bytes(kind, n, k)) {
    throw std::invalid_argument("a packed matrix has the wrong size");
  }
  return {kind, n, k, reinterpret_cast<const std::byte*>(packed.data())};
}

// Rows of a weight file into the packed layout; `threads` share the rows.
void pack(const std::string& source, Array<const std::uint8_t> rows, std::int64_t n,
          std::int64_t k, Array<std::uint8_t> packed, int threads) {
  const Source& from = source_or_throw(source);
  if (n < 1 || k < 1 || k % from.block_inputs != 0 ||
      rows.size() != static_cast<std::size_t>(n * (k / from.block_inputs) * from.block_bytes)) {
    throw std::invalid_argument("the rows are not n times k weights of type " + source);
  }
  if (packed.size() != packed_bytes(from.type, n, k)) {
    throw std::invalid_argument("the packed array has the wrong size");
  }
  const auto* blocks = reinterpret_cast<const std::byte*>(rows.data());
  auto* to = reinterpret_cast<std::byte*>(packed.data());
  nb::gil_scoped_release release;
  ThreadPool pool(threads);
  const std::int64_t tiles = num_tiles(n);
  pool.run(tiles, std::max<std::int64_t>(1, tiles / (threads * 4)),
           [&](std::int64_t begin, std::int64_t end, int) {
             from.pack(blocks, n, k, begin * kTileWidth, std::min(n, end * kTileWidth), to);
           });
}

void unpack(const std::string& type, std::int64_t n, std::int64_t k,
            Array<const std::uint8_t> packed, Array<float> out) {
  const PackedWeight weight = packed_weight(type, n, k, packed);
  if (out.size() != static_cast<std::size_t>(n * k)) {
    throw std::invalid_argument("the array for the weights is not n times k");
  }
  for (std::int64_t row = 0; row < n; ++row) unpack_row(weight, row, out.data() + row * k);
}

const GemmKernels& kernels_or_throw(const std::string& name) {
  const GemmKernels* kernels = name == "auto" ? &gemm_kernels() : gemm_kernels(name);
  if (kernels == nullptr) throw std::invalid_argument("this processor cannot run kernels " + name);
  return *kernels;
}

// One product in one thread, for tests: `x` is rows of k floats, `out` rows of n, and `addend` is
// one row or as many as `out`, and may be `out`.
void matmul(const std::string& type, std::int64_t n, std::int64_t k,
            Array<const std::uint8_t> packed, Array<const float> x, Array<float> out,
            bool quantize, std::optional<Array<const float>> addend, const std::string& kernels) {
  const PackedWeight weight = packed_weight(type, n, k, packed);
  const GemmKernels& table = kernels_or_throw(kernels);
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / k;
  if (x.size() != static_cast<std::size_t>(rows * k) ||
      out.size() != static_cast<std::size_t>(rows * n)) {
    throw std::invalid_argument("activations or results have the wrong size");
  }
  const auto row = static_cast<std::size_t>(n);
  if (addend && addend->size() != row && addend->size() != out.size()) {
    throw std::invalid_argument("what is added has the wrong size");
  }
  const float* added = addend ? addend->data() : nullptr;
  const std::int64_t stride = addend && addend->size() != row ? n : 0;
  const std::int64_t tiles = num_tiles(n);
  if (!quantize) {
    table.matmul_float(weight, x.data(), k, rows, 0, tiles, out.data(), n, added, stride);
    return;
  }
  if (!is_quantized(weight.type)) {
    throw std::invalid_argument("weights of type " + type + " take float activations");
  }
  std::vector<QuantizedGroup> groups(static_cast<std::size_t>(rows * (k / kGroupSize)));
  table.quantize_rows(x.data(), k, rows, k, groups.data());
  table.matmul(weight, groups.data(), rows, 0, tiles, out.data(), n, added, stride);
}

double bench(const std::string& type, std::int64_t n, std::int64_t k, std::int64_t rows,
             int threads, int repeats) {
  const WeightType kind = weight_type(type);
  if (n < 1 || k < 1 || k % kGroupSize != 0 || rows < 1) {
    throw std::invalid_argument("n and rows are at least 1, and k is a multiple of 32");
  }
  nb::gil_scoped_release release;
  return bench_matmul(kind, n, k, rows, threads, repeats);
}

}  // namespace

WeightType weight_type(const std::string& name) {
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  throw std::invalid_argument("no packed weight type is called " + name);
}

void bind_weights(nb::module_& m) {
  m.def(
      "packed_type",
      [](const std::string& source) {
        const WeightType type = source_or_throw(source).type;
        return std::find_if(std::begin(kTypes), std::end(kTypes),
                            [&](const auto& known) { return known.second == type; })
            ->first;
      },
      "source"_a, "What weights of a type of a file are packed as.");
  m.def(
      "packed_bytes",
      [](const std::string& type, std::int64_t n, std::int64_t k) {
        return packed_bytes(weight_type(type), n, k);
      },
      "type"_a, "n"_a, "k"_a, "Bytes of a packed matrix of n outputs by k inputs.");
  m.def("pack", &pack, "source"_a, "rows"_a, "n"_a, "k"_a, "packed"_a, "threads"_a,
        "Pack the rows of a weight file into the layout of layout.md.");
  m.def("unpack", &unpack, "type"_a, "n"_a, "k"_a, "packed"_a, "out"_a,
        "Write the n times k weights of a packed matrix to `out`.");
  m.def("matmul", &matmul, "type"_a, "n"_a, "k"_a, "packed"_a, "x"_a, "out"_a, "quantize"_a,
        "addend"_a = nb::none(), "kernels"_a = "auto",
        "Multiply rows of k floats with a packed matrix in one thread, on activations of 8 bits "
        "where `quantize`.");
  m.def("peak_int8_madds", &peak_int8_madds, "threads"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Integer multiply-adds per second that the threads reach on registers.");
  m.def("peak_f32_flops", &peak_f32_flops, "threads"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Float32 operations per second that the threads reach on registers, an fma being two.");
  m.def("bench_matmul", &bench, "packed_type"_a, "n"_a, "k"_a, "rows"_a, "threads"_a, "repeats"_a,
        "Seconds per product of random weights and activations, the median of `repeats`.");
}

}  // namespace looseleaf
