// The passes of a judgement, in their order; each goes on as far as what it needs is known.
#pragma once

#include "runner/check/judgement.h"

namespace runner::check {

/// The facts that the file and the machine give, devices and precision.
void judge_settings(Judgement& j);
/// Dataset, loss, model and metrics against each other.
void judge_fit(Judgement& j);
/// Batches, steps, epochs, and the facts that intervals and schedules are held against.
void judge_steps(Judgement& j);
/// What is monitored: whether the run writes it, and which way is better.
void judge_monitors(Judgement& j);
/// Memory and disk.
void judge_costs(Judgement& j);

}  // namespace runner::check
