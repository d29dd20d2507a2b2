#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

#include "philox.h"
#include "ranking.h"

namespace looseleaf {

namespace {

struct Row {
  const float* logits;
  std::int64_t columns;
};

// log(sum(exp(logits))) from the sum at temperature 1.
double normalizer(const Ranking& ranking, double total) {
  return static_cast<double>(ranking.peak()) + std::log(total);
}

double logprob(Row row, std::int64_t token, double normalizer) {
  if (token >= row.columns || std::isnan(row.logits[token])) return kLogprobFloor;
  return std::max(kLogprobFloor, static_cast<double>(row.logits[token]) - normalizer);
}

// The rank that is drawn. `total` is what all shares add up to, if that is known.
std::int64_t draw_rank(Shares& shares, const Draw& draw, double total, std::int64_t columns) {
  const double number = uniform(draw.seed, draw.sample_index, draw.position);
  std::int64_t count = columns;
  if (0 < draw.top_k && draw.top_k < columns) {
    count = draw.top_k;
    if (draw.top_p < 1) count = shares.length(draw.top_p * shares.running(count), count);
  } else if (draw.top_p < 1) {
    count = shares.length(draw.top_p * total, count);
  } else if (!(draw.min_p > 0)) {
    return shares.place(number * total, count);
  }
  if (draw.min_p > 0) count = shares.at_least(draw.min_p, count);
  return shares.place(number * shares.running(count), count);
}

// Whether drawing takes the sum over the whole row.
bool needs_total(const Draw& draw, std::int64_t columns) {
  if (0 < draw.top_k && draw.top_k < columns) return false;
  return draw.top_p < 1 || !(draw.min_p > 0);
}

// The row as a request changes it, in `memory`; the row itself where it does not.
Row edited_row(Row row, const RowEdit& edit, RankingMemory& memory) {
  if (edit.count == 0 && !edit.only) return row;
  if (edit.only) {
    memory.edited.assign(static_cast<std::size_t>(row.columns), -INFINITY);
  } else {
    memory.edited.assign(row.logits, row.logits + row.columns);
  }
  for (std::int64_t i = 0; i < edit.count; ++i) {
    memory.edited[static_cast<std::size_t>(edit.tokens[i])] = edit.logits[i];
  }
  return {memory.edited.data(), row.columns};
}

// -1 if the row holds no finite maximum.
std::int32_t draw_token(const SamplerKernels& kernels, Row row, const Draw& draw,
                        RankingMemory& memory) {
  Ranking ranking(kernels, row.logits, row.columns, memory);
  if (!std::isfinite(ranking.peak())) return -1;
  if (draw.temperature == 0 || draw.top_p == 0 || draw.top_k == 1) return ranking.first();
  Shares shares(kernels, ranking, draw.temperature, memory);
  const double total = needs_total(draw, row.columns) ? shares.total(row.logits) : 0;
  return ranking.id(draw_rank(shares, draw, total, row.columns));
}

// The first `count` tokens of the ranking of `ranked`, with their log-probabilities under `row`.
void list(Ranking& ranking, Row ranked, Row row, std::int64_t count, double normalizer,
          Drawn& drawn) {
  count = std::min(count, row.columns);
  ranking.reach(count);
  for (std::int64_t rank = 0; rank < count; ++rank) {
    const std::int32_t id = ranking.id(rank);
    if (ranked.logits != row.logits && ranked.logits[id] == -INFINITY) return;
    drawn.top.emplace_back(id, logprob(row, id, normalizer));
  }
}

Drawn sample_row(const SamplerKernels& kernels, Row row, const Draw& draw, RankingMemory& memory) {
  Drawn drawn;
  const Row edited = edited_row(row, draw.edit, memory);
  drawn.token = draw_token(kernels, edited, draw, memory);
  if (drawn.token < 0 || draw.num_logprobs < 0) return drawn;
  Ranking ranking(kernels, row.logits, row.columns, memory);
  if (!std::isfinite(ranking.peak())) return Drawn{};
  const double norm =
      normalizer(ranking, Shares(kernels, ranking, 1.0, memory).total(row.logits));
  drawn.logprob = logprob(row, drawn.token, norm);
  if (draw.edit.lists) {
    Ranking of_edited(kernels, edited.logits, edited.columns, memory);
    list(of_edited, edited, row, draw.num_logprobs, norm, drawn);
  } else {
    list(ranking, row, row, draw.num_logprobs, norm, drawn);
  }
  return drawn;
}

double score_row(const SamplerKernels& kernels, Row row, std::int64_t token,
                 RankingMemory& memory) {
  Ranking ranking(kernels, row.logits, row.columns, memory);
  if (!std::isfinite(ranking.peak())) return kLogprobFloor;
  const double total = Shares(kernels, ranking, 1.0, memory).total(row.logits);
  return logprob(row, token, normalizer(ranking, total));
}

}  // namespace

void sample_rows(const SamplerKernels& kernels, ThreadPool& threads, LogitRows rows,
                 const std::vector<Draw>& draws, const std::vector<Score>& wanted_scores,
                 std::vector<Drawn>& drawn, std::vector<double>& scores) {
  const auto num_draws = static_cast<std::int64_t>(draws.size());
  const auto num_scores = static_cast<std::int64_t>(wanted_scores.size());
  drawn.assign(draws.size(), {});
  scores.assign(wanted_scores.size(), 0.0);
  std::atomic<bool> out_of_memory{false};
  const auto one = [&](std::int64_t i) {
    thread_local RankingMemory memory;
    const std::int64_t index = i < num_draws ? draws[i].row : wanted_scores[i - num_draws].row;
    const Row row{rows.data + index * rows.stride, rows.columns};
    if (i < num_draws) {
      drawn[i] = sample_row(kernels, row, draws[i], memory);
    } else {
      scores[i - num_draws] = score_row(kernels, row, wanted_scores[i - num_draws].token, memory);
    }
  };
  threads.run(num_draws + num_scores, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      try {
        one(i);
      } catch (const std::bad_alloc&) {  // must not leave a worker
        out_of_memory.store(true);
      }
    }
  });
  if (out_of_memory.load()) throw std::bad_alloc();
}

}  // namespace looseleaf
