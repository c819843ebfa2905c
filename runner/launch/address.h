// launch: addresses of the network, as names, numbers and sockets.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "runner/host/unique_fd.h"

namespace runner::launch {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] std::string host() const;  ///< numeric: "10.77.0.1", "fe80::1"
  [[nodiscard]] int port() const;
  [[nodiscard]] std::string text() const;  ///< "10.77.0.1:29500", "[fe80::1]:29500"
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] bool is_link_local() const;  ///< IPv6's fe80::/10, which means nothing elsewhere
};

/// Of a name or a number, IPv4 first. Throws diag::Error (machine) when there is none.
[[nodiscard]] std::vector<Address> resolve(const std::string& host, int port);
/// This end of a connected socket, or where a listening one listens.
[[nodiscard]] Address local_address(int fd);
/// This machine's own, without loopback and link-local: what others may reach it at.
[[nodiscard]] std::vector<std::string> machine_addresses();
/// The address that this machine would speak to `other` from; empty if there is no way to it.
[[nodiscard]] std::string address_towards(const Address& other);

/// A listening, non-blocking socket; none, with errno set, if the address can't be had.
[[nodiscard]] host::UniqueFd listen_at(const Address& address);
/// A non-blocking socket whose connection is made or under way; none when it is refused at once.
[[nodiscard]] host::UniqueFd connect_to(const Address& address);

}  // namespace runner::launch
