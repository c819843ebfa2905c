#include "runner/store/manifest.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/store/store_testing.h"

using namespace runner;
using namespace runner::store;

namespace {

Manifest sample() {
  return {.step = 450,
          .epoch = 3,
          .batch_in_epoch = 17,
          .epoch_complete = false,
          .world_size = 4,
          .config_digest = "abc",
          .metrics = {{"val_loss", 0.1}},
          .extra = {{"layout", "[[1,0]]"}},
          .files = {{"model.safetensors", {.size = 235, .xxh3_128 = std::string(32, 'a')}}}};
}

/// `text` with its own hash made right again, as a program that writes another format would.
std::string resealed(std::string text) {
  const std::size_t at = text.size() - 36;
  text.replace(at, 32, std::string(32, '0'));
  return text.replace(at, 32, digest_of(text).xxh3_128);
}

}  // namespace

TEST_CASE("manifest: the text is stable JSON that ends in its own hash") {
  const std::string body = R"({
  "format_version": 1,
  "step": 450,
  "epoch": 3,
  "batch_in_epoch": 17,
  "epoch_complete": false,
  "world_size": 4,
  "config_digest": "abc",
  "metrics": {
    "val_loss": 0.1
  },
  "extra": {
    "layout": "[[1,0]]"
  },
  "files": {
    "model.safetensors": {
      "size": 235,
      "xxh3_128": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    }
  },
  "xxh3_128": ")";
  const std::string hash = digest_of(body + std::string(32, '0') + "\"\n}\n").xxh3_128;
  CHECK(manifest_text(sample()) == body + hash + "\"\n}\n");
}

TEST_CASE("manifest: everything comes back, doubles to the last bit and those JSON can't say") {
  Manifest manifest = sample();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  manifest.epoch_complete = true;
  manifest.metrics = {{"third", 1.0 / 3}, {"tiny", 5e-324},     {"huge", 1.7976931348623157e308},
                      {"inf", kInfinity}, {"-inf", -kInfinity}, {"whole", 3.0}};
  manifest.extra = {{"", "\"\n\\\xe2\x82\xac"}};
  manifest.files["strange name\n"] = {.size = 0xFFFFFFFFFFFFFFFF, .xxh3_128 = "b"};
  CHECK(parse_manifest(manifest_text(manifest), "m") == manifest);

  manifest.metrics = {{"nan", std::nan("")}};
  CHECK(std::isnan(parse_manifest(manifest_text(manifest), "m").metrics.at("nan")));
}

TEST_CASE("manifest: any flipped bit, cut or longer text is damage") {
  const std::string text = manifest_text(sample());
  for (std::size_t i = 0; i < text.size() * 8; ++i) {
    std::string flipped = text;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    CAPTURE(i);
    CHECK(
        message_of([&] { (void)parse_manifest(flipped, "m"); }).starts_with("'m' is damaged: it "));
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    CHECK(message_of([&] { (void)parse_manifest(text.substr(0, size), "m"); }) ==
          "'m' is damaged: it doesn't end in its own hash");
  }
  CHECK(message_of([&] { (void)parse_manifest(text + "\n", "m"); }) ==
        "'m' is damaged: it doesn't end in its own hash");
}

TEST_CASE("manifest: another format version is said, not guessed at") {
  const std::string text = manifest_text(sample());
  const std::string newer =
      resealed(replaced(text, "\"format_version\": 1", "\"format_version\": 2"));
  CHECK_THROWS_AS((void)parse_manifest(newer, "m"), UnknownFormat);
  const auto error = error_of([&] { (void)parse_manifest(newer, "m"); });
  REQUIRE(error);
  CHECK(std::string(error->what()) ==
        "'m' has format version 2, written by a newer runner; this one reads version 1");
  CHECK(error->help() == "use the runner that wrote it, or a later one");
  const std::string older =
      resealed(replaced(text, "\"format_version\": 1", "\"format_version\": 0"));
  CHECK(message_of([&] { (void)parse_manifest(older, "m"); }) ==
        "'m' has format version 0, which no runner wrote");
}

TEST_CASE("manifest: a sealed text that isn't one is refused") {
  const std::string text = manifest_text(sample());
  const struct {
    std::string from, to, message;
  } cases[] = {
      {"\"step\": 450", "\"step\": \"450\"", "'m' is not a manifest: "},
      {"\"epoch\"", "\"epoche\"", "'m' is not a manifest: "},
      {"\"world_size\": 4,", "", "'m' is not a manifest: "},
      {"0.1", "\"high\"", "'m' is not a manifest: the metric 'high' is not a number"},
      {"model.safetensors", "../model",
       "'m' is not a manifest: the file name '../model' leads elsewhere"},
      {"model.safetensors", "..", "'m' is not a manifest: the file name '..' leads elsewhere"},
      {"model.safetensors", "/etc/passwd",
       "'m' is not a manifest: the file name '/etc/passwd' leads elsewhere"},
      {"{\n  \"format", "[\n  \"format", "'m' is not a manifest: "},
  };
  for (const auto& c : cases) {
    CAPTURE(c.to);
    const std::string sealed = resealed(replaced(text, c.from, c.to));
    CHECK(message_of([&] { (void)parse_manifest(sealed, "m"); }).starts_with(c.message));
  }
}

TEST_CASE("manifest: text that isn't UTF-8 can't be written") {
  Manifest manifest = sample();
  manifest.extra["k"] = "\xff";
  CHECK(message_of([&] {
          (void)manifest_text(manifest);
        }).starts_with("cannot write a manifest with text that is not UTF-8: "));
}
