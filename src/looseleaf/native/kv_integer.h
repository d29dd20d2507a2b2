// The integers of attention: of queries, keys, values and weights (see `layout.md`).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace looseleaf {

// The largest of each kind, and over how many channels or positions their products are added up
// exactly.
inline constexpr std::int32_t kQueryMost = 4095;
inline constexpr std::int32_t kKeyGroup = 64;  // channels
inline constexpr std::int32_t kWeightMost = 16383;
inline constexpr std::int32_t kWeightGroup = 32;  // positions
template <typename T>
inline constexpr std::int32_t kKeyMost = sizeof(T) == 2 ? 8191 : 127;
template <typename T>
inline constexpr std::int32_t kValueMost = sizeof(T) == 2 ? 4095 : 127;
static_assert(std::int64_t{kQueryMost} * kKeyMost<std::int16_t> * kKeyGroup <= INT32_MAX);
static_assert(std::int64_t{kWeightMost} * kValueMost<std::int16_t> * kWeightGroup <= INT32_MAX);

// Whether a cache of these numbers has scales.
template <typename T>
inline constexpr bool kIsInteger = false;
template <>
inline constexpr bool kIsInteger<std::int16_t> = true;
template <>
inline constexpr bool kIsInteger<std::int8_t> = true;

// The scale of a token takes the place of so many numbers.
template <typename T>
inline constexpr std::ptrdiff_t kScaleNumbers = kIsInteger<T> ? 4 / sizeof(T) : 0;

inline constexpr float kLeastScale = 0x1p-126f;  // smaller ones have no reciprocal
inline constexpr float kMostScale = 0x1.fffffep127f;

// Where `inverse` is 0, all integers are 0: the numbers are tiny, and so is the scale, 0; or one is
// infinite or NaN, and so is the scale.
struct IntegerScale {
  float scale;
  float inverse;
};

// For the portable kernels; `vecmath_avx2.h` and others have the same for AVX2.

// Compares bits, so that a NaN is the largest of all.
inline float largest_magnitude(const float* numbers, std::ptrdiff_t count) {
  std::uint32_t most = 0;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    most = std::max(most, std::bit_cast<std::uint32_t>(numbers[i]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(most);
}

inline IntegerScale integer_scale(float largest, std::int32_t most) {
  const float scale = largest / static_cast<float>(most);
  if (scale < kLeastScale) return {0.0f, 0.0f};
  if (!(scale <= kMostScale)) return {scale, 0.0f};
  return {scale, 1.0f / scale};
}

inline std::int16_t to_integer(float x, IntegerScale scale) {
  if (scale.inverse == 0.0f) return 0;
  return static_cast<std::int16_t>(std::nearbyint(x * scale.inverse));
}

}  // namespace looseleaf
