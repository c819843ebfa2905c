#include "runner/launch/failure.h"

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace runner::launch {

namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

/// A worker that was dying wrote this: nothing in it is sure to be there.
void take(const Json& json, const char* key, std::string& value) {
  const auto found = json.find(key);
  if (found != json.end() && found->is_string()) value = found->get<std::string>();
}

template <class Integer>
void take(const Json& json, const char* key, Integer& value) {
  const auto found = json.find(key);
  if (found != json.end() && found->is_number_integer()) value = found->get<Integer>();
}

}  // namespace

std::string_view to_text(FailureKind kind) {
  return kind == FailureKind::collective ? "collective" : "own";
}

std::string to_json(const Failure& failure) {
  return dump({{"message", failure.message},
               {"help", failure.help},
               {"exit", failure.exit},
               {"rank", failure.rank},
               {"host", failure.host},
               {"kind", to_text(failure.kind)},
               {"step", failure.step},
               {"attempt", failure.attempt}});
}

std::optional<Failure> failure_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  Failure failure;
  std::string kind;
  take(json, "message", failure.message);
  take(json, "help", failure.help);
  take(json, "exit", failure.exit);
  take(json, "rank", failure.rank);
  take(json, "host", failure.host);
  take(json, "kind", kind);
  take(json, "step", failure.step);
  take(json, "attempt", failure.attempt);
  if (kind == to_text(FailureKind::collective)) failure.kind = FailureKind::collective;
  return failure;
}

std::string ranks_text(std::span<const std::int64_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string seconds_text(std::chrono::milliseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

std::string signal_text(int signal) {
  std::string text = "signal " + std::to_string(signal);
  if (const char* name = sigabbrev_np(signal)) text += " (SIG" + std::string(name) + ")";
  return text;
}

void write_torchelastic_error(const std::filesystem::path& file, const Failure& failure,
                              bool first) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // torchrun takes the earliest for the root cause, and counts in whole seconds.
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(now).count() + (first ? 0 : 1);
  const Json json = {
      {"message",
       {{"message", failure.message},
        {"extraInfo", {{"rank", failure.rank}, {"timestamp", std::to_string(seconds)}}}}}};
  std::ofstream(file, std::ios::binary) << dump(json) << "\n";
}

}  // namespace runner::launch
