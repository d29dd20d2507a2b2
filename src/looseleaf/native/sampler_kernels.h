// The loops of sampling over whole rows of logits.
//
// Every table gives the same bits. NaN counts as minus infinity everywhere. The functions here are
// static, so that no copy of them that was compiled for AVX2 can be linked in for other processors.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

namespace looseleaf {

// Columns whose maximum is taken together; the last block of a row may be shorter.
inline constexpr std::int64_t kBlock = 128;

static constexpr std::int64_t num_blocks(std::int64_t columns) {
  return (columns + kBlock - 1) / kBlock;
}

// A token by rank: the smaller of two keys has the greater logit or, if they are equal, the lower
// id. Its upper half is the logit as an ordered integer, its lower half the id.
using Key = std::uint64_t;

static inline Key key_of(float logit, std::int64_t id) {
  if (std::isnan(logit)) logit = -std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 equals 0
  const std::uint32_t falling = bits >> 31 ? bits : ~bits & 0x7fffffffu;
  return static_cast<Key>(falling) << 32 | static_cast<std::uint32_t>(id);
}

static inline std::int32_t id_of(Key key) { return static_cast<std::int32_t>(key & 0xffffffffu); }

static inline float logit_of(Key key) {
  const auto falling = static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>(falling >> 31 ? falling : ~falling & 0x7fffffffu);
}

// Softmax without its denominator: exp((logit - peak) / temperature), in float64.
struct Scale {
  double peak;
  double temperature;
};

// Logits from `low` on, below `high`; with `all` whatever is not from `high` on, NaN too.
struct Band {
  float low;
  float high;
  bool all;
};

struct SamplerKernels {
  const char* name;

  // The greatest logit of each block; minus infinity where there is none.
  void (*block_maxima)(const float* row, std::int64_t columns, float* maxima);

  void (*shares)(const float* logits, std::int64_t count, Scale scale, double* out);

  // The sum of the shares of at most 128 logits: from 8 on, 8 running sums (number j takes j, j +
  // 8, ...), then ((0+1)+(2+3))+((4+5)+(6+7)), then what is left over, one by one.
  double (*sum_shares)(const float* logits, std::int64_t count, Scale scale);

  // The keys of the logits in a band, by rising id; returns how many. Looks only at blocks whose
  // maximum reaches the band. `out` has room for all columns.
  std::int64_t (*gather)(const float* row, std::int64_t columns, const float* maxima, Band band,
                         Key* out);
};

// The fastest kernels that this processor can run.
const SamplerKernels& sampler_kernels();

// The kernels called "portable" or "avx2"; null if there are none of that name, or if this
// processor cannot run them.
const SamplerKernels* sampler_kernels(std::string_view name);

// The tables themselves, which ask nothing of the processor. `sampler_avx2` is null where it was
// compiled without AVX2.
const SamplerKernels* sampler_portable();
const SamplerKernels* sampler_avx2();

}  // namespace looseleaf
