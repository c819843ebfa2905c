#include "runner/launch/hostlist.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "runner/diag/error.h"
#include "runner/host/text.h"

namespace runner::launch {

namespace {

constexpr std::size_t kLongestName = 255;  ///< of a host; DNS allows 253
constexpr std::size_t kLongestShown = 120;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_separator(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\n'; }

/// What host names are made of. The braces of newer SLURM's functions, which only its controller
/// can work out, are not among them.
bool is_name_char(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
         c == '.' || c == ':';
}

std::string shown(std::string_view text) {
  if (text.size() <= kLongestShown) return host::quote(text);
  return host::quote(text.substr(0, kLongestShown)) + "…";
}

/// A text that is read from left to right, and what to say when it can't be.
class Reader {
 public:
  Reader(std::string_view text, std::string_view source, std::string_view help)
      : text_(text), source_(source), help_(help) {}

  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }
  [[nodiscard]] std::string_view since(std::size_t from) const {
    return text_.substr(from, at_ - from);
  }

  bool skip(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  template <class Test>
  std::string_view take_while(Test test) {
    const std::size_t from = at_;
    while (!at_end() && test(text_[at_])) ++at_;
    return since(from);
  }

  /// "SLURM_STEP_NODELIST is 'n[3-1]': '3-1' at character 3 runs backwards".
  [[noreturn]] void fail(std::size_t from, std::string_view piece, const std::string& why) const {
    throw diag::Error(diag::Exit::invalid,
                      std::string(source_) + " is " + shown(text_) + ": " + shown(piece) +
                          " at character " + std::to_string(from + 1) + " " + why,
                      std::string(help_));
  }
  /// As fail, at the character that is next.
  [[noreturn]] void fail_here(const std::string& expected) const {
    if (!at_end()) fail(at_, text_.substr(at_, 1), "is not " + expected);
    throw diag::Error(
        diag::Exit::invalid,
        std::string(source_) + " is " + shown(text_) + ": it ends where " + expected + " belongs",
        std::string(help_));
  }

 private:
  std::string_view text_;
  std::string_view source_;
  std::string_view help_;
  std::size_t at_ = 0;
};

std::optional<std::uint64_t> parse_number(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc{} || end != digits.data() + digits.size()) return {};
  return number;
}

std::string_view read_digits(Reader& reader) {
  const std::string_view digits = reader.take_while(is_digit);
  if (digits.empty()) reader.fail_here("a digit");
  return digits;
}

// ---- hosts -------------------------------------------------------------------------------------

/// 08-11: the numbers 8 to 11, two digits wide at least.
struct Range {
  std::uint64_t first = 0, last = 0;
  std::size_t width = 0;
};

/// A piece of a host's name: a text, or the numbers of a pair of brackets.
struct Chunk {
  std::string_view text;
  std::vector<Range> ranges;  ///< empty for a text
  std::size_t count = 1;      ///< of the texts it stands for

