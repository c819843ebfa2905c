// datasets: one file a dataset.
//
// A dataset file holds an option struct with its table, a function `describe` that tells the
// shapes, classes and sizes without loading the data, and a function `load` that reads one part
// into memory. Batches are gathered by row number into buffers of the caller (the engine hands in
// pinned memory), so nothing here knows LibTorch.
#pragma once

#include <any>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "registry/catalog.h"
#include "runner/diag/error.h"
#include "runner/graph/graph.h"

namespace runner::datasets {

enum class Part { train, validation, test };
[[nodiscard]] std::string_view to_text(Part part);

/// What a sample's target is.
enum class TargetKind {
  classes,  ///< one class number, 0 … classes - 1
  values,   ///< `target_values` real numbers (regression), or 0/1 for binary targets
};

struct Spec {
  graph::Shape input;  ///< of one sample: {channels, height, width} or {features}
  TargetKind target = TargetKind::classes;
  std::int64_t classes = 0;        ///< for TargetKind::classes
  std::int64_t target_values = 0;  ///< for TargetKind::values
  bool binary = false;             ///< values are all 0 or 1
  std::int64_t train_size = 0;
  std::int64_t validation_size = 0;
  std::int64_t test_size = 0;
  std::vector<std::string> class_names;  ///< may be empty
  /// False when the sizes or shapes can't be known without a file that isn't there; then only the
  /// kinds above are sure, and zeros mean unknown.
  bool complete = true;

  [[nodiscard]] std::int64_t size(Part part) const;
};

/// Where things are on this machine; relative roots of an experiment are relative to `base`.
struct Context {
  std::filesystem::path base;    ///< folder of the experiment file
  std::filesystem::path shared;  ///< folder with the data that ships with runner (datasets/data)
};

/// One part of a dataset, in memory and ready. Thread-safe for reading.
class Samples {
 public:
  virtual ~Samples() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Writes rows.size() x product(input) floats, row-major, normalised as the options say.
  virtual void gather_inputs(std::span<const std::int64_t> rows, float* out) const = 0;
  /// Writes rows.size() class numbers; only for TargetKind::classes.
  virtual void gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const = 0;
  /// Writes rows.size() x target_values floats; only for TargetKind::values.
  virtual void gather_values(std::span<const std::int64_t> rows, float* out) const = 0;
};

struct Dataset : registry::Entry {
  /// Cheap: headers and sizes of files at most. Throws diag::Error (invalid) for options that
  /// contradict each other or the files.
  std::function<Spec(const std::any& options, const Context& context)> describe;
  /// Verifies what it reads; throws diag::Error (machine for a missing folder or file with how to
  /// get it, failed for a damaged one, naming file, offset or row, expected and found).
  std::function<std::unique_ptr<Samples>(const std::any& options, const Context& context,
                                         Part part)>
      load;
  /// The files that `load` will open; looked for before a run starts. May be empty.
  std::function<std::vector<std::filesystem::path>(const std::any& options, const Context& context)>
      files;
};

using Datasets = registry::Catalog<Dataset>;

/// A catalog entry from a dataset file's parts.
template <class O, std::size_t N>
Dataset dataset(std::string_view name, std::string_view doc,
                const std::array<registry::Row<O>, N>& rows,
                Spec (*describe)(const O&, const Context&),
                std::unique_ptr<Samples> (*load)(const O&, const Context&, Part),
                std::vector<std::filesystem::path> (*files)(const O&, const Context&)) {
  Dataset entry;
  entry.name = name;
  entry.doc = doc;
  entry.options = &registry::table_of<O>(rows);
  entry.defaults = O{};
  entry.describe = [describe](const std::any& options, const Context& context) {
    return describe(std::any_cast<const O&>(options), context);
  };
  entry.load = [load](const std::any& options, const Context& context, Part part) {
    return load(std::any_cast<const O&>(options), context, part);
  };
  entry.files = [files](const std::any& options, const Context& context) {
    return files(std::any_cast<const O&>(options), context);
  };
  return entry;
}

/// Registers every dataset of this folder (generated from the list of files).
void register_all(Datasets& datasets);
/// All datasets, registered once.
[[nodiscard]] const Datasets& all();

}  // namespace runner::datasets
