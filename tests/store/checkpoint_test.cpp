#include "runner/store/checkpoint.h"

#include <doctest/doctest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner/store/process_id.h"
#include "tests/fakes/temp_folder.h"
#include "tests/store/faulty_file_ops.h"
#include "tests/store/store_testing.h"

using namespace runner;
using namespace runner::store;
namespace fs = std::filesystem;

namespace {

/// A name that a killed writer of this boot would have left.
std::string dead_name(const std::string& prefix, std::int64_t step) {
  ProcessId dead = ProcessId::self();
  dead.start_ticks += 1;
  return prefix + std::to_string(step) + "-" + dead.str() + ".0";
}

void flip_bit(const fs::path& path, std::size_t bit) {
  std::string bytes = read_file(path);
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  write_file(path, bytes);
}

/// Unmounts at the end of the test.
class SmallDisk {
 public:
  SmallDisk(fs::path at, const std::string& options) : at_(std::move(at)) {
    fs::create_directories(at_);
    mounted_ = ::mount("tmpfs", at_.c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) reason_ = std::strerror(errno);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  fs::path at_;
  std::string reason_;
  bool mounted_ = false;
};

}  // namespace

TEST_CASE("checkpoint: comes back with its manifest and the bytes that were given") {
  TempFolder temp;
  CheckpointFolder folder(temp / "a/ckpt");
  CHECK(folder.list().empty());
  CHECK_FALSE(folder.newest_valid(nullptr));
  CHECK_FALSE(fs::exists(temp / "a"));

  const Sample sample(12);
  const Manifest saved = sample.save_to(folder);
  CHECK(folder.path(12) == temp / "a/ckpt/step-0000000012");
  CHECK(names_in(temp / "a/ckpt") == std::vector<std::string>{"step-0000000012"});
  CHECK(names_in(folder.path(12)) ==
        std::vector<std::string>{"MANIFEST.json", "model.safetensors", "state.json"});

  Manifest expected = sample.manifest;
  for (const char* name : {"model.safetensors", "state.json"}) {
    expected.files[name] = digest_of(read_file(folder.path(12) / name));
  }
  CHECK(saved == expected);
  CHECK(folder.verify(12) == expected);
  std::vector<std::string> skipped;
  CHECK(folder.newest_valid(&skipped) == expected);
  CHECK(skipped.empty());

  const SafetensorsFile weights(folder.path(12) / "model.safetensors");
  REQUIRE(weights.find("weight") != nullptr);
  CHECK(std::memcmp(weights.find("weight")->data.data(), sample.weights.data(),
                    sample.weights.size() * sizeof(float)) == 0);
}

TEST_CASE("checkpoint: every file is synced before its folder, the folder before its name") {
  TempFolder temp;
  fs::create_directory(temp / "ckpt");
  FaultyFileOps ops(temp / "graveyard");
  CheckpointFolder folder(temp / "ckpt", ops);
  Sample(3).save_to(folder);
  std::vector<std::string> log = ops.log();
  const std::string scratch = log.at(0).substr(std::strlen("make_folder "));
  CHECK(scratch.starts_with(".tmp-3-" + ProcessId::self().str() + "."));
  CHECK(log == std::vector<std::string>{"make_folder " + scratch, "create model.safetensors",
                                        "write", "sync", "close", "create state.json", "write",
                                        "sync", "close", "create MANIFEST.json", "write", "sync",
                                        "close", "sync_folder " + scratch, "rename step-0000000003",
                                        "sync_folder ckpt"});
}

TEST_CASE("checkpoint: steps are listed newest first, other names are left alone") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  for (const std::int64_t step : {0, 5, 10'000, 9, 100}) Sample(step).save_to(folder);
  Sample(123'456'789'012).save_to(folder);
  for (const char* name :
       {"step-5", "step-", "step-00000000x1", "notes", ".tmp-x", "step--000000001"}) {
    fs::create_directory(temp / name);
  }
  CHECK(folder.list() == std::vector<std::int64_t>{123'456'789'012, 10'000, 100, 9, 5, 0});
}

TEST_CASE("checkpoint: a folder that can't be read is an error, not an empty one") {
  TempFolder temp;
  temp.write("ckpt", "a file");
  CHECK(message_of([&] { (void)CheckpointFolder(temp / "ckpt").list(); }) ==
        "cannot read the folder '" + (temp / "ckpt").native() + "': Not a directory");
}

TEST_CASE("checkpoint: misuse is refused before anything is written") {
  TempFolder temp;
  CheckpointFolder folder(temp / "ckpt");
  for (const char* name : {"", "..", "a/b", "MANIFEST.json"}) {
    CAPTURE(name);
    const Blob blob{.name = name, .content = "x"};
    CHECK_THROWS_AS(folder.save({.step = 1}, std::span(&blob, 1)), std::invalid_argument);
  }
  const std::vector<Blob> twins = {{.name = "a", .content = "x"}, {.name = "a", .content = "y"}};
  CHECK_THROWS_AS(folder.save({.step = 1}, twins), std::invalid_argument);
  CHECK_THROWS_AS(folder.save({.step = -1}, {}), std::invalid_argument);
  CHECK_FALSE(fs::exists(temp / "ckpt"));

  // What only the writing can find leaves nothing either.
  const std::vector<Blob> bad = {
      {.name = "a", .content = "x"},
      {.name = "w",
       .content = SafetensorsContent{.tensors = {{.name = "t", .shape = {1}, .data = {}}},
                                     .metadata = {}}}};
  CHECK(message_of([&] { folder.save({.step = 1}, bad); }) ==
        "cannot write safetensors: tensor 't': F32 [1] needs 4 bytes, its data has 0");
  CHECK(names_in(temp / "ckpt").empty());
}

TEST_CASE("checkpoint: one of the same step, whole or not, is replaced") {
  for (const bool exchange : {true, false}) {
    CAPTURE(exchange);
    TempFolder temp;
    FaultyFileOps ops(temp / "graveyard");
    if (!exchange) ops.forbid_exchange();
    CheckpointFolder folder(temp / "ckpt", ops);
    temp.write("ckpt/step-0000000007/half", "left by a run without a manifest");
    Sample(7, "a").save_to(folder);
    CHECK(folder.verify(7).extra.at("generation") == "a");
    Sample(7, "b").save_to(folder);
    CHECK(folder.verify(7).extra.at("generation") == "b");
    CHECK(names_in(temp / "ckpt") == std::vector<std::string>{"step-0000000007"});
    CHECK(names_in(folder.path(7)).size() == 3);
  }
}

TEST_CASE("checkpoint: a file in the place of the checkpoint is replaced too") {
  TempFolder temp;
  temp.write("ckpt/step-0000000007", "not a folder");
  CheckpointFolder folder(temp / "ckpt");
  CHECK(message_of([&] { (void)folder.verify(7); }) ==
        "checkpoint '" + folder.path(7).native() +
            "' is damaged: 'MANIFEST.json' can't be opened: Not a directory");
  Sample(7).save_to(folder);
  CHECK(folder.verify(7).step == 7);
}

// ---- damage

TEST_CASE("checkpoint: each of 200 random flipped bits is found, named and passed over") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(10).save_to(folder);
  Sample(20).save_to(folder);
  const std::string names[] = {"MANIFEST.json", "model.safetensors", "state.json"};
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::string& name = names[random() % 3];
    const fs::path path = folder.path(20) / name;
    const std::size_t bit = random() % (fs::file_size(path) * 8);
    CAPTURE(name);
    CAPTURE(bit);
    flip_bit(path, bit);
    std::vector<std::string> skipped;
    const std::optional<Manifest> found = folder.newest_valid(&skipped);
    REQUIRE(found);
    CHECK(found->step == 10);
    REQUIRE(skipped.size() == 1);
    CHECK(skipped[0].find(name) != std::string::npos);
    CHECK(skipped[0].find("damaged") != std::string::npos);
    flip_bit(path, bit);
  }
  CHECK(folder.newest_valid(nullptr)->step == 20);
}

TEST_CASE("checkpoint: damage is told with the file, what it has and what it should have") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  const Manifest saved = Sample(10).save_to(folder);
  const std::string good = read_file(folder.path(10) / "state.json");
  const Digest digest = saved.files.at("state.json");
  const std::string prefix = "checkpoint '" + folder.path(10).native() + "' is damaged: ";
  const fs::path path = folder.path(10) / "state.json";
  const auto message = [&] { return message_of([&] { (void)folder.verify(10); }); };

