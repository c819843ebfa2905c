#include "runner/engine/run.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
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
#include "runner/engine/agreement.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/cuda/cuda.h"
#include "runner/engine/trainer.h"
#include "runner/host/environment.h"
#include "runner/host/heartbeat.h"
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

std::string variable(const char* name) { return host::system_environment().get(name).value_or(""); }

/// A device of a kind that needs nothing but a LibTorch that was built with it.
at::Device need_device(const std::string& type) {
  const at::Device device(type);
  if (c10::impl::hasDeviceGuardImpl(device.type())) return device;
  throw diag::Error(diag::Exit::machine, "this LibTorch has no device of type '" + type + "'",
                    "build runner with a LibTorch that has one, or train on another device");
}

/// The devices of this process, root first, by the launcher's list of indices into those that it
/// sees.
std::vector<at::Device> prepare_devices(const plan::Plan& plan) {
  const auto count = static_cast<std::size_t>(plan.devices_per_process);
  if (plan.devices.type == "cpu") return std::vector<at::Device>(count, at::kCPU);
  if (plan.devices.type != "cuda") return {need_device(plan.devices.type)};
  cuda::load(host::self_exe_folder());
  std::vector<at::Device> devices;
  std::istringstream indices(variable("RUNNER_DEVICES"));
  for (std::string index; std::getline(indices, index, ',');) {
    devices.emplace_back(at::kCUDA, static_cast<c10::DeviceIndex>(std::stoi(index)));
  }
  if (devices.size() != count) {
    throw diag::Error(diag::Exit::failed, "RUNNER_DEVICES names " + std::to_string(devices.size()) +
                                              " devices, and the plan has " +
                                              std::to_string(count) + " a process");
  }
  // For what takes the current device, such as a communicator's first use.
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(devices.front());
  return devices;
}

/// The launcher's page of heartbeats, kept for as long as the process lives; null without one.
host::Heartbeat* find_heartbeat() {
  const std::string fd = variable("RUNNER_HEARTBEAT_FD");
  if (fd.empty()) return nullptr;
  const auto places = static_cast<std::size_t>(std::stoul(variable("RUNNER_HEARTBEAT_SLOTS")));
  static const auto page = host::HeartbeatPage::attach(std::stoi(fd), places);
  return &page[static_cast<std::size_t>(std::stoul(variable("RUNNER_HEARTBEAT_SLOT")))];
}

/// What every function below works with.
struct Process {
  const plan::Plan& plan;
  const config::Experiment& experiment;
  std::vector<at::Device> devices;
  Group group;
  const std::atomic<int>& signal;
  host::Clock& clock;
  host::Seconds start;
  host::Heartbeat* heartbeat;

  [[nodiscard]] at::Device root() const { return devices.front(); }
  void enter(host::Phase phase) const {
    if (heartbeat != nullptr) heartbeat->phase.store(phase, std::memory_order_relaxed);
  }
};

