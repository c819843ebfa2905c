#include "runner/engine/checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runner/diag/error.h"
#include "runner/host/unique_fd.h"
#include "runner/report/log.h"

namespace runner::engine {

namespace {

using Json = nlohmann::json;

constexpr char kWeights[] = "model.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kGenerators[] = "rng.safetensors";
constexpr char kState[] = "state.json";
constexpr char kPlan[] = "plan.json";
constexpr std::size_t kMostWaiting = 2;

struct DTypePair {
  at::ScalarType torch;
  store::DType file;
};
constexpr DTypePair kDTypes[] = {
    {at::kFloat, store::DType::f32}, {at::kDouble, store::DType::f64},
    {at::kHalf, store::DType::f16},  {at::kBFloat16, store::DType::bf16},
    {at::kLong, store::DType::i64},  {at::kInt, store::DType::i32},
    {at::kByte, store::DType::u8},   {at::kBool, store::DType::boolean},
};

store::DType to_file(at::ScalarType dtype) {
  for (const auto& pair : kDTypes) {
    if (pair.torch == dtype) return pair.file;
  }
  throw std::logic_error(std::string("no safetensors type for ") + c10::toString(dtype));
}

at::ScalarType to_torch(store::DType dtype, const std::string& tensor) {
  for (const auto& pair : kDTypes) {
    if (pair.file == dtype) return pair.torch;
  }
  throw diag::Error(diag::Exit::failed, "tensor '" + tensor + "' of the checkpoint has type " +
                                            std::string(store::dtype_name(dtype)) +
                                            ", which no model uses");
}

store::SafetensorsContent content_of(const std::vector<NamedTensor>& tensors,
                                     store::Metadata metadata) {
  store::SafetensorsContent content{{}, std::move(metadata)};
  for (const auto& [name, tensor] : tensors) {
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    content.tensors.push_back(
        {name, to_file(tensor.scalar_type()), tensor.sizes().vec(), {data, tensor.nbytes()}});
  }
  return content;
}

std::vector<NamedTensor> read_tensors(const std::filesystem::path& path) {
  const store::SafetensorsFile file(path);
  std::vector<NamedTensor> result;
  for (const store::TensorView& view : file.tensors()) {
    at::Tensor tensor = at::empty(view.shape, to_torch(view.dtype, view.name));
    if (!view.data.empty())
      std::memcpy(tensor.mutable_data_ptr(), view.data.data(), view.data.size());
    result.push_back({view.name, std::move(tensor)});
  }
  return result;
}

/// Exact, infinities and NaN included, which JSON's numbers don't have.
std::string hex(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}
double unhex(const Json& json) {
  return std::strtod(json.get_ref<const std::string&>().c_str(), nullptr);
}

Json to_json(const Ranked& r) {
  return {{"value", hex(r.value)}, {"step", r.step}, {"epoch", r.epoch}};
}
Ranked ranked_from(const Json& json) {
  return {unhex(json.at("value")), json.at("step"), json.at("epoch")};
}

Json to_json(const TrainingState& p) {
  Json json = {
      {"step", p.step},
      {"skipped_steps", p.skipped_steps},
      {"epoch", p.epoch},
      {"batch", p.batch},
      {"validation_due", p.validation_due},
      {"samples", p.samples},
      {"lr", hex(p.lr)},
      {"losses", Json::array()},
      {"batch_size", p.batch_size},
      {"buckets", p.buckets},
      {"elapsed_seconds", hex(p.elapsed_seconds)},
      {"csv_bytes", p.csv_bytes},
      {"csv_row", p.csv_row},
      {"threads", p.threads},
      {"optimizer_steps", p.optimizer_steps},
      {"scale", hex(p.precision.scale)},
      {"scale_good_steps", p.precision.good_steps},
      {"ranking", Json::array()},
  };
  for (const TrainingState::Losses& losses : p.losses) {
    json["losses"].push_back({{"sum", hex(losses.sum)}, {"weight", losses.weight}});
  }
  if (p.best) json["best"] = to_json(*p.best);
  for (const Ranked& r : p.ranking) json["ranking"].push_back(to_json(r));
  if (p.plateau) {
    json["plateau"] = {{"lr", hex(p.plateau->lr)},
                       {"best", hex(p.plateau->best)},
                       {"bad_checks", p.plateau->bad_checks},
                       {"cooldown_left", p.plateau->cooldown_left},
                       {"started", p.plateau->started}};
  }
  if (p.early_stopper) {
    json["early_stopper"] = {{"best", hex(p.early_stopper->best)},
                             {"bad_checks", p.early_stopper->bad_checks},
                             {"started", p.early_stopper->started}};
  }
  if (p.finished) json["finished"] = *p.finished;
  return json;
}

TrainingState state_from(const Json& json) {
  TrainingState p;
  json.at("step").get_to(p.step);
  json.at("skipped_steps").get_to(p.skipped_steps);
  json.at("epoch").get_to(p.epoch);
  json.at("batch").get_to(p.batch);
  json.at("validation_due").get_to(p.validation_due);
  json.at("samples").get_to(p.samples);
  p.lr = unhex(json.at("lr"));
  for (const Json& losses : json.at("losses")) {
    p.losses.push_back({unhex(losses.at("sum")), losses.at("weight")});
  }
  json.at("batch_size").get_to(p.batch_size);
  json.at("buckets").get_to(p.buckets);
  p.elapsed_seconds = unhex(json.at("elapsed_seconds"));
  json.at("csv_bytes").get_to(p.csv_bytes);
  json.at("csv_row").get_to(p.csv_row);
  json.at("threads").get_to(p.threads);
  json.at("optimizer_steps").get_to(p.optimizer_steps);
  p.precision.scale = unhex(json.at("scale"));
  json.at("scale_good_steps").get_to(p.precision.good_steps);
  for (const Json& r : json.at("ranking")) {
    p.ranking.push_back(ranked_from(r));
  }
  if (const auto it = json.find("best"); it != json.end()) p.best = ranked_from(*it);
  if (const auto it = json.find("plateau"); it != json.end()) {
    p.plateau =
        components::Plateau::State{unhex(it->at("lr")), unhex(it->at("best")), it->at("bad_checks"),
                                   it->at("cooldown_left"), it->at("started")};
  }
  if (const auto it = json.find("early_stopper"); it != json.end()) {
    p.early_stopper = components::EarlyStopper::State{unhex(it->at("best")), it->at("bad_checks"),
                                                      it->at("started")};
  }
  if (const auto it = json.find("finished"); it != json.end()) p.finished = it->get<std::string>();
  return p;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!(text << in.rdbuf())) {
    throw diag::Error(diag::Exit::failed, "cannot read '" + path.string() + "'");
  }
  return text.str();
}

/// Best effort: a file system that can't sync it will say so for the checkpoint's own files.
void sync_file(const std::filesystem::path& path) {
  const host::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace

std::vector<NamedTensor> copy_to_cpu(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> copies;
  copies.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor detached = tensor.detach();
    at::Tensor copy = at::empty(detached.sizes(), detached.options().device(at::kCPU));
    copy.copy_(detached);
    copies.push_back({name, std::move(copy)});
  }
  return copies;
}

Snapshot read_checkpoint(const std::filesystem::path& folder) {
  const std::filesystem::path state = folder / kState;
  Snapshot snapshot;
  try {
    snapshot.state = state_from(Json::parse(read_text(state)));
  } catch (const Json::exception& error) {
    throw diag::Error(
        diag::Exit::failed,
        "'" + state.string() + "' is not the state of a training run: " + error.what());
  }
  snapshot.weights = read_tensors(folder / kWeights);
  snapshot.optimizer = read_tensors(folder / kOptimizer);
  snapshot.generators = read_tensors(folder / kGenerators);
  return snapshot;
}

std::vector<NamedTensor> read_weights(const std::filesystem::path& folder) {
  return read_tensors(folder / kWeights);
}

std::optional<Snapshot> broadcast(const Group& group, const std::optional<Snapshot>& snapshot) {
  if (group.size() == 1) return snapshot;
  Snapshot shared;
  if (snapshot) shared = *snapshot;
  const auto lists = {&shared.weights, &shared.optimizer, &shared.generators};

  Json outline;
  if (group.leads() && snapshot) {
    outline["state"] = to_json(snapshot->state);
    for (const auto* list : lists) {
      Json shapes = Json::array();
      for (const auto& [name, tensor] : *list) {
        shapes.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
      }
      outline["lists"].push_back(std::move(shapes));
    }
  }
  outline = Json::parse(group.broadcast(outline.dump()));
  if (outline.is_null()) return {};
  if (!group.leads()) {
    shared.state = state_from(outline.at("state"));
    auto shapes = outline.at("lists").begin();
    for (auto* list : lists) {
      for (const Json& entry : *shapes++) {
        list->push_back(
            {entry.at(0), at::empty(entry.at(2).get<std::vector<std::int64_t>>(),
                                    static_cast<at::ScalarType>(entry.at(1).get<int>()))});
      }
    }
  }
  for (const auto* list : lists) {
    for (const auto& [name, tensor] : *list) group.broadcast({tensor});
  }
  return shared;
}

CheckpointWriter::CheckpointWriter(WriterOptions options, store::FileOps& ops)
    : options_(std::move(options)),
      folder_(options_.folder, ops),
      thread_([this] { write_until_stopped(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

bool CheckpointWriter::drop_unwanted() {
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    if (wanted_.contains(job->snapshot.state.step)) continue;
    jobs_.erase(job);
    return true;
  }
  return false;
}

void CheckpointWriter::submit(Snapshot snapshot, std::set<std::int64_t> wanted,
                              std::optional<std::int64_t> best) {
  std::unique_lock lock(mutex_);
  wanted_ = std::move(wanted);
  // Whatever waits is older than this one, so only the best among them are still of use.
  while (drop_unwanted()) {
  }
  changed_.wait(lock, [&] { return jobs_.size() < kMostWaiting; });
  jobs_.push_back({std::move(snapshot), best});
  lock.unlock();
  changed_.notify_all();
}

void CheckpointWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && !writing_; });
}

