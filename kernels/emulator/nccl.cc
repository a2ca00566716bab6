// An emulated NCCL: groups whose members are threads or processes of one machine, over TCP.
//
// It has only the functions that the engine calls. Groups are non-blocking: a call returns
// `ncclInProgress`, and its operation is on the stream once `ncclCommGetAsyncError` has returned
// success. As with the real one, nothing on the wire marks the begin, the end or the size of a
// collective. A member waits forever for a peer that stalls. A peer that is gone is reported by the
// asynchronous error only, and the stream waits until `ncclCommAbort`.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

extern "C" {
int rolltape_emulated_enqueue(void *stream, int (*function)(void *), const void *data, size_t bytes);
int rolltape_emulated_live(uint64_t address, size_t bytes);
int rolltape_emulated_fault(const char *text);
}

namespace {

enum Result {
  SUCCESS = 0,
  SYSTEM_ERROR = 2,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5,
  REMOTE_ERROR = 6,
  IN_PROGRESS = 7,
};
constexpr int VERSION = 23007;
constexpr int UINT8 = 1, FLOAT32 = 7, SUM = 0;
// The result with which work asks the emulated driver to call it again.
constexpr int NOT_READY = 600;
// Number of times that a group reports a call as in progress before its work is on the stream.
constexpr int POLLS = 3;

struct Id {
  char internal[128];
};
// The contents of an id: the address of the first member.
struct Place {
  char magic[8];
  uint64_t nonce;
  uint16_t port;
};
// The beginning of `ncclConfig_t`, as of the first version with non-blocking groups.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};
struct Hello {
  uint64_t nonce;
  int rank, size;
};

// A peer, and the bytes that were sent to it and received from it in the current collective.
struct Peer {
  int socket = -1;
  bool known = false;  // it has said who it is, or has said that all are there
  size_t sent = 0, received = 0;
};

struct Group {
  std::mutex lock;
  int rank, size;
  Place place;
  int listener = -1;
  bool formed = false, aborted = false;
  int error = IN_PROGRESS;
  std::map<int, Peer> peers;  // by rank; those who are not the first know the first only
  std::shared_ptr<struct Collective> asked;  // not on the stream yet
  int polls = 0;

  ~Group() { close_all(); }
  void close_all() {
    for (auto &[rank, peer] : peers)
      if (peer.socket >= 0) close(peer.socket), peer.socket = -1;
    if (listener >= 0) close(listener), listener = -1;
  }
};

struct Collective {
  std::shared_ptr<Group> group;
  bool sums = false, begun = false;
  const char *from;
  char *to;
  size_t bytes;
  void *stream;
  std::vector<char> total;                 // of a sum, at the first member
  std::map<int, std::vector<char>> parts;  // of a sum, by member
};

std::mutex all;
std::map<void *, std::shared_ptr<Group>> groups;
std::map<uint16_t, int> listeners;  // of ids that nobody has begun a group with

std::shared_ptr<Group> group_of(void *handle) {
  std::lock_guard<std::mutex> guard(all);
  auto found = groups.find(handle);
  return found == groups.end() ? nullptr : found->second;
}

void unblock(int socket) { fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK); }

