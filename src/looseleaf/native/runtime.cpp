#include "runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "pack.h"

namespace looseleaf {

namespace {

// Ranges per thread when a loop is split: enough that a slow thread does not hold up the others.
constexpr std::int64_t kRangesPerThread = 4;

// Numbers that one thread gets through in about the time that it takes to call another.
constexpr std::int64_t kWorthSharing = 8192;

// Floats of a part of a gate pass, which stay in the first level cache; twice as many are needed.
constexpr std::int64_t kGateFloats = 2048;

std::int64_t chunk_for(std::int64_t count, int num_threads) {
  return std::max<std::int64_t>(1, count / (num_threads * kRangesPerThread));
}

// Which matrices are multiplied with quantized rows.
std::vector<bool> quantized_inputs(const std::vector<PackedWeight>& matrices, bool quantizes) {
  std::vector<bool> result;
  for (const PackedWeight& matrix : matrices) {
    result.push_back(quantizes && is_quantized(matrix.type));
  }
  return result;
}

}  // namespace

Runtime::Runtime(const Shape& shape, std::vector<BufferRecord> buffers,
                 const std::vector<OpRecord>& ops, Borrowed borrowed, int num_threads,
                 const Kernels& kernels)
    : shape_(shape),
      buffers_(std::move(buffers)),
      borrowed_(std::move(borrowed)),
      kernels_(kernels),
      plan_(make_plan(buffers_, ops,
                      quantized_inputs(borrowed_.matrices, shape_.quantizes_activations))),
      pool_(num_threads),
      profile_(plan_.passes.size()) {
  const auto tokens = static_cast<std::size_t>(shape_.max_tokens);
  const auto threads = static_cast<std::size_t>(pool_.size());
  for (std::int64_t width : plan_.region_columns) {
    regions_.emplace_back(tokens * static_cast<std::size_t>(width));
  }
  for (int i = 0; i < kNumAreas; ++i) {
    areas_[i].resize(tokens * static_cast<std::size_t>(plan_.area_groups[i]));
  }
  std::int64_t widest = 2 * kGateFloats;
  for (const BufferRecord& record : buffers_) widest = std::max(widest, record.columns);
  scratch_floats_ = static_cast<std::size_t>(widest);
  scratch_.resize(scratch_floats_ * threads);
  for (const Pass& pass : plan_.passes) {
    if (pass.kind == PassKind::attention) attention_plan(pass.window);
  }
  workspace_floats_ = looseleaf::workspace_floats(attention_shape(0));
  workspace_.resize(workspace_floats_ * threads);
}

std::size_t Runtime::workspace_bytes() const {
  std::size_t total = (workspace_.size() + scratch_.size()) * sizeof(float);
  for (const auto& area : areas_) total += area.size() * sizeof(QuantizedGroup);
  for (const auto& region : regions_) total += region.size() * sizeof(float);
  return total;
}

void Runtime::execute(const StepInput& step, float* logits, std::int64_t logits_stride) {
  logits_ = {logits, logits_stride};
  copy_blocks(step);
  if (step.num_tokens == 0) return;
  for (auto& [window, plan] : attention_plans_) {
    plan.build(attention_shape(window), step.sequences, step.num_sequences, pool_.size());
  }
  PassSize attended;
  if (profile_.enabled()) {
    for (std::int32_t i = 0; i < step.num_sequences; ++i) {
      const AttentionSequence& sequence = step.sequences[i];
      const std::int64_t end = sequence.first_position + sequence.num_tokens;
      const std::int64_t before = sequence.first_position;
      attended.contexts += end;
      attended.positions += (end * (end + 1) - before * (before + 1)) / 2;
    }
  }
  for (std::size_t i = 0; i < plan_.passes.size(); ++i) {
    const Pass& pass = plan_.passes[i];
    PassSize size = pass.kind == PassKind::attention ? attended : PassSize{};
    size.rows = num_rows(pass, step);
    profile_.measure(i, size, [&] { run(pass, step); });
  }
}

void Runtime::copy_blocks(const StepInput& step) {
  const auto bytes = static_cast<std::size_t>(block_bytes());
  pool_.run(shape_.num_layers * step.num_copies, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i / step.num_copies * shape_.num_blocks;
      const std::int32_t* copy = step.copies + 2 * (i % step.num_copies);
      for (std::byte* cache : {borrowed_.keys, borrowed_.values}) {
        std::memcpy(cache + (first + copy[1]) * block_bytes(),
                    cache + (first + copy[0]) * block_bytes(), bytes);
      }
    }
  });
}

