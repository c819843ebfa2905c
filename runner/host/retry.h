#pragma once

#include <algorithm>
#include <cmath>
#include <exception>
#include <random>
#include <utility>

#include "runner/host/clock.h"

namespace runner::host {

/// How long to wait between tries: a random time between 0 and a bound that doubles from `first`
/// with each try, up to `longest`. The whole range is random ("full jitter"), so that processes
/// which failed together don't come back together.
struct Backoff {
  Seconds first{0.1};
  Seconds longest{5};
};

/// Calls `f` until it doesn't throw a std::exception, at most 1 + `retries` times, and returns what
/// it returns; sleeps on `clock` between the calls. Throws the last call's exception.
template <class F, std::uniform_random_bit_generator Random>
decltype(auto) retry_jittered_backoff(F&& f, int retries, Clock& clock, Random& random,
                                      Backoff backoff = {}) {
  for (int attempt = 0;; ++attempt) {
    try {
      return f();
    } catch (const std::exception&) {
      if (attempt >= retries) throw;
    }
    const Seconds bound = std::min(backoff.longest, backoff.first * std::ldexp(1.0, attempt));
    clock.sleep(bound * std::uniform_real_distribution<double>(0.0, 1.0)(random));
  }
}

/// The same on `clock` with randomness of the machine.
template <class F>
decltype(auto) retry_jittered_backoff(F&& f, int retries = 5, Clock& clock = system_clock()) {
  std::random_device random;
  return retry_jittered_backoff(std::forward<F>(f), retries, clock, random);
}

}  // namespace runner::host
