// test_nccl.cpp   what NCCL's stand-in refuses: mpirun -n 2 build/emulated-fp32-nccl/test_nccl
//   Each case has its own communicator and stream; the error that a rank's calls, or its wait for them, end
//   with is compared with the one that at least one of the two ranks should report.
#include <mpi.h>
#include <nccl.h>
#include "../../fast/graph.h"
#include "../../base/testing.h"
#include "processes.h"

namespace {

constexpr int n = 3000;  // values: several pieces

// a communicator over both ranks, a stream, and memory
struct Rank {
    int rank, other;
    ncclComm_t comm = nullptr;
    Stream s = make_stream();
    float *x, *y;  // (2 n) each, on the device

    explicit Rank(const char* name) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        other = 1 - rank;
        x = (float*)device_malloc(2 * n * sizeof(float), "a test");
        y = (float*)device_malloc(2 * n * sizeof(float), "a test");
        join(name, 2);
    }

    void join(const char* name, int size) {
        ncclUniqueId id;
        if (rank == 0) ncclGetUniqueId(&id);
        MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = name;
        accept(ncclCommInitRankConfig(&comm, size, id, rank, &config));
    }

    void accept(ncclResult_t result) const {
        if (result != ncclSuccess) fail("%s: %s", ncclGetErrorString(result), ncclGetLastError(comm));
    }

    void all_reduce(size_t count = n, ncclDataType_t type = ncclFloat32, ncclRedOp_t op = ncclSum) {
        accept(ncclAllReduce(x, x, count, type, op, comm, s));
    }

    void all_gather() { accept(ncclAllGather(x, y, n, ncclFloat32, comm, s)); }
    void send(size_t count = n) { accept(ncclSend(x, count, ncclFloat32, other, comm, s)); }
    void receive() { accept(ncclRecv(y, n, ncclFloat32, other, comm, s)); }
};

// sums over both ranks; meanwhile the device goes on, or finds that it cannot
int sum(int mine) {
    int all = 0, done = 0;
    MPI_Request request;
    MPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    while (!done) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        try {
            if (!done) let_device_go_on();
        } catch (const Defect&) {
        }
    }

    return all;
}

// Both ranks make the calls and wait for them; one of them must end with words that contain `says`, or
// neither where it is ""
template <class Calls>
void expect(const std::string& says, Calls calls) {
    std::string said;
    Rank r("a test");
    try {
        calls(r);
        synchronize(r.s);
    } catch (const std::exception& e) {
        said = e.what();
    }

    int on_ranks = sum(says.empty() ? said.empty() : said.find(says) != std::string::npos);
    bool good = says.empty() ? on_ranks == 2 : on_ranks > 0;
    if (r.rank == 0 || !good)
        check(good, text("expected \"%s\", rank %d says \"%s\"", says.c_str(), r.rank, said.c_str()));
    ncclCommAbort(r.comm);
    synchronize(r.s);
    MPI_Barrier(MPI_COMM_WORLD);
}

