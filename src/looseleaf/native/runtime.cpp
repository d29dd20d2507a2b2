#include "runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "pack.h"

namespace looseleaf {

namespace {

// Ranges per thread when a loop is split: enough that a slow thread does not hold up the others.
constexpr std::int64_t kRangesPerThread = 4;

std::int64_t chunk_for(std::int64_t count, int num_threads) {
  return std::max<std::int64_t>(1, count / (num_threads * kRangesPerThread));
}

// Buffers that an op reads and may overwrite with its result.
std::pair<std::int32_t, std::int32_t> replaceable(const OpRecord& op) {
  switch (op.kind) {
    case OpKind::add:
    case OpKind::silu_mul:
      return {op.first, op.second};
    case OpKind::rms_norm:
    case OpKind::rope:
      return {op.first, -1};
    default:
      return {-1, -1};
  }
}

}  // namespace

Runtime::Runtime(const Shape& shape, std::vector<BufferRecord> buffers, std::vector<OpRecord> ops,
                 std::vector<PackedWeight> matrices, std::vector<const float*> vectors,
                 std::vector<RopeTable> ropes, float* keys, float* values, int num_threads,
                 const GemmKernels& gemm, const ElementwiseKernels& elementwise,
                 const AttentionKernels& attention)
    : shape_(shape),
      buffers_(std::move(buffers)),
      ops_(std::move(ops)),
      matrices_(std::move(matrices)),
      vectors_(std::move(vectors)),
      ropes_(std::move(ropes)),
      keys_(keys),
      values_(values),
      gemm_(gemm),
      elementwise_(elementwise),
      attention_(attention),
      pool_(num_threads) {
  plan();
}

// Gives each buffer a region of memory: one that is free at that moment, or the one of an input that
// nobody reads afterwards.
void Runtime::plan() {
  const auto count = buffers_.size();
  std::vector<std::size_t> last_use(count, 0);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    for (std::int32_t id : {ops_[i].first, ops_[i].second, ops_[i].target}) {
      if (id >= 0) last_use[static_cast<std::size_t>(id)] = i;
    }
  }
  region_of_.assign(count, -1);
  std::vector<std::int64_t> columns;  // of each region
  std::vector<std::int32_t> free_regions;
  std::int64_t most_inputs = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const OpRecord& op = ops_[i];
    if (op.kind == OpKind::linear) {
      most_inputs = std::max(most_inputs, matrices_[static_cast<std::size_t>(op.weight)].k);
    }
    std::int32_t replaced = -1;
    if (op.target >= 0) {
      const std::int64_t wanted = buffers_[static_cast<std::size_t>(op.target)].columns;
      const bool is_result = std::any_of(ops_.begin(), ops_.end(), [&](const OpRecord& other) {
        return other.kind == OpKind::logits && other.first == op.target;
      });
      const auto [one, other] = replaceable(op);
      for (std::int32_t id : {one, other}) {
        if (replaced < 0 && id >= 0 && last_use[static_cast<std::size_t>(id)] == i &&
            buffers_[static_cast<std::size_t>(id)].columns == wanted) {
          replaced = id;
        }
      }
      auto& region = region_of_[static_cast<std::size_t>(op.target)];
      if (is_result) {
        region = -1;
      } else if (replaced >= 0) {
        region = region_of_[static_cast<std::size_t>(replaced)];
      } else if (!free_regions.empty()) {
        region = free_regions.back();
        free_regions.pop_back();
        auto& width = columns[static_cast<std::size_t>(region)];
        width = std::max(width, wanted);
      } else {
        region = static_cast<std::int32_t>(columns.size());
        columns.push_back(wanted);
      }
    }
    for (std::size_t id = 0; id < count; ++id) {
      const bool ends = last_use[id] == i && region_of_[id] >= 0;
      if (ends && static_cast<std::int32_t>(id) != replaced) free_regions.push_back(region_of_[id]);
    }
  }
  const auto tokens = static_cast<std::size_t>(shape_.max_tokens);
  for (std::int64_t width : columns) {
    regions_.emplace_back(tokens * static_cast<std::size_t>(width));
  }
  quantized_.resize(tokens * static_cast<std::size_t>(most_inputs / kGroupSize));
  AttentionBatch batch{};
  batch.num_heads = shape_.num_heads;
  batch.num_kv_heads = shape_.num_kv_heads;
  batch.head_dim = shape_.head_dim;
  batch.block_size = shape_.block_size;
  workspace_floats_ = looseleaf::workspace_floats(batch);
  workspace_.resize(workspace_floats_ * static_cast<std::size_t>(pool_.size()));
}

