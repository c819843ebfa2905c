#include "runner/engine/comm/mpi.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace runner::engine::mpi {

namespace {

using Clock = std::chrono::steady_clock;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using Reduction = c10d::ReduceOp::RedOpType;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Of one call: MPI counts in int.
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(call) + ": " +
                           std::string(text.data(), static_cast<std::size_t>(length)));
}

/// Calls f(first, count) for all of `count` items.
template <class F>
void in_pieces(std::int64_t count, std::size_t item_bytes, F&& f) {
  const std::int64_t most = kPieceBytes / static_cast<std::int64_t>(item_bytes);
  for (std::int64_t first = 0; first < count; first += most) {
    f(first, static_cast<int>(std::min(most, count - first)));
  }
}

std::byte* address(const at::Tensor& tensor, std::int64_t item) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) +
         item * static_cast<std::int64_t>(tensor.element_size());
}

/// A reduction of our own.
template <at::ScalarType kType, Reduction kReduction>
void combine(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
  // ATen starts threads for more than this, and the threads have a backward pass to compute.
  constexpr std::int64_t kAtOnce = 16384;
  const at::TensorOptions options(kType);
  const at::Tensor theirs = at::from_blob(in, {*count}, options);
  const at::Tensor ours = at::from_blob(in_out, {*count}, options);
  for (std::int64_t first = 0; first < *count; first += kAtOnce) {
    const std::int64_t n = std::min<std::int64_t>(kAtOnce, *count - first);
    const at::Tensor a = theirs.narrow(0, first, n);
    at::Tensor b = ours.narrow(0, first, n);
    if constexpr (kReduction == Reduction::SUM) {
      b.add_(a);
    } else if constexpr (kReduction == Reduction::MIN) {
      at::minimum_out(b, b, a);
    } else {
      at::maximum_out(b, b, a);
    }
  }
}

/// How MPI names dtypes and reductions; made after MPI_Init.
class Names {
 public:
  Names() {
    add<at::kHalf>();  // MPI doesn't know it
    add<at::kBFloat16>();
    add<at::kByte>();  // Open MPI 4.1 has sums stop at 255 if it adds vectors, and wrap if it
                       // doesn't
  }
  void free() {
    for (auto& [key, op] : own_) MPI_Op_free(&op);
  }

  [[nodiscard]] static MPI_Datatype type(at::ScalarType dtype) {
    switch (dtype) {
      case at::kFloat:
        return MPI_FLOAT;
      case at::kDouble:
        return MPI_DOUBLE;
      case at::kInt:
        return MPI_INT32_T;
      case at::kLong:
        return MPI_INT64_T;
      case at::kByte:
        return MPI_UINT8_T;
      case at::kHalf:
      case at::kBFloat16:
        return MPI_UINT16_T;
      default:
        TORCH_CHECK(false, "MPI_Allreduce: tensors of ", dtype, " can't be reduced");
    }
  }

  [[nodiscard]] MPI_Op op(at::ScalarType dtype, Reduction reduction) const {
    if (reduction == Reduction::AVG) reduction = Reduction::SUM;
    if (const auto own = own_.find({dtype, reduction}); own != own_.end()) return own->second;
    switch (reduction) {
      case Reduction::SUM:
        return MPI_SUM;
      case Reduction::MIN:
        return MPI_MIN;
      case Reduction::MAX:
        return MPI_MAX;
      default:
        TORCH_CHECK(false, "MPI_Allreduce: can sum, average, and find the least or largest");
    }
  }

 private:
  template <at::ScalarType kType>
  void add() {
    create<kType, Reduction::SUM>();
    create<kType, Reduction::MIN>();
    create<kType, Reduction::MAX>();
  }
  template <at::ScalarType kType, Reduction kReduction>
  void create() {
    MPI_Op& op = own_[{kType, kReduction}];
    check(MPI_Op_create(&combine<kType, kReduction>, /*commute=*/1, &op), "MPI_Op_create");
  }

  std::map<std::pair<at::ScalarType, Reduction>, MPI_Op> own_;
};

/// A tensor as MPI takes it: contiguous, in main memory; a copy if the tensor isn't so.
class Host {
 public:
  explicit Host(at::Tensor tensor)
      : tensor_(std::move(tensor)),
        copies_(!tensor_.is_cpu() || !tensor_.is_contiguous()),
        host_(copies_ ? at::empty(tensor_.sizes(), tensor_.options()
                                                       .device(at::kCPU)
                                                       .memory_format(at::MemoryFormat::Contiguous)
                                                       .pinned_memory(!tensor_.is_cpu()))
                      : tensor_) {}

  [[nodiscard]] const at::Tensor& memory() const { return host_; }
  void read() {
    if (copies_) host_.copy_(tensor_);
  }
  void write() {
    if (copies_) tensor_.copy_(host_);
  }

 private:
  at::Tensor tensor_;
  bool copies_;
  at::Tensor host_;
};

