// The counter-based random numbers of `sampling/random.py`, bit for bit.
#pragma once

#include <cstdint>

namespace looseleaf {

struct WidePart {
  std::uint64_t high;
  std::uint64_t low;
};

inline WidePart multiply_wide(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return {static_cast<std::uint64_t>(product >> 64), static_cast<std::uint64_t>(product)};
}

// The first word of Philox4x64-10 (Salmon et al., SC 2011, section 3.3) with key (seed,
// sample_index) and counter (position + 1, 0, 0, 0): its upper 53 bits as a number in [0, 1).
inline double uniform(std::uint64_t seed, std::uint64_t sample_index, std::uint64_t position) {
  std::uint64_t key[2] = {seed, sample_index};
  // A position of 2^64 - 1 carries into the second word.
  std::uint64_t counter[4] = {position + 1, position + 1 == 0, 0, 0};
  for (int round = 0; round < 10; ++round) {
    const WidePart first = multiply_wide(0xD2E7470EE14C6C93, counter[0]);
    const WidePart second = multiply_wide(0xCA5A826395121157, counter[2]);
    counter[0] = second.high ^ counter[1] ^ key[0];
    counter[1] = second.low;
    counter[2] = first.high ^ counter[3] ^ key[1];
    counter[3] = first.low;
    key[0] += 0x9E3779B97F4A7C15;
    key[1] += 0xBB67AE8584CAA73B;
  }
  return static_cast<double>(counter[0] >> 11) * 0x1p-53;
}

}  // namespace looseleaf
