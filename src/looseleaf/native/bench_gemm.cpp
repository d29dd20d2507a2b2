#include "bench_gemm.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "gemm.h"
#include "groups.h"
#include "threads.h"

namespace looseleaf {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLeastBytes = std::size_t{64} << 20;
constexpr std::size_t kCacheLine = 64;
constexpr std::int64_t kRangesPerThread = 4;  // as the runtime splits products

struct Free {
  void operator()(std::byte* bytes) const {
    ::operator delete[](bytes, std::align_val_t{kCacheLine});
  }
};

using Bytes = std::unique_ptr<std::byte[], Free>;

// Whatever bytes are the integers, scales of an ordinary size keep results finite.
template <typename Group>
void set_numbers(Group& group) {
  auto set = [](auto& number, float value, std::uint16_t f16_bits) {
    if constexpr (sizeof(number) == sizeof(float)) {
      number = value;
    } else {
      number = f16_bits;
    }
  };
  if constexpr (kIsInput<Group>) {
    for (auto& value : group.values) set(value, 0.0625f, 0x2c00);
  } else {
    if constexpr (num_scales<Group>() == 2) {
      for (auto& half : group.scales) {
        for (auto& scale : half) set(scale, 0.0625f, 0x2c00);
      }
    } else {
      for (auto& scale : group.scales) set(scale, 0.0625f, 0x2c00);
    }
    if constexpr (has_min<Group>()) {
      for (auto& min : group.mins) set(min, -0.5f, 0xb800);
    }
  }
}

void make_weights(WeightType type, std::size_t bytes, std::byte* out) {
  std::minstd_rand random(1);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(random() >> 8);
  with_group_type(type, [&](auto identity) {
    using Group = typename decltype(identity)::type;
    auto* groups = reinterpret_cast<Group*>(out);
    for (std::size_t i = 0; i < bytes / sizeof(Group); ++i) set_numbers(groups[i]);
  });
}

}  // namespace

double bench_matmul(WeightType type, std::int64_t n, std::int64_t k, std::int64_t rows, int threads,
                    int repeats) {
  const std::size_t bytes = packed_bytes(type, n, k);
  const std::size_t stride = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  const std::size_t copies = (kLeastBytes + bytes - 1) / bytes;
  Bytes weights(static_cast<std::byte*>(
      ::operator new[](stride * copies, std::align_val_t{kCacheLine})));
  make_weights(type, bytes, weights.get());
  for (std::size_t i = 1; i < copies; ++i) {
    std::memcpy(weights.get() + i * stride, weights.get(), bytes);
  }
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  std::minstd_rand random(2);
  for (float& value : x) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  std::vector<float> out(static_cast<std::size_t>(rows * n));
  const GemmKernels& kernels = gemm_kernels();
  std::vector<QuantizedGroup> quantized(static_cast<std::size_t>(rows * k / kGroupSize));
  kernels.quantize_rows(x.data(), k, rows, k, quantized.data());

  ThreadPool pool(std::max(1, threads));
  const std::int64_t tiles = num_tiles(n);
  const std::int64_t chunk = std::max<std::int64_t>(1, tiles / (pool.size() * kRangesPerThread));
  std::vector<double> seconds;
  for (int i = 0; i < std::max(1, repeats); ++i) {
    const std::size_t copy = static_cast<std::size_t>(i) % copies;
    const PackedWeight weight = {type, n, k, weights.get() + copy * stride};
    const auto start = Clock::now();
    pool.run(tiles, chunk, [&](std::int64_t begin, std::int64_t end, int) {
      if (is_quantized(type)) {
        kernels.matmul(weight, quantized.data(), rows, begin, end, out.data(), n, nullptr, 0);
      } else {
        kernels.matmul_float(weight, x.data(), k, rows, begin, end, out.data(), n, nullptr, 0);
      }
    });
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace looseleaf
