#include <nlohmann/json.hpp>

#include "runner/diag/error.h"
#include "runner/plan/communication.h"
#include "runner/plan/plan.h"

namespace runner::plan {

namespace {

using Json = nlohmann::ordered_json;
using registry::Value;

struct JsonOf {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(bool v) const { return v; }
  Json operator()(std::int64_t v) const { return v; }
  Json operator()(double v) const { return v; }
  Json operator()(const std::string& v) const { return v; }
  Json operator()(const Value::Array& v) const {
    Json result = Json::array();
    for (const Value& element : v) result.push_back(std::visit(*this, element.data));
    return result;
  }
  Json operator()(const Value::Table& v) const {
    Json result = Json::object();
    for (const auto& [key, value] : v) result[key] = std::visit(*this, value.data);
    return result;
  }
};

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return json.get<std::int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      Value::Array result;
      for (const Json& element : json) result.push_back(value_of(element));
      return result;
    }
    case Json::value_t::object: {
      Value::Table result;
      for (const auto& [key, value] : json.items()) result.emplace_back(key, value_of(value));
      return result;
    }
    default:
      return {};
  }
}

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
std::optional<T> optional_of(const Json& json) {
  if (json.is_null()) return {};
  return json.get<T>();
}

Json memory_json(const check::Memory& memory) {
  return {{"weights", memory.weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations", memory.activations},
          {"total", memory.total()}};
}

check::Memory memory_of(const Json& json) {
  check::Memory memory;
  memory.weights = json.at("weights").get<std::int64_t>();
  memory.gradients = json.at("gradients").get<std::int64_t>();
  memory.optimizer = json.at("optimizer").get<std::int64_t>();
  memory.activations = json.at("activations").get<std::int64_t>();
  return memory;
}

Json stages_json(const std::vector<check::PipelineStage>& stages) {
  Json result = Json::array();
  for (const check::PipelineStage& stage : stages) {
    result.push_back({{"first_layer", stage.first_layer},
                      {"last_layer", stage.last_layer},
                      {"flops_per_sample", stage.flops},
                      {"parameters", stage.parameters},
                      {"memory_bytes", memory_json(stage.memory)}});
  }
  return result;
}

Json inferred_json(const std::vector<check::Inference>& inferred) {
  Json result = Json::array();
  for (const check::Inference& i : inferred) {
    result.push_back({{"key", i.key}, {"value", i.value}, {"reason", i.reason}, {"code", i.code}});
  }
  return result;
}

Plan read(const Json& json) {
  Plan plan;
  plan.mode = json.at("mode").get<std::string>() == "test" ? Mode::test : Mode::fit;
  plan.name = json.at("name").get<std::string>();
  plan.experiment = std::get<Value::Table>(value_of(json.at("experiment")).data);

  plan.backend = json.at("backend").get<std::string>();
  plan.precision = json.at("precision").get<std::string>();
  const Json& devices = json.at("devices");
  plan.devices.type = devices.at("type").get<std::string>();
  plan.devices.ids = devices.at("ids").get<std::vector<std::int64_t>>();
  plan.devices.note = devices.at("note").get<std::string>();
  plan.num_nodes = json.at("num_nodes").get<std::int64_t>();
  plan.processes_per_node = json.at("processes_per_node").get<std::int64_t>();
  plan.world_size = json.at("world_size").get<std::int64_t>();
  plan.devices_per_process = json.at("devices_per_process").get<std::int64_t>();
  plan.timeout_seconds = json.at("timeout_seconds").get<std::int64_t>();
  plan.start_timeout_seconds = json.at("start_timeout_seconds").get<std::int64_t>();
  plan.max_restarts = json.at("max_restarts").get<std::int64_t>();

  plan.batch_size = json.at("batch_size").get<std::int64_t>();
  plan.effective_batch = json.at("effective_batch").get<std::int64_t>();
  plan.train_samples = json.at("train_samples").get<std::int64_t>();
  plan.validation_samples = json.at("validation_samples").get<std::int64_t>();
  plan.test_samples = json.at("test_samples").get<std::int64_t>();
  plan.batches_per_epoch = json.at("batches_per_epoch").get<std::int64_t>();
  plan.validation_batches = json.at("validation_batches").get<std::int64_t>();
  plan.steps_per_epoch = json.at("steps_per_epoch").get<std::int64_t>();
  plan.max_epochs = optional_of<std::int64_t>(json.at("max_epochs"));
  plan.max_steps = optional_of<std::int64_t>(json.at("max_steps"));
  plan.max_seconds = optional_of<std::int64_t>(json.at("max_seconds"));

  plan.loss = json.at("loss").get<std::string>();
  plan.metrics = json.at("metrics").get<std::vector<std::string>>();
  plan.monitor = optional_of<std::string>(json.at("monitor"));
  plan.monitor_max = json.at("monitor_max").get<bool>();

  plan.parameters = json.at("parameters").get<std::int64_t>();
  plan.flops_per_sample = json.at("flops_per_sample").get<std::int64_t>();
  plan.memory = memory_of(json.at("memory_bytes"));
  for (const Json& stage : json.at("stages")) {
    plan.stages.push_back(
        {stage.at("first_layer").get<std::string>(), stage.at("last_layer").get<std::string>(),
         stage.at("flops_per_sample").get<std::int64_t>(),
         stage.at("parameters").get<std::int64_t>(), memory_of(stage.at("memory_bytes"))});
  }
  plan.balance = json.at("balance").get<double>();
  plan.device_memory = optional_of<std::int64_t>(json.at("device_memory_bytes"));
  plan.checkpoint_bytes = json.at("checkpoint_bytes").get<std::int64_t>();
  for (const Json& i : json.at("inferred")) {
    plan.inferred.push_back({i.at("key").get<std::string>(), i.at("value").get<std::string>(),
                             i.at("reason").get<std::string>(), i.at("code").get<std::string>()});
  }

  plan.run_folder = json.at("run_folder").get<std::string>();
  plan.base_folder = json.at("base_folder").get<std::string>();
  plan.shared_folder = json.at("shared_folder").get<std::string>();
  plan.resume_from = optional_of<std::string>(json.at("resume_from"));
  plan.csv_bytes = json.at("csv_bytes").get<std::int64_t>();
  plan.command_line = json.at("command_line").get<std::string>();
  plan.version = json.at("version").get<std::string>();
  plan.git_commit = json.at("git_commit").get<std::string>();
  plan.quiet = json.at("quiet").get<bool>();
  return plan;
}

}  // namespace

