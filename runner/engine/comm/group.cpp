#include "runner/engine/comm/group.h"

#include <ATen/ATen.h>

#include <cstring>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

namespace runner::engine {

namespace {

/// Turns whatever goes wrong in f() into an ExchangeError.
template <class F>
void translate_errors(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    throw ExchangeError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw ExchangeError(error.what());
  }
}

/// Waits for an exchange.
template <class F>
void exchange(F&& start) {
  translate_errors([&] { start()->wait(); });
}

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes, std::int64_t size) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(size)};
}

}  // namespace

bool is_exchange_failure(const std::string& what) {
  for (const char* sign : {"/gloo/", "ProcessGroup", "NCCL", "MPI_"}) {
    if (what.find(sign) != std::string::npos) return true;
  }
  return false;
}

Group::Group(c10::intrusive_ptr<c10d::ProcessGroup> processes)
    : processes_(std::move(processes)),
      rank_(processes_->getRank()),
      size_(processes_->getSize()) {}

Group::Group() = default;
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

void Group::sum(at::Tensor tensor) const {
  if (size_ == 1) return;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  exchange([&] { return processes_->allreduce(tensors); });
}

void Group::max(at::Tensor tensor) const {
  if (size_ == 1) return;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  exchange([&] { return processes_->allreduce(tensors, options); });
}

void Group::broadcast(const std::vector<at::Tensor>& tensors) const {
  if (size_ == 1) return;
  for (const at::Tensor& tensor : tensors) {
    std::vector<at::Tensor> one{tensor.detach()};
    exchange([&] { return processes_->broadcast(one); });
  }
}

std::string Group::broadcast(const std::string& text) const {
  if (size_ == 1) return text;
  const at::Tensor size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  broadcast({size});
  const std::int64_t length = size.item<std::int64_t>();
  if (length == 0) return {};
  const at::Tensor bytes = leads() ? bytes_of(text) : at::empty({length}, at::kByte);
  broadcast({bytes});
  return text_of(bytes, length);
}

std::vector<at::Tensor> Group::gather(const at::Tensor& tensor) const {
  if (size_ == 1) return {tensor};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int i = 0; i < size_; ++i) all.front().push_back(at::empty_like(tensor));
  std::vector<at::Tensor> mine{tensor.contiguous()};
  exchange([&] { return processes_->allgather(all, mine); });
  return std::move(all.front());
}

std::vector<std::string> Group::gather(const std::string& text) const {
  if (size_ == 1) return {text};
  const auto length = static_cast<std::int64_t>(text.size());
  const std::vector<at::Tensor> lengths = gather(at::full({1}, length, at::kLong));
  std::int64_t longest = 1;
  for (const at::Tensor& n : lengths) longest = std::max(longest, n.item<std::int64_t>());
  at::Tensor padded = at::zeros({longest}, at::kByte);
  padded.narrow(0, 0, length).copy_(bytes_of(text));
  std::vector<std::string> texts;
  const std::vector<at::Tensor> all = gather(padded);
  texts.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    texts.push_back(text_of(all[i], lengths[i].item<std::int64_t>()));
  }
  return texts;
}

void Group::barrier() const {
  if (size_ == 1) return;
  sum(at::zeros({1}, at::kInt));
}

void Group::leave() const {
  // MPI alone takes an end without a farewell for a failure; NCCL's would wait for the GPU.
  if (size_ == 1 || processes_->getBackendType() != c10d::ProcessGroup::BackendType::MPI) return;
  translate_errors([&] { processes_->shutdown(); });
}

}  // namespace runner::engine