  std::string same_size = good;
  same_size[0] = 'X';
  write_file(path, same_size);
  CHECK(message() == prefix + "'state.json' has XXH3-128 " + digest_of(same_size).xxh3_128 +
                         ", expected " + digest.xxh3_128);
  write_file(path, good + "x");
  CHECK(message() == prefix + "'state.json' has " + std::to_string(good.size() + 1) +
                         " bytes, expected " + std::to_string(good.size()));
  fs::remove(path);
  CHECK(message() == prefix + "'state.json' is missing");
  fs::create_directory(path);
  CHECK(message() == prefix + "'state.json' is not a regular file");
  fs::remove(path);
  write_file(path, good);
  CHECK(message() == "(no error)");
  fs::remove(folder.path(10) / "MANIFEST.json");
  CHECK(message() == prefix + "'MANIFEST.json' is missing");
}

TEST_CASE("checkpoint: truncations, zeroed tails and appended zeros are rejected by name") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(10).save_to(folder);
  std::mt19937 random(2);
  for (const std::string name : {"MANIFEST.json", "model.safetensors", "state.json"}) {
    const fs::path path = folder.path(10) / name;
    const std::string good = read_file(path);
    const auto rejected = [&](const std::string& bytes) {
      write_file(path, bytes);
      const std::string message = message_of([&] { (void)folder.verify(10); });
      return message.find("damaged") != std::string::npos &&
             message.find(name) != std::string::npos;
    };
    CAPTURE(name);
    for (int i = 0; i < 100; ++i) {
      const std::size_t size = random() % good.size();
      CAPTURE(size);
      CHECK(rejected(good.substr(0, size)));
      std::string zeroed = good;
      std::fill(zeroed.begin() + static_cast<std::ptrdiff_t>(size), zeroed.end(), '\0');
      if (zeroed != good) CHECK(rejected(zeroed));
    }
    CHECK(rejected(good + std::string(1, '\0')));
    CHECK(rejected(good + std::string(4096, '\0')));
    CHECK_FALSE(rejected(good));
  }
}

