// comm.h   communication between ranks; one of comm_nccl.cpp, mpi/comm_mpi.cpp, mpi/comm_single.cpp is linked
//   A Group is an ordered set of ranks; every member makes the same calls in the same order.
//     all_reduce       x (n)               each rank: partial values  -> each rank: SUM or MAX over the ranks
//     reduce_scatter   in (size * n)       each rank: partial values  -> out (n): slice `rank` of the SUM
//                      (out may be in + rank * n)
//     all_gather       in (n)              each rank: its slice       -> out (size * n): all slices in order
//                      (in may be out + rank * n)
//     send, receive    x (n)               to and from a rank of the group; those between group_begin() and
//                      group_end() are posted before any is awaited
//   n counts elements of floatX, real, double or int64. In a group of one, a call copies at most. A comm
//   stream cannot copy (over MPI it is not a CUDA stream): there such a call must be in place.
//   On the compute stream a call is ordered among the computations. On a comm stream it runs concurrently
//   with them, after what was enqueued on that stream before:
//     wait_stream(comm_stream, compute)   comm_stream waits for what is enqueued on `compute` so far
//     record_event(comm_stream)           an event at this point of comm_stream
//     wait_event(compute, event, label)   `compute` waits for that event
//   A group's calls in flight are all on one comm stream, or all on the compute stream: it changes to another
//   only when those on the first have been awaited. model/pipeline.h has a table of the streams.
//   Each call has a label. A call that does not end within comm::timeout seconds ends the run: every rank of
//   its group that still responds prints its last calls, and ranks that never arrived are named. Ranks meet
//   before a group is made, with the same timeout; late ranks are named.
//   What ends all ranks: an exception on one (comm::abort_all: MPI_Abort, at once), a failed check of a
//   collective (mpi/collective_check.h), or a call that does not end (after the timeout, and seconds to ask
//   who is late). But if data cannot be read, the step in progress ends and is saved first (run/trainer.h).
#pragma once
#include <stdint.h>
#include <map>
#include <string>
#include <type_traits>
#include <vector>
#include "../layers/base/operation.h"