void Runtime::run(const Pass& pass, const StepInput& step) {
  const std::int64_t rows = num_rows(pass, step);
  if (rows == 0) return;
  switch (pass.kind) {
    case PassKind::embed: embed(pass, step); return;
    case PassKind::norm: norm(pass, step); return;
    case PassKind::project: project(pass, rows); return;
    case PassKind::gate: gate(pass, rows); return;
    case PassKind::rope: rope(pass, step); return;
    case PassKind::write_kv: write_kv(pass, step, 0, rows); return;
    case PassKind::attention: attend(pass); return;
    case PassKind::add:
    case PassKind::silu_mul: combine(pass, rows); return;
    case PassKind::sampled_rows: {
      const Rows from = buffer(pass.source);
      const Rows to = buffer(pass.target);
      for (std::int64_t i = 0; i < rows; ++i) {
        std::copy_n(from.data + step.sampled_rows[i] * from.stride, columns(pass.source),
                    to.data + i * to.stride);
      }
      return;
    }
  }
}

// Calls body(begin, end, thread) for parts of the rows, which have `columns` numbers each to be
// worked on: on this thread alone where the others could hardly help.
template <typename Body>
void Runtime::for_rows(std::int64_t rows, std::int64_t columns, const Body& body) {
  const std::int64_t chunk = std::max(chunk_for(rows, pool_.size()),
                                      (kWorthSharing + columns - 1) / columns);
  pool_.run(rows, chunk, body);
}

void Runtime::embed(const Pass& pass, const StepInput& step) {
  const PackedWeight& weight = matrix(pass.weight);
  const Rows to = buffer(pass.target);
  for_rows(step.num_tokens, weight.k, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      unpack_row(weight, step.token_ids[i], to.data + i * to.stride);
    }
  });
}

void Runtime::norm(const Pass& pass, const StepInput& step) {
  const float* weight = vector(pass.weight);
  const std::int64_t width = columns(pass.target);
  const Rows from = buffer(pass.source);
  const Rows to = pass.stores_target ? buffer(pass.target) : Rows{};
  for_rows(num_rows(pass, step), width, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = pass.reads_sampled ? step.sampled_rows[i] : i;
      float* out = pass.stores_target ? to.data + i * to.stride : scratch(thread);
      kernels_.elementwise.rms_norm(from.data + row * from.stride, weight, out, 1, width,
                                    pass.number);
      if (pass.quantized_out >= 0) {
        kernels_.gemm.quantize_rows(out, width, 1, width, area(pass.quantized_out, i));
      }
    }
  });
}

void Runtime::quantize_source(const Pass& pass, std::int64_t rows) {
  if (!pass.quantizes_source) return;
  const std::int64_t width = columns(pass.source);
  const Rows from = buffer(pass.source);
  for_rows(rows, width, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.gemm.quantize_rows(from.data + begin * from.stride, from.stride, end - begin, width,
                                area(pass.quantized_in, begin));
  });
}

// Rows first_row .. first_row + rows - 1 of the columns of some tiles; column c of row r goes to
// out[(r - first_row) * out_stride + c].
void Runtime::multiply(const Pass& pass, const Product& product, std::int64_t first_row,
                       std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end,
                       float* out, std::int64_t out_stride) const {
  const PackedWeight& weight = matrix(product.matrix);
  const float* addend = product.bias >= 0 ? vector(product.bias) : nullptr;
  std::int64_t addend_stride = 0;
  if (product.residual >= 0) {
    const Rows residual = buffer(product.residual);
    addend = residual.data + first_row * residual.stride;
    addend_stride = residual.stride;
  }
  if (pass.quantized_in < 0) {
    const Rows from = buffer(pass.source);
    kernels_.gemm.matmul_float(weight, from.data + first_row * from.stride, from.stride, rows,
                               tile_begin, tile_end, out, out_stride, addend, addend_stride);
    return;
  }
  kernels_.gemm.matmul(weight, area(pass.quantized_in, first_row), rows, tile_begin, tile_end, out,
                       out_stride, addend, addend_stride);
}