TEST_CASE("checkpoint: files swapped between two steps are rejected, one by one and all together") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(10).save_to(folder);
  Sample(20).save_to(folder);
  const auto swap_names = [&](const fs::path& a, const fs::path& b) {
    fs::rename(a, temp / "swap");
    fs::rename(b, a);
    fs::rename(temp / "swap", b);
  };
  for (const char* name : {"model.safetensors", "state.json"}) {
    CAPTURE(name);
    swap_names(folder.path(10) / name, folder.path(20) / name);
    for (const std::int64_t step : {10, 20}) {
      CHECK(message_of([&] { (void)folder.verify(step); })
                .starts_with("checkpoint '" + folder.path(step).native() + "' is damaged: '" +
                             name + "' has XXH3-128 "));
    }
    swap_names(folder.path(10) / name, folder.path(20) / name);
  }
  swap_names(folder.path(10), folder.path(20));
  CHECK(message_of([&] { (void)folder.verify(20); }) ==
        "checkpoint '" + folder.path(20).native() +
            "' is damaged: 'MANIFEST.json' is of step 10, expected 20");
  CHECK_THROWS_AS((void)folder.newest_valid(nullptr), diag::Error);
}

TEST_CASE("checkpoint: if all are damaged that is an error with every reason, no fresh start") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(10).save_to(folder);
  Sample(20).save_to(folder);
  fs::remove(folder.path(10) / "state.json");
  fs::remove(folder.path(20) / "MANIFEST.json");
  std::vector<std::string> skipped;
  const auto error = error_of([&] { (void)folder.newest_valid(&skipped); });
  REQUIRE(error);
  const std::string first =
      "checkpoint '" + folder.path(20).native() + "' is damaged: 'MANIFEST.json' is missing";
  const std::string second =
      "checkpoint '" + folder.path(10).native() + "' is damaged: 'state.json' is missing";
  CHECK(error->what() ==
        "no checkpoint in '" + temp.path().native() + "' is valid:\n  " + first + "\n  " + second);
  CHECK(error->exit() == diag::Exit::failed);
  CHECK(error->help() == "restore one from a copy, or start a new run");
  CHECK(skipped == std::vector<std::string>{first, second});
}

