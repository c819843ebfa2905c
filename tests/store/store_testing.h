#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runner/diag/error.h"
#include "runner/store/checkpoint.h"

namespace runner::store {

/// The error that `work` throws; fails the test by nullopt if it throws none.
template <class Work>
std::optional<diag::Error> error_of(Work&& work) {
  try {
    work();
  } catch (const diag::Error& error) {
    return error;
  }
  return std::nullopt;
}

/// What the error says; "(no error)" if there is none.
template <class Work>
std::string message_of(Work&& work) {
  const std::optional<diag::Error> error = error_of(work);
  return error ? error->what() : "(no error)";
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// `text` with each `from` replaced.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// A small checkpoint whose every byte depends on step and generation.
struct Sample {
  explicit Sample(std::int64_t step, std::string generation = "a", std::size_t floats = 64) {
    manifest.step = step;
    manifest.epoch = step / 10;
    manifest.batch_in_epoch = step % 10;
    manifest.config_digest = "c0ffee";
    manifest.metrics["val_loss"] = 1.0 / static_cast<double>(step + 1);
    manifest.extra["generation"] = generation;
    for (std::size_t i = 0; i < floats; ++i) {
      weights.push_back(static_cast<float>(step) + static_cast<float>(i + generation[0]) / 128.0F);
    }
    TensorView view{.name = "weight",
                    .dtype = DType::f32,
                    .shape = {static_cast<std::int64_t>(floats)},
                    .data = std::as_bytes(std::span(weights))};
    blobs.push_back({.name = "model.safetensors",
                     .content = SafetensorsContent{.tensors = {view}, .metadata = {}}});
    blobs.push_back({.name = "state.json",
                     .content = "{\"step\": " + std::to_string(step) + ", \"generation\": \"" +
                                generation + "\"}\n"});
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  Manifest save_to(CheckpointFolder& folder) const { return folder.save(manifest, blobs); }

  Manifest manifest;
  std::vector<float> weights;
  std::vector<Blob> blobs;
};

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().native());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace runner::store
