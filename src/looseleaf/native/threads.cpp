#include "threads.h"

#include <algorithm>

namespace looseleaf {

namespace {

// How long a thread looks for work before it sleeps. Loops of one step follow each other within
// microseconds, and waking a sleeping thread costs about fifty.
constexpr int kSpins = 20000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::start(std::int64_t count, std::int64_t chunk, const void* body, Call call) {
  body_ = body;
  call_ = call;
  count_ = count;
  chunk_ = std::max<std::int64_t>(1, chunk);
  next_.store(0);
  open_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  take(0);
  // Nothing is left to take. A worker that has not come by now (its processor may be busy with
  // something else) is not waited for: it will find the loop closed.
  open_.store(false);
  int spins = 0;
  for (int inside = inside_.load(); inside != 0; inside = inside_.load()) {
    if (++spins < kSpins) {
      pause();
    } else {
      // Sleeping, not yielding: the processor may be needed by the one that is still working, but
      // then it has to come back at once, not after the turns of everybody else on the machine.
      inside_.wait(inside);
    }
  }
}

void ThreadPool::take(int thread) {
  for (;;) {
    const std::int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= count_) return;
    call_(body_, begin, std::min(begin + chunk_, count_), thread);
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; round_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < kSpins) {
        pause();
      } else {
        round_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = round_.load();
    if (stopping_.load()) return;
    // In this order, as `start` closes and then looks inside: one of the two sees the other.
    inside_.fetch_add(1);
    if (open_.load()) take(thread);
    inside_.fetch_sub(1);
    inside_.notify_one();
  }
}

}  // namespace looseleaf
