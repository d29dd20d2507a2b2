// The weights in packed groups, one by one: what unpacking and the portable kernels have in common.
//
// Not for the AVX2 files, which share no code with others (see gemm_avx2.cpp).
#pragma once

#include <cstdint>
#include <type_traits>

#include "pack.h"
#include "weights.h"

namespace looseleaf {

// Calls `use` with a std::type_identity of the type that a packed matrix of `type` is an array of.
template <typename Use>
void with_group_type(WeightType type, Use&& use) {
  switch (type) {
    case WeightType::q4:
      return use(std::type_identity<Q4Group>{});
    case WeightType::q4k:
      return use(std::type_identity<Q4KGroup>{});
    case WeightType::q5:
      return use(std::type_identity<Q5Group>{});
    case WeightType::q5k:
      return use(std::type_identity<Q5KGroup>{});
    case WeightType::q6k:
      return use(std::type_identity<Q6KGroup>{});
    case WeightType::q8:
      return use(std::type_identity<Q8Group>{});
    case WeightType::f16:
      return use(std::type_identity<F16Input>{});
    case WeightType::f32:
      return use(std::type_identity<F32Input>{});
  }
}

// Whether the array is of inputs, and not of groups of them.
template <typename Group>
inline constexpr bool kIsInput =
    std::is_same_v<Group, F16Input> || std::is_same_v<Group, F32Input>;

template <typename Group>
constexpr bool has_min() {
  return !std::is_same_v<Group, Q6KGroup> && !std::is_same_v<Group, Q8Group>;
}

template <typename Group>
constexpr int num_scales() {
  return std::is_same_v<Group, Q6KGroup> ? 2 : 1;
}

inline float number(float value) { return value; }
inline float number(std::uint16_t f16_bits) { return float_from_f16(f16_bits); }

// Byte of `lane` in the quad of `input`, or in the one 4 quads before.
constexpr std::int64_t byte_of(int lane, int input) { return kQuadSize * lane + input % kQuadSize; }

// The integer behind the weight of `lane` for `input` of a group.
inline int integer_of(const Q8Group& group, int lane, int input) {
  return group.values[input / kQuadSize][byte_of(lane, input)];
}

template <typename Group>
int integer_of(const Group& group, int lane, int input) {
  const int quad = static_cast<int>(input / kQuadSize);
  const std::int64_t byte = byte_of(lane, input);
  const int both = group.nibbles[quad % 4][byte];
  const int nibble = quad < 4 ? both & 15 : both >> 4;
  if constexpr (std::is_same_v<Group, Q4Group> || std::is_same_v<Group, Q4KGroup>) {
    return nibble;
  } else if constexpr (std::is_same_v<Group, Q6KGroup>) {
    return (nibble | (group.high_bits[quad / 4][byte] >> 2 * (quad % 4) & 3) << 4) - 32;
  } else {
    return nibble | (group.high_bits[byte] >> quad & 1) << 4;
  }
}

template <typename Group>
float scale_of(const Group& group, int lane, int input) {
  if constexpr (num_scales<Group>() == 2) {
    return number(group.scales[2 * input / kGroupSize][lane]);
  } else {
    return number(group.scales[lane]);
  }
}

template <typename Group>
float min_of(const Group& group, int lane) {
  return number(group.mins[lane]);
}

// The weight of `lane` for `input` of a group.
template <typename Group>
float weight_of(const Group& group, int lane, int input) {
  if constexpr (kIsInput<Group>) {
    return number(group.values[lane]);
  } else {
    const float product =
        scale_of(group, lane, input) * static_cast<float>(integer_of(group, lane, input));
    if constexpr (has_min<Group>()) return product + min_of(group, lane);
    return product;
  }
}

}  // namespace looseleaf
