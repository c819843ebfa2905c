#include "runner/engine/loader.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace runner::engine {

namespace {

constexpr std::int64_t kRingBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxSlots = 64;

Batch make_buffers(const datasets::Spec& spec, const LoaderOptions& options) {
  const auto pinned = at::TensorOptions().pinned_memory(options.pinned);
  const std::int64_t rows = share_of(options.batch_size, 0, options.parts).count;
  std::vector<std::int64_t> input{rows};
  input.insert(input.end(), spec.input.begin(), spec.input.end());
  Batch buffers;
  buffers.inputs = at::empty(input, pinned.dtype(at::kFloat));
  buffers.targets = spec.target == datasets::TargetKind::classes
                        ? at::empty({rows}, pinned.dtype(at::kLong))
                        : at::empty({rows, spec.target_values}, pinned.dtype(at::kFloat));
  return buffers;
}

/// Enough that no thread waits for another and tiny batches come in bulk, within kRingBytes.
std::int64_t slot_count(const datasets::Spec& spec, const LoaderOptions& options) {
  const std::int64_t numbers = graph::element_count(spec.input) + spec.target_values + 2;
  const std::int64_t bytes = share_of(options.batch_size, 0, options.parts).count * numbers *
                             static_cast<std::int64_t>(sizeof(float));
  const std::int64_t least = 2 * (options.threads + 1);
  return std::max(least, std::min(kMaxSlots, kRingBytes / std::max<std::int64_t>(bytes, 1)));
}

LoaderOptions clipped(LoaderOptions options, std::int64_t samples) {
  options.batch_size = std::min(options.batch_size, samples);
  return options;
}

/// torch.randperm's order for a generator of this seed. at::randperm itself would start a second
/// pool of OpenMP threads, for the thread that calls it; with more threads than cores libgomp stops
/// spinning at its barriers, and every parallel region of the training thread gets slower.
void shuffle(std::vector<std::int64_t>& order, std::uint64_t seed) {
  // Where at::randperm turns from 32 to 64 random bits a draw.
  constexpr std::size_t kWideDraws = std::numeric_limits<std::uint32_t>::max() / 20;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  auto* bits = generator.get<at::CPUGeneratorImpl>();
  const bool wide = order.size() >= kWideDraws;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    const std::uint64_t draw = wide ? bits->random64() : bits->random();
    std::swap(order[i], order[i + draw % (order.size() - i)]);
  }
}

}  // namespace

Share share_of(std::int64_t rows, std::int64_t part, std::int64_t parts) {
  const std::int64_t each = rows / parts;
  const std::int64_t larger = rows % parts;
  return {part * each + std::min(part, larger), each + (part < larger ? 1 : 0)};
}

Loader::Loader(const datasets::Samples& samples, const datasets::Spec& spec, LoaderOptions options,
               std::int64_t first_epoch, std::int64_t first_batch)
    : samples_(samples),
      target_kind_(spec.target),
      options_(clipped(options, samples.size())),
      ring_(static_cast<std::size_t>(slot_count(spec, options_))),
      claimed_(first_epoch * options.batches + first_batch),
      released_(claimed_),
      next_(claimed_) {
  for (Slot& slot : ring_) slot.full = make_buffers(spec, options_);
  for (int i = 0; i < options_.threads; ++i)
    threads_.emplace_back([this] { gather_until_stopped(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  slots_free_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::int64_t Loader::batch_size(std::int64_t index) const {
  return std::min(options_.batch_size, samples_.size() - index * options_.batch_size);
}

const Batch& Loader::next() {
  const auto slots = static_cast<std::int64_t>(ring_.size());
  std::unique_lock lock(mutex_);
  // The batch given before is free now; tell the threads once half of the ring is.
  if (next_ - released_ >= slots / 2) {
    released_ = next_;
    slots_free_.notify_all();
  }
  Slot& slot = ring_[static_cast<std::size_t>(next_ % slots)];
  consumer_waits_ = true;
  slot_ready_.wait(lock, [&] { return slot.ready == next_; });
  consumer_waits_ = false;
  if (slot.error) std::rethrow_exception(slot.error);
  ++next_;
  return slot.batch;
}

void Loader::gather_until_stopped() {
  const auto slots = static_cast<std::int64_t>(ring_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    slots_free_.wait(lock, [&] { return stopped_ || claimed_ < released_ + slots; });
    if (stopped_) return;
    const std::int64_t number = claimed_++;
    Slot& slot = ring_[static_cast<std::size_t>(number % slots)];
    lock.unlock();
    std::exception_ptr error;
    try {
      gather(slot, number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slot.ready = number;
    slot.error = error;
    if (consumer_waits_ && number == next_) slot_ready_.notify_one();
  }
}

void Loader::gather(Slot& slot, std::int64_t number) {
  const std::int64_t index = number % options_.batches;
  const Share share = share_of(batch_size(index), options_.part, options_.parts);
  // With fewer samples than parts some have none; they work on one that doesn't count, since all
  // must take part in the exchanges of a step.
  const std::int64_t size = std::max<std::int64_t>(share.count, 1);
  const std::int64_t first = share.count > 0 ? share.first : 0;
  const auto order = order_of(number / options_.batches);
  const std::span rows(order->data() + index * options_.batch_size + first,
                       static_cast<std::size_t>(size));

  samples_.gather_inputs(rows, slot.full.inputs.mutable_data_ptr<float>());
  if (target_kind_ == datasets::TargetKind::classes) {
    samples_.gather_classes(rows, slot.full.targets.mutable_data_ptr<std::int64_t>());
  } else {
    samples_.gather_values(rows, slot.full.targets.mutable_data_ptr<float>());
  }
  slot.batch.samples = share.count;
  if (slot.batch.inputs.defined() && slot.batch.inputs.size(0) == size) return;
  slot.batch.inputs = slot.full.inputs.narrow(0, 0, size);
  slot.batch.targets = slot.full.targets.narrow(0, 0, size);
}

std::shared_ptr<const Loader::Order> Loader::order_of(std::int64_t epoch) {
  if (!options_.shuffle) epoch = 0;
  const std::lock_guard lock(orders_mutex_);
  for (const auto& [of, order] : orders_) {
    if (of == epoch) return order;
  }
  auto order = std::make_shared<Order>(static_cast<std::size_t>(samples_.size()));
  std::iota(order->begin(), order->end(), 0);
  if (options_.shuffle) {
    shuffle(*order, static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(epoch));
  }
  // Threads are at most a ring of batches apart, which spans two epochs unless epochs are tiny.
  if (orders_.size() >= 2) orders_.erase(orders_.begin());
  orders_.emplace_back(epoch, order);
  return order;
}

}  // namespace runner::engine
