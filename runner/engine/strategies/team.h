// engine: threads that work on the parts of one batch together.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace runner::engine {

/// Member 0 is the thread that calls; each other has a thread of its own for as long as the team
/// lives.
class Team {
 public:
  explicit Team(std::size_t members);
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team();

  /// Calls work(0), …, work(members - 1), one on each member, with the calling thread's grad mode,
  /// autocast and the rest of at::ThreadLocalState. `members`: at least 1 and at most all. Returns
  /// when all calls have; throws what the first member that threw did.
  void run(std::size_t members, const std::function<void(std::size_t)>& work);

 private:
  void serve(std::size_t member);

  std::mutex mutex_;  ///< guards all below
  std::condition_variable due_changed_, all_done_;
  bool stopped_ = false;
  const std::function<void(std::size_t)>* work_ = nullptr;
  const at::ThreadLocalState* caller_ = nullptr;
  std::vector<char> due_;  ///< by member: has work to begin
  std::size_t unfinished_ = 0;
  std::vector<std::exception_ptr> errors_;

  std::vector<std::thread> threads_;
};

}  // namespace runner::engine
