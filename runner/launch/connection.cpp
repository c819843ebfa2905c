#include "runner/launch/connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace runner::launch {

namespace {

constexpr std::size_t kLengthBytes = 4;

std::size_t length_at(std::string_view bytes) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length = length << 8 | static_cast<std::uint8_t>(bytes[i]);
  return length;
}

}  // namespace

Connection::Connection(host::UniqueFd fd, std::size_t limit) : fd_(std::move(fd)), limit_(limit) {}

void Connection::send(std::string_view text) {
  if (!open()) return;
  for (int shift = 24; shift >= 0; shift -= 8)
    out_.push_back(static_cast<char>(text.size() >> shift & 0xff));
  out_ += text;
  flush();
}

void Connection::flush() {
  while (wants_to_write()) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN) {
      return;
    } else if (errno != EINTR) {
      // What the other side sent before it went may still be there to read.
      out_.clear();
    }
  }
}

std::vector<std::string> Connection::receive() {
  bool ended = false;
  std::array<char, 64 << 10> bytes;
  while (open() && !ended && in_.size() <= limit_ + kLengthBytes) {
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      in_.append(bytes.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      ended = true;
    } else if (errno != EINTR) {
      break;
    }
  }
  std::vector<std::string> messages;
  std::size_t at = 0;
  while (in_.size() - at >= kLengthBytes) {
    const std::size_t length = length_at(std::string_view(in_).substr(at));
    if (length == 0 || length > limit_) {
      ended = true;
      break;
    }
    if (in_.size() - at - kLengthBytes < length) break;
    messages.push_back(in_.substr(at + kLengthBytes, length));
    at += kLengthBytes + length;
  }
  in_.erase(0, at);
  if (ended) close();
  return messages;
}

}  // namespace runner::launch
