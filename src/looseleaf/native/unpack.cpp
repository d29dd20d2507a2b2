#include <bit>

#include "groups.h"
#include "pack.h"

namespace looseleaf {

void unpack_row(const PackedWeight& weight, std::int64_t row, float* out) {
  const int lane = static_cast<int>(row % kTileWidth);
  with_group_type(weight.type, [&](auto identity) {
    using Group = typename decltype(identity)::type;
    constexpr int kInputs = kIsInput<Group> ? 1 : static_cast<int>(kGroupSize);
    const std::int64_t groups = weight.k / kInputs;
    const Group* group = reinterpret_cast<const Group*>(weight.data) + row / kTileWidth * groups;
    for (std::int64_t g = 0; g < groups; ++g, ++group, out += kInputs) {
      for (int i = 0; i < kInputs; ++i) out[i] = weight_of(*group, lane, i);
    }
  });
}

float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // subnormals are multiples of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t rebiased = exponent == 0x1f ? 0xffu : exponent + 127 - 15;
  return std::bit_cast<float>(sign | rebiased << 23 | mantissa << 13);
}

}  // namespace looseleaf