void Runtime::project(const Pass& pass, std::int64_t rows) {
  quantize_source(pass, rows);
  std::int64_t tiles = 0;
  for (const Product& product : pass.products) tiles += num_tiles(matrix(product.matrix).n);
  pool_.run(tiles, chunk_for(tiles, pool_.size()), [&](std::int64_t begin, std::int64_t end, int) {
    // The range of all products' tiles in a row, product by product.
    std::int64_t first = 0;
    for (const Product& product : pass.products) {
      const std::int64_t count = num_tiles(matrix(product.matrix).n);
      const std::int64_t from = std::max<std::int64_t>(begin - first, 0);
      const std::int64_t to = std::min(end - first, count);
      if (from < to) {
        const Rows out = buffer(product.target);
        multiply(pass, product, 0, rows, from, to, out.data, out.stride);
      }
      first += count;
    }
  });
}

// A thread takes whole groups of columns, so that it can also quantize what it has made of them.
void Runtime::gate(const Pass& pass, std::int64_t rows) {
  quantize_source(pass, rows);
  constexpr std::int64_t kTilesPerGroup = kGroupSize / kTileWidth;
  const std::int64_t groups = columns(pass.target) / kGroupSize;
  const Rows to = pass.stores_target ? buffer(pass.target) : Rows{};
  const std::int64_t most_rows = std::min(rows, kGateFloats / kGroupSize);
  const std::int64_t most_groups = kGateFloats / kGroupSize / most_rows;
  pool_.run(groups, chunk_for(groups, pool_.size()), [&](std::int64_t begin, std::int64_t end,
                                                         int thread) {
    float* gates = scratch(thread);
    float* ups = gates + kGateFloats;
    for (std::int64_t group = begin; group < end; group += most_groups) {
      const std::int64_t count = std::min(most_groups, end - group);
      const std::int64_t width = count * kGroupSize;
      for (std::int64_t row = 0; row < rows; row += most_rows) {
        const std::int64_t height = std::min(most_rows, rows - row);
        for (int i = 0; i < 2; ++i) {
          float* out = (i == 0 ? gates : ups) - group * kGroupSize;
          multiply(pass, pass.products[static_cast<std::size_t>(i)], row, height,
                   group * kTilesPerGroup, (group + count) * kTilesPerGroup, out, width);
        }
        kernels_.elementwise.silu_mul(gates, ups, gates, height * width);
        for (std::int64_t r = 0; r < height; ++r) {
          const float* made = gates + r * width;
          if (pass.stores_target) {
            std::copy_n(made, width, to.data + (row + r) * to.stride + group * kGroupSize);
          }
          if (pass.quantized_out >= 0) {
            kernels_.gemm.quantize_rows(made, width, 1, width,
                                        area(pass.quantized_out, row + r) + group);
          }
        }
      }
    }
  });
}

void Runtime::rope(const Pass& pass, const StepInput& step) {
  std::int64_t width = 0;
  for (const Rotation& rotation : pass.rotations) width += columns(rotation.source);
  for_rows(step.num_tokens, width, [&](std::int64_t begin, std::int64_t end, int) {
    for (const Rotation& rotation : pass.rotations) {
      const RopeTable& table = borrowed_.ropes[static_cast<std::size_t>(rotation.table)];
      const Rows from = buffer(rotation.source);
      const Rows to = buffer(rotation.target);
      float* part = to.data + begin * to.stride;
      if (from.data != to.data) {
        std::copy_n(from.data + begin * from.stride, (end - begin) * from.stride, part);
      }
      const auto heads = static_cast<std::int32_t>(columns(rotation.source) / shape_.head_dim);
      kernels_.elementwise.rope({part, end - begin, to.stride, heads, shape_.head_dim,
                                 table.rotary_dim, step.positions + begin, table.cosines,
                                 table.sines});
    }
    if (pass.keys >= 0) write_kv(pass, step, begin, end);
  });
}