std::string to_json(const Plan& plan) {
  const Communication sent = communication(plan);
  const Json json = {
      {"format", Plan::kFormat},
      {"mode", plan.mode == Mode::test ? "test" : "fit"},
      {"name", plan.name},
      {"experiment", JsonOf{}(plan.experiment)},
      {"backend", plan.backend},
      {"precision", plan.precision},
      {"devices",
       {{"type", plan.devices.type}, {"ids", plan.devices.ids}, {"note", plan.devices.note}}},
      {"num_nodes", plan.num_nodes},
      {"processes_per_node", plan.processes_per_node},
      {"world_size", plan.world_size},
      {"devices_per_process", plan.devices_per_process},
      {"timeout_seconds", plan.timeout_seconds},
      {"start_timeout_seconds", plan.start_timeout_seconds},
      {"max_restarts", plan.max_restarts},
      {"batch_size", plan.batch_size},
      {"effective_batch", plan.effective_batch},
      {"train_samples", plan.train_samples},
      {"validation_samples", plan.validation_samples},
      {"test_samples", plan.test_samples},
      {"batches_per_epoch", plan.batches_per_epoch},
      {"validation_batches", plan.validation_batches},
      {"steps_per_epoch", plan.steps_per_epoch},
      {"max_epochs", optional_json(plan.max_epochs)},
      {"max_steps", optional_json(plan.max_steps)},
      {"max_seconds", optional_json(plan.max_seconds)},
      {"loss", plan.loss},
      {"metrics", plan.metrics},
      {"monitor", optional_json(plan.monitor)},
      {"monitor_max", plan.monitor_max},
      {"parameters", plan.parameters},
      {"flops_per_sample", plan.flops_per_sample},
      {"memory_bytes", memory_json(plan.memory)},
      {"communication",
       {{"gradient_bytes", sent.gradient_bytes}, {"sent_bytes_per_step", sent.sent_bytes}}},
      {"stages", stages_json(plan.stages)},
      {"balance", plan.balance},
      {"device_memory_bytes", optional_json(plan.device_memory)},
      {"checkpoint_bytes", plan.checkpoint_bytes},
      {"inferred", inferred_json(plan.inferred)},
      {"run_folder", plan.run_folder},
      {"base_folder", plan.base_folder},
      {"shared_folder", plan.shared_folder},
      {"resume_from", optional_json(plan.resume_from)},
      {"csv_bytes", plan.csv_bytes},
      {"command_line", plan.command_line},
      {"version", plan.version},
      {"git_commit", plan.git_commit},
      {"quiet", plan.quiet},
  };
  // What a person typed may be any bytes; JSON is UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Plan from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const int format = json.at("format").get<int>();
    if (format != Plan::kFormat) {
      throw diag::Error(diag::Exit::invalid,
                        "a plan of format " + std::to_string(format) +
                            ", this program reads format " + std::to_string(Plan::kFormat),
                        "runner and runner-worker must be of one build");
    }
    return read(json);
  } catch (const Json::exception& error) {
    throw diag::Error(diag::Exit::invalid, std::string("not a plan: ") + error.what(),
                      "plans are written by `runner`; `runner EXPERIMENT.toml` starts a run");
  }
}

}  // namespace runner::plan
