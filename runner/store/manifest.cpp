#include "runner/store/manifest.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "runner/host/text.h"

namespace runner::store {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOwnHashKey = "xxh3_128";
constexpr std::string_view kZeroHash = "00000000000000000000000000000000";
constexpr std::string_view kTail = "\"\n}\n";  // what follows the hash in the text

/// JSON has no infinities and no NaN; they are strings.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const std::string& text = json.get_ref<const std::string&>();
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  throw std::invalid_argument("the metric " + host::quote(text) + " is not a number");
}

Json files_json(const std::map<std::string, Digest>& files) {
  Json out = Json::object();
  for (const auto& [name, digest] : files) {
    out[name] = {{"size", digest.size}, {"xxh3_128", digest.xxh3_128}};
  }
  return out;
}

/// The place of the manifest's own hash in `text`; nullopt if the text doesn't end as ours do.
std::optional<std::size_t> own_hash_position(std::string_view text) {
  const std::string before = "\"" + std::string(kOwnHashKey) + "\": \"";
  const std::size_t tail = kZeroHash.size() + kTail.size();
  if (text.size() < before.size() + tail || !text.ends_with(kTail)) return std::nullopt;
  const std::size_t position = text.size() - tail;
  if (!text.substr(0, position).ends_with(before)) return std::nullopt;
  return position;
}

/// The hash that belongs into `text` at `position`.
std::string own_hash(std::string text, std::size_t position) {
  text.replace(position, kZeroHash.size(), kZeroHash);
  return digest_of(text).xxh3_128;
}

void check_own_hash(std::string_view text, const std::string& quoted_path) {
  const std::optional<std::size_t> position = own_hash_position(text);
  if (!position) {
    throw diag::Error(diag::Exit::failed,
                      quoted_path + " is damaged: it doesn't end in its own hash");
  }
  const std::string expected(text.substr(*position, kZeroHash.size()));
  const std::string actual = own_hash(std::string(text), *position);
  if (actual == expected) return;
  throw diag::Error(diag::Exit::failed, quoted_path + " is damaged: it has XXH3-128 " + actual +
                                            ", expected " + expected);
}

void check_version(int version, const std::string& quoted_path) {
  if (version == kFormatVersion) return;
  const std::string found = quoted_path + " has format version " + std::to_string(version);
  if (version > kFormatVersion) {
    throw UnknownFormat(diag::Exit::failed,
                        found + ", written by a newer runner; this one reads version " +
                            std::to_string(kFormatVersion),
                        "use the runner that wrote it, or a later one");
  }
  throw UnknownFormat(diag::Exit::failed, found + ", which no runner wrote");
}

Manifest decode(const Json& json) {
  Manifest manifest;
  json.at("step").get_to(manifest.step);
  json.at("epoch").get_to(manifest.epoch);
  json.at("batch_in_epoch").get_to(manifest.batch_in_epoch);
  json.at("epoch_complete").get_to(manifest.epoch_complete);
  json.at("world_size").get_to(manifest.world_size);
  json.at("config_digest").get_to(manifest.config_digest);
  for (const auto& [name, value] : json.at("metrics").items()) {
    manifest.metrics[name] = number(value);
  }
  for (const auto& [name, value] : json.at("extra").items()) {
    manifest.extra[name] = value.get<std::string>();
  }
  for (const auto& [name, file] : json.at("files").items()) {
    if (!is_plain_name(name)) {
      throw std::invalid_argument("the file name " + host::quote(name) + " leads elsewhere");
    }
    manifest.files[name] = {.size = file.at("size").get<std::uint64_t>(),
                            .xxh3_128 = file.at("xxh3_128").get<std::string>()};
  }
  return manifest;
}

}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

std::string manifest_text(const Manifest& manifest) {
  Json metrics = Json::object();
  for (const auto& [name, value] : manifest.metrics) metrics[name] = number(value);
  Json json = {
      {"format_version", manifest.format_version},
      {"step", manifest.step},
      {"epoch", manifest.epoch},
      {"batch_in_epoch", manifest.batch_in_epoch},
      {"epoch_complete", manifest.epoch_complete},
      {"world_size", manifest.world_size},
      {"config_digest", manifest.config_digest},
      {"metrics", std::move(metrics)},
      {"extra", Json(Json::object())},
      {"files", files_json(manifest.files)},
      {kOwnHashKey, kZeroHash},
  };
  for (const auto& [name, value] : manifest.extra) json["extra"][name] = value;
  std::string text;
  try {
    text = json.dump(2) + "\n";
  } catch (const nlohmann::json::exception& error) {
    throw diag::Error(
        diag::Exit::failed,
        std::string("cannot write a manifest with text that is not UTF-8: ") + error.what());
  }
  const std::size_t position = text.size() - kTail.size() - kZeroHash.size();
  return text.replace(position, kZeroHash.size(), own_hash(text, position));
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  const std::string quoted_path = host::quote(path.native());
  check_own_hash(text, quoted_path);
  try {
    const Json json = Json::parse(text);
    check_version(json.at("format_version").get<int>(), quoted_path);
    return decode(json);
  } catch (const nlohmann::json::exception& error) {
    throw diag::Error(diag::Exit::failed, quoted_path + " is not a manifest: " + error.what());
  } catch (const std::invalid_argument& error) {
    throw diag::Error(diag::Exit::failed, quoted_path + " is not a manifest: " + error.what());
  }
}

}  // namespace runner::store