std::exception_ptr CheckpointWriter::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, nullptr);
}

void CheckpointWriter::write_until_stopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopped_ || !jobs_.empty(); });
    if (stopped_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    writing_ = true;
    lock.unlock();
    changed_.notify_all();
    std::exception_ptr error;
    try {
      write(job);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    writing_ = false;
    if (error && !error_) error_ = error;
    changed_.notify_all();
  }
}

void CheckpointWriter::write(const Job& job) {
  const TrainingState& state = job.snapshot.state;
  store::Manifest manifest;
  manifest.step = state.step;
  // The state names the next batch, the manifest the last one.
  const bool between_epochs = state.batch == 0 && state.epoch > 0;
  manifest.epoch = between_epochs ? state.epoch - 1 : state.epoch;
  manifest.batch_in_epoch = between_epochs ? options_.batches_per_epoch : state.batch;
  manifest.epoch_complete = between_epochs;
  manifest.config_digest = options_.config_digest;
  manifest.metrics = job.snapshot.metrics;
  manifest.extra = options_.extra;
  manifest.extra["csv_bytes"] = std::to_string(state.csv_bytes);
  if (state.finished) manifest.extra["finished"] = *state.finished;

  const std::vector<store::Blob> blobs = {
      {kWeights, content_of(job.snapshot.weights, {{"format", "pt"}})},
      {kOptimizer, content_of(job.snapshot.optimizer, {})},
      {kGenerators, content_of(job.snapshot.generators, {})},
      {kState, to_json(state).dump(1) + "\n"},
      {kPlan, options_.plan_json},
  };
  sync_file(options_.csv);
  folder_.save(manifest, blobs);
  folder_.link(store::Link::last, state.step);
  if (job.best == state.step) folder_.link(store::Link::best, state.step);
  folder_.retain(options_.retention);
  report::log::info("wrote checkpoint '" + folder_.path(state.step).string() + "'" +
                    (job.best == state.step ? ", the best so far" : ""));
  report::log::flush();
}

}  // namespace runner::engine
