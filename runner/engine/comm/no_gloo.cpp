#include "runner/diag/error.h"
#include "runner/engine/comm/backends.h"

namespace runner::engine {

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendOptions& /*options*/) {
  throw diag::Error(diag::Exit::machine, "this build of runner-worker can't use gloo",
                    "install libgloo-dev and build again (scripts/setup does)");
}

}  // namespace runner::engine
