#include <algorithm>

#include "cpu.h"
#include "exp_f64.h"
#include "sampler_kernels.h"

namespace looseleaf {

namespace {

void block_maxima(const float* row, std::int64_t columns, float* maxima) {
  for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
    float most = -std::numeric_limits<float>::infinity();
    const std::int64_t end = std::min(begin + kBlock, columns);
    for (std::int64_t i = begin; i < end; ++i) most = row[i] > most ? row[i] : most;
    *maxima++ = most;
  }
}

double share(float logit, Scale scale) {
  return exp_f64((static_cast<double>(logit) - scale.peak) / scale.temperature);
}

void shares(const float* logits, std::int64_t count, Scale scale, double* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = share(logits[i], scale);
}

double sum_shares(const float* logits, std::int64_t count, Scale scale) {
  double sum = 0;
  std::int64_t i = 0;
  if (count >= 8) {
    double sums[8] = {};
    for (; i + 8 <= count; i += 8) {
      for (int j = 0; j < 8; ++j) sums[j] += share(logits[i + j], scale);
    }
    sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  for (; i < count; ++i) sum += share(logits[i], scale);
  return sum;
}

std::int64_t gather(const float* row, std::int64_t columns, const float* maxima, Band band,
                    Key* out) {
  Key* next = out;
  for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
    if (!band.all && !(maxima[begin / kBlock] >= band.low)) continue;
    const std::int64_t end = std::min(begin + kBlock, columns);
    for (std::int64_t i = begin; i < end; ++i) {
      if (!(row[i] >= band.high) && (band.all || row[i] >= band.low)) *next++ = key_of(row[i], i);
    }
  }
  return next - out;
}

}  // namespace

const SamplerKernels* sampler_portable() {
  static constexpr SamplerKernels kKernels = {
      .name = "portable",
      .block_maxima = block_maxima,
      .shares = shares,
      .sum_shares = sum_shares,
      .gather = gather,
  };
  return &kKernels;
}

const SamplerKernels* sampler_kernels(std::string_view name) {
  if (name == "portable") return sampler_portable();
  if (name != "avx2") return nullptr;
  int missing = 2;
  for (const auto& [feature, supported] : cpu_features()) {
    if (supported && (feature == "avx2" || feature == "fma")) --missing;
  }
  return missing == 0 ? sampler_avx2() : nullptr;
}

const SamplerKernels& sampler_kernels() {
  const SamplerKernels* avx2 = sampler_kernels("avx2");
  return avx2 != nullptr ? *avx2 : *sampler_portable();
}

}  // namespace looseleaf
