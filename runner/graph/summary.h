#pragma once

#include <string>

#include "runner/graph/graph.h"

namespace runner::graph {

/// The table that people know from torchinfo: layer (type), output shape with the batch,
/// parameters, FLOPs; then the totals, with the sizes of parameters and activations in bytes.
[[nodiscard]] std::string summary(const Graph& graph, std::int64_t batch,
                                  int bytes_per_element = 4);

}  // namespace runner::graph