// Transfers as much as possible now. False if the other side is gone.
bool push(const Peer &peer, const void *from, size_t bytes, size_t &done) {
  while (done < bytes) {
    ssize_t n = send(peer.socket, static_cast<const char *>(from) + done, bytes - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    done += static_cast<size_t>(n);
  }
  return true;
}
bool pull(const Peer &peer, void *to, size_t bytes, size_t &done) {
  while (done < bytes) {
    ssize_t n = recv(peer.socket, static_cast<char *>(to) + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// True if the other side has closed its end, with nothing left to read.
bool gone(const Peer &peer) {
  char byte;
  ssize_t n = recv(peer.socket, &byte, 1, MSG_PEEK);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// The first member accepts connections with the right nonce, and notifies all once all have joined.
Result form_first(Group &group) {
  for (int socket; (socket = accept(group.listener, nullptr, nullptr)) >= 0;) {
    Hello hello{};
    size_t done = 0;
    Peer peer{socket};
    // The hello is sent in one piece right after the connection.
    if (!pull(peer, &hello, sizeof hello, done) || done != sizeof hello ||
        hello.nonce != group.place.nonce || hello.size != group.size || hello.rank < 1 ||
        hello.rank >= group.size || group.peers.count(hello.rank)) {
      close(socket);
      continue;
    }
    unblock(socket);
    peer.known = true;
    group.peers[hello.rank] = peer;
  }
  for (auto &[rank, peer] : group.peers)
    if (gone(peer)) return REMOTE_ERROR;
  if (static_cast<int>(group.peers.size()) < group.size - 1) return IN_PROGRESS;
  for (auto &[rank, peer] : group.peers) {
    size_t done = 0;
    if (!push(peer, "!", 1, done)) return REMOTE_ERROR;
  }
  return SUCCESS;
}

Result form_other(Group &group) {
  Peer &first = group.peers[0];
  if (first.socket < 0) {
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) return SYSTEM_ERROR;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(group.place.port);
    // A member that does not listen yet is tried again, as the real one does.
    if (connect(made, reinterpret_cast<sockaddr *>(&address), sizeof address)) {
      close(made);
      return IN_PROGRESS;
    }
    first.socket = made;
    Hello hello{group.place.nonce, group.rank, group.size};
    size_t done = 0;
    if (!push(first, &hello, sizeof hello, done)) return REMOTE_ERROR;
    unblock(made);
  }
  char all_there;
  size_t done = 0;
  if (!pull(first, &all_there, 1, done)) return REMOTE_ERROR;
  return done ? SUCCESS : IN_PROGRESS;
}

// The first member sends its bytes to all others.
bool broadcast(Group &group, Collective &it, bool &ready) {
  for (auto &[rank, peer] : group.peers) {
    bool well = group.rank == 0 ? push(peer, it.from, it.bytes, peer.sent)
                                : pull(peer, it.to, it.bytes, peer.received);
    if (!well) return false;
    ready &= (group.rank == 0 ? peer.sent : peer.received) == it.bytes;
  }
  return true;
}

// All members send their numbers to the first one, which sends the sum to all.
bool sum(Group &group, Collective &it, bool &ready) {
  if (group.rank != 0) {
    Peer &first = group.peers[0];
    if (!push(first, it.from, it.bytes, first.sent)) return false;
    if (!pull(first, it.to, it.bytes, first.received)) return false;
    ready = first.received == it.bytes;
    return true;
  }
  for (auto &[rank, peer] : group.peers) {
    auto &part = it.parts[rank];
    part.resize(it.bytes);
    if (!pull(peer, part.data(), it.bytes, peer.received)) return false;
    ready &= peer.received == it.bytes;
  }
  if (!ready) return true;
  if (it.total.empty()) {
    it.total.assign(it.from, it.from + it.bytes);
    auto total = reinterpret_cast<float *>(it.total.data());
    for (auto &[rank, part] : it.parts)
      for (size_t i = 0; i < it.bytes / 4; i++)
        total[i] += reinterpret_cast<const float *>(part.data())[i];
    memcpy(it.to, it.total.data(), it.bytes);
  }
  for (auto &[rank, peer] : group.peers) {
    if (!push(peer, it.total.data(), it.bytes, peer.sent)) return false;
    ready &= peer.sent == it.bytes;
  }
  return true;
}

// The work on the stream: transfers as much as possible now.
int go_on(void *data) {
  auto it = *static_cast<std::shared_ptr<Collective> **>(data);
  Collective &collective = **it;
  auto group = collective.group;
  std::lock_guard<std::mutex> guard(group->lock);
  auto end = [&](int result) {
    delete it;
    return result;
  };
  if (group->aborted) return end(0);
  if (group->error != SUCCESS && group->error != IN_PROGRESS) return NOT_READY;
  if (!rolltape_emulated_live(reinterpret_cast<uint64_t>(collective.to), collective.bytes) ||
      !rolltape_emulated_live(reinterpret_cast<uint64_t>(collective.from), collective.bytes))
    return end(rolltape_emulated_fault("a collective on memory that is not there"));
  if (!collective.begun)
    for (auto &[rank, peer] : group->peers) peer.sent = peer.received = 0;
  collective.begun = true;
  bool ready = true;
  bool well = collective.sums ? sum(*group, collective, ready) : broadcast(*group, collective, ready);
  if (!well) group->error = REMOTE_ERROR;
  return well && ready ? end(0) : NOT_READY;
}

Result ask(void *handle, Collective collective) {
  auto group = group_of(handle);
  if (!group) return INVALID_ARGUMENT;
  std::lock_guard<std::mutex> guard(group->lock);
  if (group->error == IN_PROGRESS) return INVALID_USAGE;
  if (group->error) return static_cast<Result>(group->error);
  if (!collective.bytes) return SUCCESS;
  collective.group = group;
  group->asked = std::make_shared<Collective>(std::move(collective));
  group->polls = 0;
  return static_cast<Result>(group->error = IN_PROGRESS);
}

} // namespace

extern "C" {
#define API __attribute__((visibility("default"))) int

API ncclGetVersion(int *version) {
  *version = VERSION;
  return SUCCESS;
}

__attribute__((visibility("default"))) const char *ncclGetErrorString(int code) {
  switch (code) {
    case SUCCESS: return "no error";
    case 1: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case SYSTEM_ERROR: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case 3: return "internal error - please report this issue to the NCCL developers";
    case INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case INVALID_USAGE: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

API ncclGetUniqueId(Id *id) {
  int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (made < 0 || bind(made, reinterpret_cast<sockaddr *>(&address), length) || listen(made, 16) ||
      getsockname(made, reinterpret_cast<sockaddr *>(&address), &length))
    return SYSTEM_ERROR;
  static uint64_t count = 0;
  std::lock_guard<std::mutex> guard(all);
  Place place{{'r', 'o', 'l', 'l'}, 0, ntohs(address.sin_port)};
  place.nonce = static_cast<uint64_t>(getpid()) << 32 | ++count;
  memset(id, 0, sizeof *id);
  memcpy(id, &place, sizeof place);
  listeners[place.port] = made;
  return SUCCESS;
}

API ncclCommInitRankConfig(void **handle, int size, Id id, int rank, const Config *config) {
  Place place;
  memcpy(&place, &id, sizeof place);
  if (!handle || size < 1 || rank < 0 || rank >= size) return INVALID_ARGUMENT;
  if (!config || config->size < sizeof(Config) || config->magic != 0xcafebeef)
    return INVALID_ARGUMENT;
  if (config->version < 21400 || config->blocking != 0) return INVALID_USAGE;
  if (strcmp(place.magic, "roll")) return INVALID_ARGUMENT;
  auto group = std::make_shared<Group>();
  group->rank = rank, group->size = size, group->place = place;
  std::lock_guard<std::mutex> guard(all);
  if (rank == 0) {
    auto found = listeners.find(place.port);
    if (found == listeners.end()) return INVALID_ARGUMENT;
    group->listener = found->second;
    listeners.erase(found);
  }
  *handle = group.get();
  groups[*handle] = group;
  return IN_PROGRESS;
}

API ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *handle,
                  void *stream) {
  if (type != FLOAT32 || operation != SUM) return INVALID_ARGUMENT;
  Collective collective;
  collective.sums = true;
  collective.from = static_cast<const char *>(from), collective.to = static_cast<char *>(to);
  collective.bytes = count * 4, collective.stream = stream;
  return ask(handle, std::move(collective));
}

API ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *handle,
                  void *stream) {
  if (type != UINT8 || root != 0) return INVALID_ARGUMENT;
  Collective collective;
  collective.from = static_cast<const char *>(from), collective.to = static_cast<char *>(to);
  collective.bytes = count, collective.stream = stream;
  return ask(handle, std::move(collective));
}

API ncclCommGetAsyncError(void *handle, int *error) {
  auto group = group_of(handle);
  if (!group || !error) return INVALID_ARGUMENT;
  std::shared_ptr<Collective> asked;
  {
    std::lock_guard<std::mutex> guard(group->lock);
    if (!group->formed && group->error == IN_PROGRESS) {
      group->error = group->rank == 0 ? form_first(*group) : form_other(*group);
      group->formed = group->error == SUCCESS;
    } else if (group->asked && ++group->polls == POLLS) {
      asked = std::move(group->asked);
    } else if (group->formed && !group->asked && group->error == SUCCESS) {
      for (auto &[rank, peer] : group->peers)
        if (gone(peer)) group->error = REMOTE_ERROR;
    }
  }
  // The stream may begin at once, with the locks in the other order.
  if (asked) {
    auto kept = new std::shared_ptr<Collective>(asked);
    int result = rolltape_emulated_enqueue(asked->stream, go_on, &kept, sizeof kept);
    std::lock_guard<std::mutex> guard(group->lock);
    if (group->error == IN_PROGRESS) group->error = result && result != NOT_READY ? 1 : SUCCESS;
  }
  std::lock_guard<std::mutex> guard(group->lock);
  *error = group->error;
  return SUCCESS;
}

API ncclCommAbort(void *handle) {
  auto group = group_of(handle);
  if (!group) return INVALID_ARGUMENT;
  {
    std::lock_guard<std::mutex> guard(all);
    groups.erase(handle);
  }
  std::lock_guard<std::mutex> guard(group->lock);
  group->aborted = true;
  group->asked = nullptr;
  group->close_all();
  return SUCCESS;
}
}
