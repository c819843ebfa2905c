#include "runner/check/check.h"

#include "runner/check/passes.h"

namespace runner::check {

Verdict judge(config::Experiment& experiment, const MachineView& machine,
              const datasets::Context& context, diag::Sink& sink) {
  Judgement j(experiment, machine, context, sink);
  judge_settings(j);
  judge_fit(j);
  judge_steps(j);
  judge_monitors(j);
  judge_costs(j);
  return std::move(j.verdict);
}

}  // namespace runner::check
