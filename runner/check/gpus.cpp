#include "runner/check/gpus.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <string_view>

#include "runner/check/text.h"

namespace runner::check {

namespace {

using registry::Value;

constexpr std::int64_t kMostGpus = 1024;  ///< more than any machine has
constexpr std::string_view kForms =
    "gpus takes a count (2), -1 for all, a list of ids ([0, 2]) or a string of ids (\"0, 2\")";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Decimal digits without sign or leading zeros, small enough for an id.
std::optional<std::int64_t> parse_id(std::string_view text) {
  if (!is_digits(text) || (text.size() > 1 && text.front() == '0')) return {};
  std::int64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc{} || end != text.data() + text.size() || id >= kMostGpus) return {};
  return id;
}

/// "the boolean true", "the string \"0\"", "a table".
std::string shown(const Value& value) {
  const std::string_view type = registry::type_name(value);
  if (value.get_if<Value::Array>() != nullptr || value.get_if<Value::Table>() != nullptr) {
    return std::string(type);
  }
  return "the " + std::string(type.substr(type.find(' ') + 1)) + " " + registry::to_toml(value);
}

GpuProblem too_large(const std::string& number) {
  return {.code = diag::Code::gpus_number,
          .message = number + " is too large for gpus: no machine has GPU " + number,
          .help = "ids are 0 to " + std::to_string(kMostGpus - 1)};
}

// ---- strings ---------------------------------------------------------------------------------

/// "1-3" -> "1, 2, 3"; empty if that isn't a range.
std::string spelled_range(std::string_view piece) {
  const std::size_t dash = piece.find('-');
  if (dash == std::string_view::npos) return {};
  const auto first = parse_id(trimmed(piece.substr(0, dash)));
  const auto last = parse_id(trimmed(piece.substr(dash + 1)));
  if (!first || !last || *last < *first || *last - *first > 16) return {};
  std::vector<std::int64_t> ids(static_cast<std::size_t>(*last - *first + 1));
  std::iota(ids.begin(), ids.end(), *first);
  return joined(ids);
}

/// What to write in the place of a word that people know from elsewhere.
std::string help_for(std::string_view piece) {
  if (piece == "all") return "write gpus = -1 for all GPUs";
  if (piece == "auto") {
    return "write gpus = -1 for all GPUs, or a count with auto_select_gpus = true for free ones";
  }
  if (piece == "none" || piece == "cpu") return "leave gpus out to train on the CPU";
  if (const std::string range = spelled_range(piece); !range.empty()) {
    return "list each id: \"" + range + "\"";
  }
  for (const std::string_view prefix : {"cuda:", "gpu:", "GPU", "+"}) {
    if (!piece.starts_with(prefix)) continue;
    const std::string_view rest = piece.substr(prefix.size());
    if (parse_id(rest)) return "write the id alone: \"" + std::string(rest) + "\"";
  }
  if (piece.starts_with('[')) {
    return "a list is written without quotes: gpus = " + std::string(piece) +
           (piece.ends_with(']') ? "" : " …");
  }
  if (is_digits(piece) && piece.size() > 1 && piece.front() == '0') {
    const std::size_t digit = std::min(piece.find_first_not_of('0'), piece.size() - 1);
    return "write it without leading zeros: \"" + std::string(piece.substr(digit)) + "\"";
  }
  return std::string(kForms);
}

GpuProblem bad_piece(std::string_view piece, std::size_t entry) {
  const std::string where = "entry " + std::to_string(entry) + " of gpus: ";
  if (piece.empty()) {
    return {.code = diag::Code::gpus_text,
            .message = where + "empty, where an id belongs",
            .help = "write each id once, with one comma between two: \"0, 1\""};
  }
  if (piece.size() > 1 && piece.front() == '-' && is_digits(piece.substr(1))) {
    return {.code = diag::Code::gpus_number,
            .message = where + "'" + std::string(piece) + "' is negative, ids are not",
            .help = "-1 stands alone, for all GPUs: gpus = -1"};
  }
  if (is_digits(piece) && piece.front() != '0') return too_large(std::string(piece));
  return {.code = diag::Code::gpus_text,
          .message = where + "'" + std::string(piece) + "' is not an id in decimal digits",
          .help = help_for(piece)};
}

void note_twice(const GpuSpec& spec, std::int64_t id, std::size_t index,
                std::vector<GpuProblem>& problems) {
  const auto first = std::find(spec.ids.begin(), spec.ids.end(), id);
  if (first == spec.ids.end()) return;
  problems.push_back({.code = diag::Code::gpus_twice,
                      .message = "element " + std::to_string(index) + " of gpus: GPU " +
                                 std::to_string(id) + " is named twice",
                      .help = "name each GPU once; two processes on one GPU only slow each other",
                      .index = index});
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (true) {
    const std::size_t comma = text.find(',');
    pieces.push_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return pieces;
    text.remove_prefix(comma + 1);
  }
}

ParsedGpus parse_text(std::string_view written) {
  ParsedGpus result;
  const std::string_view text = trimmed(written);
  if (text == "-1") {
    result.spec = {.kind = GpuSpec::Kind::all, .count = 0, .ids = {}, .is_text = true};
    return result;
  }
  std::vector<std::string_view> pieces = split(text);
  if (pieces.size() > 1 && pieces.back().empty()) pieces.pop_back();  // "0," is a list of one
  if (pieces.size() == 1 && pieces.front().empty()) {
    result.problems.push_back({.code = diag::Code::gpus_text,
                               .message = "gpus names no GPU: the string " +
                                          registry::to_toml(std::string(written)) + " has no id",
                               .help = "leave gpus out (or write 0) for the CPU, write -1 for all "
                                       "GPUs"});
    return result;
  }
  // A list in brackets is one mistake, not one an entry.
  if (text.starts_with('[')) {
    result.problems.push_back(bad_piece(text, 0));
    return result;
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto id = parse_id(pieces[i]);
    if (!id) {
      result.problems.push_back(bad_piece(pieces[i], i));
      continue;
    }
    note_twice(result.spec, *id, i, result.problems);
    result.spec.ids.push_back(*id);
  }
  for (GpuProblem& problem : result.problems) problem.index.reset();
  result.spec.kind = GpuSpec::Kind::ids;
  result.spec.is_text = true;
  return result;
}

// ---- integers and lists ------------------------------------------------------------------------

ParsedGpus parse_count(std::int64_t count) {
  ParsedGpus result;
  if (count == 0) return result;
  if (count == -1) {
    result.spec.kind = GpuSpec::Kind::all;
  } else if (count < 0) {
    result.problems.push_back(
        {.code = diag::Code::gpus_number,
         .message = "gpus = " + std::to_string(count) + " is negative; only -1 is, for all GPUs",
         .help = std::string(kForms)});
  } else if (count > kMostGpus) {
    result.problems.push_back(too_large(std::to_string(count)));
  } else {
    result.spec.kind = GpuSpec::Kind::count;
    result.spec.count = count;
  }
  return result;
}

std::optional<GpuProblem> bad_element(const Value& element, std::size_t index) {
  const std::string where = "element " + std::to_string(index) + " of gpus: ";
  const auto* id = element.get_if<std::int64_t>();
  if (id == nullptr) {
    return GpuProblem{.code = diag::Code::gpus_type,
                      .message = where + "expected an id, an integer, found " + shown(element),
                      .help = "write ids as integers: gpus = [0, 2]",
                      .index = index};
  }
  if (*id < 0) {
    return GpuProblem{.code = diag::Code::gpus_number,
                      .message = where + std::to_string(*id) + " is negative, ids are not",
                      .help = "-1 stands alone, for all GPUs: gpus = -1",
                      .index = index};
  }
  if (*id >= kMostGpus) {
    GpuProblem problem = too_large(std::to_string(*id));
    problem.message = where + problem.message;
    problem.index = index;
    return problem;
  }
  return {};
}

ParsedGpus parse_list(const Value::Array& list) {
  ParsedGpus result;
  if (list.empty()) {
    result.problems.push_back({.code = diag::Code::gpus_number,
                               .message = "gpus names no GPU: the list is empty",
                               .help = "leave gpus out (or write 0) for the CPU, write -1 for all "
                                       "GPUs"});
    return result;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (auto problem = bad_element(list[i], i)) {
      result.problems.push_back(*std::move(problem));
      continue;
    }
    const std::int64_t id = *list[i].get_if<std::int64_t>();
    note_twice(result.spec, id, i, result.problems);
    result.spec.ids.push_back(id);
  }
  result.spec.kind = GpuSpec::Kind::ids;
  return result;
}

ParsedGpus wrong_type(const Value& value) {
  const auto* real = value.get_if<double>();
  const bool whole = real != nullptr && *real >= 0 && *real < kMostGpus &&
                     *real == static_cast<double>(static_cast<std::int64_t>(*real));
  ParsedGpus result;
  result.problems.push_back(
      {.code = diag::Code::gpus_type,
       .message =
           "expected a count, a list of ids or a string of ids for gpus, found " + shown(value),
       .help = whole ? "write gpus = " + std::to_string(static_cast<std::int64_t>(*real))
                     : std::string(kForms)});
  return result;
}

// ---- the machine -------------------------------------------------------------------------------

std::vector<std::string_view> entries_of(const std::optional<std::string>& mask) {
  if (!mask || trimmed(*mask).empty()) return {};
  return split(*mask);
}

std::vector<std::int64_t> first_ids(std::int64_t count) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::string gpus_text(const std::vector<std::int64_t>& ids) {
  return (ids.size() == 1 ? "GPU " : "GPUs ") + joined(ids);
}

/// What a list of visible ids says: "4 are available: 0, 1, 2, 3".
std::string available_text(const VisibleGpus& visible, std::int64_t available) {
  const std::string mask =
      visible.mask ? " through CUDA_VISIBLE_DEVICES=" + *visible.mask : std::string();
  return std::to_string(available) + (available == 1 ? " is" : " are") + " available" + mask +
         ": " + joined(first_ids(available));
}

GpuProblem none_there(const VisibleGpus& visible) {
  return {.code = diag::Code::no_gpu,
          .message = visible.mask ? "gpus asks for GPUs, and CUDA_VISIBLE_DEVICES='" +
                                        *visible.mask + "' shows none"
                                  : "gpus asks for GPUs, and there is none",
          .help =
              "leave gpus out to train on the CPU; nvidia-smi lists the GPUs that the driver "
              "knows"};
}

std::optional<GpuProblem> missing(const GpuSpec& spec, const VisibleGpus& visible,
                                  std::int64_t available) {
  std::string asked;
  if (spec.kind == GpuSpec::Kind::count && spec.count > available) {
    asked = "gpus asks for " + std::to_string(spec.count) + " GPUs";
  }
  std::vector<std::int64_t> absent;
  std::copy_if(spec.ids.begin(), spec.ids.end(), std::back_inserter(absent),
               [available](std::int64_t id) { return id >= available; });
  if (!absent.empty()) asked = "gpus asks for " + gpus_text(absent);
  if (asked.empty()) return {};
  return GpuProblem{
      .code = diag::Code::gpus_unavailable,
      .message = asked + ", " + available_text(visible, available),
      .help = visible.mask ? "ids count within CUDA_VISIBLE_DEVICES; unset it or ask for what it "
                             "shows"
                           : "ask for GPUs that are there, or for -1, all of them"};
}

/// Today's Lightning reads "3" as three GPUs, so a string of one id says what it means here.
std::string text_remark(std::int64_t id) {
  static constexpr std::array<std::string_view, 13> kWords = {
      "",      "",      "two",  "three", "four",   "five",  "six",
      "seven", "eight", "nine", "ten",   "eleven", "twelve"};
  const std::string number = std::to_string(id);
  std::string other = "the first " + number;
  if (id == 0) other = "the CPU";
  if (id == 1) other = "the first one";
  if (id > 1 && id < static_cast<std::int64_t>(kWords.size())) {
    other = "the first " + std::string(kWords[static_cast<std::size_t>(id)]);
  }
  return "GPU " + number + " (a string is a list of ids; write " + number + " for " + other + ")";
}

/// "id 0 of the mask (physical 1)".
std::string mask_remark(const std::vector<std::int64_t>& ids,
                        const std::vector<std::string_view>& entries) {
  std::string physical;
  for (const std::int64_t id : ids) {
    if (static_cast<std::size_t>(id) >= entries.size()) return {};
    physical += (physical.empty() ? "" : ", ") + std::string(entries[static_cast<std::size_t>(id)]);
  }
  return (ids.size() == 1 ? "id " : "ids ") + joined(ids) + " of the mask (physical " + physical +
         ")";
}

}  // namespace

