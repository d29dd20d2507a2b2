#include "runtime_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime.h"
#include "weights_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace looseleaf {

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

// (type, outputs, inputs, packed bytes)
using Matrix = std::tuple<std::string, std::int64_t, std::int64_t, Array<const std::uint8_t>>;
// (kind, target, first, second, weight, bias, layer, window, number)
using OpTuple = std::tuple<int, int, int, int, int, int, int, int, float>;

template <typename Table>
const Table& kernels_or_throw(const Table* table, const std::string& name) {
  if (table == nullptr) throw std::invalid_argument("this processor cannot run kernels " + name);
  return *table;
}

std::unique_ptr<Runtime> make_runtime(
    std::tuple<int, int, int, int, int, std::int64_t, std::int64_t, bool> shape,
    const std::vector<std::pair<bool, std::int64_t>>& buffers, const std::vector<OpTuple>& ops,
    const std::vector<Matrix>& matrices, const std::vector<Array<const float>>& vectors,
    const std::vector<std::tuple<int, Array<const float>, Array<const float>>>& ropes,
    const std::string& kv_type, Array<std::uint8_t> keys, Array<std::uint8_t> values,
    int num_threads, const std::string& kernels) {
  std::vector<BufferRecord> buffer_records;
  for (const auto& [sampled, columns] : buffers) buffer_records.push_back({sampled, columns});
  std::vector<OpRecord> op_records;
  for (const auto& [kind, target, first, second, weight, bias, layer, window, number] : ops) {
    op_records.push_back({static_cast<OpKind>(kind), target, first, second, weight, bias, layer,
                          window, number});
  }
  std::vector<PackedWeight> packed;
  for (const auto& [type, n, k, data] : matrices) {
    if (data.size() != packed_bytes(weight_type(type), n, k)) {
      throw std::invalid_argument("a packed matrix has the wrong size");
    }
    packed.push_back({weight_type(type), n, k, reinterpret_cast<const std::byte*>(data.data())});
  }
  std::vector<const float*> vector_data;
  for (const auto& vector : vectors) vector_data.push_back(vector.data());
  std::vector<RopeTable> tables;
  for (const auto& [dim, cosines, sines] : ropes) {
    tables.push_back({dim, cosines.data(), sines.data()});
  }
  const auto [layers, heads, kv_heads, head_dim, block_size, num_blocks, max_tokens, quantizes] =
      shape;
  const KVType type = kv_type_of(kv_type);
  check_kv_shape(type, head_dim, block_size);
  const std::int64_t cache_bytes =
      layers * num_blocks * kv_heads * kv_head_bytes(type, head_dim, block_size);
  for (const auto& cache : {keys, values}) {
    if (static_cast<std::int64_t>(cache.size()) != cache_bytes) {
      throw std::invalid_argument("a KV cache has the wrong size");
    }
  }
  const bool automatic = kernels == "auto";
  return std::make_unique<Runtime>(
      Shape{layers, heads, kv_heads, head_dim, block_size, num_blocks, max_tokens, quantizes},
      std::move(buffer_records), op_records,
      Borrowed{std::move(packed), std::move(vector_data), std::move(tables),
               type, reinterpret_cast<std::byte*>(keys.data()),
               reinterpret_cast<std::byte*>(values.data())},
      num_threads,
      Kernels{automatic ? gemm_kernels() : kernels_or_throw(gemm_kernels(kernels), kernels),
              automatic ? elementwise_kernels()
                        : kernels_or_throw(elementwise_kernels(kernels), kernels),
              automatic ? attention_kernels()
                        : kernels_or_throw(attention_kernels(kernels), kernels)});
}

void execute(Runtime& runtime, Array<const std::int32_t> token_ids,
             Array<const std::int32_t> positions, Array<const std::int64_t> slots,
             Array<const std::int32_t> sampled_rows, Array<const std::int32_t> tables,
             Array<const std::int64_t> sequences, Array<const std::int32_t> copies,
             nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> logits) {
  // Each row of `sequences`: where its block table starts, its first row, its first position, and
  // how many tokens it has.
  std::vector<AttentionSequence> list;
  list.reserve(sequences.shape(0));
  for (std::size_t i = 0; i < sequences.shape(0); ++i) {
    const std::int64_t* row = sequences.data() + 4 * i;
    list.push_back({tables.data() + row[0], row[1], static_cast<std::int32_t>(row[2]),
                    static_cast<std::int32_t>(row[3])});
  }
  const StepInput step{static_cast<std::int64_t>(token_ids.size()),
                       token_ids.data(),
                       positions.data(),
                       slots.data(),
                       static_cast<std::int64_t>(sampled_rows.size()),
                       sampled_rows.data(),
                       list.data(),
                       static_cast<std::int32_t>(list.size()),
                       copies.data(),
                       static_cast<std::int64_t>(copies.size() / 2)};
  nb::gil_scoped_release release;
  runtime.execute(step, logits.data(), static_cast<std::int64_t>(logits.shape(1)));
}

// (kind, first op, seconds, calls, rows, positions, contexts)
using PassTuple = std::tuple<std::string, int, double, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t>;

std::vector<PassTuple> profile(Runtime& runtime) {
  std::vector<PassTuple> list;
  for (std::size_t i = 0; i < runtime.plan().passes.size(); ++i) {
    const Pass& pass = runtime.plan().passes[i];
    const PassTotals& totals = runtime.profile().totals()[i];
    const PassSize& size = totals.size;
    list.emplace_back(name_of(pass.kind), pass.first_op, totals.seconds, totals.calls, size.rows,
                      size.positions, size.contexts);
  }
  return list;
}

}  // namespace

void bind_runtime(nb::module_& m) {
  nb::class_<Runtime>(m, "Runtime", "Runs a compiled program on packed weights.")
      .def("execute", &execute, "token_ids"_a, "positions"_a, "slots"_a, "sampled_rows"_a,
           "tables"_a, "sequences"_a, "copies"_a, "logits"_a,
           "Make block copies, then run one step without the GIL; fills a row of `logits` (rows, "
           "columns) for each of `sampled_rows`, in its first columns.")
      .def("start_profile", [](Runtime& runtime) {
             runtime.profile().reset();
             runtime.profile().enable(true);
           }, "Measure every pass from now on, from zero.")
      .def("profile", &profile,
           "(kind, first op, seconds, calls, rows, positions, contexts) of each pass, in order.")
      .def_prop_ro("num_threads", &Runtime::num_threads)
      .def_prop_ro("threads", &Runtime::threads, nb::rv_policy::reference_internal,
                   "Its threads, for use between steps.")
      .def_prop_ro("workspace_bytes", &Runtime::workspace_bytes);
  m.def("make_runtime", &make_runtime, "shape"_a, "buffers"_a, "ops"_a, "matrices"_a, "vectors"_a,
        "ropes"_a, "kv_type"_a, "keys"_a, "values"_a, "num_threads"_a, "kernels"_a,
        "A runtime that borrows all arrays: keep them alive as long as it.");
}

}  // namespace looseleaf