/// The one thread of this process that calls MPI, and what it has to do, in order.
///
/// It isn't joined: after a failure it may be waiting for ranks that never come.
class Caller : public std::enable_shared_from_this<Caller> {
 public:
  struct Joined {
    int rank = 0, size = 1;
  };

  explicit Caller(milliseconds timeout) : timeout_(timeout) {}

  /// Starts the thread and MPI.
  Joined join() {
    std::promise<Joined> joined;
    std::future<Joined> result = joined.get_future();
    std::thread([self = shared_from_this(), promise = std::move(joined)]() mutable {
      try {
        promise.set_value(self->init());
      } catch (...) {
        promise.set_exception(std::current_exception());
        return;
      }
      self->work();
    }).detach();
    return result.get();
  }

  /// `run` is called on the thread, and `results` are what its future then has. They are all on
  /// `device`, where what the caller's stream does with them comes first.
  Future post(const at::Device& device, std::function<void()> run,
              std::vector<at::Tensor> results) {
    Job job;
    job.run = std::move(run);
    job.results = std::move(results);
    std::vector<at::Device> devices;
    if (!device.is_cpu()) {
      devices.push_back(device);
      job.ready.emplace(device.type());
      job.ready->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    job.device = device;
    job.done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
    Future done = job.done;
    {
      const std::scoped_lock lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
    return done;
  }

  /// Lets the thread end when it has nothing to do.
  void dismiss() {
    {
      const std::scoped_lock lock(mutex_);
      dismissed_ = true;
    }
    changed_.notify_one();
  }

  [[nodiscard]] const Names& names() const { return *names_; }

  // What follows is for jobs.

  /// Returns when all ranks have come here. MPI's own exchanges wait in a busy loop and without
  /// end; here the wait leaves the processor to a backward pass, and gives up.
  void meet(const char* call) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
    const Clock::time_point start = Clock::now();
    while (true) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) return;
      const Clock::duration waited = Clock::now() - start;
      if (waited > timeout_) {
        throw std::runtime_error(std::string(call) + ": not all ranks came within " +
                                 std::to_string(timeout_.count()) + " ms");
      }
      if (waited < kBusy) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::min<Clock::duration>(waited / 8, kLongestSleep));
      }
    }
  }
  void finalize() {
    names_->free();
    check(MPI_Finalize(), "MPI_Finalize");
    failure_ = std::make_exception_ptr(std::runtime_error("MPI_Finalize: the run was over"));
  }

 private:
  static constexpr microseconds kBusy{200};
  static constexpr milliseconds kLongestSleep{1};

  struct Job {
    std::function<void()> run;
    std::vector<at::Tensor> results;
    Future done;
    at::Device device = at::kCPU;
    std::optional<c10::Event> ready;  ///< when the tensors of a GPU may be read
  };

  Joined init() {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_FUNNELED) {
      throw std::runtime_error("MPI_Init_thread: this MPI wasn't built for processes with threads");
    }
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    names_.emplace();
    Joined joined;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &joined.rank), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &joined.size), "MPI_Comm_size");
    return joined;
  }

  void work() {
    const at::NoGradGuard no_grad;
    while (std::optional<Job> job = next()) {
      try {
        if (failure_) std::rethrow_exception(failure_);
        execute(*job);
      } catch (...) {
        // The others may have gone on to another exchange: nothing fits together any more.
        failure_ = std::current_exception();
        job->done->setError(failure_);
      }
    }
  }

  std::optional<Job> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return dismissed_ || !jobs_.empty(); });
    if (jobs_.empty()) return std::nullopt;
    std::optional<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

  void execute(Job& job) {
    c10::OptionalStreamGuard guard;
    if (job.ready) {
      // A stream of its own: copies must not queue behind the rest of the backward pass.
      if (!stream_) {
        const c10::impl::VirtualGuardImpl device(job.device.type());
        stream_ = device.getStreamFromGlobalPool(job.device, /*isHighPriority=*/true);
      }
      guard.reset_stream(*stream_);
      job.ready->block(*stream_);
    }
    job.run();
    job.done->markCompleted(c10::IValue(job.results));
  }

  const milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool dismissed_ = false;

  std::optional<Names> names_;  ///< doesn't change between init() and finalize()

  // Of the thread alone.
  std::optional<c10::Stream> stream_;
  std::exception_ptr failure_;
};

