#include "runner/graph/partition.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace runner::graph {

namespace {

/// Sums over the layers before an index, so that a stage's cost is two subtractions.
class Sums {
 public:
  explicit Sums(std::span<const LayerCost> layers) {
    sums_.reserve(layers.size() + 1);
    sums_.emplace_back();
    for (const LayerCost& layer : layers) {
      const LayerCost& before = sums_.back();
      sums_.push_back({before.time + layer.time, before.state_bytes + layer.state_bytes,
                       before.activation_bytes + layer.activation_bytes});
    }
  }
  [[nodiscard]] double time(std::size_t begin, std::size_t end) const {
    return sums_[end].time - sums_[begin].time;
  }
  [[nodiscard]] std::int64_t bytes(std::size_t begin, std::size_t end, std::int64_t stage,
                                   const PartitionTask& task) const {
    return sums_[end].state_bytes - sums_[begin].state_bytes +
           in_flight(stage, task) * (sums_[end].activation_bytes - sums_[begin].activation_bytes);
  }

 private:
  std::vector<LayerCost> sums_;
};

/// The ends of the cut that minimises the largest `value` of a stage; empty if each cut has a stage
/// that isn't allowed. best[s][j]: of the first j layers cut into s + 1 stages.
template <class Number, class Value, class Allowed>
std::vector<std::size_t> bottleneck(std::size_t layers, std::size_t stages, const Value& value,
                                    const Allowed& allowed) {
  constexpr Number kNever = std::numeric_limits<Number>::max();
  std::vector<std::vector<Number>> best(stages, std::vector<Number>(layers + 1, kNever));
  std::vector<std::vector<std::size_t>> cut(stages, std::vector<std::size_t>(layers + 1, 0));
  for (std::size_t end = 1; end <= layers; ++end) {
    if (allowed(0, 0, end)) best[0][end] = value(0, 0, end);
  }
  for (std::size_t s = 1; s < stages; ++s) {
    for (std::size_t end = s + 1; end <= layers; ++end) {
      for (std::size_t begin = s; begin < end; ++begin) {
        if (best[s - 1][begin] == kNever || !allowed(s, begin, end)) continue;
        const Number largest = std::max<Number>(best[s - 1][begin], value(s, begin, end));
        if (largest >= best[s][end]) continue;
        best[s][end] = largest;
        cut[s][end] = begin;
      }
    }
  }
  if (best[stages - 1][layers] == kNever) return {};
  std::vector<std::size_t> ends(stages, layers);
  for (std::size_t s = stages - 1; s > 0; --s) ends[s - 1] = cut[s][ends[s]];
  return ends;
}

double largest_time(const Sums& sums, std::span<const std::size_t> ends) {
  double largest = 0;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    largest = std::max(largest, sums.time(begin, end));
    begin = end;
  }
  return largest;
}

}  // namespace

std::int64_t in_flight(std::int64_t stage, const PartitionTask& task) {
  return std::min(task.micro_batches, task.stages - stage);
}

std::int64_t stage_bytes(std::span<const LayerCost> layers, std::size_t begin, std::size_t end,
                         std::int64_t stage, const PartitionTask& task) {
  return Sums(layers.subspan(begin, end - begin)).bytes(0, end - begin, stage, task);
}

double balance(std::span<const LayerCost> layers, std::span<const std::size_t> ends) {
  const Sums sums(layers);
  const double largest = largest_time(sums, ends);
  if (largest == 0) return 1;
  return sums.time(0, layers.size()) / static_cast<double>(ends.size()) / largest;
}

std::optional<Partition> partition(std::span<const LayerCost> layers, const PartitionTask& task) {
  const std::size_t count = layers.size();
  const auto stages = static_cast<std::size_t>(std::max<std::int64_t>(task.stages, 0));
  if (stages == 0 || count < stages) {
    throw std::invalid_argument(std::to_string(count) + " layers can't be cut into " +
                                std::to_string(task.stages) + " stages");
  }
  const Sums sums(layers);
  const auto time = [&sums](std::size_t, std::size_t begin, std::size_t end) {
    return sums.time(begin, end);
  };
  const auto bytes = [&](std::size_t stage, std::size_t begin, std::size_t end) {
    return sums.bytes(begin, end, static_cast<std::int64_t>(stage), task);
  };
  const auto fits = [&](std::size_t stage, std::size_t begin, std::size_t end) {
    return !task.memory_limit || bytes(stage, begin, end) <= *task.memory_limit;
  };
  const auto fastest = bottleneck<double>(count, stages, time, fits);
  if (fastest.empty()) return std::nullopt;
  // A second pass, because the cut of a part that is best in time alone may not belong to the
  // whole's best in time and memory.
  const double largest = largest_time(sums, fastest);
  Partition result;
  result.ends = bottleneck<std::int64_t>(
      count, stages, bytes, [&](std::size_t stage, std::size_t begin, std::size_t end) {
        return sums.time(begin, end) <= largest && fits(stage, begin, end);
      });
  result.balance = balance(layers, result.ends);
  return result;
}

}  // namespace runner::graph
