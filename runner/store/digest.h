#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace runner::store {

/// Size and XXH3-128 of a run of bytes. The hash finds damage, not malice: it isn't cryptographic.
struct Digest {
  std::uint64_t size = 0;  ///< bytes
  std::string xxh3_128;    ///< 32 lower-case hexadecimal digits, as `xxhsum -H2` prints them

  friend bool operator==(const Digest&, const Digest&) = default;
};

/// XXH3-128 fed piece by piece.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// Of everything fed so far.
  [[nodiscard]] Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] Digest digest_of(std::string_view bytes);

}  // namespace runner::store
