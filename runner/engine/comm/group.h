// engine: the processes of a run, and what they tell each other.
//
// Whatever carries the numbers (gloo, NCCL, MPI) is a c10d backend behind one ProcessGroup; a run
// of one process has an empty group, in which every exchange does nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner/plan/plan.h"

namespace c10d {
class ProcessGroup;
}

namespace runner::engine {

/// An exchange that didn't come about, most often because another rank has ended.
class ExchangeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Whether an exception's text is that of a failed exchange, as backward passes throw it.
[[nodiscard]] bool is_exchange_failure(const std::string& what);

/// All calls are collective: every rank makes the same ones in the same order. They throw
/// ExchangeError.
class Group {
 public:
  /// One process.
  Group();
  explicit Group(c10::intrusive_ptr<c10d::ProcessGroup> processes);
  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool leads() const { return rank_ == 0; }

  /// The sum over all ranks, in place.
  void sum(at::Tensor tensor) const;
  /// The elementwise maximum over all ranks, in place.
  void max(at::Tensor tensor) const;
  /// Rank 0's values, in place.
  void broadcast(const std::vector<at::Tensor>& tensors) const;
  [[nodiscard]] std::string broadcast(const std::string& text) const;
  /// Each rank's tensor, in the order of the ranks; all of one shape.
  [[nodiscard]] std::vector<at::Tensor> gather(const at::Tensor& tensor) const;
  /// Each rank's text, in the order of the ranks.
  [[nodiscard]] std::vector<std::string> gather(const std::string& text) const;
  /// Returns when all ranks have come here.
  void barrier() const;
  /// Takes leave of the others, at the end of a run that went well; no exchange after it. A group
  /// that ends without it, as after a failure, waits for nobody.
  void leave() const;

  /// Null in a group of one.
  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& processes() const {
    return processes_;
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> processes_;
  int rank_ = 0, size_ = 1;
};

/// Joins the other ranks of the plan, as the launcher's variables say (runner/launch/crew.h).
/// `communication`: what carries tensors of a GPU, "gloo", "nccl" or "auto", which is NCCL.
/// Throws diag::Error (machine) where this build lacks what the plan communicates with, and
/// ExchangeError when the others don't come.
[[nodiscard]] Group connect(const plan::Plan& plan, const std::string& communication,
                            const at::Device& device);

}  // namespace runner::engine
