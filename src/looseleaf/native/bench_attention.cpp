#include "bench_attention.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "attention.h"
#include "attention_plan.h"
#include "half.h"
#include "threads.h"

namespace looseleaf {

namespace {

// Numbers between -1 and 1.
std::vector<float> numbers(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> between(-1.0F, 1.0F);
  std::vector<float> result(count);
  for (float& number : result) number = between(generator);
  return result;
}

template <typename T>
void put(std::vector<std::byte>& to, std::size_t index, T number) {
  std::memcpy(to.data() + index * sizeof(T), &number, sizeof(T));
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Cache = std::unique_ptr<std::byte[], Free>;

// In huge pages where the system has them, as the executor's are.
Cache allocate(std::size_t num_bytes) {
  constexpr std::size_t kHugePage = std::size_t{1} << 21;
  const std::size_t size = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
  Cache memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, size)));
  if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
  madvise(memory.get(), size, MADV_HUGEPAGE);
#endif
  return memory;
}

// A head of a block, repeated: nothing depends on the numbers but that they are ordinary.
Cache make_cache(const AttentionBench& bench, std::size_t num_bytes, std::uint32_t seed) {
  const auto count = static_cast<std::size_t>(bench.head_dim * bench.block_size);
  const std::vector<float> drawn = numbers(count, seed);
  std::vector<std::byte> head(
      static_cast<std::size_t>(kv_head_bytes(bench.type, bench.head_dim, bench.block_size)));
  for (std::size_t i = 0; i < count; ++i) {
    switch (bench.type) {
      case KVType::f32: put(head, i, drawn[i]); break;
      case KVType::f16: put(head, i, f16_from_f32(drawn[i])); break;
      case KVType::int16: put(head, i, static_cast<std::int16_t>(drawn[i] * 4095)); break;
      case KVType::int8: put(head, i, static_cast<std::int8_t>(drawn[i] * 127)); break;
    }
  }
  const std::size_t scales = head.size() - static_cast<std::size_t>(bench.block_size) * 4;
  for (std::size_t i = scales / 4; is_integer(bench.type) && i < head.size() / 4; ++i) {
    put(head, i, 1.0F / 127);
  }
  Cache cache = allocate(num_bytes);
  for (std::size_t i = 0; i < num_bytes; i += head.size()) {
    std::memcpy(cache.get() + i, head.data(), head.size());
  }
  return cache;
}

// Blocks of each sequence in order: the shared ones, then its own.
std::vector<std::int32_t> make_tables(const AttentionBench& bench, std::int32_t shared_blocks,
                                      std::int32_t blocks_per_sequence) {
  const std::int32_t own = blocks_per_sequence - shared_blocks;
  std::vector<std::int32_t> blocks(
      static_cast<std::size_t>(shared_blocks + own * bench.num_sequences));
  std::iota(blocks.begin(), blocks.end(), 0);
  if (!bench.contiguous) std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  std::vector<std::int32_t> tables;
  for (std::int32_t sequence = 0; sequence < bench.num_sequences; ++sequence) {
    const auto first_own = blocks.begin() + shared_blocks + sequence * own;
    tables.insert(tables.end(), blocks.begin(), blocks.begin() + shared_blocks);
    tables.insert(tables.end(), first_own, first_own + own);
  }
  return tables;
}

}  // namespace

double bench_attention(const AttentionBench& bench, int num_threads, int repeats) {
  const std::int32_t blocks_per_sequence =
      (bench.context + bench.block_size - 1) / bench.block_size;
  const std::int32_t shared_blocks =
      std::min(bench.shared / bench.block_size, blocks_per_sequence - 1);
  const std::vector<std::int32_t> tables = make_tables(bench, shared_blocks, blocks_per_sequence);
  const auto num_blocks = static_cast<std::size_t>(
      shared_blocks + (blocks_per_sequence - shared_blocks) * bench.num_sequences);
  const std::size_t num_heads = num_blocks * static_cast<std::size_t>(bench.num_kv_heads);
  const auto head_bytes =
      static_cast<std::size_t>(kv_head_bytes(bench.type, bench.head_dim, bench.block_size));
  Cache caches[2];
  for (std::uint32_t i = 0; i < 2; ++i) caches[i] = make_cache(bench, num_heads * head_bytes, i);
  std::vector<AttentionSequence> sequences;
  for (std::int32_t i = 0; i < bench.num_sequences; ++i) {
    sequences.push_back({tables.data() + i * blocks_per_sequence, i, bench.context - 1, 1});
  }
  const AttentionShape shape{bench.num_heads, bench.num_kv_heads, bench.head_dim, bench.block_size,
                             0};
  const auto row = static_cast<std::size_t>(bench.num_heads * bench.head_dim);
  const std::vector<float> queries = numbers(row * sequences.size(), 2);
  std::vector<float> out(queries.size());
  ThreadPool pool(num_threads);
  AttentionPlan plan;
  plan.build(shape, sequences.data(), bench.num_sequences, pool.size());
  const std::size_t workspace_size = workspace_floats(shape);
  std::vector<float> workspace(workspace_size * static_cast<std::size_t>(pool.size()));
  const AttentionLayer layer{0.125F,    0.0F,      bench.type, queries.data(),
                             caches[0].get(), caches[1].get(), out.data()};
  const auto run = [&] {
    pool.run(plan.num_tasks(), 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      attention_kernels().run_tasks(layer, plan.work(), begin, end,
                                    workspace.data() +
                                        static_cast<std::size_t>(thread) * workspace_size);
    });
  };
  run();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) run();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / std::max(1, repeats);
}

}  // namespace looseleaf