std::size_t Runtime::workspace_bytes() const {
  std::size_t total = workspace_.size() * sizeof(float) + quantized_.size() * sizeof(QuantizedGroup);
  for (const auto& region : regions_) total += region.size() * sizeof(float);
  return total;
}

void Runtime::execute(const StepInput& step, float* logits) {
  logits_ = logits;
  quantized_buffer_ = -1;
  copy_blocks(step);
  if (step.num_tokens == 0) return;
  for (const OpRecord& op : ops_) run(op, step);
}

void Runtime::copy_blocks(const StepInput& step) {
  const std::int64_t block = layer_floats() / shape_.num_blocks;
  const auto bytes = static_cast<std::size_t>(block) * sizeof(float);
  pool_.run(shape_.num_layers * step.num_copies, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t base = i / step.num_copies * layer_floats();
      const std::int32_t* copy = step.copies + 2 * (i % step.num_copies);
      for (float* cache : {keys_ + base, values_ + base}) {
        std::memcpy(cache + copy[1] * block, cache + copy[0] * block, bytes);
      }
    }
  });
}

void Runtime::run(const OpRecord& op, const StepInput& step) {
  const std::int64_t count = op.target >= 0 ? rows(op.target, step) : step.num_tokens;
  if (count == 0) return;
  const std::int64_t columns =
      op.target >= 0 ? buffers_[static_cast<std::size_t>(op.target)].columns : 0;
  const std::int64_t chunk = chunk_for(count, pool_.size());
  float* target = op.target >= 0 ? buffer(op.target) : nullptr;
  const float* first = op.first >= 0 ? buffer(op.first) : nullptr;
  const float* second = op.second >= 0 ? buffer(op.second) : nullptr;
  switch (op.kind) {
    case OpKind::embed: {
      const PackedWeight& weight = matrices_[static_cast<std::size_t>(op.weight)];
      pool_.run(count, chunk, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          unpack_row(weight, step.token_ids[i], target + i * columns);
        }
      });
      return;
    }
    case OpKind::linear:
      linear(op, count);
      return;
    case OpKind::rms_norm: {
      const float* weight = vectors_[static_cast<std::size_t>(op.weight)];
      pool_.run(count, chunk, [&](std::int64_t begin, std::int64_t end, int) {
        elementwise_.rms_norm(first + begin * columns, weight, target + begin * columns,
                              end - begin, columns, op.number);
      });
      return;
    }
    case OpKind::rope: {
      const RopeTable& table = ropes_[static_cast<std::size_t>(op.weight)];
      pool_.run(count, chunk, [&](std::int64_t begin, std::int64_t end, int) {
        float* part = target + begin * columns;
        if (target != first) {
          std::copy_n(first + begin * columns, (end - begin) * columns, part);
        }
        elementwise_.rope({part, end - begin, columns,
                           static_cast<std::int32_t>(columns / shape_.head_dim), shape_.head_dim,
                           table.rotary_dim, step.positions + begin, table.cosines, table.sines});
      });
      return;
    }
    case OpKind::write_kv: {
      const std::int64_t width = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
      const std::int64_t base = op.layer * layer_floats();
      pool_.run(count, chunk, [&](std::int64_t begin, std::int64_t end, int) {
        elementwise_.write_kv({first + begin * width, second + begin * width, step.slots + begin,
                               end - begin, shape_.num_kv_heads, shape_.head_dim,
                               shape_.block_size, keys_ + base, values_ + base});
      });
      return;
    }
    case OpKind::paged_attention:
      attend(op, step);
      return;
    case OpKind::add:
    case OpKind::silu_mul: {
      const auto kernel = op.kind == OpKind::add ? elementwise_.add : elementwise_.silu_mul;
      pool_.run(count, chunk, [&](std::int64_t begin, std::int64_t end, int) {
        const std::int64_t at = begin * columns;
        kernel(first + at, second + at, target + at, (end - begin) * columns);
      });
      return;
    }
    case OpKind::sampled_rows:
      for (std::int64_t i = 0; i < count; ++i) {
        std::copy_n(first + step.sampled_rows[i] * columns, columns, target + i * columns);
      }
      return;
    case OpKind::logits:
      return;  // written where they belong by the product that made them
  }
}