TEST_CASE("checkpoint: one that a newer runner wrote is never passed over for an older one") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(10).save_to(folder);
  Sample newer(20);
  newer.manifest.format_version = 2;
  newer.save_to(folder);
  CHECK_THROWS_AS((void)folder.newest_valid(nullptr), UnknownFormat);
  CHECK(message_of([&] { (void)folder.newest_valid(nullptr); }) ==
        "'" + (folder.path(20) / "MANIFEST.json").native() +
            "' has format version 2, written by a newer runner; this one reads version 1");
  CHECK(folder.retain({.keep_last = 1}).empty());
  CHECK(folder.list() == std::vector<std::int64_t>{20, 10});
}

// ---- failing disks

TEST_CASE(
    "checkpoint: whichever call fails, it is an error, the old one stays, the next save works") {
  for (const bool existing : {false, true}) {
    for (const int error_number : {ENOSPC, EIO, EDQUOT}) {
      int failures = 0;
      for (int n = 1;; ++n) {
        CAPTURE(n);
        TempFolder temp;
        FaultyFileOps good(temp / "graveyard1");
        CheckpointFolder before(temp / "ckpt", good);
        Sample(10, "a").save_to(before);
        if (existing) Sample(20, "a").save_to(before);

        FaultyFileOps bad(temp / "graveyard2");
        bad.fail_call(n, error_number);
        CheckpointFolder folder(temp / "ckpt", bad);
        const auto error = error_of([&] { Sample(20, "b").save_to(folder); });
        if (bad.calls() < n) {
          CHECK_FALSE(error);
          break;
        }
        if (!error) {
          // Only the removal of what was replaced may fail unsaid: the new one is on disk.
          CHECK(existing);
          CHECK(before.verify(20).extra.at("generation") == "b");
        } else {
          ++failures;
          const std::string what = error->what();
          CHECK(what.find(temp.path().native()) != std::string::npos);
          CHECK(what.find(std::strerror(error_number)) != std::string::npos);
          CHECK(error->exit() == diag::Exit::failed);
          const bool told = what.find(" bytes, 1234 are free") != std::string::npos;
          CHECK(told == (error_number != EIO));
        }
        CHECK(before.verify(10).extra.at("generation") == "a");
        const auto newest = before.newest_valid(nullptr);
        REQUIRE(newest);
        if (existing) CHECK(newest->step == 20);
        CHECK(Sample(20, "c").save_to(folder).step == 20);
        CHECK(before.newest_valid(nullptr)->extra.at("generation") == "c");
      }
      CHECK(failures >= 15);
    }
  }
}

