// engine: threads that work on one job after another, together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace runner::engine {

/// A fixed number of threads. They live as long as the team, since a thread that comes and goes
/// takes its pool of helpers for arithmetic with it.
class StageThreads {
 public:
  explicit StageThreads(std::size_t size);
  StageThreads(const StageThreads&) = delete;
  StageThreads& operator=(const StageThreads&) = delete;
  ~StageThreads();

  [[nodiscard]] std::size_t size() const { return threads_.size(); }
  /// Calls work(i) on thread i, for all threads, and waits for them. If any throws, the one that is
  /// first also calls `on_failure`, to wake those that wait for it, and its exception is thrown
  /// here.
  void run(const std::function<void(std::size_t)>& work,
           const std::function<void()>& on_failure = {});

 private:
  void serve(std::size_t number);

  std::mutex mutex_;
  std::condition_variable started_, done_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  const std::function<void()>* on_failure_ = nullptr;
  std::uint64_t round_ = 0;  ///< jobs so far
  std::size_t left_ = 0;     ///< threads that are at the job
  bool ends_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

/// A queue between two threads of a team, of at most `capacity` elements.
template <class T>
class Channel {
 public:
  /// Thrown at both ends once the channel is closed: another thread has failed.
  struct Closed : std::runtime_error {
    Closed() : std::runtime_error("another thread of the team has failed") {}
  };

  explicit Channel(std::size_t capacity) : capacity_(capacity) {}

  /// Waits for room.
  void push(T element) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || queue_.size() < capacity_; });
    if (closed_) throw Closed();
    queue_.push_back(std::move(element));
    changed_.notify_one();
  }
  /// Waits for an element.
  [[nodiscard]] T pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (closed_) throw Closed();
    T element = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_one();
    return element;
  }
  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  /// Empty and open again; for when no thread uses it.
  void reset() {
    const std::scoped_lock lock(mutex_);
    closed_ = false;
    queue_.clear();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> queue_;
  bool closed_ = false;
};

}  // namespace runner::engine
