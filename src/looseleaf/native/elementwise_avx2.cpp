#include "elementwise.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kv_integer.h"
#include "vecmath_avx2.h"

namespace looseleaf {

namespace {

void rms_norm(const float* x, const float* weight, float* out, std::int64_t num_rows,
              std::int64_t num_columns, float eps) {
  const std::int64_t whole = num_columns / 8 * 8;
  const __m256i rest = first_lanes(static_cast<int>(num_columns - whole));
  for (std::int64_t row = 0; row < num_rows; ++row, x += num_columns, out += num_columns) {
    __m256 lanes = _mm256_setzero_ps();
    for (std::int64_t i = 0; i < whole; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      lanes = _mm256_fmadd_ps(v, v, lanes);
    }
    if (whole < num_columns) {
      const __m256 v = _mm256_maskload_ps(x + whole, rest);
      lanes = _mm256_fmadd_ps(v, v, lanes);
    }
    const float mean = sum_lanes(lanes) / static_cast<float>(num_columns);
    const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    const __m256 factor = _mm256_set1_ps(1.0f / root);
    for (std::int64_t i = 0; i < whole; i += 8) {
      const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
      _mm256_storeu_ps(out + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
    }
    if (whole < num_columns) {
      const __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + whole, rest), factor);
      _mm256_maskstore_ps(out + whole, rest,
                          _mm256_mul_ps(v, _mm256_maskload_ps(weight + whole, rest)));
    }
  }
}

__m256 silu_mul(__m256 gate, __m256 up) {
  const __m256 negative = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  const __m256 divisor = _mm256_add_ps(_mm256_set1_ps(1.0f), exp_f32(negative));
  return _mm256_mul_ps(_mm256_div_ps(gate, divisor), up);
}

void silu_mul(const float* gate, const float* up, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, silu_mul(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (i < count) {
    const __m256i rest = first_lanes(static_cast<int>(count - i));
    _mm256_maskstore_ps(
        out + i, rest,
        silu_mul(_mm256_maskload_ps(gate + i, rest), _mm256_maskload_ps(up + i, rest)));
  }
}

void add(const float* left, const float* right, float* out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(left + i), _mm256_loadu_ps(right + i)));
  }
  for (; i < count; ++i) out[i] = left[i] + right[i];
}

void rotate(__m256& a, __m256& b, __m256 cosine, __m256 sine) {
  const __m256 turned = _mm256_fmsub_ps(a, cosine, _mm256_mul_ps(b, sine));
  b = _mm256_fmadd_ps(b, cosine, _mm256_mul_ps(a, sine));
  a = turned;
}

void rope(const RopeCall& call) {
  const std::int64_t half = call.rotary_dim / 2;
  const std::int64_t whole = half / 8 * 8;
  const __m256i rest = first_lanes(static_cast<int>(half - whole));
  for (std::int64_t token = 0; token < call.num_tokens; ++token) {
    const float* cosines = call.cosines + call.positions[token] * half;
    const float* sines = call.sines + call.positions[token] * half;
    for (std::int32_t head = 0; head < call.num_heads; ++head) {
      float* first = call.rows + token * call.row_stride + std::int64_t{head} * call.head_dim;
      float* second = first + half;
      for (std::int64_t i = 0; i < whole; i += 8) {
        __m256 a = _mm256_loadu_ps(first + i);
        __m256 b = _mm256_loadu_ps(second + i);
        rotate(a, b, _mm256_loadu_ps(cosines + i), _mm256_loadu_ps(sines + i));
        _mm256_storeu_ps(first + i, a);
        _mm256_storeu_ps(second + i, b);
      }
      if (whole < half) {
        __m256 a = _mm256_maskload_ps(first + whole, rest);
        __m256 b = _mm256_maskload_ps(second + whole, rest);
        rotate(a, b, _mm256_maskload_ps(cosines + whole, rest),
               _mm256_maskload_ps(sines + whole, rest));
        _mm256_maskstore_ps(first + whole, rest, a);
        _mm256_maskstore_ps(second + whole, rest, b);
      }
    }
  }
}

