// comm.h   communication between ranks; one of comm_single, comm_mpi, comm_nccl is linked
//   A Group is an ordered set of ranks; every member makes the same calls in the same order.
//     all_reduce       x (n)               each rank: a part          -> each rank: the whole, SUM or MAX
//     reduce_scatter   in (size * n)       each rank: a part          -> out (n): the whole's slice `rank`
//                      (out may be in + rank * n)
//     all_gather       in (n)              each rank: its slice       -> out (size * n): all slices in order
//                      (in may be out + rank * n)
//     broadcast        in (n)              root's                     -> out (n), on each rank: root's
//     reduce           in (n)              each rank: a part          -> out (n), on root: the whole, SUM
//                      (of both: out may be in)
//     send, receive    x (n)               to and from a rank of the group; between group_begin() and
//                      group_end() they are posted together, so that two ranks may send to each other
//   n counts elements of floatX, real, double or int64. Calls on a group of one do nothing but copy,
//   which is for the compute stream: on a comm stream such a group works in place.
//   On the compute stream a call has its place among the computations. On a comm stream it runs beside them,
//   after what that stream was given before:
//     wait_stream(comm_stream, compute)   the comm stream goes on when `compute` has got as far as it is now
//     record_event(comm_stream)           a point in the comm stream
//     wait_event(compute, event)          `compute` goes on when the comm stream has got to that point
//   A group's calls go to one comm stream, or to the compute stream, at a time. model/pipeline.h has a table
//   of the streams and who waits for whom.
//   Each call carries a label; one that does not end within comm::timeout seconds ends the run: every
//   rank of its group that still answers prints its last calls, and those that never came are named.
//   Ranks meet before a group is made, under the same watch: who is late is named.
//   What ends all ranks: an exception of one (comm::stop: MPI_Abort, at once), an error that they look for
//   together (collective_check.h), or a call that does not end: timeout, and seconds of asking who is late.
#pragma once
#include <stdint.h>
#include <bit>
#include <climits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>
#include "../layers/base/operation.h"

namespace comm {

enum class Type { Bf16, Fp32, Fp64, Int64 };
enum class Op { Sum, Max };

struct Group {
    const char* name = "self";
    int rank = 0, size = 1;        // of this process in it
    std::vector<int> members = {0};  // world ranks
    void* handle = nullptr;
};

struct StreamEvent {
    Stream comm_stream = nullptr;
    long position = 0;  // on it: MPI counts calls, NCCL events, a dry run the calls of all streams
};

inline double timeout = 600;            // seconds
inline long most_mpi_values = INT_MAX;  // in one call of MPI, which counts in an int: longer ones are cut

using ::Collective;
// what each of `ranks` sends of a whole of so many bytes, by the ring algorithm (Patarasuk and Yuan, 2009);
// a broadcast or a reduction to one rank goes along a chain, whose last rank sends nothing: it is counted too
constexpr long sent_bytes(Collective kind, long ranks, long bytes) {
    switch (kind) {
        case Collective::AllReduce: return 2 * (bytes * (ranks - 1) / ranks);
        case Collective::ReduceScatter:
        case Collective::AllGather: return bytes * (ranks - 1) / ranks;
        case Collective::Receive: return 0;
        default: return bytes;
    }
}
struct Traffic {
    long calls = 0, sent = 0;  // sent: bytes, counted so
    bool operator==(const Traffic&) const = default;
};
inline std::map<std::string, Traffic> traffic;  // of this rank so far, by the group's name

// When a call on a comm stream began and ended: by the host's clock, or by events of the stream. Who wants to
// know of the next one asks here; the transport fills it in
struct CallTimes {
    double began = 0, ended = 0;  // seconds()
    bool has_events = false;
    TimedEvent first, last;
    // seconds since `origin`, which was at host_origin
    std::pair<double, double> span(const TimedEvent& origin, double host_origin) const {
        if (has_events) return {first.since(origin), last.since(origin)};
        return {began - host_origin, ended - host_origin};
    }
};
inline std::shared_ptr<CallTimes> times_of_next_call;

// ---- what a transport provides ---------------------------------------------------------------------------

void start(int* argc, char*** argv);  // before anything else; without a launcher the world is one rank
void finish();
[[noreturn]] void stop(int code);  // ends every rank
int world_rank();
int world_size();
Group make_group(const char* name, const std::vector<int>& members);  // called by its members
Group make_host_group(const char* name, const std::vector<int>& members);  // for numbers on the host alone
Group everyone();  // the world, for numbers on the host alone; before there is a grid, or even a device
// numbers in the host's memory: every member's, one after the other
std::vector<int64_t> gather_numbers(const Group& g, const std::vector<int64_t>& mine, const char* label);
void barrier(const Group& g, const char* label);
double waited_seconds();  // that this rank, or its device, has waited for others so far
struct SentMessages { long count = -1, peers = 0; };  // of MPI, with those of collectives; to so many ranks
SentMessages sent_messages();  // count -1: nothing counts them (see scripts/count_messages.c)

Stream make_comm_stream();
void hold_comm_stream(Stream comm_stream, Stream compute);
StreamEvent mark(Stream comm_stream);
void hold_until(Stream compute, const StreamEvent& event);
long unawaited_calls();  // of comm streams: no event behind them was waited for. 0 before the program ends
void transport_group_end();  // begins what has been posted since in_group is true

// Calls between them become part of a CUDA graph, of `compute` and of the comm streams that wait for it. It
// waits for no event from before, ends when all of these have ended, and nobody waits for its events later
extern const bool can_capture;  // not MPI, whose calls are the host's
void begin_capture();
void end_capture(Stream compute);
void watch_graph(const Group& world, Stream compute);  // behind each launch: as one call of all ranks

void all_reduce_bytes(const Group& g, void* x, long n, Type type, Op op, const char* label, Stream s);
void reduce_scatter_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                          Stream s);
void all_gather_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                      Stream s);
void broadcast_bytes(const Group& g, void* out, const void* in, long n, Type type, int root,
                     const char* label, Stream s);
