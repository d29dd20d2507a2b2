// The exponential behind sampling, in float64, for numbers that are not above 0.
//
// Written as a fixed sequence of fused multiply-adds, so that a scalar, a vector lane and any
// processor give the same bits. `sampler_avx2.cpp` has the same sequence in 4 lanes; a change here
// is a change there.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace looseleaf {

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. Adding `kExpShift64` rounds to an
// integer and leaves it in the low bits. exp(r) is its Taylor series: what is left out is below
// 2^-57 of it.
inline constexpr double kLog2E64 = 1.4426950408889634;
inline constexpr double kExpShift64 = 6755399441055744.0;  // 1.5 * 2^52
inline constexpr double kLn2High64 = 0x1.62e42fee00000p-1;
inline constexpr double kLn2Low64 = 0x1.a39ef35793c76p-33;
inline constexpr double kExpLowest64 = -708.39;  // ln 2^-1022 is a little below
inline constexpr double kExpTerms64[] = {
    1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
    1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
    1.0 / 6,          1.0 / 2,         1.0,            1.0};

// e to the power of x <= 0. 0 where the result would be about the smallest normal number or below
// (so at -inf), and for NaN; exactly 1 at 0.
inline double exp_f64(double x) {
  if (!(x >= kExpLowest64)) return 0.0;
  const double shifted = std::fma(x, kLog2E64, kExpShift64);
  const double n = shifted - kExpShift64;
  double r = std::fma(n, -kLn2High64, x);
  r = std::fma(n, -kLn2Low64, r);
  double p = kExpTerms64[0];
  for (int i = 1; i < 14; ++i) p = std::fma(p, r, kExpTerms64[i]);
  // The shift's own bits fall out at the top.
  const std::uint64_t exponent = std::bit_cast<std::uint64_t>(shifted) << 52;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(p) + exponent);
}

}  // namespace looseleaf