TEST_CASE("checkpoint: what was replaced stays on disk until its successor is known to be there") {
  for (const bool exchange : {true, false}) {
    CAPTURE(exchange);
    TempFolder temp;
    FaultyFileOps good(temp / "graveyard1");
    if (!exchange) good.forbid_exchange();
    CheckpointFolder before(temp / "ckpt", good);
    Sample(20, "old").save_to(before);
    const std::string old_state = read_file(before.path(20) / "state.json");
    const int calls_before = good.calls();
    Sample(20, "old").save_to(before);
    const std::vector<std::string> log = good.log();
    const auto last_sync = std::find(log.rbegin(), log.rend(), "sync_folder ckpt");
    const auto nth = static_cast<int>(log.rend() - last_sync) - calls_before;

    FaultyFileOps bad(temp / "graveyard2");
    if (!exchange) bad.forbid_exchange();
    bad.fail_call(nth, EIO);
    CheckpointFolder folder(temp / "ckpt", bad);
    CHECK(message_of([&] { Sample(20, "new").save_to(folder); }) ==
          "cannot sync the folder '" + (temp / "ckpt").native() + "': Input/output error");
    const std::vector<std::string> names = names_in(temp / "ckpt");
    REQUIRE(names.size() == 2);
    CHECK(names[0].starts_with(exchange ? ".tmp-20-" : ".aside-20-"));
    CHECK(read_file(temp / "ckpt" / names[0] / "state.json") == old_state);
    CHECK(folder.verify(20).extra.at("generation") == "new");
  }
}

TEST_CASE("checkpoint: a disk that stays full leaves no temporary folder") {
  TempFolder temp;
  FaultyFileOps ops(temp / "graveyard");
  CheckpointFolder folder(temp / "ckpt", ops);
  Sample(10).save_to(folder);
  ops.fail_kind("write", ENOSPC);
  const Sample next(20);
  const auto error = error_of([&] { next.save_to(folder); });
  REQUIRE(error);
  const std::uint64_t needed = folder.verify(10).files.at("model.safetensors").size +
                               std::get<std::string>(next.blobs[1].content).size();
  const std::string what = error->what();
  CHECK(what.starts_with("cannot save the checkpoint of step 20: cannot write '"));
  CHECK(what.ends_with("/model.safetensors': No space left on device; it needs " +
                       std::to_string(needed) + " bytes, 1234 are free"));
  CHECK(error->help() == "free some space, or keep fewer checkpoints");
  CHECK(names_in(temp / "ckpt") == std::vector<std::string>{"step-0000000010"});
}

TEST_CASE("checkpoint: a real disk that fills up while saving") {
  TempFolder temp;
  const SmallDisk disk(temp / "disk", "size=1m");
  if (!disk.mounted()) {
    MESSAGE("skipped: no tmpfs can be mounted: " << disk.reason());
    return;
  }
  CheckpointFolder folder(temp / "disk/ckpt");
  constexpr std::size_t kFloats = 150'000;  // 600,000 bytes: room for one and a half
  Sample(10, "a", kFloats).save_to(folder);
  const auto error = error_of([&] { Sample(20, "a", kFloats).save_to(folder); });
  REQUIRE(error);
  const std::string what = error->what();
  CHECK(what.find("No space left on device; it needs 600") != std::string::npos);
  CHECK(what.ends_with(" are free"));
  CHECK(folder.newest_valid(nullptr)->step == 10);
  CHECK(names_in(temp / "disk/ckpt") == std::vector<std::string>{"step-0000000010"});
  // The same step again, once there is room.
  fs::remove_all(folder.path(10));
  Sample(20, "a", kFloats).save_to(folder);
  CHECK(folder.newest_valid(nullptr)->step == 20);
}

// ---- retention and links

