// From rows of logits to tokens and log-probabilities, as `sampling/sampler.py` and
// `sampling/logprobs.py` define them.
//
// Sums are added up in the same order as there, so that the outcome is the same; the exponential may
// be another by a rounding of its last bit.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sampler_kernels.h"
#include "threads.h"

namespace looseleaf {

// Stands for a log-probability of minus infinity.
inline constexpr double kLogprobFloor = -9999.0;

struct LogitRows {
  const float* data;
  std::int64_t stride;   // from one row to the next, in floats
  std::int64_t columns;  // tokens that exist
};

// New logits for some tokens of a row, before one is drawn from it; with `only`, all others are
// minus infinity. Log-probabilities stay those of the row as it is; with `lists`, the tokens listed
// with the drawn one are the first of the edited row, and none of minus infinity.
struct RowEdit {
  const std::int32_t* tokens = nullptr;
  const float* logits = nullptr;
  std::int64_t count = 0;
  bool only = false;
  bool lists = false;
};

// A token to draw from a row. `num_logprobs` is how many of the most likely ones to list with it;
// negative if no log-probabilities are wanted.
struct Draw {
  std::int64_t row;
  double temperature;
  std::int64_t top_k;
  double top_p;
  double min_p;
  std::uint64_t seed;
  std::uint64_t sample_index;
  std::uint64_t position;
  std::int32_t num_logprobs;
  RowEdit edit;
};

struct Drawn {
  std::int32_t token = -1;  // still -1 if the row holds no finite maximum
  double logprob = 0;
  std::vector<std::pair<std::int32_t, double>> top;
};

// A token whose log-probability under a row is asked for.
struct Score {
  std::int64_t row;
  std::int64_t token;
};

// Draws and scores, shared over the threads by rows; `drawn` and `scores` have an entry for each.
void sample_rows(const SamplerKernels& kernels, ThreadPool& threads, LogitRows rows,
                 const std::vector<Draw>& draws, const std::vector<Score>& wanted_scores,
                 std::vector<Drawn>& drawn, std::vector<double>& scores);

}  // namespace looseleaf
