// comm_mpi.cpp   the transport over MPI; on a GPU the data goes through host memory
//   Every call is posted without blocking and then waited for with an eye on the clock, so that a rank that
//   never comes is noticed, and with the processor given away while waiting, so that more ranks than cores
//   work.
#include <mpi.h>
#include <sched.h>
#include <unistd.h>
#include <climits>
#include <chrono>
#include <cstdlib>
#include <string>
#include "comm.h"

namespace comm {
namespace {

bool running = false;
MPI_Datatype bf16_type;
MPI_Op bf16_sum, bf16_max;
constexpr int remembered = 8;
std::string last[remembered];  // the last calls of this rank, for the message when one hangs
long calls = 0;

MPI_Datatype type_mpi(Type type) {
    return type == Type::Bf16 ? bf16_type : type == Type::Fp32 ? MPI_FLOAT : type == Type::Fp64 ? MPI_DOUBLE
        : MPI_INT64_T;
}
MPI_Op op_mpi(Type type, Op op) {
    if (type == Type::Bf16) return op == Op::Sum ? bf16_sum : bf16_max;
    return op == Op::Sum ? MPI_SUM : MPI_MAX;
}
void add_bf16(void* in, void* inout, int* n, MPI_Datatype*) {
    for (int i = 0; i < *n; i++) ((bf16*)inout)[i] = bf16(float(((bf16*)inout)[i]) + float(((bf16*)in)[i]));
}
void max_bf16(void* in, void* inout, int* n, MPI_Datatype*) {
    for (int i = 0; i < *n; i++)
        if (float(((bf16*)in)[i]) > float(((bf16*)inout)[i])) ((bf16*)inout)[i] = ((bf16*)in)[i];
}

void note(const Group& g, const char* what, const char* label, long n) {
    if (n > INT_MAX) fail("%s of %s: %ld values in one call, at most %d", what, label, n, INT_MAX);
    calls++;
    last[calls % remembered] = text("#%ld %s of %s, %ld values, in group %s of %d", calls, what, label, n,
                                    g.name, g.size);
}

void wait(MPI_Request request) {
    auto start = std::chrono::steady_clock::now();
    for (long turn = 0;; turn++) {
        int done = 0;
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        if (turn > 100) sched_yield();
        if (turn % 1024) continue;
        double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (waited < timeout) continue;
        std::string message = text("[rank %d] waits for others since %.0f s in %s; before it:\n",
                                   world_rank(), timeout, last[calls % remembered].c_str());
        for (long i = std::max(1L, calls - remembered + 1); i < calls; i++)
            message += "    " + last[i % remembered] + "\n";
        fprintf(stderr, "%s", message.c_str());
        usleep(500000);  // the others say the same
        stop(1);
    }
}

// host memory for what lies on a device; elsewhere the memory itself
struct Staged {
    std::vector<char> copy;
    void* host;
    Staged(const void* p, size_t bytes, bool load, Stream s) : host((void*)p) {
        if (host_is_device) return;
        copy.resize(bytes);
        host = copy.data();
        if (load) copy_to_host(host, p, bytes, s);
    }
    void store(void* p, Stream s) {
        if (host_is_device) return;
        copy_to_device(p, host, copy.size(), s);
        synchronize(s);
    }
};

}  // namespace

void start(int* argc, char*** argv) {
    bool launched = false;  // by mpirun or srun; a program started by hand needs no MPI
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"})
        launched |= getenv(name) != nullptr;
    if (!launched) return;
    MPI_Init(argc, argv);
    running = true;
    MPI_Type_contiguous(2, MPI_BYTE, &bf16_type);
    MPI_Type_commit(&bf16_type);
    MPI_Op_create(add_bf16, 1, &bf16_sum);
    MPI_Op_create(max_bf16, 1, &bf16_max);
}
void finish() {
    if (running) MPI_Finalize();
}
void stop(int code) {
    if (running) MPI_Abort(MPI_COMM_WORLD, code);
    _Exit(code);
}
int world_rank() {
    int rank = 0;
    if (running) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}
int world_size() {
    int size = 1;
    if (running) MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
}

Group make_group(const char* name, const std::vector<int>& members) {
    Group g = {name, 0, (int)members.size(), members, nullptr};
    bool mine = false;
    for (int i = 0; i < g.size; i++) if (members[i] == world_rank()) g.rank = i, mine = true;
    if (!mine || g.size == 1) return g;
    MPI_Group world, group;
    MPI_Comm comm;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, g.size, members.data(), &group);
    MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm);
    MPI_Group_free(&group), MPI_Group_free(&world);
    static_assert(sizeof(MPI_Comm) <= sizeof(void*));
    g.handle = (void*)comm;
    return g;
}

void all_reduce_bytes(const Group& g, void* x, long n, Type type, Op op, const char* label, Stream s) {
    Staged data(x, n * bytes_of(type), true, s);
    MPI_Request request;
    note(g, "all-reduce", label, n);
    MPI_Iallreduce(MPI_IN_PLACE, data.host, (int)n, type_mpi(type), op_mpi(type, op), (MPI_Comm)g.handle,
                   &request);
    wait(request);
    data.store(x, s);
}
void reduce_scatter_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                          Stream s) {
    Staged from(in, g.size * n * bytes_of(type), true, s), to(out, n * bytes_of(type), false, s);
    MPI_Request request;
    note(g, "reduce-scatter", label, n);
    MPI_Ireduce_scatter_block(from.host, to.host, (int)n, type_mpi(type), op_mpi(type, Op::Sum),
                              (MPI_Comm)g.handle, &request);
    wait(request);
    to.store(out, s);
}
void all_gather_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                      Stream s) {
    long bytes = n * bytes_of(type);
    bool in_place = (const char*)in == (char*)out + g.rank * bytes;
    Staged to(out, g.size * bytes, in_place, s), from(in, bytes, !in_place, s);
    MPI_Request request;
    note(g, "all-gather", label, n);
    MPI_Iallgather(in_place ? MPI_IN_PLACE : from.host, (int)n, type_mpi(type), to.host, (int)n,
                   type_mpi(type), (MPI_Comm)g.handle, &request);
    wait(request);
    to.store(out, s);
}
void broadcast_bytes(const Group& g, void* x, long n, Type type, int root, const char* label, Stream s) {
    Staged data(x, n * bytes_of(type), true, s);
    MPI_Request request;
    note(g, "broadcast", label, n);
    MPI_Ibcast(data.host, (int)n, type_mpi(type), root, (MPI_Comm)g.handle, &request);
    wait(request);
    data.store(x, s);
}
void barrier(const Group& g, const char* label) {
    if (g.size == 1) return;
    MPI_Request request;
    note(g, "barrier", label, 0);
    MPI_Ibarrier((MPI_Comm)g.handle, &request);
    wait(request);
}

}  // namespace comm
