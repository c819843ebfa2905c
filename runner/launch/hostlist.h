// launch: SLURM's two notations for the nodes of a step, spelled out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace runner::launch {

/// Names that one list may stand for, and nodes that one count of tasks may.
inline constexpr std::size_t kMostHosts = 65'536;

/// The host names of a list such as "node[01-03,07],login", in the order in which SLURM's
/// `scontrol show hostnames` gives them; at least one, each once. `source` is what messages call
/// the list, a variable's name for instance. Throws diag::Error (invalid) naming the list, the
/// piece at fault and its place; limits are checked before names are made.
[[nodiscard]] std::vector<std::string> expand_hosts(std::string_view text,
                                                    std::string_view source = "the list of hosts");

/// Tasks on each node, in the nodes' order, of a text such as "2(x3),1"; at least one node, no node
/// without tasks. Throws as expand_hosts does.
[[nodiscard]] std::vector<std::int64_t> tasks_per_node(
    std::string_view text, std::string_view source = "the tasks per node");

}  // namespace runner::launch
