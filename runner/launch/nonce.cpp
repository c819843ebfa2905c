#include "runner/launch/nonce.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "runner/diag/error.h"

namespace runner::launch {

std::string random_nonce() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw diag::Error(diag::Exit::machine,
                      std::string("the kernel gives no random bytes: ") + std::strerror(errno));
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace runner::launch
