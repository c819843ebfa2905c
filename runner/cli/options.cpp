#include "runner/cli/options.h"

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>

#include "registry/suggest.h"
#include "runner/cli/commands.h"
#include "runner/diag/error.h"
#include "runner/diag/render.h"

namespace runner::cli {

namespace {

namespace po = boost::program_options;

po::options_description flags() {
  po::options_description all;
  auto add = all.add_options();
  for (const Command& command : commands()) {
    if (command.flag.empty()) continue;
    if (command.takes_argument) {
      add(command.flag.c_str(), po::value<std::string>(), "");
    } else {
      add(command.flag.c_str(), po::bool_switch(), "");
    }
  }
  add("format", po::value<std::string>(), "");
  add("here", po::bool_switch(), "");
  add("gpus-available", po::value<std::int64_t>(), "");
  add("quiet", po::bool_switch(), "");
  add("node-rank", po::value<std::int64_t>(), "");
  add("master-addr", po::value<std::string>(), "");
  add("master-port", po::value<std::int64_t>(), "");
  return all;
}

[[noreturn]] void unknown_flag(const std::string& flag, const po::options_description& known) {
  std::vector<std::string> names;
  for (const auto& option : known.options()) names.push_back(option->long_name());
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::string bare = flag;
  bare.erase(0, bare.find_first_not_of('-') == std::string::npos ? 0 : bare.find_first_not_of('-'));
  const std::string_view near = registry::nearest(bare, views);
  throw diag::Error(diag::Exit::invalid, "unknown option '" + diag::visible(flag) + "'",
                    near.empty() ? "`runner --help` lists the options"
                                 : "did you mean '--" + std::string(near) + "'?");
}

po::variables_map parse(int argc, const char* const* argv, const po::options_description& known) {
  po::options_description all;
  all.add(known);
  all.add_options()("positional", po::value<std::vector<std::string>>(), "");
  po::positional_options_description positional;
  positional.add("positional", -1);
  // Without prefix matching (`--che`) and without short options (`-optimizer.lr` drops a key).
  const int style = po::command_line_style::allow_long |
                    po::command_line_style::long_allow_adjacent |
                    po::command_line_style::long_allow_next;
  po::variables_map values;
  try {
    po::store(
        po::command_line_parser(argc, argv).options(all).positional(positional).style(style).run(),
        values);
  } catch (const po::unknown_option& error) {
    unknown_flag(error.get_option_name(), known);
  } catch (const po::error& error) {
    throw diag::Error(diag::Exit::invalid, error.what(), "`runner --help` lists the options");
  }
  return values;
}

std::string quoted_for_shell(const std::string& argument) {
  const bool plain = !argument.empty() && argument.find_first_not_of(
                                              "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                              "0123456789_-+=./,:@%") == std::string::npos;
  if (plain) return argument;
  std::string out = "'";
  for (const char c : argument) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void choose_command(const po::variables_map& values, Options& options) {
  std::string chosen;
  for (const Command& command : commands()) {
    if (command.flag.empty()) continue;
    const bool given =
        command.takes_argument ? values.count(command.flag) > 0 : values[command.flag].as<bool>();
    if (!given) continue;
    if (!chosen.empty()) {
      throw diag::Error(diag::Exit::invalid,
                        "--" + chosen + " and --" + command.flag + " don't go together",
                        "one of them a call");
    }
    chosen = command.flag;
    options.command = command.flag;
    if (command.takes_argument) options.argument = values[command.flag].as<std::string>();
  }
}

launch::ByHand by_hand(const po::variables_map& values) {
  launch::ByHand flags;
  if (values.count("node-rank") > 0) flags.node_rank = values["node-rank"].as<std::int64_t>();
  if (values.count("master-addr") > 0) flags.master_addr = values["master-addr"].as<std::string>();
  if (values.count("master-port") > 0) flags.master_port = values["master-port"].as<std::int64_t>();
  launch::verify(flags);
  return flags;
}

}  // namespace

Options parse_command_line(int argc, const char* const* argv) {
  const po::options_description known = flags();
  const po::variables_map values = parse(argc, argv, known);
  Options options;
  for (int i = 0; i < argc; ++i) {
    options.command_line += (i == 0 ? "" : " ") + quoted_for_shell(i == 0 ? "runner" : argv[i]);
  }
  choose_command(values, options);
  options.here = values["here"].as<bool>();
  options.quiet = values["quiet"].as<bool>();
  options.by_hand = by_hand(values);
  if (values.count("format") > 0) {
    options.format = values["format"].as<std::string>();
    static constexpr std::array<std::string_view, 4> kFormats = {"text", "json", "github",
                                                                 "markdown"};
    if (std::find(kFormats.begin(), kFormats.end(), options.format) == kFormats.end()) {
      throw diag::Error(diag::Exit::invalid,
                        "unknown format '" + diag::visible(options.format) + "'",
                        "the formats are " + registry::join_or(kFormats));
    }
  }
  if (values.count("gpus-available") > 0) {
    options.gpus_available = values["gpus-available"].as<std::int64_t>();
    if (*options.gpus_available < 0 || *options.gpus_available > 1024) {
      throw diag::Error(diag::Exit::invalid, "--gpus-available takes 0 to 1024, not " +
                                                 std::to_string(*options.gpus_available));
    }
    if (options.here) {
      throw diag::Error(
          diag::Exit::invalid, "--here and --gpus-available don't go together",
          "--here judges for this machine, --gpus-available for one with so many GPUs");
    }
  }
  if (values.count("positional") > 0) {
    int position = 0;
    for (const std::string& argument : values["positional"].as<std::vector<std::string>>()) {
      ++position;
      if (config::is_override(argument)) {
        options.overrides.push_back({.text = argument, .position = position});
      } else {
        options.files.push_back(argument);
      }
    }
  }
  return options;
}

std::string help_text() {
  std::string out =
      "usage: runner EXPERIMENT.toml [key=value …]      check, plan and train\n"
      "       runner --COMMAND [FILE …] [key=value …]\n"
      "\n"
      "commands\n";
  const auto line = [&out](std::string name, std::string_view doc) {
    name.resize(std::max<std::size_t>(name.size(), 26), ' ');
    out += "  " + name + "  " + std::string(doc) + "\n";
  };
  for (const Command& command : commands()) {
    if (!command.flag.empty())
      line("--" + command.flag + (command.usage.empty() ? "" : " " + command.usage), command.doc);
  }
  out += "\noptions\n";
  line("--format FORMAT", "text (default), json or github for --check; text or json for --plan");
  line("--here", "--check, --plan: judge for this machine's GPUs, files and disk too");
  line("--gpus-available N", "--check, --plan: judge for a machine with N GPUs");
  line("--quiet", "no plan, no progress; warnings and errors only");
  line("--node-rank N", "of several nodes started by hand: this one's number, from 0");
  line("--master-addr HOST", "of several nodes started by hand: where node 0 is");
  line("--master-port PORT", "of several nodes started by hand: a port that is free on node 0");
  out +=
      "\noverrides\n"
      "  optimizer.lr=3e-4   sets a key; the value is read by the key's type (model.name=mlp)\n"
      "  key+=value          appends to a list\n"
      "  -key.path           drops a key that the file wrote\n"
      "\n"
      "exit status: 0 fine, 1 the run failed, 2 usage or an invalid file, 3 settings that can't\n"
      "work together, 4 the machine lacks what the plan needs, 128+n ended by signal n\n";
  return out;
}

}  // namespace runner::cli