ParsedGpus parse_gpus(const Value& value) {
  if (!value.has_value()) return {};
  ParsedGpus result;
  if (const auto* count = value.get_if<std::int64_t>()) {
    result = parse_count(*count);
  } else if (const auto* text = value.get_if<std::string>()) {
    result = parse_text(*text);
  } else if (const auto* list = value.get_if<Value::Array>()) {
    result = parse_list(*list);
  } else {
    result = wrong_type(value);
  }
  if (!result.problems.empty()) result.spec = {};
  return result;
}

std::int64_t mig_slices(const std::optional<std::string>& mask) {
  const auto entries = entries_of(mask);
  return std::count_if(entries.begin(), entries.end(),
                       [](std::string_view entry) { return entry.starts_with("MIG-"); });
}

ResolvedGpus resolve(const GpuSpec& spec, const VisibleGpus& visible) {
  ResolvedGpus result;
  if (spec.kind == GpuSpec::Kind::cpu) return result;
  // The driver lists whole GPUs only; slices are known by the mask alone.
  const std::int64_t slices = mig_slices(visible.mask);
  const std::optional<std::int64_t> available = slices > 0 ? slices : visible.count;
  if (available == 0) {
    result.problem = none_there(visible);
    return result;
  }
  if (available) {
    result.problem = missing(spec, visible, *available);
    if (result.problem) return result;
  }
  switch (spec.kind) {
    case GpuSpec::Kind::cpu:
      break;
    case GpuSpec::Kind::count:
      result.ids = first_ids(spec.count);
      break;
    case GpuSpec::Kind::ids:
      result.ids = spec.ids;
      break;
    case GpuSpec::Kind::all:
      result.all = !available.has_value();
      if (available) result.ids = first_ids(*available);
      break;
  }
  if (spec.is_text && spec.ids.size() == 1) result.remarks.push_back(text_remark(spec.ids.front()));
  if (const auto entries = entries_of(visible.mask); !entries.empty() && !result.ids.empty()) {
    if (std::string remark = mask_remark(result.ids, entries); !remark.empty()) {
      result.remarks.push_back(std::move(remark));
    }
  }
  return result;
}

}  // namespace runner::check