void reduce_bytes(const Group& g, void* out, const void* in, long n, Type type, int root, const char* label,
                  Stream s);
void send_bytes(const Group& g, const void* x, long n, Type type, int to, const char* label, Stream s);
void receive_bytes(const Group& g, void* x, long n, Type type, int from, const char* label, Stream s);

// ---- what the program calls ------------------------------------------------------------------------------

template <class T>
constexpr Type type_of() {
    if constexpr (std::is_same_v<T, bf16>) return Type::Bf16;
    else if constexpr (std::is_same_v<T, float>) return Type::Fp32;
    else if constexpr (std::is_same_v<T, double>) return Type::Fp64;
    else {
        static_assert(std::is_same_v<T, int64_t>);
        return Type::Int64;
    }
}
constexpr long bytes_of(Type type) { return type == Type::Bf16 ? 2 : type == Type::Fp32 ? 4 : 8; }

inline void count(const Group& g, Collective kind, long bytes) {
    Traffic& t = traffic[g.name];
    t.calls++;
    t.sent += sent_bytes(kind, g.size, bytes);
}

inline Stream compute_stream = nullptr;  // of the model: other streams than this and the default carry calls
inline long dry_calls = 0;  // calls of steps of which nothing is executed
inline bool in_group = false;  // between group_begin and group_end

// A call, said and counted; false where it is only said. n: values of the whole, over all ranks
class CallScope {
    NvtxRange range;
    ActivityScope announced;

public:
    template <class T>
    CallScope(Collective kind, const Group& g, std::initializer_list<Tensor> tensors, long n, const T*,
              const char* label, Stream s, std::source_location where)
        : range(label), announced([&] {
              return Activity{.kind = Activity::Communicate, .name = collective_names[(int)kind], .stream = s,
                              .place = {}, .tensors = tensors,
                              .call = {kind, g.name, &g.members, g.rank, g.size, n, s && s != compute_stream,
                                       executes() ? 0 : ++dry_calls, in_group},
                              .label = label, .where = where};
          }) {
        if (executes()) count(g, kind, n * (long)sizeof(T));
    }
    explicit operator bool() const { return executes(); }
};
using Where = std::source_location;

template <class T>
void copy_slice(T* out, const T* in, long n, Stream s) {
    if (out != in && executes()) copy_on_device(out, in, n * sizeof(T), s);
}

