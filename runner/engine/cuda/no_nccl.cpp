#include "runner/diag/error.h"
#include "runner/engine/cuda/nccl.h"

namespace runner::engine::cuda {

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendOptions& /*options*/, int /*index*/) {
  throw diag::Error(diag::Exit::machine, "this build of runner-worker can't use NCCL",
                    "install NCCL with its header nccl.h and build again, or set "
                    "trainer.communication = \"gloo\"");
}

}  // namespace runner::engine::cuda
