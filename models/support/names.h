#pragma once

#include "registry/option.h"

namespace runner::models {

/// The words of every model's `activation` option; graph::activation_from reads them.
inline constexpr registry::Choices kActivationNames = {"relu", "leaky_relu", "elu",     "gelu",
                                                       "silu", "tanh",       "sigmoid", "softplus"};

}  // namespace runner::models
