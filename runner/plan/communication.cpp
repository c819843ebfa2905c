#include "runner/plan/communication.h"

#include <array>
#include <cmath>

#include "runner/report/summary.h"

namespace runner::plan {

namespace {

using registry::Value;

struct Link {
  const char* name;
  double bytes_per_second;
};
/// One direction, what the hardware is sold as.
constexpr std::array<Link, 3> kBetweenNodes = {
    {{"400 Gb/s", 50e9}, {"100 Gb/s", 12.5e9}, {"10 Gb/s", 1.25e9}}};
constexpr std::array<Link, 2> kWithinNode = {{{"NVLink 450 GB/s", 450e9}, {"PCIe 32 GB/s", 32e9}}};

std::int64_t bytes_a_gradient(const Plan& plan) {
  const Value* trainer = registry::find(plan.experiment, "trainer");
  const auto* table = trainer == nullptr ? nullptr : trainer->get_if<Value::Table>();
  const Value* compression =
      table == nullptr ? nullptr : registry::find(*table, "gradient_compression");
  const auto* name = compression == nullptr ? nullptr : compression->get_if<std::string>();
  if (name != nullptr && *name != "none") return 2;
  return plan.precision == "64" ? 8 : 4;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return report::format_metric(seconds) + " s";
  return report::format_metric(seconds * 1e3) + " ms";
}

}  // namespace

Communication communication(const Plan& plan) {
  if (plan.world_size < 2) return {};
  Communication result;
  result.gradient_bytes = plan.parameters * bytes_a_gradient(plan);
  const auto ranks = static_cast<double>(plan.world_size);
  result.sent_bytes =
      std::llround(2 * (ranks - 1) / ranks * static_cast<double>(result.gradient_bytes));
  return result;
}

std::string communication_text(const Plan& plan) {
  const Communication sent = communication(plan);
  if (sent.sent_bytes == 0) return {};
  std::string text = "gradients " + report::format_bytes(sent.gradient_bytes) +
                     " a step, each process sends " + report::format_bytes(sent.sent_bytes);
  const auto add = [&](const Link& link, const char* before) {
    text += before + time_text(sent.seconds_at(link.bytes_per_second)) + " at " + link.name;
  };
  if (plan.num_nodes > 1) {
    for (const Link& link : kBetweenNodes) add(link, &link == kBetweenNodes.begin() ? ": " : ", ");
  } else if (plan.devices.type == "cuda") {
    for (const Link& link : kWithinNode) add(link, &link == kWithinNode.begin() ? ": " : ", ");
  }
  return text;
}

}  // namespace runner::plan
