// launch: a TCP connection between two launchers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runner/host/unique_fd.h"

namespace runner::launch {

/// Carries texts, each after its length in 4 bytes, the highest first. Never waits: what can't be
/// sent yet is kept until the next flush().
class Connection {
 public:
  static constexpr std::size_t kMaxMessage = 16 << 20;

  /// Of a connected or connecting, non-blocking socket. A message longer than `limit` bytes closes
  /// it: anybody can reach a listening port.
  explicit Connection(host::UniqueFd fd, std::size_t limit = kMaxMessage);

  [[nodiscard]] bool open() const { return static_cast<bool>(fd_); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool wants_to_write() const { return open() && !out_.empty(); }
  void set_limit(std::size_t limit) { limit_ = limit; }

  void send(std::string_view text);
  void flush();
  /// Whole messages that have come. Not open() afterwards if the other side has ended it, or sent
  /// what isn't a message.
  [[nodiscard]] std::vector<std::string> receive();
  void close() { fd_.reset(); }

 private:
  host::UniqueFd fd_;
  std::size_t limit_;
  std::string in_, out_;
};

}  // namespace runner::launch