TEST_CASE("checkpoint: retention keeps the last, the best, the protected and the linked ones") {
  const auto with_metrics = [](CheckpointFolder& folder) {
    const double values[] = {0.5, 0.1, 0.4, 0.1, std::nan(""), 0.3};
    for (int i = 0; i < 6; ++i) {
      Sample sample(i + 1);
      sample.manifest.metrics = {{"m", values[i]}};
      sample.save_to(folder);
    }
    Sample without(7);
    without.manifest.metrics.clear();
    without.save_to(folder);
  };
  using Steps = std::vector<std::int64_t>;
  using Mode = RetentionPolicy::Mode;
  const struct {
    RetentionPolicy policy;
    std::optional<std::int64_t> best;
    Steps kept;
  } cases[] = {
      {{.keep_last = 1}, {}, {7}},
      {{.keep_last = 3}, {}, {7, 6, 5}},
      {{.keep_last = 99}, {}, {7, 6, 5, 4, 3, 2, 1}},
      {{.keep_last = 1, .top_k = 1, .metric = "m"}, {}, {7, 4}},
      {{.keep_last = 1, .top_k = 3, .metric = "m"}, {}, {7, 6, 4, 2}},
      {{.keep_last = 1, .top_k = 2, .metric = "m", .mode = Mode::max}, {}, {7, 3, 1}},
      {{.keep_last = 1, .top_k = 9, .metric = "m"}, {}, {7, 6, 4, 3, 2, 1}},
      {{.keep_last = 1, .top_k = 2, .metric = "other"}, {}, {7}},
      {{.keep_last = 2, .protected_steps = {3, 99}}, {}, {7, 6, 3}},
      {{.keep_last = 1}, 2, {7, 2}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.kept);
    TempFolder temp;
    FaultyFileOps ops(temp / "graveyard");
    CheckpointFolder folder(temp / "ckpt", ops);
    with_metrics(folder);
    if (c.best) folder.link(Link::best, *c.best);
    Steps expected_removed;
    for (const std::int64_t step : folder.list()) {
      if (std::find(c.kept.begin(), c.kept.end(), step) == c.kept.end()) {
        expected_removed.push_back(step);
      }
    }
    CHECK(folder.retain(c.policy) == expected_removed);
    CHECK(folder.list() == c.kept);
    CHECK(names_in(temp / "ckpt").size() == c.kept.size() + (c.best ? 1 : 0));
  }
}

TEST_CASE("checkpoint: removal takes the names for good before it takes the files") {
  TempFolder temp;
  FaultyFileOps ops(temp / "graveyard");
  CheckpointFolder folder(temp / "ckpt", ops);
  for (const std::int64_t step : {1, 2, 3}) Sample(step).save_to(folder);
  const std::size_t before = ops.log().size();
  CHECK(folder.retain({.keep_last = 1}) == std::vector<std::int64_t>{2, 1});
  const std::vector<std::string> log(ops.log().begin() + static_cast<std::ptrdiff_t>(before),
                                     ops.log().end());
  REQUIRE(log.size() == 11);
  CHECK(log[0].starts_with("rename .tmp-2-"));
  CHECK(log[1].starts_with("rename .tmp-1-"));
  CHECK(log[2] == "sync_folder ckpt");
  for (std::size_t i = 3; i < log.size(); ++i) {
    CHECK((log[i].starts_with("unlink ") || log[i].starts_with("remove_folder .tmp-")));
  }
}

TEST_CASE("checkpoint: damaged ones don't count as kept and are left for a look") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  for (const std::int64_t step : {1, 2, 3, 4, 5}) Sample(step).save_to(folder);
  fs::remove(folder.path(5) / "MANIFEST.json");
  fs::resize_file(folder.path(4) / "model.safetensors", 10);
  CHECK(folder.retain({.keep_last = 2}) == std::vector<std::int64_t>{1});
  CHECK(folder.list() == std::vector<std::int64_t>{5, 4, 3, 2});
  CHECK_THROWS_AS(folder.retain({.keep_last = 0}), std::invalid_argument);
}

