// What the tests of datasets share: temporary folders, files, options by name, and errors as text.
#pragma once

#include <stdlib.h>
#include <zlib.h>

#include <any>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/dataset.h"

namespace runner::datasets::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "datasets-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] Context context() const {
    return {.base = path_, .shared = fs::path(RUNNER_SOURCE_DIR) / "datasets/data"};
  }
  fs::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return path_ / name;
  }
  fs::path write_gzipped(const std::string& name, std::string_view bytes) const {
    const gzFile file = gzopen((path_ / name).c_str(), "wb1");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path_ / name;
  }

 private:
  fs::path path_;
};

struct Setting {
  std::string_view name;
  registry::Value value;
};

/// A dataset with options set as the config layer sets them.
class Chosen {
 public:
  Chosen(std::string_view name, const std::vector<Setting>& settings)
      : dataset_(*all().find(name)), options_(dataset_.defaults) {
    const registry::OptionTable& table = *dataset_.options;
    for (const Setting& setting : settings) {
      const auto misfit =
          table.set(table.object(options_), table.index(setting.name), setting.value);
      if (misfit) throw std::logic_error(misfit->message);
    }
  }
  [[nodiscard]] Spec describe(const Context& context) const {
    return dataset_.describe(options_, context);
  }
  [[nodiscard]] std::unique_ptr<Samples> load(const Context& context, Part part) const {
    return dataset_.load(options_, context, part);
  }
  [[nodiscard]] std::vector<fs::path> files(const Context& context) const {
    return dataset_.files(options_, context);
  }

 private:
  const Dataset& dataset_;
  std::any options_;
};

inline std::vector<std::int64_t> all_rows(const Samples& samples) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(samples.size()));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}
inline std::vector<std::int64_t> classes(const Samples& samples) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(samples.size()));
  samples.gather_classes(all_rows(samples), out.data());
  return out;
}
inline std::vector<float> values(const Samples& samples, std::size_t width = 1) {
  std::vector<float> out(static_cast<std::size_t>(samples.size()) * width);
  samples.gather_values(all_rows(samples), out.data());
  return out;
}
inline std::vector<float> inputs(const Samples& samples, std::size_t width) {
  std::vector<float> out(static_cast<std::size_t>(samples.size()) * width);
  samples.gather_inputs(all_rows(samples), out.data());
  return out;
}
inline std::vector<float> input(const Samples& samples, std::int64_t row, std::size_t width) {
  std::vector<float> out(width);
  samples.gather_inputs(std::span(&row, 1), out.data());
  return out;
}

/// "EXIT: message" with the folder cut out of it, or "no error".
template <class F>
std::string error_of(const TempFolder& folder, F&& act) {
  try {
    act();
  } catch (const diag::Error& error) {
    std::string text = std::to_string(static_cast<int>(error.exit())) + ": " + error.what();
    const std::string prefix = folder.path().string() + "/";
    for (std::size_t at = 0; (at = text.find(prefix)) != std::string::npos;) {
      text.erase(at, prefix.size());
    }
    return text;
  }
  return "no error";
}
template <class F>
std::string help_of(F&& act) {
  try {
    act();
  } catch (const diag::Error& error) {
    return error.help();
  }
  return "no error";
}

}  // namespace runner::datasets::test
