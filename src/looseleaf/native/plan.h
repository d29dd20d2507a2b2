// A program cut into passes: ops that follow one another are done together where their rows are at
// hand anyway. What a pass computes has the bits that its ops have one by one.
//
//     ops                                          pass
//     rms_norm                                     norm       also quantizes its rows
//     linear, linear, ... of one source            project    one loop over all their outputs
//     linear, add                                  project    adds the residual to the sum
//     linear, linear, silu_mul                     gate       quantizes what goes on to the next
//     rope, rope, write_kv                         rope       turns and stores a token at once
//     sampled_rows, rms_norm                       norm       reads only the rows wanted
//
// Everything else is a pass of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"
#include "weights.h"

namespace looseleaf {

enum class PassKind : std::int32_t {
  embed,
  norm,
  project,
  gate,
  rope,
  write_kv,
  attention,
  add,
  silu_mul,
  sampled_rows,
};

const char* name_of(PassKind kind);

// One matrix product of a pass: target = source * matrix + (bias or residual).
struct Product {
  std::int32_t matrix;
  std::int32_t bias = -1;      // a vector
  std::int32_t residual = -1;  // a buffer
  std::int32_t target = -1;    // a buffer
};

// A rotation of one buffer.
struct Rotation {
  std::int32_t source;
  std::int32_t target;
  std::int32_t table;
};

struct Pass {
  PassKind kind;
  std::int32_t first_op;     // where its ops begin in the program
  std::int32_t source = -1;  // buffers
  std::int32_t second = -1;
  std::int32_t target = -1;
  std::int32_t weight = -1;  // a matrix for embed, a vector for norm
  std::int32_t layer = 0;
  std::int32_t window = 0;
  float number = 0.0F;

  bool reads_sampled = false;        // norm: reads only the rows whose logits are wanted
  bool stores_target = true;         // norm, gate: somebody reads the result as floats
  std::int32_t quantized_in = -1;    // project, gate: the area that holds the source, quantized
  bool quantizes_source = false;     // ... after this pass has put it there
  std::int32_t quantized_out = -1;   // norm, gate: the area that gets the result
  std::vector<Product> products;     // project: any number; gate: gate, then up
  std::vector<Rotation> rotations;   // rope
  std::int32_t keys = -1;            // rope, write_kv: what goes to the cache, if anything does
  std::int32_t values = -1;
};

// Areas of quantized rows: 0 for what was floats, 1 for what a gate pass makes of area 0.
inline constexpr int kNumAreas = 2;

struct Plan {
  std::vector<Pass> passes;
  std::vector<std::int32_t> region_of;      // of each buffer; -1: no memory, or it is the logits
  std::vector<std::int64_t> region_columns;  // floats per row of each region
  std::int64_t area_groups[kNumAreas] = {};  // QuantizedGroups per row
  std::int32_t result = -1;                  // the buffer of the logits
};

// `is_quantized[i]` says whether products with matrix i take quantized rows.
Plan make_plan(const std::vector<BufferRecord>& buffers, const std::vector<OpRecord>& ops,
               const std::vector<bool>& is_quantized);

}  // namespace looseleaf
