// Where the time of a step goes, by pass of the plan.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace looseleaf {

// The size of one step, as far as it decides what a pass has to do.
struct PassSize {
  std::int64_t rows = 0;       // that are computed
  std::int64_t positions = 0;  // that attention sees, summed over rows
  std::int64_t contexts = 0;   // that attention reads at least: summed over sequences
};

// What one pass did since the profile was started.
struct PassTotals {
  double seconds = 0.0;
  std::int64_t calls = 0;
  PassSize size;
};

// Off until it is switched on: then a step costs a look at the clock per pass. A pass without rows
// is not counted.
class Profile {
 public:
  explicit Profile(std::size_t num_passes) : totals_(num_passes) {}

  bool enabled() const { return enabled_; }
  void enable(bool on) { enabled_ = on; }
  void reset() { totals_.assign(totals_.size(), {}); }
  const std::vector<PassTotals>& totals() const { return totals_; }

  template <typename Body>
  void measure(std::size_t pass, const PassSize& size, const Body& body) {
    if (!enabled_ || size.rows == 0) {
      body();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    PassTotals& totals = totals_[pass];
    totals.seconds += taken.count();
    ++totals.calls;
    totals.size.rows += size.rows;
    totals.size.positions += size.positions;
    totals.size.contexts += size.contexts;
  }

 private:
  bool enabled_ = false;
  std::vector<PassTotals> totals_;
};

}  // namespace looseleaf