void store(float* to, __m256 x) { _mm256_storeu_ps(to, x); }
void store(std::uint16_t* to, __m256 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

void put(float from, float& to) { to = from; }
void put(float from, std::uint16_t& to) {
  const __m128i half = _mm_cvtps_ph(_mm_set_ss(from), _MM_FROUND_TO_NEAREST_INT);
  to = static_cast<std::uint16_t>(_mm_cvtsi128_si32(half));
}

// Rows of 8 floats at `stride` become columns.
template <typename T>
void transpose(const float* from, std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride) {
  __m256 row[8];
  __m256 pair[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(from + i * from_stride);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    row[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    row[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
    row[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    row[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    store(to + i * to_stride, _mm256_permute2f128_ps(row[i], row[i + 4], 0x20));
    store(to + (i + 4) * to_stride, _mm256_permute2f128_ps(row[i], row[i + 4], 0x31));
  }
}

template <typename T>
void copy(const float* from, T* to, std::ptrdiff_t count) {
  std::ptrdiff_t i = 0;
  for (; i + 8 <= count; i += 8) store(to + i, _mm256_loadu_ps(from + i));
  for (; i < count; ++i) put(from[i], to[i]);
}

template <typename T>
void write_kv(const KVWrite& call, T* key_cache, T* value_cache) {
  const std::ptrdiff_t head_dim = call.head_dim;
  const std::ptrdiff_t block_size = call.block_size;
  const std::ptrdiff_t head_numbers = head_dim * block_size;
  const std::ptrdiff_t row_floats = call.num_kv_heads * head_dim;
  std::int64_t token = 0;
  while (token < call.num_tokens) {
    const std::ptrdiff_t block = call.slots[token] / block_size;
    const std::ptrdiff_t offset = call.slots[token] % block_size;
    // Eight tokens that lie side by side in a block are turned together, others one by one.
    std::ptrdiff_t run = 1;
    const std::int64_t limit = call.num_tokens - token;
    while (run < 8 && run < limit && offset + run < block_size &&
           call.slots[token + run] == call.slots[token] + run) {
      ++run;
    }
    if (run < 8) run = 1;
    for (std::ptrdiff_t head = 0; head < call.num_kv_heads; ++head) {
      const std::ptrdiff_t start = (block * call.num_kv_heads + head) * head_numbers;
      const float* key = call.keys + token * row_floats + head * head_dim;
      const float* value = call.values + token * row_floats + head * head_dim;
      T* keys = key_cache + start + offset;
      T* values = value_cache + start + offset * head_dim;
      std::ptrdiff_t channel = 0;
      if (run == 8) {
        for (; channel + 8 <= head_dim; channel += 8) {
          transpose(key + channel, row_floats, keys + channel * block_size, block_size);
        }
      }
      for (; channel < head_dim; ++channel) {
        for (std::ptrdiff_t i = 0; i < run; ++i) {
          put(key[i * row_floats + channel], keys[channel * block_size + i]);
        }
      }
      for (std::ptrdiff_t i = 0; i < run; ++i) {
        copy(value + i * row_floats, values + i * head_dim, head_dim);
      }
    }
    token += run;
  }
}

// The scale of a row of numbers that become integers up to `most`, as `integer_scale` has it. A
// multiple of 8 numbers.
struct RowScale {
  float scale;
  float inverse;
};

RowScale scale_of(const float* row, std::ptrdiff_t count, std::int32_t most) {
  __m256i largest = _mm256_setzero_si256();
  for (std::ptrdiff_t i = 0; i < count; i += 8) {
    largest = _mm256_max_epi32(largest, magnitudes(_mm256_loadu_ps(row + i)));
  }
  const float scale = max_magnitude(largest) / static_cast<float>(most);
  if (scale < kLeastScale) return {0.0f, 0.0f};
  if (!(scale <= kMostScale)) return {scale, 0.0f};
  return {scale, 1.0f / scale};
}

__m256i to_integers(const float* from, RowScale scale) {
  if (scale.inverse == 0.0f) return _mm256_setzero_si256();
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), _mm256_set1_ps(scale.inverse)));
}

// Eight numbers, each in a lane of 32 bits, one after another.
void put_eight(__m256i numbers, std::int16_t* to) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(numbers, numbers), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}
void put_eight(__m256i numbers, std::int8_t* to) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(numbers, numbers), 0x08);
  const __m128i halves = _mm256_castsi256_si128(packed);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
}

