#include "bandwidth.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace looseleaf {

namespace {

using Clock = std::chrono::steady_clock;

// Eight independent sums, so that the additions never hold up the loads.
std::uint64_t sum(const std::uint64_t* words, std::size_t count) {
  std::uint64_t lanes[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += words[i + lane];
  }
  std::uint64_t total = 0;
  for (std::uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace

double read_bandwidth(std::size_t num_bytes, int num_threads, int repeats) {
  const std::size_t threads = static_cast<std::size_t>(std::max(1, num_threads));
  const std::size_t share = num_bytes / sizeof(std::uint64_t) / threads / 8 * 8;
  std::unique_ptr<std::uint64_t[]> words(new std::uint64_t[share * threads]);
  std::vector<std::uint64_t> sums(threads);
  std::vector<double> seconds(static_cast<std::size_t>(std::max(1, repeats)));
  Clock::time_point start;
  std::size_t turn = 0;
  bool reading = false;
  // Runs in one thread when all have arrived: before each reading and after it.
  auto mark = [&]() noexcept {
    const auto now = Clock::now();
    if (reading) seconds[turn++] = std::chrono::duration<double>(now - start).count();
    reading = !reading;
    start = now;
  };
  std::barrier sync(static_cast<std::ptrdiff_t>(threads), mark);
  auto work = [&](std::size_t thread) {
    std::uint64_t* mine = words.get() + thread * share;
    std::fill(mine, mine + share, thread + 1);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      sync.arrive_and_wait();
      sums[thread] += sum(mine, share);
      sync.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (std::size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (auto& other : others) other.join();
  // Using the sums keeps the compiler from leaving the reads out.
  volatile std::uint64_t sink = 0;
  for (std::uint64_t value : sums) sink = sink + value;
  const double best = *std::min_element(seconds.begin(), seconds.end());
  return static_cast<double>(share * threads * sizeof(std::uint64_t)) / best;
}

}  // namespace looseleaf
