#pragma once

#include <string>

#include "runner/graph/graph.h"

namespace runner::graph {

/// The table that people know from torchinfo: layer (type), output shape with the batch, trainable
/// parameters, FLOPs of a sample; then the totals, and the sizes for the whole batch in MiB of
/// `bytes_per_element` a number (2^20 bytes).
[[nodiscard]] std::string summary(const Graph& graph, std::int64_t batch,
                                  int bytes_per_element = 4);

}  // namespace runner::graph
