#include "runner/store/process_id.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runner/host/process.h"

namespace runner::store {

namespace {

struct ProcStat {
  char state = '?';
  std::int64_t start_ticks = 0;
};

std::optional<ProcStat> read_stat(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name in parentheses and may hold anything, spaces and
  // parentheses included, so the fields are counted from the last ')'.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

/// Takes the decimal number before the first '-' off the front of `text`.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || value < 0 || rest == end || *rest != '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()) + 1);
  return value;
}

bool is_boot_id_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-';
}

}  // namespace

ProcessId ProcessId::self() {
  const std::int64_t pid = ::getpid();
  const std::optional<ProcStat> stat = read_stat(pid);
  return {.pid = pid, .start_ticks = stat ? stat->start_ticks : 0, .boot_id = host::boot_id()};
}

std::string ProcessId::str() const {
  return std::to_string(pid) + "-" + std::to_string(start_ticks) + "-" + boot_id;
}

std::optional<ProcessId> ProcessId::parse(std::string_view text) {
  const std::optional<std::int64_t> pid = take_number(text);
  if (!pid || *pid == 0) return std::nullopt;
  const std::optional<std::int64_t> start_ticks = take_number(text);
  if (!start_ticks || !std::ranges::all_of(text, is_boot_id_character)) return std::nullopt;
  return ProcessId{.pid = *pid, .start_ticks = *start_ticks, .boot_id = std::string(text)};
}

bool ProcessId::alive() const {
  if (boot_id != host::boot_id()) return false;
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return false;
  const std::optional<ProcStat> stat = read_stat(pid);
  if (!stat) return true;  // no /proc to tell a zombie or a later process by: it exists
  if (stat->state == 'Z' || stat->state == 'X') return false;
  return start_ticks == 0 || stat->start_ticks == start_ticks;
}

}  // namespace runner::store
