#pragma once

#include <any>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "registry/catalog.h"
#include "runner/graph/graph.h"

namespace runner::models {

/// A type of layer that `sequential` takes in its tables.
struct LayerType : registry::Entry {
  /// Throws graph::ShapeError when the layer can't take x.
  std::function<graph::Builder::Node(graph::Builder& g, std::string name, graph::Builder::Node x,
                                     const std::any& options)>
      add;
};
[[nodiscard]] const registry::Catalog<LayerType>& layer_types();

/// The type of an option that takes a height and a width.
inline constexpr std::string_view kPairType = "integer or [height, width]";
/// An integer stands for both sides. Nothing if it is neither an integer nor two of them.
[[nodiscard]] std::optional<graph::Pair> read_pair(const registry::Value& value);

/// A layer as written in a file, understood.
struct LayerSpec {
  const LayerType* type;
  std::string name;  ///< given, or the type and a number: "conv2d1"
  std::any options;  ///< the type's own struct
  std::string path;  ///< "layers[2]"
};

/// Reads the array of tables; what is wrong goes to `problems`, with paths relative to [model], and
/// the layer is left out.
[[nodiscard]] std::vector<LayerSpec> read_layers(const registry::Value& layers,
                                                 std::vector<Problem>& problems);

}  // namespace runner::models
