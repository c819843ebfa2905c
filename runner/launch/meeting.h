// launch: the connections between the launchers of one run.
//
// Where one launcher starts all ranks there is no meeting. Else launcher 0 leads: it listens at the
// run's rendezvous address only, the others come to it and stay connected until the run has ended.
// What comes from a port that anybody can reach is believed only after a greeting with the run's
// identity; anything else closes that one connection.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/launch/connection.h"
#include "runner/launch/topology.h"

namespace runner::launch {

struct MeetingOptions {
  std::string host;        ///< name of this machine, for people
  std::string version;     ///< of runner: all launchers must have the same
  std::string digest;      ///< of the resolved experiment: likewise
  std::vector<int> ports;  ///< to try in this order when nobody named one, see launch::ports
  std::chrono::seconds start_timeout{300};
  /// Under torchrun, whose own store has the named port: tell and ask where the leader listens.
  /// `look_up` may return an old value or an empty one.
  std::function<void(const std::string&)> publish;
  std::function<std::string()> look_up;
};

/// Another launcher: any but the leader on the leader's side, the leader on the others'.
struct Peer {
  std::int64_t launcher = 0;
  std::int64_t first_rank = 0, ranks = 0;
  std::string host;
  Connection connection;
  std::vector<std::string> unread = {};  ///< came along with the end of the meeting
};

class Meeting {
 public:
  /// Returns when all launchers have come. Throws diag::Error: (machine) for an address or a port
  /// that this machine can't listen at, (failed) naming who is missing after the start timeout,
  /// (incompatible) on both sides for another experiment, another version or another size.
  [[nodiscard]] static Meeting join(const Topology& topology, const MeetingOptions& options);

  Meeting(Meeting&&) = default;
  Meeting& operator=(Meeting&&) = delete;
  /// Ends the others' runs with status 1 unless part() was called.
  ~Meeting();

  [[nodiscard]] bool leads() const { return leads_; }
  /// Of this machine, as the leader sees it; 127.0.0.1 when all ranks are on one machine.
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Where the leader listened: host only.
  [[nodiscard]] const std::string& rendezvous() const { return rendezvous_; }
  [[nodiscard]] const std::vector<Peer>& peers() const { return peers_; }

  /// A message of a peer, or the end of its connection.
  struct Event {
    std::size_t peer = 0;
    std::optional<std::string> message;  ///< absent: the connection has ended
  };
  void add_to(std::vector<pollfd>& waiting) const;
  /// What has come; never waits. Also sends what couldn't be sent before.
  [[nodiscard]] std::vector<Event> receive();
  void send(std::size_t peer, std::string_view message);
  void send_all(std::string_view message);
  /// Ends the connection; no event tells of it.
  void drop(std::size_t peer);
  /// Sends the last message; on the leader, waits a moment for the others to go first, so that
  /// nobody loses what is under way.
  void part(std::string_view last_message);

 private:
  Meeting(bool leads, std::string address, std::string rendezvous, std::vector<Peer> peers);

  bool leads_ = false;
  std::string address_;
  std::string rendezvous_;
  std::vector<Peer> peers_;
  std::vector<bool> told_;  ///< by peer: that its connection has ended
};

}  // namespace runner::launch