template <class T>
void all_reduce(const Group& g, T* x, long n, Op op, const char* label, Stream s,
                Where where = Where::current()) {
    if (g.size == 1) return;
    if (CallScope call{Collective::AllReduce, g, {updates("x", x, n)}, n, x, label, s, where})
        all_reduce_bytes(g, x, n, type_of<T>(), op, label, s);
}
template <class T>
void reduce_scatter(const Group& g, T* out, const T* in, long n, const char* label, Stream s,
                    Where where = Where::current()) {
    if (g.size == 1) return copy_slice(out, in, n, s);
    if (CallScope call{Collective::ReduceScatter, g, {reads("in", in, g.size, n), writes("out", out, n)},
                       g.size * n, in, label, s, where})
        reduce_scatter_bytes(g, out, in, n, type_of<T>(), label, s);
}
template <class T>
void all_gather(const Group& g, T* out, const T* in, long n, const char* label, Stream s,
                Where where = Where::current()) {
    if (g.size == 1) return copy_slice(out, in, n, s);
    if (CallScope call{Collective::AllGather, g, {reads("in", in, n), writes("out", out, g.size, n)},
                       g.size * n, in, label, s, where})
        all_gather_bytes(g, out, in, n, type_of<T>(), label, s);
}
template <class T>
void broadcast(const Group& g, T* out, const T* in, long n, int root, const char* label, Stream s,
               Where where = Where::current()) {
    if (g.size == 1) return copy_slice(out, in, n, s);
    long read = g.rank == root ? n : 0;
    if (CallScope call{Collective::Broadcast, g, {reads("in", in, read), writes("out", out, n)}, n, in, label,
                       s, where})
        broadcast_bytes(g, out, in, n, type_of<T>(), root, label, s);
}
template <class T>
void reduce(const Group& g, T* out, const T* in, long n, int root, const char* label, Stream s,
            Where where = Where::current()) {
    if (g.size == 1) return copy_slice(out, in, n, s);
    long written = g.rank == root ? n : 0;
    if (CallScope call{Collective::Reduce, g, {reads("in", in, n), writes("out", out, written)}, n, in, label,
                       s, where})
        reduce_bytes(g, out, in, n, type_of<T>(), root, label, s);
}
template <class T>
void send(const Group& g, const T* x, long n, int to, const char* label, Stream s,
          Where where = Where::current()) {
    if (CallScope call{Collective::Send, g, {reads("x", x, n)}, n, x, label, s, where})
        send_bytes(g, x, n, type_of<T>(), to, label, s);
}
template <class T>
void receive(const Group& g, T* x, long n, int from, const char* label, Stream s,
             Where where = Where::current()) {
    if (CallScope call{Collective::Receive, g, {writes("x", x, n)}, n, x, label, s, where})
        receive_bytes(g, x, n, type_of<T>(), from, label, s);
}

inline void group_begin() { in_group = true; }
inline void group_end() {
    in_group = false;
    if (executes()) transport_group_end();
}

// ---- order -----------------------------------------------------------------------------------------------

// `waits` goes on when `awaited` has got to that position
inline Activity wait_of(Stream waits, Stream awaited, long position, const char* label) {
    return {.kind = Activity::Wait, .name = "wait", .stream = waits, .place = {}, .label = label,
            .awaited = awaited, .position = position};
}
inline void wait_stream(Stream comm_stream, Stream compute) {
    ActivityScope wait([&] { return wait_of(comm_stream, compute, -1, "computations"); });
    if (executes()) hold_comm_stream(comm_stream, compute);
}
inline StreamEvent record_event(Stream comm_stream) {
    return executes() ? mark(comm_stream) : StreamEvent{comm_stream, dry_calls};
}
// at once where nothing was recorded
inline void wait_event(Stream compute, const StreamEvent& event, const char* label) {
    if (!event.comm_stream) return;
    ActivityScope wait([&] { return wait_of(compute, event.comm_stream, event.position, label); });
    if (executes()) hold_until(compute, event);
}

// sums over ranks of numbers on the host, always added in the order of the ranks
inline std::vector<double> sum_over(const Group& g, const std::vector<double>& x, const char* label) {
    if (g.size == 1) return x;
    std::vector<int64_t> bits;
    for (double each : x) bits.push_back(std::bit_cast<int64_t>(each));
    std::vector<int64_t> all = gather_numbers(g, bits, label);
    std::vector<double> sum(x.size(), 0);
    for (size_t i = 0; i < all.size(); i++) sum[i % x.size()] += std::bit_cast<double>(all[i]);
    return sum;
}

}  // namespace comm
