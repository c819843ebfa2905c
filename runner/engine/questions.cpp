#include "runner/engine/questions.h"

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <iostream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace runner::engine {

namespace {

constexpr int kNo = 1;
constexpr auto kPatience = std::chrono::seconds(10);

int has_device(const std::string& type) {
  return c10::impl::hasDeviceGuardImpl(c10::Device(type).type()) ? 0 : kNo;
}

int ask_store(const std::vector<std::string>& arguments) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(arguments[2]));
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = kPatience;
  c10d::TCPStore store(arguments[1], options);
  const std::string& verb = arguments[3];
  const std::string& key = arguments[4];
  if (verb == "set") {
    const std::string& value = arguments.at(5);
    store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    return 0;
  }
  if (!store.check({key})) return kNo;
  std::cout << store.get_to_str(key);
  std::cout.flush();
  return 0;
}

}  // namespace

std::optional<int> answer(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {};
  try {
    if (arguments.size() == 2 && arguments[0] == "--has-device") return has_device(arguments[1]);
    if (arguments.size() >= 5 && arguments[0] == "--store") return ask_store(arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return kNo;
  }
  return {};
}

}  // namespace runner::engine
