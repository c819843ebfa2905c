// config: TOML text -> Experiment.
//
// An experiment is sections (structs with option tables) and components (a name from a catalog plus
// that entry's own options). Every value that a file, an argument or a default gave is a Setting
// with its origin, so that diagnostics point at the place and `--print-config` says where a value
// came from. The worker decodes the same Experiment from the plan's values, without TOML.
#pragma once

#include <any>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/dataset.h"
#include "models/model.h"
#include "registry/option.h"
#include "runner/components/component.h"
#include "runner/diag/diagnostic.h"

namespace runner::config {

/// Keys at the top of the file.
struct General {
  std::string name;
  std::int64_t seed = 0;
  std::string root = "runs";
};
struct Trainer {
  registry::Value gpus;
  bool auto_select_gpus = false;
  std::optional<std::int64_t> num_processes;
  std::int64_t num_nodes = 1;
  std::optional<std::string> backend;
  registry::Value precision = 32;
  std::optional<std::string> amp_level;
  std::optional<std::int64_t> max_epochs;
  std::optional<std::int64_t> min_epochs;
  std::optional<std::int64_t> max_steps;
  std::optional<std::int64_t> min_steps;
  std::optional<std::string> max_time;
  std::int64_t accumulate = 1;
  std::optional<double> gradient_clip;
  std::int64_t val_every_n_epochs = 1;
  std::optional<std::int64_t> val_every_n_steps;
  registry::Value limit_train_batches;
  registry::Value limit_val_batches;
  std::int64_t overfit_batches = 0;
  bool fast_dev_run = false;
  bool deterministic = false;
  bool benchmark = false;
  bool sync_batchnorm = false;
  std::string communication = "auto";
  std::int64_t timeout = 600;
  std::int64_t start_timeout = 300;
  std::int64_t max_restarts = 0;
  std::int64_t bucket_mb = 25;
  bool gradient_as_bucket_view = true;
  bool find_unused_parameters = false;
  std::string gradient_compression = "none";
  bool scale_lr = false;
  std::optional<std::int64_t> micro_batches;
  std::optional<std::int64_t> threads;
  std::vector<std::string> metrics;
};
/// The keys of [dataset] that every dataset has, beside its own options.
struct Data {
  std::int64_t batch_size = 32;
  std::optional<std::int64_t> eval_batch_size;
  bool shuffle = true;
  bool drop_last = false;
  std::string sampler = "auto";
  std::int64_t num_threads = 1;
};
struct Checkpoint {
  std::optional<std::string> monitor;
  std::optional<std::string> mode;
  std::int64_t keep = 1;
  bool last = true;
  std::int64_t every_n_epochs = 1;
  std::optional<std::int64_t> every_n_steps;
  std::string resume = "never";
  std::string on_save_error = "stop";
};
struct EarlyStopping {
  std::optional<std::string> monitor;
  std::optional<std::string> mode;
  std::optional<std::int64_t> patience;
  double min_delta = 0;
};
struct Logger {
  std::string level = "info";
  std::optional<std::int64_t> every_n_steps;
};
/// Faults on demand, to see how a run fails.
struct Debug {
  std::optional<std::string> fail;
};
struct Slurm {
  std::optional<std::string> partition;
  std::optional<std::string> account;
  std::optional<std::string> qos;
  std::optional<std::string> constraint;
  std::optional<std::string> time;
  std::optional<std::int64_t> nodes;
  std::optional<std::int64_t> gpus_per_node;
  std::optional<std::int64_t> tasks_per_node;
  std::optional<std::int64_t> cpus_per_task;
  std::optional<std::string> memory;
  bool requeue = true;
};
struct Sweep {
  std::string strategy = "grid";
  registry::Value grid;
};

/// A named part: its catalog entry and its options' struct.
struct Component {
  std::string name;  ///< "" when the file is silent and nothing could be inferred yet
  const registry::Entry* entry = nullptr;
  std::any options;
};

/// Where a value came from.
struct Origin {
  enum class Kind { default_value, file, argument, inferred } kind = Kind::default_value;
  diag::Span value;                    ///< the value's place
  diag::Span key;                      ///< the key's place
  std::vector<diag::Span> overridden;  ///< places whose value lost, oldest first
};

/// One resolved key.
struct Setting {
  std::string key;  ///< dotted: "optimizer.lr"
  registry::Value value;
  Origin origin;
  const registry::OptionInfo* option = nullptr;
};

struct Experiment {
  General general;
  Trainer trainer;
  Data data;
  Checkpoint checkpoint;
  EarlyStopping early_stopping;
  Logger logger;
  Debug debug;
  Slurm slurm;
  Sweep sweep;
  Component model, dataset, optimizer, scheduler, loss;
  std::vector<Setting> settings;             ///< every key of every section, in the canonical order
  std::map<std::string, Origin> origins;     ///< of every path written, array elements included
  std::filesystem::path file;                ///< the experiment file; empty in a worker
  const diag::SourceFile* source = nullptr;  ///< its text; nullptr in a worker

  /// True if a file or an argument wrote the key.
  [[nodiscard]] bool is_set(std::string_view key) const;
  /// True if any key of the section was written.
  [[nodiscard]] bool has_section(std::string_view section) const;
  /// The place of a key's value; of the nearest written parent if the key itself isn't written
  /// ("model.layers[2].kernel" -> "model.layers[2]" -> …); no place if none is.
  [[nodiscard]] diag::Span at(std::string_view key) const;
  [[nodiscard]] const Setting* setting(std::string_view key) const;
};

/// A section or component as `--describe`, `--print-config` and the docs list it.
struct SectionInfo {
  std::string_view name;  ///< "" for the top of the file
  std::string_view doc;
  const registry::OptionTable* table = nullptr;  ///< fixed keys of the section; may be null
  std::string_view catalog;                      ///< "models", …; "" for a plain section
};
[[nodiscard]] std::span<const SectionInfo> sections();

/// Name, entry and doc of a catalog by its plural ("models", "optimizers"); nullptr if unknown.
[[nodiscard]] std::vector<const registry::Entry*> catalog_entries(std::string_view catalog);

/// Values (from TOML or a plan) -> Experiment; reports everything that doesn't fit. `origins` are
/// those of the paths in `values`. Returns an Experiment even after errors, with the defaults in
/// the place of what was wrong.
[[nodiscard]] Experiment decode(const registry::Value::Table& values,
                                std::map<std::string, Origin> origins, diag::Sink& sink);

/// Sets a key that nobody wrote to an inferred value (which must fit it); `loss.name = …` also
/// picks the component. The setting's origin becomes `inferred`.
void infer(Experiment& experiment, std::string_view key, const registry::Value& value);

/// The row of a key given the experiment's components ("optimizer.lr" under the chosen optimizer);
/// nullptr if nothing reads such a key.
[[nodiscard]] const registry::OptionInfo* find_option(const registry::Value::Table& values,
                                                      std::string_view key);

/// The resolved values as nested tables in canonical order; `decode` of it gives the same
/// experiment. Options that are absent are left out.
[[nodiscard]] registry::Value::Table resolved_values(const Experiment& experiment);

}  // namespace runner::config
