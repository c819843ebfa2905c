#pragma once

#include <string>

namespace runner::check {

/// A value that nobody wrote, and why it is what it is; the plan prints it.
struct Inference {
  std::string key;     ///< dotted key; "" for a remark that concerns no single key
  std::string value;   ///< as TOML; "" for a remark
  std::string reason;  ///< lower-case, no final period
  std::string code;    ///< the rule's code, "M012"; may be empty
};

}  // namespace runner::check
