#include "runner/launch/watch.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "runner/diag/error.h"

namespace runner::launch {

namespace {

constexpr int kFailed = static_cast<int>(diag::Exit::failed);

/// Collectives have the same limit as the watch: one of them may be the first to say so.
WatchTime slack(WatchTime timeout) { return std::min(WatchTime(2000), timeout / 2); }

bool is_training(host::Phase phase) { return phase >= host::Phase::training; }

std::string where(const Sign& sign) {
  if (sign.phase == host::Phase::done) return "done";
  if (!is_training(sign.phase) || sign.step == 0) return std::string(to_text(sign.phase));
  std::string step = "in step " + std::to_string(sign.step);
  if (sign.phase == host::Phase::training) return step;
  return step + " (" + std::string(to_text(sign.phase)) + ")";
}

std::string while_at(const Sign& sign) {
  const std::string place = where(sign);
  return place.starts_with("in ") ? place : "while " + place;
}

}  // namespace

Watch::Watch(WatchSettings settings)
    : settings_(std::move(settings)), ranks_(settings_.hosts.size()) {}

const std::string& Watch::host(std::int64_t rank) const {
  return settings_.hosts[static_cast<std::size_t>(rank)];
}

std::string Watch::name(const std::vector<std::int64_t>& ranks) const {
  std::vector<std::string> hosts;
  for (const std::int64_t rank : ranks) {
    if (std::find(hosts.begin(), hosts.end(), host(rank)) == hosts.end())
      hosts.push_back(host(rank));
  }
  std::string text;
  for (const std::string& h : hosts) text += (text.empty() ? "" : ", ") + h;
  return ranks_text(ranks) + " (on " + text + ")";
}

Failure Watch::failure_of(std::int64_t rank, std::string message, std::string help) const {
  return {.message = std::move(message),
          .help = std::move(help),
          .exit = kFailed,
          .rank = rank,
          .host = host(rank),
          .step = at(rank).sign.step,
          .attempt = settings_.attempt};
}

Failure Watch::killed(std::int64_t rank, int signal) const {
  std::string text = "the worker was ended by " + signal_text(signal);
  if (world() > 1) {
    text = name({rank}) + " was ended by " + signal_text(signal) + " " + while_at(at(rank).sign);
  }
  return failure_of(rank, text,
                    signal == SIGKILL
                        ? "the kernel does this when memory runs out: see `dmesg`, or lower "
                          "dataset.batch_size"
                        : "its log may say more");
}

Failure Watch::told(std::int64_t rank, int code, const Failure& record) const {
  const std::string prefix = world() > 1 ? name({rank}) + ": " : "";
  Failure failure = failure_of(rank, prefix + record.message, record.help);
  failure.exit = code;
  failure.kind = record.kind;
  if (record.step > 0) failure.step = record.step;
  return failure;
}

Failure Watch::silent(std::int64_t rank, int code) const {
  const std::string who = world() > 1 ? name({rank}) : "the worker";
  return failure_of(rank,
                    who + " ended with status " + std::to_string(code) + " and left no reason",
                    "its log may say more");
}

void Watch::sign(std::int64_t rank, const Sign& sign, WatchTime now) {
  Rank& r = at(rank);
  if (r.ended) return;
  const bool moved =
      sign.beats != r.sign.beats || sign.step != r.sign.step || sign.phase != r.sign.phase;
  if (moved) r.changed = now;
  r.seen = now;
  r.sign = sign;
}

void Watch::ended(const RankEnd& end, WatchTime now) {
  sign(end.rank, end.last, now);
  at(end.rank).ended = true;
  if (must_kill_) return;  // a consequence
  if (WIFSIGNALED(end.status)) {
    const int signal = WTERMSIG(end.status);
    const bool ours = passed_ == signal || (passed_ == SIGHUP && signal == SIGTERM);
    if (ours) return stopped(end.rank, 128 + signal);
    return decide(killed(end.rank, signal), /*restartable=*/true);
  }
  const int code = WEXITSTATUS(end.status);
  if (code > 128) return stopped(end.rank, code);
  if (code == 0) {
    if (world() == 1 || end.last.phase == host::Phase::done) return;
    return decide(failure_of(end.rank, name({end.rank}) + " ended early, with status 0",
                             "its log may say more"),
                  /*restartable=*/true);
  }
  const bool restartable =
      code < static_cast<int>(diag::Exit::invalid) || code > static_cast<int>(diag::Exit::machine);
  if (!end.record) return decide(silent(end.rank, code), restartable);
  Failure failure = told(end.rank, code, *end.record);
  if (failure.kind == FailureKind::own) return decide(std::move(failure), restartable);
  if (!broken_) {
    broken_ = std::move(failure);
    broken_at_ = now;
  }
  if (all_ended()) judge_broken();
}

void Watch::stopped(std::int64_t rank, int status) {
  if (stop_status_ == 0) {
    stop_status_ = status;
    stop_rank_ = rank;
  }
  // Before training nobody agrees on a stop, and after a second signal neither: the others would
  // wait for this rank.
  if (at_once_ || (world() > 1 && !is_training(at(rank).sign.phase))) must_kill_ = true;
}

void Watch::passed(int signal, bool again) {
  passed_ = signal;
  at_once_ = at_once_ || again;
  if (at_once_ && stop_status_ != 0) must_kill_ = true;
}

void Watch::decide(Failure failure, bool restartable) {
  must_kill_ = true;
  failure_ = std::move(failure);
  restartable_ = restartable;
}

void Watch::fail(Failure failure) {
  if (must_kill_) return;
  if (passed_ != 0) {
    // A launcher that was told to end may leave before its ranks have.
    must_kill_ = true;
    if (stop_status_ == 0) stop_status_ = 128 + passed_;
    return;
  }
  failure.attempt = settings_.attempt;
  decide(std::move(failure), /*restartable=*/false);
}

void Watch::add_help(const std::string& more) {
  failure_->help += (failure_->help.empty() ? "" : "; ") + more;
}

void Watch::gone(std::int64_t first_rank, std::int64_t ranks) {
  for (std::int64_t i = 0; i < ranks; ++i) at(first_rank + i).ended = true;
}

bool Watch::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.ended; });
}

