#include "runner/engine/strategies/team.h"

#include <ATen/Parallel.h>

namespace runner::engine {

Team::Team(std::size_t members) : due_(members, 0), errors_(members) {
  threads_.reserve(members - 1);
  for (std::size_t i = 1; i < members; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Team::~Team() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  due_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(std::size_t members, const std::function<void(std::size_t)>& work) {
  const at::ThreadLocalState caller;
  if (members > 1) {
    {
      const std::scoped_lock lock(mutex_);
      work_ = &work;
      caller_ = &caller;
      unfinished_ = members - 1;
      for (std::size_t i = 1; i < members; ++i) due_[i] = 1;
    }
    due_changed_.notify_all();
  }
  std::exception_ptr error;
  try {
    work(0);
  } catch (...) {
    error = std::current_exception();
  }
  // Also after an error: the others still use what `work` refers to.
  std::unique_lock lock(mutex_);
  all_done_.wait(lock, [this] { return unfinished_ == 0; });
  for (std::exception_ptr& other : errors_) {
    if (!error) error = other;
    other = nullptr;
  }
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

void Team::serve(std::size_t member) {
  // OpenMP counts threads by thread: this one begins with the environment's number, not with the
  // one that the process has set since.
  at::init_num_threads();
  std::unique_lock lock(mutex_);
  while (true) {
    due_changed_.wait(lock, [&] { return stopped_ || due_[member] != 0; });
    if (stopped_) return;
    due_[member] = 0;
    lock.unlock();
    std::exception_ptr error;
    try {
      const at::ThreadLocalStateGuard guard(*caller_);
      (*work_)(member);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[member] = std::move(error);
    if (--unfinished_ == 0) all_done_.notify_one();
  }
}

}  // namespace runner::engine
