#include <algorithm>
#include <array>
#include <memory>

#include "registry/suggest.h"
#include "runner/config/document.h"
#include "runner/config/experiment.h"

namespace runner::config {

namespace {

using registry::OptionInfo;
using registry::OptionTable;
using registry::Value;

/// A key that people know from elsewhere, and what it is called here.
struct ForeignKey {
  std::string_view key;
  std::string_view use;
  std::string_view hint;
};

constexpr std::array kForeignKeys = {
    ForeignKey{"optimizer.learning_rate", "lr", ""},
    ForeignKey{"optimizer.type", "name", ""},
    ForeignKey{"optimizer.betas", "beta1", "beta1 and beta2 are two keys"},
    ForeignKey{"trainer.accelerator", "gpus", "gpus says which devices; absent means the CPU"},
    ForeignKey{"trainer.devices", "gpus",
               "a count is an integer, a list of ids is a list or a string"},
    ForeignKey{"trainer.strategy", "backend", ""},
    ForeignKey{"trainer.distributed_backend", "backend", ""},
    ForeignKey{"trainer.accumulate_grad_batches", "accumulate", ""},
    ForeignKey{"trainer.gradient_clip_val", "gradient_clip", ""},
    ForeignKey{"trainer.check_val_every_n_epoch", "val_every_n_epochs", ""},
    ForeignKey{"trainer.val_check_interval", "val_every_n_steps", ""},
    ForeignKey{"trainer.overfit_pct", "overfit_batches", ""},
    ForeignKey{"trainer.epochs", "max_epochs", ""},
    ForeignKey{"trainer.num_epochs", "max_epochs", ""},
    ForeignKey{"trainer.amp_backend", "precision", ""},
    ForeignKey{"trainer.default_root_dir", "root", "root stands at the top of the file"},
    ForeignKey{"trainer.limit_train_fraction", "limit_train_batches",
               "a share is a string, \"50%\""},
    ForeignKey{"dataset.num_workers", "num_threads", ""},
    ForeignKey{"dataset.batch", "batch_size", ""},
    ForeignKey{"checkpoint.save_top_k", "keep", ""},
    ForeignKey{"checkpoint.save_last", "last", ""},
    ForeignKey{"checkpoint.every_n_train_steps", "every_n_steps", ""},
};

const registry::Entry* find_entry(std::string_view catalog, std::string_view name) {
  for (const registry::Entry* entry : catalog_entries(catalog)) {
    if (entry->name == name) return entry;
  }
  return nullptr;
}

std::vector<std::string_view> entry_names(std::string_view catalog) {
  std::vector<std::string_view> names;
  for (const registry::Entry* entry : catalog_entries(catalog)) names.push_back(entry->name);
  return names;
}

std::string_view default_name(std::string_view catalog) {
  if (catalog == "optimizers") return "adam";
  if (catalog == "schedulers") return "none";
  return {};
}

std::string_view singular(std::string_view catalog) {
  return catalog == "losses" ? "loss" : catalog.substr(0, catalog.size() - 1);
}

/// The `name` key of a component section, as an option of its own.
const OptionInfo& name_option(std::string_view catalog) {
  static std::map<std::string_view, std::unique_ptr<OptionInfo>> options;
  std::unique_ptr<OptionInfo>& option = options[catalog];
  if (option == nullptr) {
    option = std::make_unique<OptionInfo>(
        OptionInfo{.name = "name",
                   .type = "string",
                   .doc = "which one",
                   .range = {},
                   .choices = entry_names(catalog),
                   .resume = registry::Resume::fixed,
                   .default_value = std::string(default_name(catalog))});
  }
  return *option;
}

Component* component_of(Experiment& e, std::string_view section) {
  if (section == "model") return &e.model;
  if (section == "dataset") return &e.dataset;
  if (section == "loss") return &e.loss;
  if (section == "optimizer") return &e.optimizer;
  if (section == "scheduler") return &e.scheduler;
  return nullptr;
}

void* struct_of(Experiment& e, std::string_view section) {
  if (section.empty()) return &e.general;
  if (section == "dataset") return &e.data;
  if (section == "trainer") return &e.trainer;
  if (section == "checkpoint") return &e.checkpoint;
  if (section == "early_stopping") return &e.early_stopping;
  if (section == "logger") return &e.logger;
  if (section == "debug") return &e.debug;
  if (section == "slurm") return &e.slurm;
  if (section == "sweep") return &e.sweep;
  return nullptr;
}

const Value::Table* sub_table(const Value::Table& values, std::string_view section) {
  if (section.empty()) return &values;
  const Value* value = registry::find(values, section);
  return value == nullptr ? nullptr : value->get_if<Value::Table>();
}

const SectionInfo* find_section(std::string_view name) {
  for (const SectionInfo& section : sections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

/// The catalog entry that a section's values choose, or nullptr.
const registry::Entry* chosen_entry(const SectionInfo& section, const Value::Table* table) {
  std::string_view name = default_name(section.catalog);
  if (table != nullptr) {
    if (const Value* value = registry::find(*table, "name")) {
      const auto* text = value->get_if<std::string>();
      name = text == nullptr ? std::string_view() : std::string_view(*text);
    }
  }
  return find_entry(section.catalog, name);
}

std::string joined(std::string_view section, std::string_view key) {
  return child_path(std::string(section), key);
}

class Decoder {
 public:
  Decoder(const Value::Table& values, std::map<std::string, Origin> origins, diag::Sink& sink)
      : values_(values), sink_(sink) {
    experiment_.origins = std::move(origins);
  }

  Experiment run() {
    unknown_sections();
    for (const SectionInfo& section : sections()) decode(section);
    check_model();
    check_grid();
    refresh();
    return std::move(experiment_);
  }

 private:
  void decode(const SectionInfo& section) {
    const Value::Table* table = sub_table(values_, section.name);
    Component* component = component_of(experiment_, section.name);
    if (component != nullptr) choose(section, table, *component);
    if (table == nullptr) return;
    for (const auto& [key, value] : *table) {
      if (section.name.empty() && (key == "extends" || find_section(key) != nullptr)) continue;
      if (component != nullptr && key == "name") continue;
      // Which options a component without a valid name has is unknown, so its keys can't be judged.
      if (!set(section, component, key, value) &&
          (component == nullptr || component->entry != nullptr)) {
        unknown_key(section, component, key);
      }
    }
  }

  /// Stores one value; false if neither the section nor the component has such a key.
  bool set(const SectionInfo& section, Component* component, const std::string& key,
           const Value& value) {
    if (section.table != nullptr && section.table->find(key) != nullptr) {
      store(section, *section.table, struct_of(experiment_, section.name), key, value);
      return true;
    }
    if (component != nullptr && component->entry != nullptr) {
      const OptionTable& table = *component->entry->options;
      if (table.find(key) != nullptr) {
        store(section, table, table.object(component->options), key, value);
        return true;
      }
    }
    return false;
  }

  void store(const SectionInfo& section, const OptionTable& table, void* object,
             const std::string& key, const Value& value) {
    const std::string path = joined(section.name, key);
    const OptionInfo& option = *table.find(key);
    if (value.get_if<Value::Table>() != nullptr && option.type.find("table") == std::string::npos) {
      report(diag::Code::not_a_table, "'" + path + "' is a value, not a table", key_span(path),
             "write " + key + " = …, " + article(option.type), path);
      return;
    }
    const auto misfit = table.set(object, table.index(key), value);
    if (!misfit) return;
    const std::string at = misfit->index ? element_path(path, *misfit->index) : path;
    report(
        diag::Code::bad_value, "'" + path + "': " + misfit->message, experiment_.at(at),
        misfit->suggestion.empty() ? std::string() : "did you mean '" + misfit->suggestion + "'?",
        path);
  }

  static std::string article(std::string_view type) {
    const bool vowel =
        !type.empty() && std::string_view("aeiou").find(type.front()) != std::string_view::npos;
    return (vowel ? "an " : "a ") + std::string(type);
  }

  void choose(const SectionInfo& section, const Value::Table* table, Component& component) {
    const Value* name = table == nullptr ? nullptr : registry::find(*table, "name");
    const std::string path = joined(section.name, "name");
    if (name == nullptr) {
      component.name = default_name(section.catalog);
      if (component.name.empty()) {
        missing_name(section, table);
        return;
      }
    } else if (const auto* text = name->get_if<std::string>()) {
      component.name = *text;
    } else {
      report(diag::Code::bad_value,
             "'" + path + "': expected a string, found " + std::string(registry::type_name(*name)),
             experiment_.at(path), "write the name in quotes", path);
      return;
    }
    component.entry = find_entry(section.catalog, component.name);
    if (component.entry != nullptr) {
      component.options = component.entry->defaults;
      return;
    }
    unknown_name(section, component, path);
    component.name.clear();
  }

  void unknown_name(const SectionInfo& section, const Component& component,
                    const std::string& path) {
    const auto names = entry_names(section.catalog);
    const std::string_view near = registry::nearest(component.name, names);
    std::string help = near.empty() ? std::string() : "did you mean '" + std::string(near) + "'? ";
    report(diag::Code::unknown_name,
           "unknown " + std::string(singular(section.catalog)) + " '" + component.name + "'",
           experiment_.at(path), help + "there are " + registry::join_or(names), path);
  }

  void missing_name(const SectionInfo& section, const Value::Table* table) {
    const bool inferable = section.catalog == "losses";
    if (inferable && (table == nullptr || table->empty())) return;
    // `model = "mlp"` was reported as a value where a table belongs.
    if (table == nullptr && registry::find(values_, section.name) != nullptr) return;
    const std::string path = joined(section.name, "name");
    const auto names = entry_names(section.catalog);
    report(diag::Code::missing_key,
           "'" + path + "' is missing" + (inferable ? ", which says whose options these are" : ""),
           experiment_.at(std::string(section.name)),
           "add [" + std::string(section.name) + "] with name = one of " + registry::join_or(names),
           path);
  }

  void unknown_key(const SectionInfo& section, const Component* component, const std::string& key) {
    const std::string path = joined(section.name, key);
    const std::string where =
        section.name.empty() ? "at the top of the file" : "in [" + std::string(section.name) + "]";
    for (const ForeignKey& foreign : kForeignKeys) {
      if (foreign.key != path) continue;
      std::string help = "write '" + std::string(foreign.use) + "'";
      if (!foreign.hint.empty()) help += ": " + std::string(foreign.hint);
      report(diag::Code::retired_key,
             "'" + key + "' " + where + " is called '" + std::string(foreign.use) + "' here",
             key_span(path), help, path);
      return;
    }
    std::vector<std::string_view> candidates;
    if (section.table != nullptr) {
      for (const OptionInfo& option : section.table->options()) candidates.push_back(option.name);
    }
    if (component != nullptr) {
      candidates.push_back("name");
      for (const OptionInfo& option : component->entry->options->options())
        candidates.push_back(option.name);
    }
    const std::string owner =
        component == nullptr
            ? ""
            : " of " + std::string(singular(section.catalog)) + " '" + component->name + "'";
    std::string help;
    if (const std::string_view near = registry::nearest(key, candidates); !near.empty()) {
      help = "did you mean '" + std::string(near) + "'?";
      if (component != nullptr) help += " ";
    } else if (const std::string elsewhere = owner_of(key); !elsewhere.empty()) {
      help = "'" + key + "' belongs in " + elsewhere;
      if (component != nullptr) help += "; ";
    }
    // The keys of a plain section are many; with a good guess they would only hide it.
    if (help.empty() || component != nullptr) {
      help += "the keys" + owner + " are " + joined_names(candidates);
    }
    report(diag::Code::unknown_key, "unknown key '" + key + "' " + where, key_span(path), help,
           path);
  }

  /// Another section that has this key, for one that was put into the wrong table.
  static std::string owner_of(std::string_view key) {
    for (const SectionInfo& section : sections()) {
      if (section.table == nullptr || section.table->find(key) == nullptr) continue;
      return section.name.empty() ? "the top of the file" : "[" + std::string(section.name) + "]";
    }
    return {};
  }

  static std::string joined_names(const std::vector<std::string_view>& names) {
    std::string out;
    for (const std::string_view name : names) {
      if (!out.empty()) out += ", ";
      out += name;
    }
    return out;
  }

  /// What the model says of options that its table can't judge (a list of layers, say).
  void check_model() {
    const auto* model = static_cast<const models::Model*>(experiment_.model.entry);
    if (model == nullptr || !model->check) return;
    for (models::Problem& problem : model->check(experiment_.model.options)) {
      const bool of_layer = problem.path.starts_with("layers");
      const std::string path = problem.path.empty() ? "model" : "model." + problem.path;
      report(of_layer ? diag::Code::bad_layer : diag::Code::bad_value, std::move(problem.message),
             of_layer ? key_span(path) : experiment_.at(path), std::move(problem.help), path);
    }
  }

  /// Each key of sweep.grid must be one of this experiment, each list hold values that it takes.
  void check_grid() {
    const Value& grid = experiment_.sweep.grid;
    if (!grid.has_value()) return;
    const auto* table = grid.get_if<Value::Table>();
    if (table == nullptr) {
      report(diag::Code::bad_value,
             "'sweep.grid': expected a table of lists, found " +
                 std::string(registry::type_name(grid)),
             experiment_.at("sweep.grid"),
             "[sweep.grid] with lines like \"optimizer.lr\" = [0.1, 0.01]", "sweep.grid");
      return;
    }
    for (const auto& [key, values] : *table) check_grid_key(key, values);
  }

  void check_grid_key(const std::string& key, const Value& values) {
    const std::string path = child_path("sweep.grid", key);
    const auto* list = values.get_if<Value::Array>();
    const OptionInfo* option = find_option(values_, key);
    if (option == nullptr && !is_any_option(key)) {
      report(diag::Code::unknown_key, "unknown key '" + key + "' in [sweep.grid]", key_span(path),
             "keys are written in quotes, with their section: \"optimizer.lr\"", path);
    } else if (list == nullptr || list->empty()) {
      report(diag::Code::bad_value, "'" + path + "': expected a list of values",
             experiment_.at(path), "\"" + key + "\" = [first, second]", path);
    } else if (option != nullptr) {
      for (std::size_t i = 0; i < list->size(); ++i)
        check_grid_value(key, path, i, (*list)[i], *option);
    }
  }

  void check_grid_value(const std::string& key, const std::string& path, std::size_t index,
                        const Value& value, const OptionInfo& option) {
    if (const auto misfit = misfit_of(key, value, option)) {
      report(diag::Code::bad_value,
             "'" + path + "': element " + std::to_string(index) + ": " + misfit->message,
             experiment_.at(element_path(path, index)), {}, element_path(path, index));
    }
  }

  /// Why an option of this experiment doesn't take a value; the experiment stays as it is.
  static std::optional<registry::Misfit> misfit_of(const std::string& key, const Value& value,
                                                   const OptionInfo& option) {
    if (key.ends_with(".name")) {
      std::string scratch;
      return registry::detail::read(value, option, scratch);
    }
    if (option.type == "integer") {
      std::int64_t scratch = 0;
      return registry::detail::read(value, option, scratch);
    }
    if (option.type == "float") {
      double scratch = 0;
      return registry::detail::read(value, option, scratch);
    }
    if (option.type == "boolean") {
      bool scratch = false;
      return registry::detail::read(value, option, scratch);
    }
    if (option.type == "string") {
      std::string scratch;
      return registry::detail::read(value, option, scratch);
    }
    return {};
  }

  /// A key of any model, optimizer, …: another point of the grid may choose that one.
  static bool is_any_option(std::string_view key) {
    const std::size_t dot = key.find('.');
    const SectionInfo* section =
        dot == std::string_view::npos ? nullptr : find_section(key.substr(0, dot));
    if (section == nullptr || section->catalog.empty()) return false;
    for (const registry::Entry* entry : catalog_entries(section->catalog)) {
      if (entry->options->find(key.substr(dot + 1)) != nullptr) return true;
    }
    return false;
  }

  void unknown_sections() {
    std::vector<std::string_view> names;
    for (const SectionInfo& section : sections()) {
      if (!section.name.empty()) names.push_back(section.name);
    }
    for (const auto& [key, value] : values_) {
      const SectionInfo* section = find_section(key);
      const bool is_table = value.get_if<Value::Table>() != nullptr;
      if (section != nullptr && !is_table) {
        report(diag::Code::not_a_table,
               "'" + key + "' is a table, not " + std::string(registry::type_name(value)),
               key_span(key), "write [" + key + "] and its keys below", key);
      } else if (section == nullptr && is_table && find_section("")->table->find(key) == nullptr) {
        const std::string_view near = registry::nearest(key, names);
        report(
            diag::Code::unknown_key, "unknown section [" + key + "]", key_span(key),
            (near.empty() ? std::string() : "did you mean " + ("'" + std::string(near)) + "'? ") +
                "the sections are " + joined_names(names),
            key);
        reported_.push_back(key);
      }
    }
  }

  diag::Span key_span(const std::string& path) const {
    const auto at = experiment_.origins.find(path);
    return at == experiment_.origins.end() ? experiment_.at(path) : at->second.key;
  }

  void report(diag::Code code, std::string message, diag::Span at, std::string help,
              std::string key) {
    if (std::find(reported_.begin(), reported_.end(), key) != reported_.end()) return;
    sink_.report({.code = code,
                  .message = std::move(message),
                  .at = at,
                  .notes = {},
                  .help = std::move(help),
                  .key = std::move(key)});
  }

  void refresh();

  const Value::Table& values_;
  diag::Sink& sink_;
  Experiment experiment_;
  std::vector<std::string> reported_;
};

void add_settings(Experiment& e, std::string_view section, const OptionTable& table,
                  const void* object) {
  for (std::size_t i = 0; i < table.options().size(); ++i) {
    const OptionInfo& option = table.options()[i];
    const std::string key = joined(section, option.name);
    const auto at = e.origins.find(key);
    e.settings.push_back({.key = key,
                          .value = table.get(object, i),
                          .origin = at == e.origins.end() ? Origin{} : at->second,
                          .option = &option});
  }
}

/// Rebuilds the list of settings from the structs.
void refresh_settings(Experiment& e) {
  e.settings.clear();
  for (const SectionInfo& section : sections()) {
    if (Component* component = component_of(e, section.name)) {
      const std::string key = joined(section.name, "name");
      const auto at = e.origins.find(key);
      e.settings.push_back({.key = key,
                            .value = component->name.empty() ? Value() : Value(component->name),
                            .origin = at == e.origins.end() ? Origin{} : at->second,
                            .option = &name_option(section.catalog)});
      if (component->entry != nullptr) {
        const OptionTable& table = *component->entry->options;
        add_settings(e, section.name, table, table.object(component->options));
      }
    }
    if (section.table != nullptr) {
      add_settings(e, section.name, *section.table, struct_of(e, section.name));
    }
  }
}

void Decoder::refresh() { refresh_settings(experiment_); }

}  // namespace

bool Experiment::is_set(std::string_view key) const {
  const auto at = origins.find(std::string(key));
  return at != origins.end() &&
         (at->second.kind == Origin::Kind::file || at->second.kind == Origin::Kind::argument);
}

bool Experiment::has_section(std::string_view section) const {
  const std::string prefix = std::string(section) + ".";
  const auto at = origins.lower_bound(prefix);
  return at != origins.end() && at->first.starts_with(prefix);
}

diag::Span Experiment::at(std::string_view key) const {
  std::string path(key);
  while (!path.empty()) {
    if (const auto found = origins.find(path);
        found != origins.end() && found->second.value.file != nullptr) {
      return found->second.value;
    }
    const std::size_t cut = path.find_last_of(".[");
    path = cut == std::string::npos ? std::string() : path.substr(0, cut);
  }
  return {};
}

const Setting* Experiment::setting(std::string_view key) const {
  const auto at = std::find_if(settings.begin(), settings.end(),
                               [key](const Setting& s) { return s.key == key; });
  return at == settings.end() ? nullptr : &*at;
}

const OptionInfo* find_option(const Value::Table& values, std::string_view key) {
  const std::size_t dot = key.find('.');
  const SectionInfo* section =
      find_section(dot == std::string_view::npos ? "" : key.substr(0, dot));
  if (section == nullptr) return nullptr;
  const std::string_view name = dot == std::string_view::npos ? key : key.substr(dot + 1);
  if (!section->catalog.empty()) {
    if (name == "name") return &name_option(section->catalog);
    if (const auto* entry = chosen_entry(*section, sub_table(values, section->name))) {
      if (const OptionInfo* option = entry->options->find(name)) return option;
    }
  }
  return section->table == nullptr ? nullptr : section->table->find(name);
}

Experiment decode(const Value::Table& values, std::map<std::string, Origin> origins,
                  diag::Sink& sink) {
  return Decoder(values, std::move(origins), sink).run();
}

void infer(Experiment& e, std::string_view key, const Value& value) {
  const std::size_t dot = key.find('.');
  const std::string_view section_name = dot == std::string_view::npos ? "" : key.substr(0, dot);
  const std::string_view name = dot == std::string_view::npos ? key : key.substr(dot + 1);
  const SectionInfo& section = *find_section(section_name);
  Component* component = component_of(e, section_name);
  if (component != nullptr && name == "name") {
    component->name = *value.get_if<std::string>();
    component->entry = find_entry(section.catalog, component->name);
    component->options = component->entry->defaults;
  } else {
    const bool fixed = section.table != nullptr && section.table->find(name) != nullptr;
    const OptionTable& table = fixed ? *section.table : *component->entry->options;
    void* object = fixed ? struct_of(e, section_name) : table.object(component->options);
    if (const auto misfit = table.set(object, table.index(name), value)) {
      throw std::logic_error("inferred " + std::string(key) + ": " + misfit->message);
    }
  }
  e.origins[std::string(key)] = {
      .kind = Origin::Kind::inferred, .value = {}, .key = {}, .overridden = {}};
  refresh_settings(e);
}

Value::Table resolved_values(const Experiment& e) {
  Value::Table result;
  for (const Setting& setting : e.settings) {
    if (!setting.value.has_value()) continue;
    const std::size_t dot = setting.key.find('.');
    if (dot == std::string::npos) {
      result.emplace_back(setting.key, setting.value);
      continue;
    }
    const std::string section = setting.key.substr(0, dot);
    if (result.empty() || result.back().first != section)
      result.emplace_back(section, Value::Table{});
    std::get<Value::Table>(result.back().second.data)
        .emplace_back(setting.key.substr(dot + 1), setting.value);
  }
  return result;
}

}  // namespace runner::config
