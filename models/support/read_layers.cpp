#include <map>
#include <utility>

#include "models/support/layers.h"
#include "registry/suggest.h"

namespace runner::models {

namespace {

using registry::OptionInfo;
using registry::Value;

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) out += (out.empty() ? "" : ", ") + std::string(word);
  return out;
}

std::string did_you_mean(std::string_view word) {
  return word.empty() ? "" : "did you mean '" + std::string(word) + "'?";
}

/// "did you mean 'kernel'? <all>" or <all> alone.
std::string suggest(std::string_view word, const std::vector<std::string_view>& candidates,
                    const std::string& all) {
  const std::string near = did_you_mean(registry::nearest(word, candidates));
  return near.empty() ? all : near + " " + all;
}

std::vector<std::string_view> keys_of(const LayerType& type) {
  std::vector<std::string_view> keys = {"type", "name"};
  for (const OptionInfo& option : type.options->options()) keys.push_back(option.name);
  return keys;
}

/// A layer's name is a part of its tensors' names in checkpoints.
bool is_layer_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of(
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "abcdefghijklmnopqrstuvwxyz0123456789_-.") == std::string_view::npos;
}

/// Why a value isn't a pair within the option's range; nothing if it is.
std::optional<std::string> pair_misfit(const OptionInfo& option, const Value& value) {
  const auto pair = read_pair(value);
  const auto holds = [&](std::int64_t side) {
    return option.range.holds(static_cast<double>(side));
  };
  if (pair && holds((*pair)[0]) && holds((*pair)[1])) return {};
  return "expected an " + option.type + ", " + option.range.text() + ", found " +
         registry::to_toml(value);
}

/// Reads one table of the array.
class LayerReader {
 public:
  LayerReader(const Value::Table& table, std::string path, std::vector<Problem>& problems)
      : table_(table), path_(std::move(path)), problems_(problems) {}

  /// Nothing when something was wrong. The name is empty unless it is given.
  std::optional<LayerSpec> read() {
    const std::size_t before = problems_.size();
    const LayerType* type = read_type();
    if (type == nullptr) return {};
    LayerSpec spec{.type = type, .name = {}, .options = type->defaults, .path = path_};
    for (const auto& [key, value] : table_) {
      if (key == "type") continue;
      if (key == "name") {
        read_name(value, spec);
      } else {
        read_option(*type, key, value, spec.options);
      }
    }
    need_outputs(*type);
    if (problems_.size() > before) return {};
    return spec;
  }

 private:
  const LayerType* read_type() {
    const auto names = layer_types().names();
    const std::string all = "the types are " + joined(names);
    const Value* value = registry::find(table_, "type");
    if (value == nullptr) {
      problem("", "a layer needs 'type'", all);
      return nullptr;
    }
    const auto* text = value->get_if<std::string>();
    if (text == nullptr) {
      problem("type", "'type': expected a string, found " + std::string(type_name(*value)), all);
      return nullptr;
    }
    const LayerType* type = layer_types().find(*text);
    if (type == nullptr) {
      problem("type", "unknown type of layer '" + *text + "'", suggest(*text, names, all));
    }
    return type;
  }

  void read_name(const Value& value, LayerSpec& spec) {
    const auto* text = value.get_if<std::string>();
    if (text == nullptr) {
      problem("name", "'name': expected a string, found " + std::string(type_name(value)));
    } else if (!is_layer_name(*text)) {
      problem("name", "'" + *text + "' can't name a layer",
              "a name is made of letters, digits, '_', '-' and '.'");
    } else {
      spec.name = *text;
    }
  }

  void read_option(const LayerType& type, const std::string& key, const Value& value,
                   std::any& options) {
    const OptionInfo* option = type.options->find(key);
    if (option == nullptr) {
      const auto keys = keys_of(type);
      const std::string owner = "a " + std::string(type.name) + " layer";
      problem(key, owner + " has no '" + key + "'",
              suggest(key, keys, "its keys are " + joined(keys)));
      return;
    }
    if (option->type == kPairType) {
      if (const auto message = pair_misfit(*option, value)) {
        problem(key, "'" + key + "': " + *message);
        return;
      }
    }
    const std::size_t index = type.options->index(key);
    if (const auto misfit = type.options->set(type.options->object(options), index, value)) {
      problem(key, "'" + key + "': " + misfit->message, did_you_mean(misfit->suggestion));
    }
  }

  /// How many outputs a layer has can't be inferred.
  void need_outputs(const LayerType& type) {
    const OptionInfo* out = type.options->find("out");
    if (out == nullptr || registry::find(table_, "out") != nullptr) return;
    problem("", "a " + std::string(type.name) + " layer needs 'out'",
            "add out = the number of its " + std::string(out->doc));
  }

  void problem(const std::string& key, std::string message, std::string help = {}) {
    const std::string path = key.empty() ? path_ : path_ + "." + registry::key_text(key);
    problems_.push_back({path, std::move(message), std::move(help)});
  }

  const Value::Table& table_;
  std::string path_;
  std::vector<Problem>& problems_;
};

/// Names the layers that have none, by type and number, around the given names.
class LayerNames {
 public:
  /// A second layer of one name is a problem.
  void take(const LayerSpec& spec, std::vector<Problem>& problems) {
    if (spec.name.empty()) return;
    const auto [at, is_new] = owner_.emplace(spec.name, spec.path);
    if (is_new) return;
    const bool is_input = at->second.empty();
    problems.push_back({spec.path + ".name",
                        is_input ? "'input' is the name of the model's input"
                                 : "the name '" + spec.name + "' is taken by " + at->second,
                        "give the layer another name"});
  }

  std::string next(std::string_view type) {
    std::string name;
    do {
      name = std::string(type) + std::to_string(++count_[std::string(type)]);
    } while (owner_.contains(name));
    return name;
  }

 private:
  std::map<std::string, std::string> owner_ = {{"input", ""}};  // name to path
  std::map<std::string, int> count_;
};

}  // namespace

std::vector<LayerSpec> read_layers(const Value& layers, std::vector<Problem>& problems) {
  const std::string how = "write [[model.layers]] with type = \"…\" and its options for each layer";
  const auto* array = layers.get_if<Value::Array>();
  if (array == nullptr && layers.has_value()) {
    problems.push_back(
        {"layers", "'layers': expected a list of layers, found " + std::string(type_name(layers)),
         how});
    return {};
  }
  if (array == nullptr || array->empty()) {
    problems.push_back({"layers", "a sequential model needs layers", how});
    return {};
  }
  std::vector<LayerSpec> specs;
  for (std::size_t i = 0; i < array->size(); ++i) {
    const Value& entry = (*array)[i];
    const std::string path = "layers[" + std::to_string(i) + "]";
    const auto* table = entry.get_if<Value::Table>();
    if (table == nullptr) {
      problems.push_back(
          {path, "expected a layer's table, found " + std::string(type_name(entry)), how});
      continue;
    }
    auto spec = LayerReader(*table, path, problems).read();
    if (spec) specs.push_back(std::move(*spec));
  }
  LayerNames names;
  for (const LayerSpec& spec : specs) names.take(spec, problems);
  for (LayerSpec& spec : specs) {
    if (spec.name.empty()) spec.name = names.next(spec.type->name);
  }
  return specs;
}

}  // namespace runner::models
