// comm.h   communication between ranks; one of comm_single, comm_mpi, comm_nccl is linked
//   A Group is an ordered set of ranks; every member makes the same calls in the same order.
//     all_reduce       x (n)               each rank: a part          -> each rank: the whole, SUM or MAX
//     reduce_scatter   in (size * n)       each rank: a part          -> out (n): the whole's slice `rank`
//                      (out may be in + rank * n)
//     all_gather       in (n)              each rank: its slice       -> out (size * n): all slices in order
//                      (in may be out + rank * n)
//     broadcast        x (n)               root's                     -> each rank: root's
//     send, receive    x (n)               to and from a rank of the group; between group_begin() and
//                      group_end() they are posted together, so that two ranks may send to each other
//   n counts elements of floatX, real, double or int64. Calls on a group of one do nothing but copy.
//   On the compute stream (nullptr) a call has its place among the computations. On a comm stream it runs
//   beside them, after what that stream was given before:
//     wait_stream(comm_stream, compute)   the comm stream goes on when `compute` has got as far as it is now
//     record_event(comm_stream)           a point in the comm stream
//     wait_event(compute, event)          `compute` goes on when the comm stream has got to that point
//   A group's calls go to one comm stream, or to the compute stream, at a time; on a comm stream they work in
//   place. model/pipeline.h has a table of the streams and who waits for whom.
//   Each call carries a label; one that does not end within comm::timeout seconds ends the run: every
//   rank of its group that still answers prints its last calls, and those that never came are named.
//   Ranks meet before a group is made, under the same watch: who is late is named.
//   One rank's failure ends all ranks: comm::stop.
#pragma once
#include <stdint.h>
#include <bit>
#include <map>
#include <string>
#include <type_traits>
#include <vector>
#include "../layers/base/device.h"

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
    long position = 0;  // on it: MPI counts calls, NCCL events
};

inline double timeout = 600;  // seconds

enum class Collective { AllReduce, ReduceScatter, AllGather, Message };
// what each of `ranks` sends of a whole of so many bytes, by the ring algorithm (Patarasuk and Yuan, 2009)
constexpr long sent_bytes(Collective kind, long ranks, long bytes) {
    return kind == Collective::Message ? bytes
        : (kind == Collective::AllReduce ? 2 : 1) * (bytes * (ranks - 1) / ranks);
}
struct Traffic {
    long calls = 0, sent = 0;  // sent: bytes, counted so
    bool operator==(const Traffic&) const = default;
};
inline std::map<std::string, Traffic> traffic;  // of this rank so far, by the group's name

// ---- what a transport provides ---------------------------------------------------------------------------

void start(int* argc, char*** argv);  // before anything else; without a launcher the world is one rank
void finish();
[[noreturn]] void stop(int code);  // ends every rank
int world_rank();
int world_size();
Group make_group(const char* name, const std::vector<int>& members);  // called by its members
Group everyone();  // the world, for numbers on the host alone; before there is a grid, or even a device
// numbers in the host's memory: every member's, one after the other
std::vector<int64_t> gather_numbers(const Group& g, const std::vector<int64_t>& mine, const char* label);
void barrier(const Group& g, const char* label);
double waited_seconds();  // that this rank, or its device, has waited for others so far

Stream make_comm_stream();
void wait_stream(Stream comm_stream, Stream compute);
StreamEvent record_event(Stream comm_stream);
void hold_until(Stream compute, const StreamEvent& event);
long unawaited_calls();  // of comm streams: no event behind them was waited for. 0 before the program ends
void group_begin();
void group_end();

void all_reduce_bytes(const Group& g, void* x, long n, Type type, Op op, const char* label, Stream s);
void reduce_scatter_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                          Stream s);
void all_gather_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                      Stream s);
void broadcast_bytes(const Group& g, void* x, long n, Type type, int root, const char* label, Stream s);
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

template <class T>
void all_reduce(const Group& g, T* x, long n, Op op, const char* label, Stream s) {
    if (g.size == 1) return;
    count(g, Collective::AllReduce, n * (long)sizeof(T));
    all_reduce_bytes(g, x, n, type_of<T>(), op, label, s);
}
template <class T>
void reduce_scatter(const Group& g, T* out, const T* in, long n, const char* label, Stream s) {
    if (g.size > 1) {
        count(g, Collective::ReduceScatter, g.size * n * (long)sizeof(T));
        reduce_scatter_bytes(g, out, in, n, type_of<T>(), label, s);
    } else if (out != in) copy_on_device(out, in, n * sizeof(T), s);
}
template <class T>
void all_gather(const Group& g, T* out, const T* in, long n, const char* label, Stream s) {
    if (g.size > 1) {
        count(g, Collective::AllGather, g.size * n * (long)sizeof(T));
        all_gather_bytes(g, out, in, n, type_of<T>(), label, s);
    } else if (out != in) copy_on_device(out, in, n * sizeof(T), s);
}
template <class T>
void broadcast(const Group& g, T* x, long n, int root, const char* label, Stream s) {
    if (g.size == 1) return;
    count(g, Collective::Message, g.rank == root ? n * (long)sizeof(T) : 0);
    broadcast_bytes(g, x, n, type_of<T>(), root, label, s);
}
template <class T>
void send(const Group& g, const T* x, long n, int to, const char* label, Stream s) {
    count(g, Collective::Message, n * (long)sizeof(T));
    send_bytes(g, x, n, type_of<T>(), to, label, s);
}
template <class T>
void receive(const Group& g, T* x, long n, int from, const char* label, Stream s) {
    count(g, Collective::Message, 0);
    receive_bytes(g, x, n, type_of<T>(), from, label, s);
}

// at once where nothing was recorded
inline void wait_event(Stream compute, const StreamEvent& event) {
    if (event.comm_stream) hold_until(compute, event);
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
