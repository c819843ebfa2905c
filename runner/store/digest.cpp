#include "runner/store/digest.h"

#include <xxhash.h>

#include <array>
#include <cstdio>
#include <new>

namespace runner::store {

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  std::uint64_t size = 0;

  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
  state_->size += bytes.size();
}

Digest Hasher::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  std::array<char, 33> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return {.size = state_->size, .xxh3_128 = hex.data()};
}

Digest digest_of(std::string_view bytes) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(bytes)));
  return hasher.digest();
}

}  // namespace runner::store
