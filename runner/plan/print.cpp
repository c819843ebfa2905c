#include <algorithm>
#include <cmath>

#include "runner/plan/communication.h"
#include "runner/plan/make.h"
#include "runner/report/summary.h"
#include "runner/report/terminal.h"

namespace runner::plan {

namespace {

using registry::Value;
using report::format_bytes;
using report::format_count;

const Value* value_at(const Plan& plan, std::string_view section, std::string_view key) {
  const Value* table = registry::find(plan.experiment, section);
  if (table == nullptr || table->get_if<Value::Table>() == nullptr) return nullptr;
  return registry::find(*table->get_if<Value::Table>(), key);
}

std::string text_at(const Plan& plan, std::string_view section, std::string_view key) {
  const Value* value = value_at(plan, section, key);
  if (value == nullptr) return {};
  const auto* text = value->get_if<std::string>();
  return text != nullptr ? *text : registry::to_toml(*value);
}

std::string devices_text(const Plan& plan) {
  std::string out;
  if (plan.devices.type == "cpu") {
    out = "CPU";
  } else if (plan.devices.type == "xla") {
    out = "TPU";
  } else {
    out = plan.devices.ids.empty() ? "all GPUs" : plan.devices.ids.size() == 1 ? "GPU " : "GPUs ";
    for (std::size_t i = 0; i < plan.devices.ids.size(); ++i) {
      out += (i == 0 ? "" : ", ") + std::to_string(plan.devices.ids[i]);
    }
  }
  if (plan.num_nodes > 1) out += " on each of " + std::to_string(plan.num_nodes) + " nodes";
  out +=
      plan.world_size == 1 ? ", 1 process" : ", " + std::to_string(plan.world_size) + " processes";
  if (plan.backend != "none") out += ", " + plan.backend;
  if (!plan.devices.note.empty()) out += " (" + plan.devices.note + ")";
  return out;
}

std::string data_text(const Plan& plan) {
  std::string out = text_at(plan, "dataset", "name");
  if (plan.train_samples > 0) out += ", " + format_count(plan.train_samples) + " to train";
  if (plan.validation_samples > 0)
    out += ", " + format_count(plan.validation_samples) + " to validate";
  if (plan.test_samples > 0) out += ", " + format_count(plan.test_samples) + " to test";
  return out;
}

std::string batch_text(const Plan& plan) {
  std::string out = format_count(plan.batch_size);
  if (plan.world_size > 1) out += " a process";
  if (plan.effective_batch != plan.batch_size)
    out += ", effective " + format_count(plan.effective_batch);
  return out;
}

std::string length_text(const Plan& plan) {
  std::vector<std::string> parts;
  if (plan.steps_per_epoch > 0) {
    parts.push_back(format_count(plan.steps_per_epoch) +
                    (plan.steps_per_epoch == 1 ? " step" : " steps") + " an epoch");
  }
  if (plan.max_epochs)
    parts.push_back(format_count(*plan.max_epochs) +
                    (*plan.max_epochs == 1 ? " epoch" : " epochs"));
  if (plan.max_steps)
    parts.push_back(format_count(*plan.max_steps) + (*plan.max_steps == 1 ? " step" : " steps") +
                    " in all");
  if (plan.max_seconds)
    parts.push_back("at most " + report::format_duration(
                                     report::Seconds(static_cast<double>(*plan.max_seconds))));
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

std::string flops_text(std::int64_t flops) {
  const auto value = static_cast<double>(flops);
  const auto scaled = [](double v, const char* unit) {
    std::string text = report::format_metric(v);
    return text + unit;
  };
  if (value >= 1e9) return scaled(value / 1e9, " GFLOPs");
  if (value >= 1e6) return scaled(value / 1e6, " MFLOPs");
  return format_count(flops) + " FLOPs";
}

std::string share_text(std::int64_t part, std::int64_t whole) {
  const double percent = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return std::to_string(std::llround(percent)) + "% of the FLOPs";
}

std::string stage_text(const Plan& plan, const check::PipelineStage& stage) {
  std::string out = stage.first_layer;
  if (stage.last_layer != stage.first_layer) out += " to " + stage.last_layer;
  if (plan.flops_per_sample > 0) out += ", " + share_text(stage.flops, plan.flops_per_sample);
  return out + ", " + format_count(stage.parameters, "parameter") + ", about " +
         format_bytes(stage.memory.total());
}

std::string checkpoints_text(const Plan& plan) {
  const Value* keep = value_at(plan, "checkpoint", "keep");
  const Value* last = value_at(plan, "checkpoint", "last");
  const std::int64_t count = keep != nullptr && keep->get_if<std::int64_t>() != nullptr
                                 ? *keep->get_if<std::int64_t>()
                                 : 0;
  std::string out;
  if (plan.monitor && count != 0) {
    const std::string many = count < 0    ? "all"
                             : count == 1 ? "best"
                                          : "best " + std::to_string(count);
    out = many + " by " + *plan.monitor + " (" + (plan.monitor_max ? "max" : "min") + ")";
  }
  if (last != nullptr && last->get_if<bool>() != nullptr && *last->get_if<bool>())
    out += out.empty() ? "last" : " and last";
  if (out.empty()) return "none";
  if (plan.checkpoint_bytes > 0) out += ", " + format_bytes(plan.checkpoint_bytes) + " each";
  return out;
}

}  // namespace

std::string print(const Plan& plan, int width) {
  report::Table table({{""}, {""}});
  const auto row = [&table](const std::string& name, const std::string& text) {
    if (!text.empty()) table.add_row({name, text});
  };
  table.set_title(plan.name);
  std::string model = text_at(plan, "model", "name");
  if (plan.parameters > 0) {
    model += ", " + format_count(plan.parameters) + " parameters, " +
             flops_text(plan.flops_per_sample) + " a sample";
  }
  row("model", model);
  row("data", data_text(plan));
  row("loss", plan.loss);
  std::string optimizer =
      text_at(plan, "optimizer", "name") + ", lr " + text_at(plan, "optimizer", "lr");
  if (const std::string schedule = text_at(plan, "scheduler", "name"); schedule != "none")
    optimizer += ", " + schedule;
  row("optimizer", optimizer);
  row("devices", devices_text(plan));
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    row("stage " + std::to_string(i + 1), stage_text(plan, plan.stages[i]));
  }
  if (!plan.stages.empty()) {
    row("balance", report::format_metric(plan.balance) +
                       " by FLOPs (mean stage over the largest); a run measures and cuts again");
  }
  row("precision", plan.precision);
  row("batch", batch_text(plan));
  row("length", length_text(plan));
  if (plan.memory.total() > 0) {
    row("memory", "about " + format_bytes(plan.memory.total()) +
                      (plan.devices.type == "cpu" ? "" : " a GPU") + " (weights " +
                      format_bytes(plan.memory.weights) + ", gradients " +
                      format_bytes(plan.memory.gradients) + ", optimizer " +
                      format_bytes(plan.memory.optimizer) + ", activations " +
                      format_bytes(plan.memory.activations) + ")");
  }
  row("communication", communication_text(plan));
  row("checkpoints", checkpoints_text(plan));
  if (plan.resume_from) row(plan.mode == Mode::test ? "weights" : "resume", *plan.resume_from);
  row("run folder", plan.run_folder);
  for (const check::Inference& i : plan.inferred) {
    std::string text = i.key;
    if (!i.value.empty()) text += (text.empty() ? "" : " = ") + i.value;
    text += (text.empty() ? "" : ": ") + i.reason;
    if (!i.code.empty()) text += " [" + i.code + "]";
    row(i.value.empty() ? "note" : "inferred", text);
  }
  return table.render(width);
}

}  // namespace runner::plan
