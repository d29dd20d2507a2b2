// Runs a traced program: one call per step, all of it in here.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention.h"
#include "attention_plan.h"
#include "elementwise.h"
#include "gemm.h"
#include "plan.h"
#include "profile.h"
#include "program.h"
#include "threads.h"
#include "weights.h"

namespace looseleaf {

struct Shape {
  std::int32_t num_layers;
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  std::int64_t num_blocks;
  std::int64_t max_tokens;     // of one step
  bool quantizes_activations;  // for products with quantized weights; else all are in float32
};

// What the runtime borrows: all of it must outlive the runtime.
struct Borrowed {
  std::vector<PackedWeight> matrices;
  std::vector<const float*> vectors;
  std::vector<RopeTable> ropes;
  KVType kv_type;
  std::byte* keys;  // of all layers, one after another
  std::byte* values;
};

struct Kernels {
  const GemmKernels& gemm;
  const ElementwiseKernels& elementwise;
  const AttentionKernels& attention;
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
  // All memory that a step needs is taken here.
  Runtime(const Shape& shape, std::vector<BufferRecord> buffers, const std::vector<OpRecord>& ops,
          Borrowed borrowed, int num_threads, const Kernels& kernels);

  // Makes the copies, then runs the program. `logits` gets a row for each of num_sampled, of the
  // vocabulary's columns, `logits_stride` floats apart.
  void execute(const StepInput& step, float* logits, std::int64_t logits_stride);

  int num_threads() const { return pool_.size(); }
  ThreadPool& threads() { return pool_; }  // idle between steps
  std::size_t workspace_bytes() const;
  const Plan& plan() const { return plan_; }
  Profile& profile() { return profile_; }

 private:
  struct Rows {
    float* data;
    std::int64_t stride;
  };

  void copy_blocks(const StepInput& step);
  void run(const Pass& pass, const StepInput& step);
  void embed(const Pass& pass, const StepInput& step);
  void norm(const Pass& pass, const StepInput& step);
  void project(const Pass& pass, std::int64_t rows);
  void gate(const Pass& pass, std::int64_t rows);
  void rope(const Pass& pass, const StepInput& step);
  void attend(const Pass& pass);
  void combine(const Pass& pass, std::int64_t rows);

  void quantize_source(const Pass& pass, std::int64_t rows);
  void multiply(const Pass& pass, const Product& product, std::int64_t first_row,
                std::int64_t rows, std::int64_t tile_begin, std::int64_t tile_end, float* out,
                std::int64_t out_stride) const;
  void write_kv(const Pass& pass, const StepInput& step, std::int64_t begin, std::int64_t end);
  template <typename Body>
  void for_rows(std::int64_t rows, std::int64_t columns, const Body& body);

  const PackedWeight& matrix(std::int32_t id) const;
  const float* vector(std::int32_t id) const;
  std::int64_t columns(std::int32_t id) const;
  Rows buffer(std::int32_t id) const;
  QuantizedGroup* area(int index, std::int64_t row) const;
  float* scratch(int thread) const;
  std::int64_t num_rows(const Pass& pass, const StepInput& step) const;
  AttentionShape attention_shape(std::int32_t window) const;
  AttentionPlan& attention_plan(std::int32_t window);
  std::int64_t block_bytes() const;

  Shape shape_;
  std::vector<BufferRecord> buffers_;
  Borrowed borrowed_;
  Kernels kernels_;
  Plan plan_;
  ThreadPool pool_;
  Profile profile_;

  std::vector<std::vector<float>> regions_;
  std::vector<QuantizedGroup> areas_[kNumAreas];
  // One for each window that layers have, made anew for each step.
  std::vector<std::pair<std::int32_t, AttentionPlan>> attention_plans_;
  std::vector<float> workspace_;  // of attention, a part for each thread
  std::size_t workspace_floats_ = 0;
  std::vector<float> scratch_;  // rows on their way from one op of a pass to the next, by thread
  std::size_t scratch_floats_ = 0;
  Rows logits_ = {};
};

}  // namespace looseleaf