/// The ranks that the others wait for, as far as it can be told; all of them if it can't.
std::vector<std::int64_t> Watch::culprits() const {
  std::int64_t fewest = 0;
  bool found = false;
  for (const Rank& r : ranks_) {
    if (r.sign.phase == host::Phase::done) continue;
    fewest = found ? std::min(fewest, r.sign.beats) : r.sign.beats;
    found = true;
  }
  const auto pick = [this](const auto& is_one) {
    std::vector<std::int64_t> ranks;
    for (std::int64_t i = 0; i < world(); ++i) {
      if (at(i).sign.phase != host::Phase::done && is_one(at(i))) ranks.push_back(i);
    }
    return ranks;
  };
  const std::vector<std::int64_t> all = pick([](const Rank&) { return true; });
  std::vector<std::int64_t> some = pick([](const Rank& r) { return r.sign.stopped && !r.ended; });
  if (!some.empty()) return some;
  some = pick([fewest](const Rank& r) { return r.sign.beats == fewest; });
  if (some.size() < all.size()) return some;
  some = pick([](const Rank& r) { return r.sign.phase == host::Phase::saving; });
  return some.empty() ? all : some;
}

Failure Watch::stood_still() const {
  const std::vector<std::int64_t> ranks = culprits();
  const std::string limit = seconds_text(settings_.timeout);
  std::int64_t step = 0;
  for (const Rank& r : ranks_) step = std::max(step, r.sign.step);
  const std::int64_t first = ranks.front();
  const Sign& sign = at(first).sign;
  const bool behind = sign.step < step;
  std::string what = behind ? "did not come to step " + std::to_string(step)
                            : "did not get through step " + std::to_string(step);
  if (!behind && sign.phase != host::Phase::training)
    what += " (" + std::string(to_text(sign.phase)) + ")";
  if (static_cast<std::int64_t>(ranks.size()) == world() && !sign.stopped) {
    return failure_of(first, "no rank got through step " + std::to_string(step) + " in " + limit,
                      "trainer.timeout says how long ranks may take");
  }
  std::string is_stopped;
  if (sign.stopped && !at(first).ended) {
    is_stopped = ranks.size() == 1 ? " is stopped (SIGSTOP) and" : " are stopped (SIGSTOP) and";
  }
  return failure_of(first,
                    name(ranks) + is_stopped + " " + what + " in " + limit + "; the others wait",
                    "trainer.timeout says how long they do");
}

