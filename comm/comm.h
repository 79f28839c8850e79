// comm.h   what ranks say to each other; one of comm_single, comm_mpi (and, on GPUs, comm_nccl) is linked
//   A Group is an ordered set of ranks; every member makes the same calls in the same order.
//     all_reduce       x (n)               each rank: a part          -> each rank: the whole, SUM or MAX
//     reduce_scatter   in (size * n)       each rank: a part          -> out (n): the whole's slice `rank`
//     all_gather       in (n)              each rank: its slice       -> out (size * n): all slices in order
//                      (in may be out + rank * n)
//     broadcast        x (n)               root's                     -> each rank: root's
//   n counts elements of floatX, real, double or int64. Calls on a group of one do nothing but copy.
//   Each call carries a label; a call that does not end within comm::timeout seconds ends the run, and every
//   rank that waits prints its label and its last calls.
//   One rank's failure ends all ranks: comm::stop.
#pragma once
#include <stdint.h>
#include <type_traits>
#include <vector>
#include "../layers/base/device.h"

namespace comm {

enum class Type { Bf16, Fp32, Fp64, Int64 };
enum class Op { Sum, Max };

struct Group {
    const char* name = "self";
    int rank = 0, size = 1;        // of this process in it
    std::vector<int> members = {};  // world ranks
    void* handle = nullptr;
};

inline double timeout = 600;  // seconds

// ---- what a transport provides ----------------------------------------------------------------------------

void start(int* argc, char*** argv);  // before anything else; without a launcher the world is one rank
void finish();
[[noreturn]] void stop(int code);  // ends every rank
int world_rank();
int world_size();
Group make_group(const char* name, const std::vector<int>& members);  // called by every rank of the world

void all_reduce_bytes(const Group& g, void* x, long n, Type type, Op op, const char* label, Stream s);
void reduce_scatter_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                          Stream s);
void all_gather_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                      Stream s);
void broadcast_bytes(const Group& g, void* x, long n, Type type, int root, const char* label, Stream s);
void barrier(const Group& g, const char* label);

// ---- what the program calls -------------------------------------------------------------------------------

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

template <class T>
void all_reduce(const Group& g, T* x, long n, Op op, const char* label, Stream s) {
    if (g.size > 1) all_reduce_bytes(g, x, n, type_of<T>(), op, label, s);
}
template <class T>
void reduce_scatter(const Group& g, T* out, const T* in, long n, const char* label, Stream s) {
    if (g.size > 1) reduce_scatter_bytes(g, out, in, n, type_of<T>(), label, s);
    else if (out != in) copy_on_device(out, in, n * sizeof(T), s);
}
template <class T>
void all_gather(const Group& g, T* out, const T* in, long n, const char* label, Stream s) {
    if (g.size > 1) all_gather_bytes(g, out, in, n, type_of<T>(), label, s);
    else if (out != in) copy_on_device(out, in, n * sizeof(T), s);
}
template <class T>
void broadcast(const Group& g, T* x, long n, int root, const char* label, Stream s) {
    if (g.size > 1) broadcast_bytes(g, x, n, type_of<T>(), root, label, s);
}

}  // namespace comm
