#include "ranking.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace looseleaf {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Each piece is to reach about so many times as far as those before it.
constexpr std::int64_t kGrowth = 4;

// How many logits stand for all, when a border is wanted further down than block maxima tell.
constexpr std::int64_t kProbes = 2048;

// From here on, counting digits is faster than comparing.
constexpr std::ptrdiff_t kManyKeys = 1024;

// Sorts keys whose ids rise already: by the logits' 32 bits, 11 at a time from the lowest.
void sort_keys(Key* begin, Key* end, std::vector<Key>& spare) {
  const std::ptrdiff_t count = end - begin;
  if (count < kManyKeys) {
    std::sort(begin, end);
    return;
  }
  constexpr int kDigitBits = 11;
  constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
  std::uint32_t places[3][kDigits] = {};
  for (const Key* key = begin; key < end; ++key) {
    for (int pass = 0; pass < 3; ++pass) {
      ++places[pass][(*key >> (32 + kDigitBits * pass)) % kDigits];
    }
  }
  if (spare.size() < static_cast<std::size_t>(count)) spare.resize(static_cast<std::size_t>(count));
  Key* from = begin;
  Key* to = spare.data();
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = 32 + kDigitBits * pass;
    if (places[pass][(*begin >> shift) % kDigits] == count) continue;  // all have the same digit
    std::uint32_t place = 0;
    for (std::uint32_t& entry : places[pass]) place += std::exchange(entry, place);
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      to[places[pass][(from[i] >> shift) % kDigits]++] = from[i];
    }
    std::swap(from, to);
  }
  if (from != begin) std::copy_n(from, count, begin);
}

}  // namespace

Ranking::Ranking(const SamplerKernels& kernels, const float* row, std::int64_t columns,
                 RankingMemory& memory)
    : kernels_(kernels), row_(row), columns_(columns), memory_(memory), reached_(kInfinity) {
  memory_.keys.clear();
  memory_.maxima.resize(static_cast<std::size_t>(num_blocks(columns)));
  kernels_.block_maxima(row_, columns_, memory_.maxima.data());
  peak_ = -kInfinity;
  for (const float maximum : memory_.maxima) peak_ = std::max(peak_, maximum);
}

std::int32_t Ranking::first() const {
  const auto block = std::find(memory_.maxima.begin(), memory_.maxima.end(), peak_);
  const float* at = row_ + (block - memory_.maxima.begin()) * kBlock;
  while (*at != peak_) ++at;
  return static_cast<std::int32_t>(at - row_);
}

void Ranking::reach(std::int64_t count) {
  count = std::min(count, columns_);
  while (size() < count) {
    wanted_ = std::max(kGrowth * wanted_, count);
    const float low = wanted_ <= columns_ / 2 ? border(wanted_) : -kInfinity;
    const bool all = low == -kInfinity || !(low < reached_);
    append({low, reached_, all});
    reached_ = all ? -kInfinity : low;
  }
}

// A logit that about `count` reach.
float Ranking::border(std::int64_t count) {
  std::vector<float>& values = memory_.values;
  if (count <= num_blocks(columns_) / 2) {
    // As many blocks have a maximum that does.
    values = memory_.maxima;
  } else {
    const std::int64_t probes = std::min(columns_, kProbes);
    values.clear();
    for (std::int64_t i = 0; i < probes; ++i) {
      const float value = row_[i * columns_ / probes];
      values.push_back(std::isnan(value) ? -kInfinity : value);
    }
    count = std::max<std::int64_t>(1, count * probes / columns_);
  }
  const auto place = values.begin() + (count - 1);
  std::nth_element(values.begin(), place, values.end(), std::greater<>());
  return *place;
}

void Ranking::append(Band band) {
  std::vector<Key>& spare = memory_.spare;
  std::vector<Key>& keys = memory_.keys;
  if (spare.size() < static_cast<std::size_t>(columns_)) spare.resize(columns_);
  const std::int64_t count =
      kernels_.gather(row_, columns_, memory_.maxima.data(), band, spare.data());
  const auto old_size = static_cast<std::ptrdiff_t>(keys.size());
  keys.insert(keys.end(), spare.begin(), spare.begin() + count);
  sort_keys(keys.data() + old_size, keys.data() + keys.size(), spare);
}

Shares::Shares(const SamplerKernels& kernels, Ranking& ranking, double temperature,
               RankingMemory& memory)
    : kernels_(kernels), ranking_(ranking), scale_{ranking.peak(), temperature}, memory_(memory) {
  memory_.shares.clear();
  memory_.running.clear();
}

namespace {

double total_of(const SamplerKernels& kernels, const float* row, std::int64_t count, Scale scale) {
  if (count <= 128) return kernels.sum_shares(row, count, scale);
  const std::int64_t half = count / 2 / 8 * 8;
  const double first = total_of(kernels, row, half, scale);
  return first + total_of(kernels, row + half, count - half, scale);
}

}  // namespace

double Shares::total(const float* row) const {
  return total_of(kernels_, row, ranking_.columns(), scale_);
}

// Ranks at least `count` tokens, or all, and adds up the shares of whatever is ranked.
void Shares::reach(std::int64_t count) {
  ranking_.reach(count);
  const auto old_size = static_cast<std::int64_t>(memory_.shares.size());
  const std::int64_t size = ranking_.size();
  if (old_size == size) return;
  memory_.values.resize(static_cast<std::size_t>(size - old_size));
  for (std::int64_t i = old_size; i < size; ++i) memory_.values[i - old_size] = ranking_.logit(i);
  memory_.shares.resize(static_cast<std::size_t>(size));
  kernels_.shares(memory_.values.data(), size - old_size, scale_, memory_.shares.data() + old_size);
  double sum = old_size == 0 ? 0.0 : memory_.running.back();
  for (std::int64_t i = old_size; i < size; ++i) {
    sum += memory_.shares[i];
    memory_.running.push_back(sum);
  }
}

// Ranks a further piece; false if the first `limit` are ranked already.
bool Shares::extend(std::int64_t limit) {
  const auto size = static_cast<std::int64_t>(memory_.running.size());
  if (size >= limit) return false;
  reach(size + 1);
  return true;
}

std::int64_t Shares::length(double mass, std::int64_t limit) {
  while (memory_.running.empty() || memory_.running.back() < mass) {
    if (!extend(limit)) break;
  }
  const auto& running = memory_.running;
  const auto at = std::lower_bound(running.begin(), running.end(), mass);
  return std::min<std::int64_t>(at - running.begin() + 1, limit);
}

std::int64_t Shares::at_least(double share, std::int64_t limit) {
  while (memory_.shares.empty() || memory_.shares.back() >= share) {
    if (!extend(limit)) break;
  }
  const auto& shares = memory_.shares;
  const std::int64_t end = std::min<std::int64_t>(static_cast<std::int64_t>(shares.size()), limit);
  return std::count_if(shares.begin(), shares.begin() + end, [=](double s) { return s >= share; });
}

std::int64_t Shares::place(double mass, std::int64_t limit) {
  while (memory_.running.empty() || !(memory_.running.back() > mass)) {
    if (!extend(limit)) break;
  }
  const auto& running = memory_.running;
  const std::int64_t end = std::min<std::int64_t>(static_cast<std::int64_t>(running.size()), limit);
  const auto at = std::upper_bound(running.begin(), running.begin() + end, mass);
  std::int64_t place = std::min<std::int64_t>(at - running.begin(), end - 1);
  while (memory_.shares[place] == 0) --place;
  return place;
}

double Shares::running(std::int64_t count) {
  reach(count);
  return memory_.running[count - 1];
}

}  // namespace looseleaf