/// LibTorch's own wrapper of a future swallows its exception.
class MpiWork : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, Future done) : Work(rank, type), done_(std::move(done)) {}

  bool isCompleted() override { return done_->completed(); }
  bool isSuccess() const override { return done_->completed() && !done_->hasError(); }
  std::exception_ptr exception() const override { return done_->exception_ptr(); }
  std::vector<at::Tensor> result() override { return done_->value().toTensorVector(); }
  void synchronize() override { done_->waitAndThrow(); }
  bool wait(milliseconds /*timeout*/) override {
    done_->waitAndThrow();
    return true;
  }
  Future getFuture() override { return done_; }

 private:
  Future done_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class Mpi : public c10d::Backend {
 public:
  Mpi(std::shared_ptr<Caller> caller, Caller::Joined joined)
      : Backend(joined.rank, joined.size), caller_(std::move(caller)) {}
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;
  ~Mpi() override { caller_->dismiss(); }

  const std::string getBackendName() const override { return "mpi"; }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    const at::Tensor tensor = only(tensors, "MPI_Allreduce");
    const Reduction reduction = options.reduceOp;
    const MPI_Datatype type = Names::type(tensor.scalar_type());
    const MPI_Op op = caller_->names().op(tensor.scalar_type(), reduction);
    return post(c10d::OpType::ALLREDUCE, tensor, {tensor},
                [caller = caller_.get(), tensor, type, op, mean = reduction == Reduction::AVG,
                 size = getSize()] {
                  Host host(tensor);
                  host.read();
                  const at::Tensor& memory = host.memory();
                  caller->meet("MPI_Allreduce");
                  in_pieces(memory.numel(), memory.element_size(), [&](auto first, int count) {
                    check(MPI_Allreduce(MPI_IN_PLACE, address(memory, first), count, type, op,
                                        MPI_COMM_WORLD),
                          "MPI_Allreduce");
                  });
                  if (mean) memory.div_(size);
                  host.write();
                });
  }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = only(tensors, "MPI_Bcast");
    const auto root = static_cast<int>(options.rootRank);
    return post(
        c10d::OpType::BROADCAST, tensor, {tensor},
        [caller = caller_.get(), tensor, root, sends = root == getRank()] {
          Host host(tensor);
          if (sends) host.read();
          const at::Tensor& memory = host.memory();
          const auto item = static_cast<int>(memory.element_size());
          caller->meet("MPI_Bcast");
          in_pieces(memory.numel(), memory.element_size(), [&](auto first, int count) {
            check(MPI_Bcast(address(memory, first), count * item, MPI_BYTE, root, MPI_COMM_WORLD),
                  "MPI_Bcast");
          });
          if (!sends) host.write();
        });
  }

  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& /*options*/) override {
    const at::Tensor input = only(inputs, "MPI_Allgather");
    TORCH_CHECK(outputs.size() == 1 && std::ssize(outputs.front()) == getSize(),
                "MPI_Allgather: takes one output a rank");
    for (const at::Tensor& output : outputs.front()) {
      TORCH_CHECK(output.sizes() == input.sizes() && output.dtype() == input.dtype(),
                  "MPI_Allgather: takes outputs of the input's shape and dtype");
    }
    return post(c10d::OpType::ALLGATHER, input, outputs.front(),
                [caller = caller_.get(), input, all = outputs.front()] {
                  Host host(input);
                  host.read();
                  const at::Tensor& memory = host.memory();
                  const auto item = static_cast<int>(memory.element_size());
                  std::vector<Host> targets(all.begin(), all.end());
                  std::vector<std::byte> gathered;
                  caller->meet("MPI_Allgather");
                  in_pieces(memory.numel(), memory.element_size(), [&](auto first, int count) {
                    const int bytes = count * item;
                    gathered.resize(static_cast<std::size_t>(bytes) * targets.size());
                    check(MPI_Allgather(address(memory, first), bytes, MPI_BYTE, gathered.data(),
                                        bytes, MPI_BYTE, MPI_COMM_WORLD),
                          "MPI_Allgather");
                    const std::byte* from = gathered.data();
                    for (const Host& target : targets) {
                      std::copy_n(from, bytes, address(target.memory(), first));
                      from += bytes;
                    }
                  });
                  for (Host& target : targets) target.write();
                });
  }

  WorkPtr barrier(const c10d::BarrierOptions& /*options*/) override {
    return post(c10d::OpType::BARRIER, {}, {},
                [caller = caller_.get()] { caller->meet("MPI_Barrier"); });
  }

  void shutdown() override {
    if (std::exchange(left_, true)) return;
    post(c10d::OpType::UNKNOWN, {}, {}, [caller = caller_.get()] { caller->finalize(); })->wait();
  }

 private:
  static const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call) {
    TORCH_CHECK(tensors.size() == 1, call, ": takes one tensor");
    return tensors.front();
  }

  WorkPtr post(c10d::OpType type, const at::Tensor& tensor, std::vector<at::Tensor> results,
               std::function<void()> run) {
    const at::Device device = tensor.defined() ? tensor.device() : at::Device(at::kCPU);
    return c10::make_intrusive<MpiWork>(getRank(), type,
                                        caller_->post(device, std::move(run), std::move(results)));
  }

  std::shared_ptr<Caller> caller_;
  bool left_ = false;
};

c10::intrusive_ptr<c10d::Backend> join(milliseconds timeout) {
  const auto caller = std::make_shared<Caller>(timeout);
  const Caller::Joined joined = caller->join();
  return c10::make_intrusive<Mpi>(caller, joined);
}

constexpr Api kApi{Api::kVersion, join};

}  // namespace

}  // namespace runner::engine::mpi

extern "C" const runner::engine::mpi::Api* runner_mpi_api() { return &runner::engine::mpi::kApi; }