Failure Watch::not_arrived() const {
  // A rank that is meeting the others waits for those that have not come so far.
  std::vector<std::int64_t> starting;
  std::vector<std::int64_t> meeting;
  for (std::int64_t i = 0; i < world(); ++i) {
    if (at(i).ended || is_training(at(i).sign.phase)) continue;
    (at(i).sign.phase == host::Phase::starting ? starting : meeting).push_back(i);
  }
  const std::vector<std::int64_t>& ranks = starting.empty() ? meeting : starting;
  return failure_of(ranks.front(),
                    name(ranks) + " did not arrive in " + seconds_text(settings_.start_timeout),
                    "trainer.start_timeout says how long the others wait");
}

std::string Watch::whereabouts() const {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> places;
  for (std::int64_t i = 0; i < world(); ++i) {
    const std::string place = where(at(i).sign);
    const auto same = std::find_if(places.begin(), places.end(),
                                   [&](const auto& known) { return known.first == place; });
    if (same == places.end()) {
      places.push_back({place, {i}});
    } else {
      same->second.push_back(i);
    }
  }
  std::string text;
  for (const auto& [place, ranks] : places) {
    text += (text.empty() ? "" : "; ") + ranks_text(ranks) +
            (ranks.size() == 1 ? " was " : " were ") + place;
  }
  return text;
}

bool Watch::stalled(WatchTime limit) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [limit](const Rank& r) {
    return is_training(r.sign.phase) && r.sign.phase != host::Phase::done && r.stillness() >= limit;
  });
}

void Watch::judge_broken() {
  if (stop_status_ != 0 && passed_ != 0) {
    must_kill_ = true;  // the end of the first one to stop at once broke it
  } else if (stop_status_ != 0) {
    decide(failure_of(stop_rank_,
                      name({stop_rank_}) + " ended with status " + std::to_string(stop_status_) +
                          " before the others did",
                      "signal the launcher: it passes signals on to all ranks"),
           /*restartable=*/true);
  } else if (suspect_) {
    fail(*suspect_);
  } else if (stalled(settings_.timeout - slack(settings_.timeout))) {
    decide(stood_still(), /*restartable=*/true);
  } else {
    decide(*broken_, broken_->exit == kFailed);
    add_help(settings_.cuda ? "set NCCL_DEBUG=INFO for more" : whereabouts());
  }
}

void Watch::look(WatchTime now) {
  if (must_kill_ || world() == 1) return;
  if (broken_) {
    if (now - broken_at_ >= kCauseWait || all_ended()) judge_broken();
    return;
  }
  const bool hangs = std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) {
    return !r.ended && is_training(r.sign.phase) && r.sign.phase != host::Phase::done &&
           r.stillness() >= settings_.timeout;
  });
  if (hangs && suspect_) return fail(*suspect_);
  if (hangs) return decide(stood_still(), /*restartable=*/true);
  for (std::int64_t i = 0; i < world(); ++i) {
    if (at(i).ended || at(i).sign.phase != host::Phase::done) continue;
    if (at(i).stillness() < settings_.timeout) continue;
    return decide(
        failure_of(i, name({i}) + " was done and did not end in " + seconds_text(settings_.timeout),
                   "its log may say more"),
        /*restartable=*/false);
  }
  const bool missing = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) {
    return !r.ended && !is_training(r.sign.phase);
  });
  if (missing && now >= settings_.start_timeout) decide(not_arrived(), /*restartable=*/true);
}

int Watch::exit_status() const {
  if (failure_) return failure_->exit;
  if (passed_ == SIGHUP && stop_status_ == 128 + SIGTERM) return 128 + SIGHUP;
  return stop_status_;
}

}  // namespace runner::launch
