#include "runner/check/gpus.h"

#include <doctest/doctest.h>

#include <array>

using namespace runner;
using check::GpuProblem;
using check::GpuSpec;
using check::ParsedGpus;
using check::ResolvedGpus;
using registry::Value;
using Array = Value::Array;
using Ids = std::vector<std::int64_t>;

namespace {

const std::string kForms =
    "gpus takes a count (2), -1 for all, a list of ids ([0, 2]) or a string of ids (\"0, 2\")";

/// "G002 message | help" of the only problem.
std::string problem(const Value& value) {
  const ParsedGpus parsed = check::parse_gpus(value);
  if (parsed.problems.size() != 1) {
    return std::to_string(parsed.problems.size()) + " problems";
  }
  const GpuProblem& p = parsed.problems.front();
  return std::string(diag::info(p.code).id) + " " + p.message + " | " + p.help;
}

/// What a value gives on a machine: "cpu", "0,1,2" or the problem's id and message.
std::string outcome(const Value& value, std::optional<std::int64_t> available) {
  const ParsedGpus parsed = check::parse_gpus(value);
  if (!parsed.problems.empty()) {
    return std::string(diag::info(parsed.problems.front().code).id);
  }
  if (parsed.spec.kind == GpuSpec::Kind::cpu) return "cpu";
  const ResolvedGpus resolved = check::resolve(parsed.spec, {.count = available, .mask = {}});
  if (resolved.problem) return std::string(diag::info(resolved.problem->code).id);
  if (resolved.all) return "all";
  std::string text;
  for (const std::int64_t id : resolved.ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace

TEST_CASE("gpus: every form, on machines with 0, 1, 4, 8, 16 and an unknown number of GPUs") {
  struct Row {
    Value value;
    // On 0, 1, 4, 8, 16 GPUs, and where the number is unknown.
    std::array<const char*, 6> expected;
  };
  constexpr const char* k8 = "0,1,2,3,4,5,6,7";
  constexpr const char* k16 = "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15";
  const std::vector<Row> rows = {
      {Value(), {"cpu", "cpu", "cpu", "cpu", "cpu", "cpu"}},
      {0, {"cpu", "cpu", "cpu", "cpu", "cpu", "cpu"}},
      {1, {"L001", "0", "0", "0", "0", "0"}},
      {3, {"L001", "L002", "0,1,2", "0,1,2", "0,1,2", "0,1,2"}},
      {5, {"L001", "L002", "L002", "0,1,2,3,4", "0,1,2,3,4", "0,1,2,3,4"}},
      {16, {"L001", "L002", "L002", "L002", k16, k16}},
      {-1, {"L001", "0", "0,1,2,3", k8, k16, "all"}},
      {"-1", {"L001", "0", "0,1,2,3", k8, k16, "all"}},
      {" -1", {"L001", "0", "0,1,2,3", k8, k16, "all"}},
      {"0", {"L001", "0", "0", "0", "0", "0"}},
      {"1", {"L001", "L002", "1", "1", "1", "1"}},
      {"3", {"L001", "L002", "3", "3", "3", "3"}},
      {"4", {"L001", "L002", "L002", "4", "4", "4"}},
      {"1, 3", {"L001", "L002", "1,3", "1,3", "1,3", "1,3"}},
      {"1,3", {"L001", "L002", "1,3", "1,3", "1,3", "1,3"}},
      {" 1 , 3 ", {"L001", "L002", "1,3", "1,3", "1,3", "1,3"}},
      {"0,", {"L001", "0", "0", "0", "0", "0"}},
      {"2,", {"L001", "L002", "2", "2", "2", "2"}},
      {Array{0}, {"L001", "0", "0", "0", "0", "0"}},
      {Array{1, 3}, {"L001", "L002", "1,3", "1,3", "1,3", "1,3"}},
      {Array{3, 1}, {"L001", "L002", "3,1", "3,1", "3,1", "3,1"}},
      {Array{4}, {"L001", "L002", "L002", "4", "4", "4"}},
  };
  constexpr std::array<std::optional<std::int64_t>, 6> kMachines = {0, 1, 4, 8, 16, std::nullopt};
  for (const Row& row : rows) {
    CAPTURE(registry::to_toml(row.value));
    for (std::size_t i = 0; i < kMachines.size(); ++i) {
      CAPTURE(i);
      CHECK(outcome(row.value, kMachines[i]) == row.expected[i]);
    }
  }
}

TEST_CASE("gpus: every other form is refused, whatever the machine has, with what to write") {
  struct Row {
    Value value;
    std::string expected;
  };
  const std::string cpu_or_all = "leave gpus out (or write 0) for the CPU, write -1 for all GPUs";
  const std::string alone = "-1 stands alone, for all GPUs: gpus = -1";
  const std::string type =
      "G001 expected a count, a list of ids or a string of ids for gpus, found ";
  const std::string once = "name each GPU once; two processes on one GPU only slow each other";
  const std::string comma = "write each id once, with one comma between two: \"0, 1\"";
  const std::string integers = "write ids as integers: gpus = [0, 2]";
  const auto entry = [](int i, const std::string& piece) {
    return "G002 entry " + std::to_string(i) + " of gpus: '" + piece +
           "' is not an id in decimal digits | ";
  };
  const std::vector<Row> rows = {
      {-2, "G003 gpus = -2 is negative; only -1 is, for all GPUs | " + kForms},
      {"-2", "G003 entry 0 of gpus: '-2' is negative, ids are not | " + alone},
      {true, type + "the boolean true | " + kForms},
      {false, type + "the boolean false | " + kForms},
      {1.0, type + "the float 1.0 | write gpus = 1"},
      {1.5, type + "the float 1.5 | " + kForms},
      {Value::Table{}, type + "a table | " + kForms},
      {Array{0, 0}, "G004 element 1 of gpus: GPU 0 is named twice | " + once},
      {"1,1", "G004 element 1 of gpus: GPU 1 is named twice | " + once},
      {Array{}, "G003 gpus names no GPU: the list is empty | " + cpu_or_all},
      {Array{-1}, "G003 element 0 of gpus: -1 is negative, ids are not | " + alone},
      {Array{0, -1}, "G003 element 1 of gpus: -1 is negative, ids are not | " + alone},
      {Array{"0"},
       "G001 element 0 of gpus: expected an id, an integer, found the string \"0\" | " + integers},
      {Array{0, "1"},
       "G001 element 1 of gpus: expected an id, an integer, found the string \"1\" | " + integers},
      {Array{true},
       "G001 element 0 of gpus: expected an id, an integer, found the boolean true | " + integers},
      {Array{1.0},
       "G001 element 0 of gpus: expected an id, an integer, found the float 1.0 | " + integers},
      {Array{Array{0}},
       "G001 element 0 of gpus: expected an id, an integer, found an array | " + integers},
      {",", "G002 gpus names no GPU: the string \",\" has no id | " + cpu_or_all},
      {"", "G002 gpus names no GPU: the string \"\" has no id | " + cpu_or_all},
      {"  ", "G002 gpus names no GPU: the string \"  \" has no id | " + cpu_or_all},
      {"0,,1", "G002 entry 1 of gpus: empty, where an id belongs | " + comma},
      {"0, ,1", "G002 entry 1 of gpus: empty, where an id belongs | " + comma},
      {"0,,", "G002 entry 1 of gpus: empty, where an id belongs | " + comma},
      {",0", "G002 entry 0 of gpus: empty, where an id belongs | " + comma},
      {"0,-1", "G003 entry 1 of gpus: '-1' is negative, ids are not | " + alone},
      {"a", entry(0, "a") + kForms},
      {"0, a", entry(1, "a") + kForms},
      {"1.5", entry(0, "1.5") + kForms},
      {"0x1", entry(0, "0x1") + kForms},
      {"1e0", entry(0, "1e0") + kForms},
      {"1 3", entry(0, "1 3") + kForms},
      {"1-3", entry(0, "1-3") + "list each id: \"1, 2, 3\""},
      {"3-1", entry(0, "3-1") + kForms},
      {"0:2", entry(0, "0:2") + kForms},
      {"cuda:0", entry(0, "cuda:0") + "write the id alone: \"0\""},
      {"all", entry(0, "all") + "write gpus = -1 for all GPUs"},
      {"[0,1]", entry(0, "[0,1]") + "a list is written without quotes: gpus = [0,1]"},
      {"+1", entry(0, "+1") + "write the id alone: \"1\""},
      {"01", entry(0, "01") + "write it without leading zeros: \"1\""},
      {"00", entry(0, "00") + "write it without leading zeros: \"0\""},
      {"\xEF\xBC\x91", entry(0, "\xEF\xBC\x91") + kForms},  // a full-width 1
      {"auto", entry(0, "auto") +
                   "write gpus = -1 for all GPUs, or a count with auto_select_gpus = true for free "
                   "ones"},
      {"99999999999999999999",
       "G003 99999999999999999999 is too large for gpus: no machine has GPU 99999999999999999999 | "
       "ids are 0 to 1023"},
      {std::int64_t{4000000000},
       "G003 4000000000 is too large for gpus: no machine has GPU 4000000000 | ids are 0 to 1023"},
      {Array{1024},
       "G003 element 0 of gpus: 1024 is too large for gpus: no machine has GPU 1024 | ids are 0 to "
       "1023"},
  };
  for (const Row& row : rows) {
    CAPTURE(registry::to_toml(row.value));
    CHECK(problem(row.value) == row.expected);
    for (const std::int64_t available : {0, 1, 4, 8, 16}) {
      CHECK(outcome(row.value, available) == row.expected.substr(0, 4));
    }
  }
}

TEST_CASE("gpus: each bad element of a list is reported, with its index") {
  const ParsedGpus parsed = check::parse_gpus(Array{0, "x", -1, 0, 2});
  REQUIRE(parsed.problems.size() == 3);
  CHECK(parsed.problems[0].index == 1);
  CHECK(parsed.problems[1].index == 2);
  CHECK(parsed.problems[2].index == 3);
  CHECK(parsed.spec.kind == GpuSpec::Kind::cpu);
}

TEST_CASE("gpus: the machine's lack is said with what was asked for and what is there") {
  const auto message = [](const Value& value, check::VisibleGpus visible) {
    const auto resolved = check::resolve(check::parse_gpus(value).spec, visible);
    return resolved.problem ? resolved.problem->message : "";
  };
  CHECK(message(5, {.count = 4, .mask = {}}) ==
        "gpus asks for 5 GPUs, 4 are available: 0, 1, 2, 3");
  CHECK(message(Array{0, 4, 7}, {.count = 4, .mask = {}}) ==
        "gpus asks for GPUs 4, 7, 4 are available: 0, 1, 2, 3");
  CHECK(message("1", {.count = 1, .mask = {}}) == "gpus asks for GPU 1, 1 is available: 0");
  CHECK(message(1, {.count = 0, .mask = {}}) == "gpus asks for GPUs, and there is none");
  CHECK(message(-1, {.count = 0, .mask = ""}) ==
        "gpus asks for GPUs, and CUDA_VISIBLE_DEVICES='' shows none");
  CHECK(message(Array{1}, {.count = 1, .mask = "3"}) ==
        "gpus asks for GPU 1, 1 is available through CUDA_VISIBLE_DEVICES=3: 0");
}

TEST_CASE("gpus: a string of one id says what it means, and how to ask for the other") {
  const auto remark = [](const char* text) {
    return check::resolve(check::parse_gpus(text).spec, {}).remarks;
  };
  using Remarks = std::vector<std::string>;
  CHECK(remark("3") == Remarks{"GPU 3 (a string is a list of ids; write 3 for the first three)"});
  CHECK(remark("0") == Remarks{"GPU 0 (a string is a list of ids; write 0 for the CPU)"});
  CHECK(remark("1") == Remarks{"GPU 1 (a string is a list of ids; write 1 for the first one)"});
  CHECK(remark("15") == Remarks{"GPU 15 (a string is a list of ids; write 15 for the first 15)"});
  CHECK(remark("0,1").empty());
  CHECK(remark("-1").empty());
  CHECK(check::resolve(check::parse_gpus(3).spec, {}).remarks.empty());
}

TEST_CASE("gpus: numbers count within CUDA_VISIBLE_DEVICES, and the plan says which GPUs that is") {
  const auto resolved = [](const Value& value, std::int64_t count, const char* mask) {
    return check::resolve(check::parse_gpus(value).spec, {.count = count, .mask = mask});
  };
  const ResolvedGpus one = resolved(1, 1, "1");
  CHECK(one.ids == Ids{0});
  CHECK(one.remarks == std::vector<std::string>{"id 0 of the mask (physical 1)"});
  CHECK(resolved(Array{1, 0}, 2, "2, 3").remarks ==
        std::vector<std::string>{"ids 1, 0 of the mask (physical 3, 2)"});
  CHECK(resolved(-1, 2, "5,7").ids == Ids{0, 1});
}

TEST_CASE("gpus: MIG slices are known by the mask alone") {
  CHECK(check::mig_slices("MIG-a,MIG-b") == 2);
  CHECK(check::mig_slices("GPU-1,0") == 0);
  CHECK(check::mig_slices("") == 0);
  CHECK(check::mig_slices({}) == 0);
  const auto resolved =
      check::resolve(check::parse_gpus(2).spec, {.count = 0, .mask = "MIG-a,MIG-b"});
  CHECK_FALSE(resolved.problem.has_value());
  CHECK(resolved.ids == Ids{0, 1});
}