void Runtime::linear(const OpRecord& op, std::int64_t rows) {
  const PackedWeight& weight = matrices_[static_cast<std::size_t>(op.weight)];
  const float* bias = op.bias >= 0 ? vectors_[static_cast<std::size_t>(op.bias)] : nullptr;
  const float* x = buffer(op.first);
  float* out = buffer(op.target);
  if (weight.type != WeightType::f32 && quantized_buffer_ != op.first) {
    const std::int64_t groups = weight.k / kGroupSize;
    pool_.run(rows, chunk_for(rows, pool_.size()), [&](std::int64_t begin, std::int64_t end, int) {
      gemm_.quantize_rows(x + begin * weight.k, weight.k, end - begin, weight.k,
                          quantized_.data() + begin * groups);
    });
    quantized_buffer_ = op.first;
  }
  const std::int64_t tiles = num_tiles(weight.n);
  pool_.run(tiles, chunk_for(tiles, pool_.size()), [&](std::int64_t begin, std::int64_t end, int) {
    switch (weight.type) {
      case WeightType::q4:
        gemm_.matmul_q4(weight, quantized_.data(), rows, begin, end, out, weight.n, bias, 0);
        return;
      case WeightType::q8:
        gemm_.matmul_q8(weight, quantized_.data(), rows, begin, end, out, weight.n, bias, 0);
        return;
      case WeightType::f32:
        gemm_.matmul_f32(weight, x, weight.k, rows, begin, end, out, weight.n, bias, 0);
        return;
    }
  });
}

void Runtime::attend(const OpRecord& op, const StepInput& step) {
  const std::int64_t base = op.layer * layer_floats();
  AttentionBatch batch{};
  batch.num_heads = shape_.num_heads;
  batch.num_kv_heads = shape_.num_kv_heads;
  batch.head_dim = shape_.head_dim;
  batch.block_size = shape_.block_size;
  batch.scale = op.number;
  batch.soft_cap = 0.0F;
  batch.window = op.window;
  batch.num_sequences = step.num_sequences;
  batch.sequences = step.sequences;
  batch.queries = buffer(op.first);
  batch.keys = keys_ + base;
  batch.values = values_ + base;
  batch.out = buffer(op.target);
  const std::int64_t units = num_units(batch);
  pool_.run(units, chunk_for(units, pool_.size()),
            [&](std::int64_t begin, std::int64_t end, int thread) {
              float* workspace =
                  workspace_.data() + static_cast<std::size_t>(thread) * workspace_floats_;
              attention_.run_units(batch, begin, end, workspace);
            });
}

float* Runtime::buffer(std::int32_t id) const {
  const std::int32_t region = region_of_[static_cast<std::size_t>(id)];
  return region < 0 ? logits_ : const_cast<float*>(regions_[static_cast<std::size_t>(region)].data());
}

std::int64_t Runtime::rows(std::int32_t id, const StepInput& step) const {
  return buffers_[static_cast<std::size_t>(id)].sampled ? step.num_sampled : step.num_tokens;
}

std::int64_t Runtime::layer_floats() const {
  return shape_.num_blocks * shape_.num_kv_heads * shape_.head_dim * shape_.block_size;
}

}  // namespace looseleaf
