#include "runner/launch/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runner/diag/error.h"

namespace runner::launch {

namespace {

/// Ranks of a large run come all at once.
constexpr int kBacklog = 1024;

host::UniqueFd make_socket(int family, int type) {
  host::UniqueFd fd(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  // Small messages, each of which somebody waits for.
  if (fd && type == SOCK_STREAM) setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

std::string Address::host() const {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(raw(), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

int Address::port() const {
  if (storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

std::string Address::text() const {
  const std::string number = host();
  const bool six = storage.ss_family == AF_INET6;
  return (six ? "[" + number + "]" : number) + ":" + std::to_string(port());
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  const auto* four = reinterpret_cast<const sockaddr_in*>(&storage);
  return (ntohl(four->sin_addr.s_addr) >> 24) == 127;
}

bool Address::is_link_local() const {
  return storage.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

std::vector<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw diag::Error(diag::Exit::machine,
                      "can't find the address of '" + host + "': " + gai_strerror(error),
                      "give a numeric address, by --master-addr or MASTER_ADDR");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Address address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    addresses.push_back(address);
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const Address& a) { return a.storage.ss_family == AF_INET; });
  return addresses;
}

Address local_address(int fd) {
  Address address;
  address.size = sizeof address.storage;
  getsockname(fd, address.raw(), &address.size);
  return address;
}

std::vector<std::string> machine_addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<std::string> texts;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Address address;
    address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, at->ifa_addr, address.size);
    if (!address.is_loopback() && !address.is_link_local()) texts.push_back(address.host());
  }
  return texts;
}

std::string address_towards(const Address& other) {
  // Connecting a datagram socket sends nothing, but makes the kernel choose the way.
  const host::UniqueFd fd = make_socket(other.storage.ss_family, SOCK_DGRAM);
  if (!fd || connect(fd.get(), other.raw(), other.size) != 0) return "";
  return local_address(fd.get()).host();
}

host::UniqueFd listen_at(const Address& address) {
  host::UniqueFd fd = make_socket(address.storage.ss_family, SOCK_STREAM);
  if (!fd) return {};
  const int on = 1;
  // A run that has just ended may still have connections in the kernel's memory.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), address.raw(), address.size) != 0 || listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

host::UniqueFd connect_to(const Address& address) {
  host::UniqueFd fd = make_socket(address.storage.ss_family, SOCK_STREAM);
  if (!fd) return {};
  if (connect(fd.get(), address.raw(), address.size) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

}  // namespace runner::launch