  [[nodiscard]] std::size_t longest() const {
    std::size_t length = text.size();
    for (const Range& range : ranges) {
      length = std::max({length, range.width, std::to_string(range.last).size()});
    }
    return length;
  }
  [[nodiscard]] std::vector<std::string> texts() const {
    if (ranges.empty()) return {std::string(text)};
    std::vector<std::string> result;
    result.reserve(count);
    for (const Range& range : ranges) {
      for (std::uint64_t number = range.first;; ++number) {
        std::string digits = std::to_string(number);
        digits.insert(0, range.width - std::min(range.width, digits.size()), '0');
        result.push_back(std::move(digits));
        if (number == range.last) break;  // the last one may be the largest number there is
      }
    }
    return result;
  }
};

std::string too_many() {
  return "stands for more than " + std::to_string(kMostHosts) + " hosts, the most a list may have";
}

Range read_range(Reader& reader) {
  const std::size_t from = reader.at();
  const std::string_view low = read_digits(reader);
  std::string_view high = low;
  if (reader.skip('-')) high = read_digits(reader);
  const auto first = parse_number(low);
  const auto last = parse_number(high);
  const std::string_view piece = reader.since(from);
  if (!first || !last) reader.fail(from, piece, "has a number too large for a host");
  if (*last < *first) {
    reader.fail(from, piece, "runs backwards, and a range goes from the smaller number up");
  }
  // The difference, which can't overflow as the count can.
  if (*last - *first >= kMostHosts) reader.fail(from, piece, too_many());
  return {.first = *first, .last = *last, .width = low.size()};
}

Chunk read_brackets(Reader& reader) {
  const std::size_t from = reader.at();
  (void)reader.skip('[');
  Chunk chunk{.text = {}, .ranges = {}, .count = 0};
  do {
    const Range range = read_range(reader);
    chunk.count += static_cast<std::size_t>(range.last - range.first) + 1;
    chunk.ranges.push_back(range);
    if (chunk.count > kMostHosts) reader.fail(from, reader.since(from), too_many());
  } while (reader.skip(','));
  if (!reader.skip(']')) reader.fail_here("'-', ',' or ']'");
  return chunk;
}

/// What stands between two separators.
struct Host {
  std::size_t from = 0;  ///< its place in the list
  std::string_view piece;
  std::vector<Chunk> chunks;
  std::size_t count = 1;
};

Host read_host(Reader& reader) {
  Host host{.from = reader.at(), .piece = {}, .chunks = {}, .count = 1};
  std::size_t length = 0;
  while (!reader.at_end() && !is_separator(reader.peek())) {
    if (reader.peek() == '[') {
      host.chunks.push_back(read_brackets(reader));
    } else {
      const std::string_view text = reader.take_while(is_name_char);
      if (text.empty()) reader.fail_here("part of a host's name");
      host.chunks.push_back({.text = text, .ranges = {}, .count = 1});
    }
    host.count *= host.chunks.back().count;
    length += host.chunks.back().longest();
    const std::string_view piece = reader.since(host.from);
    if (host.count > kMostHosts) reader.fail(host.from, piece, too_many());
    if (length > kLongestName) {
      reader.fail(host.from, piece,
                  "makes names of more than " + std::to_string(kLongestName) + " characters");
    }
  }
  host.piece = reader.since(host.from);
  return host;
}

/// The names of a host's piece. Of several brackets SLURM counts the last one fastest, then the
/// first, the second, …: a[1-2]b[3-4]c[5-6] is a1b3c5, a1b3c6, a2b3c5, a2b3c6, a1b4c5, ….
std::vector<std::string> names_of(const Host& host) {
  std::vector<std::vector<std::string>> texts;
  texts.reserve(host.chunks.size());
  for (const Chunk& chunk : host.chunks) texts.push_back(chunk.texts());
  std::vector<std::size_t> order;  // of the chunks with brackets, the fastest first
  for (std::size_t i = 0; i < host.chunks.size(); ++i) {
    if (!host.chunks[i].ranges.empty()) order.push_back(i);
  }
  if (!order.empty()) std::rotate(order.begin(), order.end() - 1, order.end());

  std::vector<std::string> names;
  names.reserve(host.count);
  std::vector<std::size_t> at(host.chunks.size(), 0);
  for (std::size_t n = 0; n < host.count; ++n) {
    std::string name;
    for (std::size_t i = 0; i < texts.size(); ++i) name += texts[i][at[i]];
    names.push_back(std::move(name));
    for (const std::size_t i : order) {
      if (++at[i] < texts[i].size()) break;
      at[i] = 0;
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view text, std::string_view source) {
  Reader reader(text, source, "a list of hosts looks like node1,node2 or node[01-04,07]");
  std::vector<std::string> hosts;
  std::unordered_set<std::string> seen;
  while (true) {
    (void)reader.take_while(is_separator);
    if (reader.at_end()) break;
    const Host host = read_host(reader);
    if (hosts.size() + host.count > kMostHosts) reader.fail(host.from, host.piece, too_many());
    for (std::string& name : names_of(host)) {
      if (!seen.insert(name).second) {
        reader.fail(host.from, host.piece, "names the host " + shown(name) + " a second time");
      }
      hosts.push_back(std::move(name));
    }
  }
  if (hosts.empty()) reader.fail_here("a host's name");
  return hosts;
}

std::vector<std::int64_t> tasks_per_node(std::string_view text, std::string_view source) {
  Reader reader(text, source, "tasks per node look like 4, or 2(x3),1 for three nodes and one");
  const auto read_count = [&reader](std::string_view of) {
    const std::size_t from = reader.at();
    const std::string_view digits = read_digits(reader);
    const auto count = parse_number(digits);
    if (!count || *count < 1 || *count > kMostHosts) {
      reader.fail(from, digits,
                  "is not a number of " + std::string(of) + ", 1 to " + std::to_string(kMostHosts));
    }
    return static_cast<std::size_t>(*count);
  };
  std::vector<std::int64_t> tasks;
  do {
    const std::size_t from = reader.at();
    const std::size_t count = read_count("tasks");
    std::size_t nodes = 1;
    if (reader.skip('(')) {
      if (!reader.skip('x')) reader.fail_here("'x'");
      nodes = read_count("nodes");
      if (!reader.skip(')')) reader.fail_here("')'");
    }
    if (tasks.size() + nodes > kMostHosts) {
      reader.fail(from, reader.since(from),
                  "makes more than " + std::to_string(kMostHosts) + " nodes");
    }
    tasks.insert(tasks.end(), nodes, static_cast<std::int64_t>(count));
  } while (reader.skip(','));
  if (!reader.at_end()) reader.fail_here("',' or '('");
  return tasks;
}

}  // namespace runner::launch
