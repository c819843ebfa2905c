#include "runner/config/fault.h"

#include <array>
#include <charconv>
#include <string>
#include <utility>

namespace runner::config {

namespace {

using How = Fault::How;
constexpr std::array<std::pair<std::string_view, How>, 7> kHow = {{{"throw", How::raise},
                                                                   {"kill", How::kill},
                                                                   {"abort", How::abort},
                                                                   {"exit", How::exit},
                                                                   {"hang", How::hang},
                                                                   {"stop", How::stop},
                                                                   {"memory", How::memory}}};

bool read_number(std::string_view text, std::int64_t least, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= least;
}

bool read_how(std::string_view text, How& how) {
  for (const auto& [name, value] : kHow) {
    if (name != text) continue;
    how = value;
    return true;
  }
  return false;
}

}  // namespace

std::optional<Fault> parse_fault(std::string_view text) {
  Fault fault;
  bool has_step = false;
  std::string seen;
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) return {};
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    const bool known = (key == "rank" && read_number(value, 0, fault.rank)) ||
                       (key == "step" && read_number(value, 1, fault.step)) ||
                       (key == "attempts" && read_number(value, 1, fault.attempts)) ||
                       (key == "how" && read_how(value, fault.how));
    if (!known || seen.find(key) != seen.npos) return {};
    seen += std::string(key) + " ";
    has_step = has_step || key == "step";
    if (item.size() == text.size()) break;
    text.remove_prefix(item.size() + 1);
  }
  if (!has_step) return {};
  return fault;
}

}  // namespace runner::config