void set_globals(const plan::Plan& plan, const config::Experiment& experiment) {
  std::int64_t threads = experiment.trainer.threads.value_or(at::get_num_threads());
  // Replicas and stages on the CPU work at the same time, so they share the process's threads.
  if (plan.devices.type == "cpu")
    threads = std::max<std::int64_t>(1, threads / plan.devices_per_process);
  at::set_num_threads(static_cast<int>(threads));
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

/// Where a network is made. The parts of backend balanced go from the main memory to their devices,
/// since the whole may fit on none.
at::Device home_of(const plan::Plan& plan, const at::Device& root) {
  return plan.backend == "balanced" ? at::Device(at::kCPU) : root;
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

/// Of `samples`, those that this rank works on when all batches are full ones.
std::int64_t samples_of(std::int64_t samples, const Process& p) {
  return share_of(samples, p.group.rank(), p.group.size()).count;
}

/// manifest.json of a run folder: what was run, on what, and how it ended.
class RunManifest {
 public:
  RunManifest(const Process& process, const Json& ranks)
      : path_(fs::path(process.plan.run_folder) / "manifest.json"),
        device_(process.root()),
        clock_(process.clock) {
    const plan::Plan& plan = process.plan;
    json_["status"] = "running";
    json_["name"] = plan.name;
    json_["version"] = plan.version;
    json_["git_commit"] = plan.git_commit;
    json_["command_line"] = plan.command_line;
    json_["libtorch"] = TORCH_VERSION;
    json_["host"] = host::host_name();
    json_["device"] = device_text(device_);
    json_["backend"] = plan.backend;
    json_["precision"] = plan.precision;
    json_["threads"] = at::get_num_threads();
    json_["seed"] = process.experiment.general.seed;
    json_["parameters"] = plan.parameters;
    if (plan.resume_from) json_["resumed_from"] = *plan.resume_from;
    json_["ranks"] = ranks;
    json_["started"] = utc_now(clock_);
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
    if (!outcome.strategy.empty()) json_["strategy"] = outcome.strategy;
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
  const std::string rank = variable("RANK");
  const bool leads = rank.empty() || rank == "0";
  report::log::Options options;
  options.level =
      report::log::parse_level(experiment.logger.level).value_or(report::log::Level::info);
  options.file = fs::path(plan.run_folder) / (leads ? "runner.log" : "rank-" + rank + ".log");
  if (leads) options.console = report::fd_writer(STDERR_FILENO);
  report::log::init(std::move(options));
}

void log_start(const Process& p, std::int64_t first_step) {
  const plan::Plan& plan = p.plan;
  std::string text = "'" + plan.name + "' starts on " + device_text(p.root()) + ", precision " +
                     plan.precision + ", from step " + std::to_string(first_step);
  if (p.group.size() > 1) {
    text += ", as rank " + std::to_string(p.group.rank()) + " of " + std::to_string(p.group.size());
  }
  if (plan.max_epochs) text += ", at most " + report::format_count(*plan.max_epochs, "epoch");
  if (plan.max_steps) text += ", at most " + report::format_count(*plan.max_steps, "step");
  report::log::info(text + ", " + report::format_count(plan.steps_per_epoch, "step") + " an epoch");
  report::log::flush();
  report::log::debug("version " + plan.version + ", LibTorch " TORCH_VERSION ", " +
                     report::format_count(plan.parameters, "parameter") +
                     ", command line: " + plan.command_line);
}

report::Progress make_progress(const Process& p) {
  return {report::progress_options(STDOUT_FILENO, p.plan.quiet || !p.group.leads(),
                                   host::system_environment()),
          report::fd_writer(STDOUT_FILENO), p.clock};
}

/// Makes the weights of all ranks rank 0's, after a look at whether they can be.
void share_weights(const Group& group, const Network& network) {
  if (group.size() == 1) return;
  std::string outline;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : network.state()) {
    outline += name + " " + graph::to_text(tensor.sizes().vec()) + "\n";
    tensors.push_back(tensor);
  }
  const std::vector<std::string> all = group.gather(outline);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    throw diag::Error(diag::Exit::incompatible,
                      "the model of rank " + std::to_string(rank) + " is not that of rank 0",
                      "start all ranks with the same experiment file, data and version of runner");
  }
  group.broadcast(tensors);
}

/// The newest checkpoint as rank 0 reads it, so that no rank goes on from another one.
std::optional<Snapshot> read_shared(const Process& p) {
  std::optional<Snapshot> snapshot;
  if (p.group.leads() && p.plan.resume_from) snapshot = read_checkpoint(*p.plan.resume_from);
  return broadcast(p.group, snapshot);
}

/// What each rank does, for the run's manifest. Collective.
Json describe_ranks(const Process& p) {
  const auto share = [&p](std::int64_t samples) {
    if (p.experiment.data.sampler == "replicated") return samples;
    return samples_of(samples, p);
  };
  const Json mine = {{"rank", p.group.rank()},
                     {"host", host::host_name()},
                     {"device", device_text(p.root())},
                     {"train_samples", share(p.plan.train_samples)},
                     {"validation_samples", samples_of(p.plan.validation_samples, p)}};
  Json ranks = Json::array();
  for (const std::string& text : p.group.gather(mine.dump())) ranks.push_back(Json::parse(text));
  return ranks;
}

int train(const Process& p) {
  const plan::Plan& plan = p.plan;
  const config::Experiment& experiment = p.experiment;
  const Parts parts(plan, experiment);
  auto train_part = parts.load(datasets::Part::train);
  const bool overfits = experiment.trainer.overfit_batches > 0;
  const bool validates = plan.validation_batches > 0;
  std::future<std::unique_ptr<datasets::Samples>> validation_part;
  if (validates && !overfits) validation_part = parts.load(datasets::Part::validation);

  const datasets::Spec spec = parts.spec();
  const at::ScalarType dtype = make_precision(plan.precision, p.root())->dtype();
  Network network = make_network(experiment, spec, dtype, home_of(plan, p.root()));
  share_weights(p.group, network);
  std::optional<RunManifest> manifest;
  const Json ranks = describe_ranks(p);
  if (p.group.leads()) manifest.emplace(p, ranks);

  const std::optional<Snapshot> resume = read_shared(p);
  if (p.group.leads()) {
    for (const std::string& name :
         store::CheckpointFolder(checkpoints_in(plan.run_folder)).clean_leftovers()) {
      report::log::info("removed '" + name + "', left by a run that was killed");
    }
  }

  const auto samples = train_part.get();
  const auto validation = validation_part.valid() ? validation_part.get() : nullptr;
  report::Progress progress = make_progress(p);
  const Training training{.plan = plan,
                          .experiment = experiment,
                          .spec = spec,
                          .train = *samples,
                          .validation = overfits && validates ? samples.get() : validation.get(),
                          .network = network,
                          .devices = p.devices,
                          .group = p.group,
                          .progress = progress,
                          .clock = p.clock,
                          .signal = p.signal,
                          .heartbeat = p.heartbeat,
                          .attempt = std::atoll(variable("RUNNER_ATTEMPT").c_str())};
  log_start(p, resume ? resume->state.step : 0);
  Outcome outcome;
  try {
    outcome = fit(training, resume);
  } catch (...) {
    if (manifest) manifest->fail();
    throw;
  }

  const std::string monitor = experiment.checkpoint.monitor.value_or(plan.monitor.value_or(""));
  if (manifest) manifest->finish(outcome, network, monitor, p.start);
  report::log::info("ended at step " + std::to_string(outcome.state.step) + " after " +
                    report::format_duration(host::Seconds(outcome.state.elapsed_seconds)) + ": " +
                    outcome.stopped);
  if (p.group.leads()) print_summary(plan, outcome, monitor);
  return outcome.signal == 0 ? 0 : 128 + outcome.signal;
}

int test(const Process& p) {
  const plan::Plan& plan = p.plan;
  const config::Experiment& experiment = p.experiment;
  if (!plan.resume_from) {
    throw diag::Error(diag::Exit::invalid, "a test needs a checkpoint");
  }
  const Parts parts(plan, experiment);
  const datasets::Spec spec = parts.spec();
  const auto part = spec.test_size > 0 ? datasets::Part::test : datasets::Part::validation;
  const auto samples = parts.load(part).get();
  const auto precision = make_precision(plan.precision, p.root());
  Network network = make_network(experiment, spec, precision->dtype(), home_of(plan, p.root()));
  if (p.group.leads()) network.load_state(read_weights(*plan.resume_from));
  share_weights(p.group, network);

  const Loss loss = make_loss(experiment.loss.name, experiment.loss.options);
  const auto strategy = make_strategy({plan, experiment, loss, *precision, p.group, p.devices});
  strategy->setup(network, {});
  const std::int64_t batch = experiment.data.eval_batch_size.value_or(experiment.data.batch_size) *
                             replicas_of(plan) * p.group.size();
  Evaluator evaluator(*samples, spec,
                      {.batch_size = batch,
                       .batches = (samples->size() + batch - 1) / batch,
                       .threads = static_cast<int>(experiment.data.num_threads),
                       .part = p.group.rank(),
                       .parts = p.group.size(),
                       .pinned = p.root().is_cuda()},
                      loss,
                      {.prefix = "test_",
                       .metrics = plan.metrics,
                       .binary = spec.binary,
                       .device = p.root(),
                       .dtype = precision->dtype()});
  report::Progress progress = make_progress(p);
  Agreement agreement(p.group, p.signal, p.clock, [] { return false; });
  p.enter(host::Phase::validating);
  const auto figures = evaluator.run(*strategy, progress, p.group, [&] {
    if (p.heartbeat != nullptr) p.heartbeat->beats.fetch_add(1, std::memory_order_relaxed);
    agreement.tick();
    return agreement.signal() != 0;
  });
  progress.finish();
  if (!figures) return 128 + agreement.signal();
  if (!p.group.leads()) return 0;

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
  std::vector<at::Device> devices = prepare_devices(plan);
  set_globals(plan, experiment);
  host::Heartbeat* const heartbeat = find_heartbeat();
  if (heartbeat != nullptr) heartbeat->phase.store(host::Phase::meeting);
  Group group = connect(plan, experiment.trainer.communication, devices.front());
  const Process process{plan,  experiment, std::move(devices), std::move(group), signal,
                        clock, start,      heartbeat};
  const int status = plan.mode == plan::Mode::test ? test(process) : train(process);
  process.group.leave();
  process.enter(host::Phase::done);
  return status;
}

namespace {

FailureRecord of_exchange(const std::string& what) {
  return {.message = "an exchange with the other ranks failed: " + what,
          .help = "",
          .exit = static_cast<int>(diag::Exit::failed),
          .of_exchange = true};
}

}  // namespace

FailureRecord describe_failure() {
  const std::string less_memory =
      "lower dataset.batch_size (trainer.accumulate keeps the effective batch), or take a smaller "
      "model";
  try {
    throw;
  } catch (const diag::Error& error) {
    return {error.what(), error.help(), static_cast<int>(error.exit())};
  } catch (const ExchangeError& error) {
    return of_exchange(error.what());
  } catch (const c10::OutOfMemoryError& error) {
    return {std::string("the GPU's memory is full: ") + error.what_without_backtrace(),
            less_memory};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (is_exchange_failure(text)) return of_exchange(text);
    const bool memory = text.find("DefaultCPUAllocator") != std::string::npos;
    return {memory ? "memory is full: " + text : text, memory ? less_memory : ""};
  } catch (const std::bad_alloc&) {
    return {"memory is full", less_memory};
  } catch (const std::exception& error) {
    if (is_exchange_failure(error.what())) return of_exchange(error.what());
    return {error.what(), ""};
  } catch (...) {
    return {"an exception of unknown type", ""};
  }
}

}  // namespace runner::engine
