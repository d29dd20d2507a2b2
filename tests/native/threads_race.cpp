// Run under the thread sanitizer by `make sanitize`: the pool alone, and the sampler on it.
//
// Loops of all sizes follow each other closely, and now and then so late that the workers sleep;
// pools come and go. The sanitizer reports races; wrong sums are reported here.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "sampler.h"
#include "threads.h"

using looseleaf::ThreadPool;

namespace {

bool sums_are_right(ThreadPool& pool, std::int64_t count, std::int64_t chunk) {
  std::vector<std::int64_t> squares(static_cast<std::size_t>(count));  // written without a lock
  std::vector<std::int64_t> counts(static_cast<std::size_t>(pool.size()));
  pool.run(count, chunk, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t i = begin; i < end; ++i) squares[i] = i * i;
    counts[thread] += end - begin;
  });
  std::int64_t sum = 0;
  std::int64_t done = 0;
  for (const std::int64_t square : squares) sum += square;
  for (const std::int64_t part : counts) done += part;
  return sum == (count - 1) * count * (2 * count - 1) / 6 && done == count;
}

bool pools_work() {
  for (int threads = 1; threads <= 4; ++threads) {
    for (int round = 0; round < 8; ++round) {
      ThreadPool pool(threads);
      for (std::int64_t count = 0; count < 60; ++count) {
        if (!sums_are_right(pool, count, 1 + count % 7)) return false;
      }
      if (round % 4 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (!sums_are_right(pool, 1000, 1)) return false;
    }
  }
  return true;
}

bool samples_are_the_same_on_any_pool() {
  constexpr std::int64_t kRows = 16;
  constexpr std::int64_t kColumns = 3000;
  std::vector<float> logits;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    logits.push_back(static_cast<float>(i * 7919 % 997) / 100.0f);
  }
  std::vector<looseleaf::Draw> draws;
  std::vector<looseleaf::Score> wanted;
  for (std::int64_t row = 0; row < kRows; ++row) {
    draws.push_back({row, 1.5, row % 3 * 40, row % 2 ? 0.9 : 1.0, 0.0, 7, 0,
                     static_cast<std::uint64_t>(row), 3});
    wanted.push_back({row, row});
  }
  std::vector<std::vector<std::int32_t>> tokens;
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    std::vector<looseleaf::Drawn> drawn;
    std::vector<double> scores;
    looseleaf::sample_rows(looseleaf::sampler_kernels(), pool, {logits.data(), kColumns, kColumns},
                           draws, wanted, drawn, scores);
    tokens.emplace_back();
    for (const auto& one : drawn) tokens.back().push_back(one.token);
    if (tokens.back() != tokens.front()) return false;
  }
  return true;
}

}  // namespace

int main() {
  if (!pools_work()) return std::puts("a loop of the pool went wrong"), 1;
  if (!samples_are_the_same_on_any_pool()) return std::puts("samples differ"), 1;
  return 0;
}