TEST_CASE("checkpoint: links move atomically and are only believed if they lead to a step") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  CHECK_FALSE(folder.linked(Link::best));
  Sample(1).save_to(folder);
  Sample(2).save_to(folder);
  folder.link(Link::best, 1);
  folder.link(Link::last, 2);
  CHECK(fs::read_symlink(temp / "best") == "step-0000000001");
  CHECK(folder.linked(Link::best) == 1);
  CHECK(folder.linked(Link::last) == 2);
  folder.link(Link::best, 2);
  CHECK(folder.linked(Link::best) == 2);
  CHECK(names_in(temp.path()) ==
        std::vector<std::string>{"best", "last", "step-0000000001", "step-0000000002"});

  fs::remove_all(folder.path(2));
  CHECK_FALSE(folder.linked(Link::best));
  for (const char* target : {"/etc", "../elsewhere", "step-1", "step-0000000001/"}) {
    CAPTURE(target);
    fs::remove(temp / "best");
    fs::create_symlink(target, temp / "best");
    CHECK_FALSE(folder.linked(Link::best));
  }
}

// ---- leftovers

TEST_CASE("checkpoint: leftovers of dead writers go, live ones and foreign names stay") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(1).save_to(folder);
  const std::string live = ".tmp-9-" + ProcessId::self().str() + ".0";
  const std::string dead = dead_name(".tmp-", 9);
  const std::string other_boot =
      ".tmp-8-" + std::to_string(::getpid()) + "-1-" + "00000000-0000-0000-0000-000000000000.3";
  for (const std::string& name : {live, dead, other_boot, std::string(".tmp-mine")}) {
    temp.write(name + "/model.safetensors", "half");
  }
  fs::create_symlink("step-0000000001", temp / dead_name(".tmp-", 7));
  std::vector<std::string> expected = {dead, other_boot, dead_name(".tmp-", 7)};
  std::sort(expected.begin(), expected.end());
  CHECK(folder.clean_leftovers() == expected);
  std::vector<std::string> left = {live, ".tmp-mine", "step-0000000001"};
  std::sort(left.begin(), left.end());
  CHECK(names_in(temp.path()) == left);
  CHECK(folder.clean_leftovers().empty());
  CHECK(CheckpointFolder(temp / "none").clean_leftovers().empty());
}

TEST_CASE("checkpoint: one that was moved aside comes back unless its successor is there") {
  TempFolder temp;
  CheckpointFolder folder(temp.path());
  Sample(1, "old").save_to(folder);
  fs::rename(folder.path(1), temp / dead_name(".aside-", 1));
  CHECK(folder.clean_leftovers().size() == 1);
  CHECK(folder.verify(1).extra.at("generation") == "old");

  fs::rename(folder.path(1), temp / dead_name(".aside-", 1));
  Sample(1, "new").save_to(folder);
  CHECK(folder.clean_leftovers().size() == 1);
  CHECK(folder.verify(1).extra.at("generation") == "new");
  CHECK(names_in(temp.path()).size() == 1);
}

TEST_CASE("checkpoint: odd paths work: spaces, newlines, UTF-8, a symlinked folder") {
  TempFolder temp;
  fs::create_directory(temp / "real");
  fs::create_directory_symlink(temp / "real", temp / "link");
  const std::string names[] = {"with space", "new\nline", "\xc3\xbcn\xc3\xaf", "link/below",
                               std::string(255, 'x')};
  for (const std::string& name : names) {
    CAPTURE(name);
    CheckpointFolder folder(temp / name);
    Sample(1).save_to(folder);
    CHECK(folder.newest_valid(nullptr)->step == 1);
  }
  CHECK(message_of([&] {
          CheckpointFolder folder(temp / std::string(256, 'x'));
          Sample(1).save_to(folder);
        }) == "cannot make the folder '" + (temp / std::string(256, 'x')).native() +
                  "': File name too long");
}
