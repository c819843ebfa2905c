#include "runner/engine/stage_threads.h"

namespace runner::engine {

StageThreads::StageThreads(std::size_t size) {
  threads_.reserve(size);
  for (std::size_t i = 0; i < size; ++i) threads_.emplace_back([this, i] { serve(i); });
}

StageThreads::~StageThreads() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void StageThreads::run(const std::function<void(std::size_t)>& work,
                       const std::function<void()>& on_failure) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  on_failure_ = &on_failure;
  left_ = threads_.size();
  ++round_;
  started_.notify_all();
  done_.wait(lock, [this] { return left_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void StageThreads::serve(std::size_t number) {
  std::unique_lock lock(mutex_);
  for (std::uint64_t seen = 0;; ++seen) {
    started_.wait(lock, [&] { return ends_ || round_ > seen; });
    if (ends_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*work_)(number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) {
      error_ = error;
      if (*on_failure_) (*on_failure_)();
    }
    // The last to let go of an exception must be the caller, who alone looks at it.
    error = nullptr;
    if (--left_ == 0) done_.notify_one();
  }
}

}  // namespace runner::engine
