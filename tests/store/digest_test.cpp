#include "runner/store/digest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>

using runner::store::Digest;
using runner::store::digest_of;
using runner::store::Hasher;

// The first is in the sanity tests of xxHash; all are what the Python package xxhash gives.
TEST_CASE("digest: XXH3-128 is the published one, most significant digit first") {
  CHECK(digest_of("") == Digest{.size = 0, .xxh3_128 = "99aa06d3014798d86001c324468d497f"});
  CHECK(digest_of("a").xxh3_128 == "a96faf705af16834e6c632b61e964e1f");
  std::string text;
  for (int i = 0; i < 100; ++i) text += "runner";
  CHECK(digest_of(text) == Digest{.size = 600, .xxh3_128 = "7f8cf08572f2cc5eae1a210287c2b5a2"});
}

TEST_CASE("digest: pieces hash as the whole does") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  Hasher hasher;
  for (std::size_t at = 0, piece = 1; at < text.size(); at += piece, piece = piece * 2 + 1) {
    hasher.update(
        std::as_bytes(std::span(text).subspan(at).first(std::min(piece, text.size() - at))));
  }
  CHECK(hasher.digest() == digest_of(text));
}
