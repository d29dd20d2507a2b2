// A small pool of threads that split one loop at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace looseleaf {

class ThreadPool {
 public:
  // `num_threads` in all, the caller among them.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) for disjoint ranges of at most `chunk` that cover 0..count, on
  // all threads, and returns when all are done. Which thread takes which range is open, so a body
  // must not let it matter. Not to be called from two threads at once, nor from a body.
  template <typename Body>
  void run(std::int64_t count, std::int64_t chunk, const Body& body) {
    if (count <= chunk || workers_.empty()) {
      if (count > 0) body(std::int64_t{0}, count, 0);
      return;
    }
    start(count, chunk, &body, [](const void* self, std::int64_t begin, std::int64_t end, int thread) {
      (*static_cast<const Body*>(self))(begin, end, thread);
    });
  }

 private:
  using Call = void (*)(const void*, std::int64_t, std::int64_t, int);

  void start(std::int64_t count, std::int64_t chunk, const void* body, Call call);
  void take(int thread);
  void work(int thread);

  std::vector<std::thread> workers_;
  // One loop: set by `start` while it is closed and no worker is inside.
  const void* body_ = nullptr;
  Call call_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t chunk_ = 1;
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> inside_{0};     // workers that may be reading the fields above
  std::atomic<bool> open_{false};  // whether they may take ranges
  std::atomic<std::uint32_t> round_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace looseleaf
