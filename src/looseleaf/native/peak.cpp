#include "peak.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu.h"
#include "peak_loops.h"

namespace looseleaf {

namespace {

using Clock = std::chrono::steady_clock;
using Loop = std::int64_t (*)(std::int64_t rounds);

constexpr int kRepeats = 9;
constexpr std::int64_t kRounds = 1'000'000;

// As many independent sums as any usual vector unit keeps busy.
constexpr int kLanes = 64;

// `sums` is volatile at the end only, so that the compiler can neither leave out the sums nor has
// to store each.
template <typename T>
std::int64_t plain_loop(std::int64_t rounds) {
  T sums[kLanes] = {};
  volatile T step = T{3};
  for (std::int64_t i = 0; i < rounds / 4; ++i) {
    const T factor = step;
    for (T& sum : sums) sum = static_cast<T>(sum * factor + factor);
  }
  volatile T sink = sums[0];
  for (T sum : sums) sink = static_cast<T>(sink + sum);
  return rounds / 4 * kLanes;
}

constexpr PeakLoops kPlain = {
    plain_loop<std::uint16_t>,
    [](std::int64_t rounds) { return 2 * plain_loop<float>(rounds); },
};

const PeakLoops& loops() {
  const PeakLoops* avx2 = runs_avx2_kernels() ? peak_loops_avx2() : nullptr;
  return avx2 != nullptr ? *avx2 : kPlain;
}

double measure(Loop loop, int num_threads) {
  const int threads = std::max(1, num_threads);
  std::vector<double> seconds(kRepeats);
  std::vector<std::int64_t> done(static_cast<std::size_t>(threads));
  Clock::time_point start;
  std::size_t turn = 0;
  bool running = false;
  // Runs in one thread when all have arrived: before each run and after it.
  auto mark = [&]() noexcept {
    const auto now = Clock::now();
    if (running) seconds[turn++] = std::chrono::duration<double>(now - start).count();
    running = !running;
    start = now;
  };
  std::barrier sync(threads, mark);
  auto work = [&](int thread) {
    for (int i = 0; i < kRepeats; ++i) {
      sync.arrive_and_wait();
      done[static_cast<std::size_t>(thread)] = loop(kRounds);
      sync.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (auto& other : others) other.join();
  std::int64_t operations = 0;
  for (std::int64_t count : done) operations += count;
  return static_cast<double>(operations) / *std::min_element(seconds.begin(), seconds.end());
}

}  // namespace

double peak_int8_madds(int threads) { return measure(loops().int8_madds, threads); }

double peak_f32_flops(int threads) { return measure(loops().f32_flops, threads); }

}  // namespace looseleaf