void Runtime::write_kv(const Pass& pass, const StepInput& step, std::int64_t begin,
                       std::int64_t end) {
  const std::int64_t width = columns(pass.keys);
  const std::int64_t base = pass.layer * shape_.num_blocks * block_bytes();
  kernels_.elementwise.write_kv({buffer(pass.keys).data + begin * width,
                                 buffer(pass.values).data + begin * width, step.slots + begin,
                                 end - begin, shape_.num_kv_heads, shape_.head_dim,
                                 shape_.block_size, borrowed_.kv_type, borrowed_.keys + base,
                                 borrowed_.values + base});
}

AttentionShape Runtime::attention_shape(std::int32_t window) const {
  return {shape_.num_heads, shape_.num_kv_heads, shape_.head_dim, shape_.block_size, window};
}

// The plan of the layers that see so many positions.
AttentionPlan& Runtime::attention_plan(std::int32_t window) {
  for (auto& [of_window, plan] : attention_plans_) {
    if (of_window == window) return plan;
  }
  return attention_plans_.emplace_back(window, AttentionPlan{}).second;
}

void Runtime::attend(const Pass& pass) {
  const std::int64_t base = pass.layer * shape_.num_blocks * block_bytes();
  AttentionLayer layer{};
  layer.scale = pass.number;
  layer.soft_cap = 0.0F;
  layer.type = borrowed_.kv_type;
  layer.queries = buffer(pass.source).data;
  layer.keys = borrowed_.keys + base;
  layer.values = borrowed_.values + base;
  layer.out = buffer(pass.target).data;
  const AttentionPlan& plan = attention_plan(pass.window);
  pool_.run(plan.num_tasks(), 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* workspace = workspace_.data() + static_cast<std::size_t>(thread) * workspace_floats_;
    kernels_.attention.run_tasks(layer, plan.work(), begin, end, workspace);
  });
}

void Runtime::combine(const Pass& pass, std::int64_t rows) {
  const auto kernel = pass.kind == PassKind::add ? kernels_.elementwise.add
                                                 : kernels_.elementwise.silu_mul;
  const std::int64_t width = columns(pass.target);
  const Rows left = buffer(pass.source);
  const Rows right = buffer(pass.second);
  const Rows out = buffer(pass.target);
  for_rows(rows, width, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      kernel(left.data + i * left.stride, right.data + i * right.stride, out.data + i * out.stride,
             width);
    }
  });
}

const PackedWeight& Runtime::matrix(std::int32_t id) const {
  return borrowed_.matrices[static_cast<std::size_t>(id)];
}

const float* Runtime::vector(std::int32_t id) const {
  return borrowed_.vectors[static_cast<std::size_t>(id)];
}

std::int64_t Runtime::columns(std::int32_t id) const {
  return buffers_[static_cast<std::size_t>(id)].columns;
}

Runtime::Rows Runtime::buffer(std::int32_t id) const {
  if (id == plan_.result) return logits_;
  const auto region = static_cast<std::size_t>(plan_.region_of[static_cast<std::size_t>(id)]);
  return {const_cast<float*>(regions_[region].data()), columns(id)};
}

QuantizedGroup* Runtime::area(int index, std::int64_t row) const {
  const auto groups = plan_.area_groups[index];
  return const_cast<QuantizedGroup*>(areas_[index].data()) + row * groups;
}

float* Runtime::scratch(int thread) const {
  return const_cast<float*>(scratch_.data()) + static_cast<std::size_t>(thread) * scratch_floats_;
}

// How many rows a pass makes.
std::int64_t Runtime::num_rows(const Pass& pass, const StepInput& step) const {
  std::int32_t id = pass.target;
  if (!pass.products.empty() && pass.kind == PassKind::project) id = pass.products[0].target;
  if (!pass.rotations.empty()) id = pass.rotations[0].target;
  if (id < 0) return step.num_tokens;
  return buffers_[static_cast<std::size_t>(id)].sampled ? step.num_sampled : step.num_tokens;
}

// Of keys or of values, in one layer.
std::int64_t Runtime::block_bytes() const {
  return shape_.num_kv_heads *
         kv_head_bytes(borrowed_.kv_type, shape_.head_dim, shape_.block_size);
}

}  // namespace looseleaf
