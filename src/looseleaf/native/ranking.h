// The ranking of a row of logits, found piece by piece from the top: falling, equal ones by rising
// id. Whatever asks for the first few of 150,000 never sorts the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "sampler_kernels.h"

namespace looseleaf {

// Memory that one thread uses for one row after another.
struct RankingMemory {
  std::vector<float> maxima;  // of each block of the row
  std::vector<float> values;
  std::vector<Key> keys;
  std::vector<Key> spare;
  std::vector<double> shares;
  std::vector<double> running;
  std::vector<float> edited;  // the row itself, where a request changes it
};

class Ranking {
 public:
  // Looks at all of the row for its maximum. `row` and `memory` must outlive the ranking.
  Ranking(const SamplerKernels& kernels, const float* row, std::int64_t columns,
          RankingMemory& memory);

  // The greatest logit; minus infinity where there is none.
  float peak() const { return peak_; }

  // The first of the ranking. No more of it is ranked for that. The peak must be finite.
  std::int32_t first() const;

  // Ranks at least `count` tokens, or all if there are not as many.
  void reach(std::int64_t count);

  std::int64_t columns() const { return columns_; }
  std::int64_t size() const { return static_cast<std::int64_t>(memory_.keys.size()); }
  bool complete() const { return size() == columns_; }
  std::int32_t id(std::int64_t rank) const { return id_of(memory_.keys[rank]); }
  float logit(std::int64_t rank) const { return logit_of(memory_.keys[rank]); }

 private:
  float border(std::int64_t count);
  void append(Band band);

  const SamplerKernels& kernels_;
  const float* row_;
  std::int64_t columns_;
  RankingMemory& memory_;
  float peak_;
  float reached_;             // all logits from here on are ranked
  std::int64_t wanted_ = 16;  // about how many the last piece was to reach
};

// The shares of ranked tokens (softmax without its denominator), and their running sum from the
// top, added up one by one. Ranks more tokens as it needs them.
class Shares {
 public:
  Shares(const SamplerKernels& kernels, Ranking& ranking, double temperature,
         RankingMemory& memory);

  // The sum over the whole row, in NumPy's order: see `SamplerKernels::sum_shares`; longer rows are
  // cut in halves, the first of a multiple of 8.
  double total(const float* row) const;

  // How many of the first `limit` tokens it takes to hold `mass`; `limit` if all do not.
  std::int64_t length(double mass, std::int64_t limit);

  // How many of the first `limit` tokens have at least this share.
  std::int64_t at_least(double share, std::int64_t limit);

  // The first rank below `limit` at which the running sum exceeds `mass`; if there is none, the
  // last with a share.
  std::int64_t place(double mass, std::int64_t limit);

  // The sum of the first `count` shares.
  double running(std::int64_t count);

 private:
  void reach(std::int64_t count);
  bool extend(std::int64_t limit);

  const SamplerKernels& kernels_;
  Ranking& ranking_;
  Scale scale_;
  RankingMemory& memory_;
};

}  // namespace looseleaf
