// Between float32 and the bits of f16 (IEEE binary16), as the instructions VCVTPS2PH and VCVTPH2PS
// do it. For the portable kernels; those for AVX2 use the instructions.
#pragma once

#include <bit>
#include <cstdint>

namespace looseleaf {

// Rounds to nearest even; infinite from 65520 on. A NaN stays one, with the top of its payload.
inline std::uint16_t f16_from_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t size = bits & 0x7FFFFFFF;
  std::uint32_t half;
  if (size > 0x7F800000) {
    half = 0x7E00 | (size >> 13 & 0x3FF);
  } else if (size >= 0x477FF000) {  // 65520
    half = 0x7C00;
  } else if (size >= 0x38800000) {  // 2^-14, the smallest normal one
    half = (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13;
  } else {
    // Adding 2^-1 leaves the multiple of 2^-24 in the lowest bits, rounded by the addition itself.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3F000000;
  }
  return static_cast<std::uint16_t>(sign | half);
}

// Exact. A NaN stays one, with its payload, and quiet.
inline float f32_from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t size = half & 0x7FFFu;
  std::uint32_t bits;
  if (size > 0x7C00) {
    bits = 0x7FC00000 | size << 13;
  } else if (size == 0x7C00) {
    bits = 0x7F800000;
  } else if (size >= 0x400) {
    bits = (size << 13) + 0x38000000;
  } else {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(size) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | bits);
}

}  // namespace looseleaf