// Eight numbers of each, taking turns.
void put_turns(__m256i even, __m256i odd, std::int16_t* to) {
  const __m256i both = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), both);
}
void put_turns(__m256i even, __m256i odd, std::int8_t* to) {
  const __m256i both = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(both, both), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

// Keys of `count` tokens side by side, to `to`: [pair of channels][block_size][2].
template <typename T>
void write_integer_keys(const float* keys, std::ptrdiff_t stride, std::ptrdiff_t count,
                        std::ptrdiff_t head_dim, std::ptrdiff_t block_size, T* to,
                        float* scales) {
  RowScale of_row[8];
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    of_row[i] = scale_of(keys + i * stride, head_dim, kKeyMost<T>);
    scales[i] = of_row[i].scale;
  }
  for (std::ptrdiff_t channel = 0; channel < head_dim; channel += 8) {
    T numbers[8][8];
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      put_eight(to_integers(keys + i * stride + channel, of_row[i]), numbers[i]);
    }
    for (std::ptrdiff_t pair = 0; pair < 4; ++pair) {
      T* out = to + (channel / 2 + pair) * block_size * 2;
      for (std::ptrdiff_t i = 0; i < count; ++i) {
        __builtin_memcpy(out + 2 * i, numbers[i] + 2 * pair, 2 * sizeof(T));
      }
    }
  }
}

// Values of one token or, `is_pair`, of two side by side, to `to`: [pair of tokens][head_dim][2].
template <typename T>
void write_integer_values(const float* values, std::ptrdiff_t stride, bool is_pair,
                          std::ptrdiff_t head_dim, T* to, float* scales) {
  const RowScale first = scale_of(values, head_dim, kValueMost<T>);
  scales[0] = first.scale;
  if (is_pair) {
    const RowScale second = scale_of(values + stride, head_dim, kValueMost<T>);
    scales[1] = second.scale;
    for (std::ptrdiff_t i = 0; i < head_dim; i += 8) {
      put_turns(to_integers(values + i, first), to_integers(values + stride + i, second),
                to + i * 2);
    }
    return;
  }
  // Another thread may be writing what lies between.
  for (std::ptrdiff_t i = 0; i < head_dim; i += 8) {
    T numbers[8];
    put_eight(to_integers(values + i, first), numbers);
    for (int j = 0; j < 8; ++j) to[(i + j) * 2] = numbers[j];
  }
}

template <typename T>
void write_integers(const KVWrite& call) {
  const std::ptrdiff_t head_dim = call.head_dim;
  const std::ptrdiff_t block_size = call.block_size;
  const std::ptrdiff_t head_numbers = (head_dim + kScaleNumbers<T>) * block_size;
  const std::ptrdiff_t row_floats = call.num_kv_heads * head_dim;
  for (std::int64_t token = 0; token < call.num_tokens;) {
    const std::ptrdiff_t block = call.slots[token] / block_size;
    const std::ptrdiff_t offset = call.slots[token] % block_size;
    std::ptrdiff_t run = 1;
    const std::int64_t limit = call.num_tokens - token;
    while (run < 8 && run < limit && offset + run < block_size &&
           call.slots[token + run] == call.slots[token] + run) {
      ++run;
    }
    for (std::ptrdiff_t head = 0; head < call.num_kv_heads; ++head) {
      const std::ptrdiff_t start = (block * call.num_kv_heads + head) * head_numbers;
      const float* key = call.keys + token * row_floats + head * head_dim;
      const float* value = call.values + token * row_floats + head * head_dim;
      T* keys = static_cast<T*>(call.key_cache) + start;
      T* values = static_cast<T*>(call.value_cache) + start;
      write_integer_keys(key, row_floats, run, head_dim, block_size, keys + offset * 2,
                         reinterpret_cast<float*>(keys + head_dim * block_size) + offset);
      float* scales = reinterpret_cast<float*>(values + head_dim * block_size);
      for (std::ptrdiff_t i = 0; i < run;) {
        const std::ptrdiff_t at = offset + i;
        const bool is_pair = at % 2 == 0 && i + 1 < run;
        write_integer_values(value + i * row_floats, row_floats, is_pair, head_dim,
                             values + at / 2 * head_dim * 2 + at % 2, scales + at);
        i += is_pair ? 2 : 1;
      }
    }
    token += run;
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

const ElementwiseKernels* elementwise_avx2() {
  static constexpr ElementwiseKernels kKernels = {
      .name = "avx2",
      .rms_norm = rms_norm,
      .silu_mul = silu_mul,
      .add = add,
      .rope = rope,
      .write_kv = write_kv,
  };
  return &kKernels;
}

}  // namespace looseleaf

#else

namespace looseleaf {

const ElementwiseKernels* elementwise_avx2() { return nullptr; }

}  // namespace looseleaf

#endif
