// The exponential and the hyperbolic tangent behind attention and SiLU, in float32.
//
// Written as a fixed sequence of fused multiply-adds, so that a scalar, a vector lane and any
// processor give the same bits. `vecmath_avx2.h` has the same sequence in 8 lanes; a change here is
// a change there.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace looseleaf {

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. Adding `kExpShift` rounds to an
// integer and leaves it in the low bits. Coefficients of r^7 ... r^2: Moshier, Cephes, expf.
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kExpShift = 12582912.0f;  // 1.5 * 2^23
inline constexpr float kLn2High = 0.693147182464599609375f;
inline constexpr float kLn2Low = -1.904654323148236017e-9f;
inline constexpr float kExp7 = 1.9875691500e-4f;
inline constexpr float kExp6 = 1.3981999507e-3f;
inline constexpr float kExp5 = 8.3334519073e-3f;
inline constexpr float kExp4 = 4.1665795894e-2f;
inline constexpr float kExp3 = 1.6666665459e-1f;
inline constexpr float kExp2 = 5.0000001201e-1f;
inline constexpr float kExpLowest = -87.3365447505531f;  // ln 2^-126
inline constexpr float kExpHighest = 88.7228391116729f;  // ln of the largest float
inline constexpr float kInfinity = __builtin_inff();

// exp(x) for x <= 0, for the weights of attention, of which there are many: 2^n * 2^f, n = round(x /
// ln 2), |f| <= 1/2, with a minimax polynomial of relative error 1e-7 that is 1 at 0. The shift also
// adds the bias of an exponent, so that the low bits, moved up, are 2^n; those of n = -127, to which
// all lower x are raised, are 0.
inline constexpr float kWeightShift = 12583039.0f;  // 1.5 * 2^23 + 127
inline constexpr float kWeightLowest = -88.0f;      // rounds to n = -127
inline constexpr float kWeight5 = 0x1.5bba14p-10f;
inline constexpr float kWeight4 = 0x1.3cea88p-7f;
inline constexpr float kWeight3 = 0x1.c6b752p-5f;
inline constexpr float kWeight2 = 0x1.ebf9bcp-3f;
inline constexpr float kWeight1 = 0x1.62e42ap-1f;

// tanh(x) = x + x^3 P(x^2) below `kTanhSmall`, from exp above. Moshier, Cephes, tanhf.
inline constexpr float kTanhSmall = 0.625f;
inline constexpr float kTanh9 = -5.70498872745e-3f;
inline constexpr float kTanh7 = 2.06390887954e-2f;
inline constexpr float kTanh5 = -5.37397155531e-2f;
inline constexpr float kTanh3 = 1.33314422036e-1f;
inline constexpr float kTanh1 = -3.33332819422e-1f;

// e to the power of x. 0 where the result would be below the smallest normal number (so at -inf),
// infinite above the largest; exactly 1 at 0; NaN for NaN.
inline float exp_f32(float x) {
  if (x < kExpLowest) return 0.0f;
  if (!(x <= kExpHighest)) return x + kInfinity;
  const float shifted = std::fma(x, kLog2E, kExpShift);
  const float n = shifted - kExpShift;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = kExp7;
  p = std::fma(p, r, kExp6);
  p = std::fma(p, r, kExp5);
  p = std::fma(p, r, kExp4);
  p = std::fma(p, r, kExp3);
  p = std::fma(p, r, kExp2);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  // The shift's own bits fall out at the top.
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

// e to the power of x, for x <= 0. 0 from about -87.7 down (so at -inf); exactly 1 at 0; NaN for NaN.
inline float weight_f32(float x) {
  if (x < kWeightLowest) x = kWeightLowest;
  const float shifted = std::fma(x, kLog2E, kWeightShift);
  const float n = shifted - kWeightShift;
  const float f = std::fma(x, kLog2E, -n);
  float p = kWeight5;
  p = std::fma(p, f, kWeight4);
  p = std::fma(p, f, kWeight3);
  p = std::fma(p, f, kWeight2);
  p = std::fma(p, f, kWeight1);
  p = std::fma(p, f, 1.0f);
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
}

inline float tanh_f32(float x) {
  const float size = std::fabs(x);
  if (size < kTanhSmall) {
    const float z = x * x;
    float p = kTanh9;
    p = std::fma(p, z, kTanh7);
    p = std::fma(p, z, kTanh5);
    p = std::fma(p, z, kTanh3);
    p = std::fma(p, z, kTanh1);
    return std::fma(p * z, x, x);
  }
  return std::copysign(1.0f - 2.0f / (exp_f32(size + size) + 1.0f), x);
}

}  // namespace looseleaf