void test_calls() {
    char on_host[64] = {};
    expect("", [](Rank& r) {
        r.all_reduce();
        r.all_gather();
        r.accept(ncclGroupStart());
        r.send();
        r.receive();
        r.accept(ncclGroupEnd());
    });

    expect("cannot reach", [&](Rank& r) {
        r.accept(ncclAllReduce(on_host, on_host, 4, ncclFloat32, ncclSum, r.comm, r.s));
    });
    expect("cannot reach", [](Rank& r) { r.all_reduce(2 * n + 1); });
    expect("not aligned", [](Rank& r) {
        r.accept(ncclAllReduce((char*)r.x + 2, (char*)r.x + 2, 4, ncclFloat32, ncclSum, r.comm, r.s));
    });

    expect("overlap", [](Rank& r) { r.accept(ncclAllGather(r.x + 1, r.x, 8, ncclFloat32, r.comm, r.s)); });
    expect("does not have", [](Rank& r) { r.all_reduce(n, ncclFloat16); });
    expect("does not have", [](Rank& r) { r.all_reduce(n, ncclFloat32, ncclProd); });

    expect("to or from rank", [](Rank& r) { r.accept(ncclSend(r.x, 4, ncclFloat32, r.rank, r.comm, r.s)); });
    expect("nobody began", [](Rank& r) { r.accept(ncclGroupEnd()); });
    expect("no communicator", [](Rank& r) {
        r.accept(ncclAllReduce(r.x, r.x, 4, ncclFloat32, ncclSum, nullptr, r.s));
    });

    expect("was aborted", [](Rank& r) {
        ncclCommAbort(r.comm);
        r.all_reduce();
    });
    expect("two streams", [](Rank& r) {
        r.accept(ncclGroupStart());
        r.all_reduce();
        ncclResult_t second = ncclAllReduce(r.y, r.y, n, ncclFloat32, ncclSum, r.comm, nullptr);
        r.accept(ncclGroupEnd());
        r.accept(second);
    });

    CapturedStep twice, unjoined, outside;  // with a stream beside that joins the capture
    for (CapturedStep* each : {&twice, &unjoined, &outside}) each->must_capture = true;
    Event forked, joined, early;
    expect("", [&](Rank& r) {
        Stream beside = make_stream();
        for (int i = 0; i < 2; i++)
            twice.enqueue(r.s, 1, [&] {
                r.all_reduce();
                forked.record(r.s);
                forked.block(beside);
                r.accept(ncclAllReduce(r.y, r.y, n, ncclFloat32, ncclSum, r.comm, beside));
                joined.record(beside);
                joined.block(r.s);
                r.all_gather();
            });
    });

    expect("was not waited for", [&](Rank& r) {
        Stream beside = make_stream();
        unjoined.enqueue(r.s, 1, [&] {
            forked.record(r.s);
            forked.block(beside);
            r.accept(ncclAllReduce(r.y, r.y, n, ncclFloat32, ncclSum, r.comm, beside));
        });
    });

    expect("outside of the capture", [&](Rank& r) {
        early.record(r.s);
        outside.enqueue(r.s, 1, [&] { early.block(r.s); });
    });
    expect("says that there are", [](Rank& r) { r.join("sizes", 2 + r.rank); });
}

void test_between_ranks() {
    const char* disagree = "do not agree";
    expect(disagree, [](Rank& r) { r.all_reduce(n - r.rank); });
    expect(disagree, [](Rank& r) { r.all_reduce(n, r.rank ? ncclFloat32 : ncclBfloat16); });
    expect(disagree, [](Rank& r) { r.all_reduce(n, ncclFloat32, r.rank ? ncclSum : ncclMax); });
    expect(disagree, [](Rank& r) { r.rank ? r.all_gather() : r.all_reduce(); });
    expect(disagree, [](Rank& r) { r.rank ? r.all_reduce() : r.send(); });
    expect(disagree, [](Rank& r) { r.rank ? r.receive() : r.send(n - 1); });
    expect(disagree, [](Rank& r) {  // in another order
        r.all_reduce(r.rank ? n : 1);
        r.all_reduce(r.rank ? 1 : n);
    });

    const char* deadlock = "receives message 0 of 3000 fp32: has not begun, behind";
    expect(deadlock, [](Rank& r) {  // both send first, and receive only after that
        r.send();
        r.receive();
    });

    expect("sends message 0 of 3000 fp32, to 1", [](Rank& r) { if (r.rank == 0) r.send(); });
    // calls of two communicators on one stream, in a different order on each rank
    expect("all-reduce 0 of 8 fp32 sum, to 1", [](Rank& r) {
        ncclComm_t first = r.comm;
        r.join("second", 2);
        for (ncclComm_t comm : {r.rank ? first : r.comm, r.rank ? r.comm : first})
            r.accept(ncclAllReduce(r.x, r.x, 8, ncclFloat32, ncclSum, comm, r.s));
        try {
            synchronize(r.s);
        } catch (...) {
            ncclCommAbort(first);
            throw;
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    chapter = "NCCL's stand-in";
    nccl_on_cpu::processes().patience = 0.3;
    try {
        test_calls();
        test_between_ranks();
    } catch (const std::exception& e) {
        check(false, std::string("stopped: ") + e.what());
    }

    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Finalize();
    if (rank == 0) printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