namespace comm {

enum class ReduceOp { Sum, Max };

struct Group {
    const char* name = "self";
    int rank = 0, size = 1;        // of this process in the group
    std::vector<int> members = {0};  // world ranks
    void* handle = nullptr;
};

struct StreamEvent {
    Stream comm_stream = nullptr;  // nullptr: nothing to wait for
    long position = 0;  // on that stream, in calls (MPI), events (NCCL) or calls of all streams (dry run)
};

inline double timeout = 600;            // seconds

using ::Collective;
// bytes that each of `ranks` sends for `bytes` in all, with the ring algorithm (Patarasuk and Yuan, 2009)
constexpr long sent_bytes(Collective kind, long ranks, long bytes) {
    switch (kind) {
        case Collective::AllReduce: return 2 * (bytes * (ranks - 1) / ranks);
        case Collective::ReduceScatter:
        case Collective::AllGather: return bytes * (ranks - 1) / ranks;
        case Collective::Send: return bytes;
        case Collective::Receive: return 0;
    }
    return 0;
}

struct Traffic {
    long calls = 0, sent = 0;  // sent: bytes, as sent_bytes() counts
    bool operator==(const Traffic&) const = default;
};
using TrafficTable = std::map<std::string, Traffic>;  // by the group's name
inline TrafficTable traffic;  // of this rank so far

// ---- what a transport provides ---------------------------------------------------------------------------

void start(int* argc, char*** argv);  // before anything else; without a launcher the world is one rank
void finish();
[[noreturn]] void abort_all(int code);  // ends all ranks
int world_rank();
int world_size();
// called by its members; most_sms: that one of its calls may take (make_grid.h)
Group make_group(const char* name, const std::vector<int>& members, int most_sms = 32);
Group make_host_group(const char* name, const std::vector<int>& members);  // for numbers on the host only
Group everyone();  // the world, for numbers on the host only; needs neither grid nor device
// all-gather of numbers in host memory: every member's, in rank order; on one rank `mine`
std::vector<int64_t> gather_numbers(const Group& g, const std::vector<int64_t>& mine, const char* label);
void barrier(const Group& g, const char* label);
double waited_seconds();  // how long this rank, or its device, has waited for others so far; alone: 0
struct SentMessages { long count = -1, peers = 0; };  // MPI messages, those of collectives too; ranks sent to
SentMessages sent_messages();  // count -1: not counted (see scripts/count_messages.c)

Stream make_comm_stream();
void transport_wait_stream(Stream comm_stream, Stream compute);
StreamEvent transport_record_event(Stream comm_stream);
void transport_wait_event(Stream compute, const StreamEvent& event);
long unawaited_calls();  // calls on comm streams that no awaited event follows; must be 0 at the end
void transport_group_end();  // starts the calls posted since group_begin()

// One call of this rank; see the functions below
struct Call {
    Collective kind;
    const Group* group;
    void* out;       // what it writes; the same as `in` of an all-reduce
    const void* in;  // what it reads
    long n;          // values; of a slice, where ranks have slices
    Element type;    // as type_of() says
    ReduceOp op = ReduceOp::Sum;
    int peer = -1;   // the rank in the group to which it sends, or from which it receives
    const char* label = "";
    Stream stream = nullptr;
    long whole() const {  // values, over all ranks
        bool has_slices = kind == Collective::ReduceScatter || kind == Collective::AllGather;
        return has_slices ? group->size * n : n;
    }
};
void post(const Call& call);

// ---- what the program calls ------------------------------------------------------------------------------

template <class T>
constexpr Element type_of() {
    constexpr Element type = element_of<T>();  // what every transport has
    static_assert(type == Element::Bf16 || type == Element::Fp32 || type == Element::Fp64 ||
                  type == Element::Int64);
    return type;
}

inline long bytes_of(Element type) { return (long)element_bytes(type); }

inline Stream compute_stream = nullptr;  // the model's; any other stream except the default is a comm stream
inline long dry_calls = 0;  // calls so far in dry runs, which execute nothing
inline bool in_group = false;  // between group_begin and group_end

// Announces a call and, unless this is a dry run, counts its traffic and posts it
inline void make(const Call& c, std::initializer_list<TensorAccess> tensors, std::source_location where) {
    const Group& g = *c.group;
    ActivityScope announced(c.label, [&] {
        return Activity{.kind = Activity::Communicate, .name = name_of(c.kind),
                        .stream = c.stream, .tensors = tensors,
                        .call = {c.kind, g.name, &g.members, g.rank, g.size, c.whole(),
                                 c.stream && c.stream != compute_stream, is_dry_run() ? ++dry_calls : 0,
                                 in_group},
                        .label = c.label, .where = where};
    });
    if (is_dry_run()) return;
    traffic[g.name].calls++;
    traffic[g.name].sent += sent_bytes(c.kind, g.size, c.whole() * bytes_of(c.type));
    post(c);
}
using Where = std::source_location;

template <class T>
void copy_slice(T* out, const T* in, long n, Stream s) {
    if (out != in && !is_dry_run()) copy_on_device(out, in, n * sizeof(T), s);
}

template <class T>
void all_reduce(const Group& g, T* x, long n, ReduceOp op, const char* label, Stream s,
                Where where = Where::current()) {
    if (g.size == 1) return;  // so with t = 1, d = 1 or p = 1
    make({.kind = Collective::AllReduce, .group = &g, .out = x, .in = x, .n = n, .type = type_of<T>(),
          .op = op, .label = label, .stream = s},
         {updates("x", x, n)}, where);
}

template <class T>
void reduce_scatter(const Group& g, T* out, const T* in, long n, const char* label, Stream s,
                    Where where = Where::current()) {
    if (g.size == 1) return copy_slice(out, in, n, s);
    make({.kind = Collective::ReduceScatter, .group = &g, .out = out, .in = in, .n = n, .type = type_of<T>(),
          .label = label, .stream = s},
         {reads("in", in, g.size, n), writes("out", out, n)}, where);
}

template <class T>
void all_gather(const Group& g, T* out, const T* in, long n, const char* label, Stream s,
                Where where = Where::current()) {
    if (g.size == 1) return copy_slice(out, in, n, s);
    make({.kind = Collective::AllGather, .group = &g, .out = out, .in = in, .n = n, .type = type_of<T>(),
          .label = label, .stream = s},
         {reads("in", in, n), writes("out", out, g.size, n)}, where);
}

template <class T>
void send(const Group& g, const T* x, long n, int to, const char* label, Stream s,
          Where where = Where::current()) {
    make({.kind = Collective::Send, .group = &g, .out = nullptr, .in = x, .n = n, .type = type_of<T>(),
          .peer = to, .label = label, .stream = s},
         {reads("x", x, n)}, where);
}

template <class T>
void receive(const Group& g, T* x, long n, int from, const char* label, Stream s,
             Where where = Where::current()) {
    make({.kind = Collective::Receive, .group = &g, .out = x, .in = nullptr, .n = n, .type = type_of<T>(),
          .peer = from, .label = label, .stream = s},
         {writes("x", x, n)}, where);
}

inline void group_begin() { in_group = true; }
inline void group_end() {
    in_group = false;
    if (!is_dry_run()) transport_group_end();
}

// ---- order -----------------------------------------------------------------------------------------------

// stream `waits` continues when stream `awaited` has reached `position`
inline Activity wait_of(Stream waits, Stream awaited, long position, const char* label) {
    return {.kind = Activity::Wait, .name = "wait", .stream = waits, .label = label,
            .awaited = awaited, .position = position};
}

inline void wait_stream(Stream comm_stream, Stream compute) {
    ActivityScope wait("wait", [&] { return wait_of(comm_stream, compute, -1, "computations"); });
    if (!is_dry_run()) transport_wait_stream(comm_stream, compute);
}

inline StreamEvent record_event(Stream comm_stream) {
    return is_dry_run() ? StreamEvent{comm_stream, dry_calls} : transport_record_event(comm_stream);
}

// returns at once if there is no event
inline void wait_event(Stream compute, const StreamEvent& event, const char* label) {
    if (!event.comm_stream) return;
    ActivityScope wait(label, [&] { return wait_of(compute, event.comm_stream, event.position, label); });
    if (!is_dry_run()) transport_wait_event(compute, event);
}

}  // namespace comm
