// engine: what the threads of a pipeline hand to each other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace runner::engine {

/// A queue between two threads, of at most `capacity` elements.
template <class T>
class Channel {
 public:
  /// Thrown at both ends once the channel is closed: another thread has failed.
  struct Closed : std::runtime_error {
    Closed() : std::runtime_error("another thread has failed") {}
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
