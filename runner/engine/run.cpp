#include "runner/engine/run.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <torch/version.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "datasets/dataset.h"
#include "models/model.h"
#include "runner/config/experiment.h"
#include "runner/diag/error.h"
#include "runner/engine/cuda/cuda.h"
#include "runner/engine/trainer.h"
#include "runner/host/environment.h"
#include "runner/host/process.h"
#include "runner/report/log.h"
#include "runner/report/summary.h"

namespace runner::engine {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

config::Experiment decode(const plan::Plan& plan) {
  diag::Sink sink;
  config::Experiment experiment = config::decode(plan.experiment, {}, sink);
  if (sink.errors() > 0) {
    throw diag::Error(diag::Exit::invalid,
                      "the plan's experiment is not valid: " + sink.sorted().front().message,
                      "runner and runner-worker must be of one build");
  }
  return experiment;
}

at::Device prepare_device(const plan::Plan& plan) {
  if (plan.devices.type == "cpu") return at::kCPU;
  cuda::load(host::self_exe_folder());
  // The launcher has hidden all other GPUs.
  return at::Device(at::kCUDA, 0);
}

void set_globals(const config::Experiment& experiment) {
  if (experiment.trainer.threads)
    at::set_num_threads(static_cast<int>(*experiment.trainer.threads));
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(experiment.trainer.deterministic, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
  context.setBenchmarkCuDNN(experiment.trainer.benchmark);
  // One seed gives one result unless somebody asks for the fastest kernel of the day.
  context.setDeterministicCuDNN(!experiment.trainer.benchmark);
  at::manual_seed(static_cast<std::uint64_t>(experiment.general.seed));
}

/// A dataset's parts, read by threads of their own while the network is made.
class Parts {
 public:
  explicit Parts(const plan::Plan& plan, const config::Experiment& experiment)
      : dataset_(static_cast<const datasets::Dataset&>(*experiment.dataset.entry)),
        options_(experiment.dataset.options),
        context_{plan.base_folder, plan.shared_folder} {}

  [[nodiscard]] datasets::Spec spec() const { return dataset_.describe(options_, context_); }
  [[nodiscard]] std::future<std::unique_ptr<datasets::Samples>> load(datasets::Part part) const {
    return std::async(std::launch::async,
                      [this, part] { return dataset_.load(options_, context_, part); });
  }

 private:
  const datasets::Dataset& dataset_;
  const std::any& options_;
  const datasets::Context context_;
};

Network make_network(const config::Experiment& experiment, const datasets::Spec& spec,
                     at::ScalarType dtype, const at::Device& device) {
  const auto& model = static_cast<const models::Model&>(*experiment.model.entry);
  const bool classes = spec.target == datasets::TargetKind::classes;
  const graph::Graph graph =
      model.build(experiment.model.options,
                  {.input = spec.input, .outputs = classes ? spec.classes : spec.target_values});
  return lower(graph, at::TensorOptions(device).dtype(dtype));
}

std::string weights_digest(const Network& network) {
  store::Hasher hasher;
  for (const auto& [name, tensor] : copy_to_cpu(network.state())) {
    hasher.update(std::as_bytes(std::span(name)));
    hasher.update({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  return hasher.digest().xxh3_128;
}

std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

std::string utc_now(host::Clock& clock) {
  const std::time_t now = std::chrono::system_clock::to_time_t(clock.wall_time());
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::ostringstream text;
  text << std::put_time(&parts, "%Y-%m-%dT%H:%M:%SZ");
  return text.str();
}

std::string device_text(const at::Device& device) {
  if (device.is_cuda()) return cuda::load(host::self_exe_folder()).device_name(device.index());
  const int threads = at::get_num_threads();
  return "cpu, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

/// Replaces a file in one step, so that no reader finds half of it.
void write_json(const fs::path& path, const Json& json) {
  const fs::path temporary = path.string() + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    if (!out.flush()) {
      throw diag::Error(diag::Exit::failed, "cannot write '" + temporary.string() + "'");
    }
  }
  fs::rename(temporary, path);
}

Json as_json(const Figures& figures) {
  Json json = Json::object();
  for (const auto& [name, value] : figures) json[name] = value;
  return json;
}

/// manifest.json of a run folder: what was run, on what, and how it ended.
class RunManifest {
 public:
  RunManifest(const plan::Plan& plan, const config::Experiment& experiment,
              const at::Device& device, host::Clock& clock)
      : path_(fs::path(plan.run_folder) / "manifest.json"), device_(device), clock_(clock) {
    json_["status"] = "running";
    json_["name"] = plan.name;
    json_["version"] = plan.version;
    json_["git_commit"] = plan.git_commit;
    json_["command_line"] = plan.command_line;
    json_["libtorch"] = TORCH_VERSION;
    json_["host"] = host_name();
    json_["device"] = device_text(device);
    json_["precision"] = plan.precision;
    json_["threads"] = at::get_num_threads();
    json_["seed"] = experiment.general.seed;
    json_["parameters"] = plan.parameters;
    if (plan.resume_from) json_["resumed_from"] = *plan.resume_from;
    json_["started"] = utc_now(clock);
    write_json(path_, json_);
  }

  void finish(const Outcome& outcome, const Network& network, const std::string& monitor,
              host::Seconds process_start) {
    const TrainingState& state = outcome.state;
    json_["status"] = outcome.signal == 0 ? "finished" : "interrupted";
    json_["stopped"] = outcome.stopped;
    json_["ended"] = utc_now(clock_);
    json_["epochs"] = state.epoch;
    json_["steps"] = state.step;
    json_["skipped_steps"] = state.skipped_steps;
    json_["samples"] = state.samples;
    json_["seconds"] = state.elapsed_seconds;
    json_["metrics"] = as_json(outcome.figures);
    if (state.best) {
      json_["best"] = {{"metric", monitor},
                       {"value", state.best->value},
                       {"epoch", state.best->epoch},
                       {"step", state.best->step}};
    }
    if (outcome.best_checkpoint) json_["best_checkpoint"] = outcome.best_checkpoint->string();
    if (outcome.last_checkpoint) json_["last_checkpoint"] = outcome.last_checkpoint->string();
    json_["weights_xxh3_128"] = weights_digest(network);

    const double loop = outcome.loop_time.count();
    Json timing;
    if (outcome.first_step) {
      timing["seconds_to_first_step"] = (*outcome.first_step - process_start).count();
    }
    timing["loop_seconds"] = loop;
    timing["steps"] = outcome.steps_here;
    if (loop > 0) {
      timing["steps_per_second"] = static_cast<double>(outcome.steps_here) / loop;
      timing["samples_per_second"] = static_cast<double>(outcome.samples_here) / loop;
    }
    timing["peak_memory_bytes"] = peak_memory_bytes();
    if (device_.is_cuda()) {
      timing["peak_gpu_memory_bytes"] =
          cuda::load(host::self_exe_folder()).peak_memory_bytes(device_.index());
    }
    json_["timing"] = timing;
    write_json(path_, json_);
  }

  void fail() {
    json_["status"] = "failed";
    json_["ended"] = utc_now(clock_);
    write_json(path_, json_);
  }

 private:
  static std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
  }

  fs::path path_;
  at::Device device_;
  host::Clock& clock_;
  Json json_;
};

void print(const std::string& text) { report::fd_writer(STDOUT_FILENO)(text); }

void print_summary(const plan::Plan& plan, const Outcome& outcome, const std::string& monitor) {
  if (plan.quiet) return;
  report::RunSummary summary;
  summary.name = plan.name;
  summary.stopped = outcome.stopped;
  if (outcome.state.best) {
    summary.best_epoch = outcome.state.best->epoch;
    summary.best_metric = monitor;
    summary.best_value = outcome.state.best->value;
  }
  summary.epochs = outcome.epochs;
  summary.steps = outcome.state.step;
  summary.samples = outcome.state.samples;
  summary.time = host::Seconds(outcome.state.elapsed_seconds);
  summary.metrics = outcome.figures;
  if (outcome.best_checkpoint)
    summary.places.emplace_back("best", outcome.best_checkpoint->string());
  if (outcome.last_checkpoint)
    summary.places.emplace_back("last", outcome.last_checkpoint->string());
  summary.places.emplace_back("run folder", plan.run_folder);
  print(report::render_summary(summary, report::terminal_width(STDOUT_FILENO),
                               report::utf8_locale(host::system_environment())));
}

void start_log(const plan::Plan& plan, const config::Experiment& experiment) {
  report::log::Options options;
  options.level =
      report::log::parse_level(experiment.logger.level).value_or(report::log::Level::info);
  options.file = fs::path(plan.run_folder) / "runner.log";
  options.console = report::fd_writer(STDERR_FILENO);
  report::log::init(std::move(options));
}

void log_start(const plan::Plan& plan, const at::Device& device, std::int64_t first_step) {
  std::string text = "'" + plan.name + "' starts on " + device_text(device) + ", precision " +
                     plan.precision + ", from step " + std::to_string(first_step);
  if (plan.max_epochs) text += ", at most " + report::format_count(*plan.max_epochs, "epoch");
  if (plan.max_steps) text += ", at most " + report::format_count(*plan.max_steps, "step");
  report::log::info(text + ", " + report::format_count(plan.steps_per_epoch, "step") + " an epoch");
  report::log::debug("version " + plan.version + ", LibTorch " TORCH_VERSION ", " +
                     report::format_count(plan.parameters, "parameter") +
                     ", command line: " + plan.command_line);
}

int train(const plan::Plan& plan, const config::Experiment& experiment, const at::Device& device,
          const std::atomic<int>& signal, host::Clock& clock, host::Seconds start) {
  const Parts parts(plan, experiment);
  auto train_part = parts.load(datasets::Part::train);
  const bool overfits = experiment.trainer.overfit_batches > 0;
  const bool validates = plan.validation_batches > 0;
  std::future<std::unique_ptr<datasets::Samples>> validation_part;
  if (validates && !overfits) validation_part = parts.load(datasets::Part::validation);

  const datasets::Spec spec = parts.spec();
  const at::ScalarType dtype = make_precision(plan.precision, device)->dtype();
  Network network = make_network(experiment, spec, dtype, device);
  RunManifest manifest(plan, experiment, device, clock);

  std::optional<Snapshot> resume;
  if (plan.resume_from) resume = read_checkpoint(*plan.resume_from);
  for (const std::string& name :
       store::CheckpointFolder(checkpoints_in(plan.run_folder)).clean_leftovers()) {
    report::log::info("removed '" + name + "', left by a run that was killed");
  }

  const auto samples = train_part.get();
  const auto validation = validation_part.valid() ? validation_part.get() : nullptr;
  report::Progress progress(
      report::progress_options(STDOUT_FILENO, plan.quiet, host::system_environment()),
      report::fd_writer(STDOUT_FILENO), clock);
  const Training training{.plan = plan,
                          .experiment = experiment,
                          .spec = spec,
                          .train = *samples,
                          .validation = overfits && validates ? samples.get() : validation.get(),
                          .network = network,
                          .device = device,
                          .progress = progress,
                          .clock = clock,
                          .signal = signal};
  log_start(plan, device, resume ? resume->state.step : 0);
  Outcome outcome;
  try {
    outcome = fit(training, resume);
  } catch (...) {
    manifest.fail();
    throw;
  }

  const std::string monitor = experiment.checkpoint.monitor.value_or(plan.monitor.value_or(""));
  manifest.finish(outcome, network, monitor, start);
  report::log::info("ended at step " + std::to_string(outcome.state.step) + " after " +
                    report::format_duration(host::Seconds(outcome.state.elapsed_seconds)) + ": " +
                    outcome.stopped);
  print_summary(plan, outcome, monitor);
  return outcome.signal == 0 ? 0 : 128 + outcome.signal;
}

int test(const plan::Plan& plan, const config::Experiment& experiment, const at::Device& device,
         const std::atomic<int>& signal, host::Clock& clock) {
  if (!plan.resume_from) {
    throw diag::Error(diag::Exit::invalid, "a test needs a checkpoint");
  }
  const Parts parts(plan, experiment);
  const datasets::Spec spec = parts.spec();
  const auto part = spec.test_size > 0 ? datasets::Part::test : datasets::Part::validation;
  const auto samples = parts.load(part).get();
  const auto precision = make_precision(plan.precision, device);
  Network network = make_network(experiment, spec, precision->dtype(), device);
  network.load_state(read_weights(*plan.resume_from));

  const Loss loss = make_loss(experiment.loss.name, experiment.loss.options);
  const auto strategy = make_single(loss, *precision);
  strategy->setup(network);
  const std::int64_t batch = experiment.data.eval_batch_size.value_or(experiment.data.batch_size);
  Evaluator evaluator(*samples, spec,
                      {.batch_size = batch,
                       .batches = (samples->size() + batch - 1) / batch,
                       .threads = static_cast<int>(experiment.data.num_threads),
                       .pinned = device.is_cuda()},
                      loss,
                      {.prefix = "test_",
                       .metrics = plan.metrics,
                       .binary = spec.binary,
                       .device = device,
                       .dtype = precision->dtype()});
  report::Progress progress(
      report::progress_options(STDOUT_FILENO, plan.quiet, host::system_environment()),
      report::fd_writer(STDOUT_FILENO), clock);
  const auto figures = evaluator.run(*strategy, progress, signal);
  progress.finish();
  if (!figures) return 128 + signal.load();

  Json json;
  json["checkpoint"] = *plan.resume_from;
  json["part"] = std::string(datasets::to_text(part));
  json["samples"] = samples->size();
  json["metrics"] = as_json(*figures);
  write_json(fs::path(plan.run_folder) / "test.json", json);

  report::Table table({{"metric"}, {"value", report::Align::right}});
  table.set_title("test of " + *plan.resume_from + " on " + report::format_count(samples->size()) +
                  " " + std::string(datasets::to_text(part)) + " samples");
  for (const auto& [name, value] : *figures) table.add_row({name, report::format_metric(value)});
  print(table.render(report::terminal_width(STDOUT_FILENO),
                     report::utf8_locale(host::system_environment())));
  return 0;
}

}  // namespace

int run_plan(const plan::Plan& plan, const std::atomic<int>& signal, host::Clock& clock,
             host::Seconds start) {
  const config::Experiment experiment = decode(plan);
  start_log(plan, experiment);
  const at::Device device = prepare_device(plan);
  set_globals(experiment);
  if (plan.mode == plan::Mode::test) return test(plan, experiment, device, signal, clock);
  return train(plan, experiment, device, signal, clock, start);
}

FailureRecord describe_failure() {
  const std::string less_memory =
      "lower dataset.batch_size (trainer.accumulate keeps the effective batch), or take a smaller "
      "model";
  try {
    throw;
  } catch (const diag::Error& error) {
    return {error.what(), error.help(), static_cast<int>(error.exit())};
  } catch (const c10::OutOfMemoryError& error) {
    return {std::string("the GPU's memory is full: ") + error.what_without_backtrace(),
            less_memory};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool memory = text.find("DefaultCPUAllocator") != std::string::npos;
    return {memory ? "memory is full: " + text : text, memory ? less_memory : ""};
  } catch (const std::bad_alloc&) {
    return {"memory is full", less_memory};
  } catch (const std::exception& error) {
    return {error.what(), ""};
  } catch (...) {
    return {"an exception of unknown type", ""};
  }
}

}  // namespace runner::engine
