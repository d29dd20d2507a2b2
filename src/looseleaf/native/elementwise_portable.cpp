#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cpu.h"
#include "elementwise.h"
#include "half.h"
#include "kv_integer.h"
#include "vecmath.h"

namespace looseleaf {

namespace {

void rms_norm(const float* x, const float* weight, float* out, std::int64_t num_rows,
              std::int64_t num_columns, float eps) {
  for (std::int64_t row = 0; row < num_rows; ++row, x += num_columns, out += num_columns) {
    float lanes[8] = {};
    for (std::int64_t i = 0; i < num_columns; i += 8) {
      const std::int64_t count = std::min<std::int64_t>(8, num_columns - i);
      for (std::int64_t lane = 0; lane < count; ++lane) {
        lanes[lane] = std::fma(x[i + lane], x[i + lane], lanes[lane]);
      }
    }
    const float sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                      ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(num_columns) + eps);
    for (std::int64_t i = 0; i < num_columns; ++i) out[i] = x[i] * factor * weight[i];
  }
}

void silu_mul(const float* gate, const float* up, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

void add(const float* left, const float* right, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = left[i] + right[i];
}

void rope(const RopeCall& call) {
  const std::int64_t half = call.rotary_dim / 2;
  for (std::int64_t token = 0; token < call.num_tokens; ++token) {
    const float* cosines = call.cosines + call.positions[token] * half;
    const float* sines = call.sines + call.positions[token] * half;
    for (std::int32_t head = 0; head < call.num_heads; ++head) {
      float* first = call.rows + token * call.row_stride + std::int64_t{head} * call.head_dim;
      float* second = first + half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = first[i];
        const float b = second[i];
        first[i] = std::fma(a, cosines[i], -(b * sines[i]));
        second[i] = std::fma(b, cosines[i], a * sines[i]);
      }
    }
  }
}

void put(float from, float& to) { to = from; }
void put(float from, std::uint16_t& to) { to = f16_from_f32(from); }

template <typename T>
void write_kv(const KVWrite& call, T* key_cache, T* value_cache) {
  const std::ptrdiff_t head_dim = call.head_dim;
  const std::ptrdiff_t block_size = call.block_size;
  const std::ptrdiff_t head_numbers = head_dim * block_size;
  const float* key = call.keys;
  const float* value = call.values;
  for (std::int64_t token = 0; token < call.num_tokens; ++token) {
    const std::ptrdiff_t block = call.slots[token] / block_size;
    const std::ptrdiff_t offset = call.slots[token] % block_size;
    for (std::ptrdiff_t head = 0; head < call.num_kv_heads; ++head) {
      const std::ptrdiff_t start = (block * call.num_kv_heads + head) * head_numbers;
      T* keys = key_cache + start + offset;
      T* values = value_cache + start + offset * head_dim;
      for (std::ptrdiff_t i = 0; i < head_dim; ++i) put(key[i], keys[i * block_size]);
      for (std::ptrdiff_t i = 0; i < head_dim; ++i) put(value[i], values[i]);
      key += head_dim;
      value += head_dim;
    }
  }
}

IntegerScale scale_of(const float* numbers, std::ptrdiff_t count, std::int32_t most) {
  return integer_scale(largest_magnitude(numbers, count), most);
}

template <typename T>
void write_integers(const KVWrite& call) {
  const std::ptrdiff_t head_dim = call.head_dim;
  const std::ptrdiff_t block_size = call.block_size;
  const std::ptrdiff_t head_bytes = kv_head_bytes(call.type, head_dim, block_size);
  const float* key = call.keys;
  const float* value = call.values;
  for (std::int64_t token = 0; token < call.num_tokens; ++token) {
    const std::ptrdiff_t block = call.slots[token] / block_size;
    const std::ptrdiff_t offset = call.slots[token] % block_size;
    for (std::ptrdiff_t head = 0; head < call.num_kv_heads; ++head) {
      const std::ptrdiff_t start = (block * call.num_kv_heads + head) * head_bytes;
      auto* keys = reinterpret_cast<T*>(static_cast<char*>(call.key_cache) + start);
      auto* values = reinterpret_cast<T*>(static_cast<char*>(call.value_cache) + start);
      const IntegerScale of_key = scale_of(key, head_dim, kKeyMost<T>);
      const IntegerScale of_value = scale_of(value, head_dim, kValueMost<T>);
      for (std::ptrdiff_t i = 0; i < head_dim; ++i) {
        keys[(i / 2 * block_size + offset) * 2 + i % 2] = static_cast<T>(to_integer(key[i], of_key));
        values[(offset / 2 * head_dim + i) * 2 + offset % 2] =
            static_cast<T>(to_integer(value[i], of_value));
      }
      reinterpret_cast<float*>(keys + head_dim * block_size)[offset] = of_key.scale;
      reinterpret_cast<float*>(values + head_dim * block_size)[offset] = of_value.scale;
      key += head_dim;
      value += head_dim;
    }
  }
}

void write_kv(const KVWrite& call) {
  switch (call.type) {
    case KVType::f32:
      write_kv(call, static_cast<float*>(call.key_cache), static_cast<float*>(call.value_cache));
      return;
    case KVType::f16:
      write_kv(call, static_cast<std::uint16_t*>(call.key_cache),
               static_cast<std::uint16_t*>(call.value_cache));
      return;
    case KVType::int16: write_integers<std::int16_t>(call); return;
    case KVType::int8: write_integers<std::int8_t>(call); return;
  }
}

}  // namespace

const ElementwiseKernels* elementwise_portable() {
  static constexpr ElementwiseKernels kKernels = {
      .name = "portable",
      .rms_norm = rms_norm,
      .silu_mul = silu_mul,
      .add = add,
      .rope = rope,
      .write_kv = write_kv,
  };
  return &kKernels;
}

const ElementwiseKernels* elementwise_kernels(std::string_view name) {
  if (name == "portable") return elementwise_portable();
  return name == "avx2" && runs_avx2_kernels() ? elementwise_avx2() : nullptr;
}

const ElementwiseKernels& elementwise_kernels() {
  const ElementwiseKernels* avx2 = elementwise_kernels("avx2");
  return avx2 != nullptr ? *avx2 : *elementwise_portable();
}

}  // namespace looseleaf
