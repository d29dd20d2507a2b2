// Runs a traced program: one call per step, all of it in here.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "elementwise.h"
#include "gemm.h"
#include "threads.h"
#include "weights.h"

namespace looseleaf {

enum class OpKind : std::int32_t {
  embed,
  linear,
  rms_norm,
  rope,
  write_kv,
  paged_attention,
  add,
  silu_mul,
  sampled_rows,
  logits,
};

// One op of a program (see program/op.py). Fields that a kind does not have stay as they are here.
struct OpRecord {
  OpKind kind;
  std::int32_t target = -1;  // buffers
  std::int32_t first = -1;
  std::int32_t second = -1;
  std::int32_t weight = -1;  // a matrix for embed and linear, a vector for rms_norm, a rope table
  std::int32_t bias = -1;    // a vector
  std::int32_t layer = 0;
  std::int32_t window = 0;
  float number = 0.0F;  // eps of rms_norm, scale of attention
};

struct BufferRecord {
  bool sampled;  // a row per row of logits wanted, not per token
  std::int64_t columns;
};

struct RopeTable {
  std::int32_t rotary_dim;
  const float* cosines;  // [position][rotary_dim / 2]
  const float* sines;
};

struct Shape {
  std::int32_t num_layers;
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  std::int64_t num_blocks;
  std::int64_t max_tokens;  // of one step
};

// What a step brings along. Every pointer is the caller's and read only during the call.
struct StepInput {
  std::int64_t num_tokens;
  const std::int32_t* token_ids;
  const std::int32_t* positions;
  const std::int64_t* slots;
  std::int64_t num_sampled;
  const std::int32_t* sampled_rows;
  const AttentionSequence* sequences;
  std::int32_t num_sequences;
  const std::int32_t* copies;  // pairs of source and destination block
  std::int64_t num_copies;
};

class Runtime {
 public:
  // Weights, tables and the KV cache are not owned and must outlive the runtime. All memory that a
  // step needs is taken here.
  Runtime(const Shape& shape, std::vector<BufferRecord> buffers, std::vector<OpRecord> ops,
          std::vector<PackedWeight> matrices, std::vector<const float*> vectors,
          std::vector<RopeTable> ropes, float* keys, float* values, int num_threads,
          const GemmKernels& gemm, const ElementwiseKernels& elementwise,
          const AttentionKernels& attention);

  // Makes the copies, then runs the program. `logits` gets [num_sampled][vocabulary].
  void execute(const StepInput& step, float* logits);

  int num_threads() const { return pool_.size(); }
  std::size_t workspace_bytes() const;

 private:
  void plan();
  void copy_blocks(const StepInput& step);
  void run(const OpRecord& op, const StepInput& step);
  void linear(const OpRecord& op, std::int64_t rows);
  void attend(const OpRecord& op, const StepInput& step);

  float* buffer(std::int32_t id) const;
  std::int64_t rows(std::int32_t id, const StepInput& step) const;
  std::int64_t layer_floats() const;

  Shape shape_;
  std::vector<BufferRecord> buffers_;
  std::vector<OpRecord> ops_;
  std::vector<PackedWeight> matrices_;
  std::vector<const float*> vectors_;
  std::vector<RopeTable> ropes_;
  float* keys_;
  float* values_;
  const GemmKernels& gemm_;
  const ElementwiseKernels& elementwise_;
  const AttentionKernels& attention_;
  ThreadPool pool_;

  std::vector<std::int32_t> region_of_;  // of each buffer; -1 for the logits
  std::vector<std::vector<float>> regions_;
  std::vector<QuantizedGroup> quantized_;
  std::int32_t quantized_buffer_ = -1;  // whose rows `quantized_` holds in this step
  std::vector<float> workspace_;        // of attention, a part for each thread
  std::size_t workspace_floats_ = 0;
  float* logits_ = nullptr;
};

}  // namespace looseleaf
