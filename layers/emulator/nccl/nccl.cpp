// nccl.cpp   NCCL's functions, behind the real nccl.h, for DEVICE=emulated COMM=nccl: one host, no GPU
//   A call runs in turns among the work of other streams (communicator.h); a send is done when it has been
//   received. Refused:
//     by the call      memory that the device cannot access, ranges that overlap, a communicator that has
//                      failed or was aborted; one communicator's calls on two streams in one group
//     between ranks    ranks whose calls differ in kind, count, type or operation: both are named
//     deadlock         what every rank waits for is printed
//   Order: a communicator's calls run one after another. With NCCL_LAUNCH_ORDER_IMPLICIT=1 calls of all
//   communicators begin in the host's order (within a group, in an order of NCCL's own). At most
//   NCCL_ON_CPU_RESIDENT launches (default 8) run at a time, as if no more fitted on the device.
//   NCCL_ON_CPU_FAIL=NAME:N: communicators whose name begins with NAME lose, on all ranks, their N-th call
//   and all later ones, as over a broken link.
//   NCCL_ON_CPU_ONE_DEVICE=1: all ranks are on one device, as on a machine with one GPU. Like NCCL, it
//   refuses two of them on one host, and identifies hosts by NCCL_HOSTID.
//   NCCL_DEBUG=INFO: prints on how many of the device's SMs a communicator's calls may run (0: any number).
//   NCCL_ON_CPU_HANG=RANK:N: the device of this rank of the world never begins its N-th launch, nor later
//   ones, as behind a kernel that does not end.
#include <set>
#include <utility>
#include "communicator.h"

using namespace nccl_on_cpu;

namespace {

std::string last_error;
ncclResult_t refuse(ncclResult_t code, const std::string& why) {
    last_error = why;
    return code;
}

// one communicator's calls in a group, or a single call outside of groups
struct Launch {
    ncclComm* comm;
    Stream stream;
    std::vector<NcclCall> calls = {};
    int64_t order = 0;   // of this process's launches
    int64_t number = 0;  // of the communicator's
    bool began = false, lost = false;
};
using LaunchPointer = std::shared_ptr<Launch>;
std::vector<LaunchPointer> under_way;
std::multiset<int64_t> not_begun;  // their orders
int64_t launches = 0;
int resident = 0;

int setting(const char* name, int otherwise) {
    const char* value = getenv(name);
    return value ? atoi(value) : otherwise;
}

bool may_begin(const Launch& l) {
    static const bool ordered = setting("NCCL_LAUNCH_ORDER_IMPLICIT", 0) == 1;
    static const int room = setting("NCCL_ON_CPU_RESIDENT", 8);
    if (l.number != l.comm->ended || resident == room) return false;
    return !ordered || *not_begun.begin() == l.order;
}

void begin(Launch& l) {
    l.began = true;
    not_begun.erase(not_begun.find(l.order));
    resident++;
    for (auto& call : l.calls) {
        for (auto& r : call.reads) emulated::watch::begin_send(r.p, r.bytes);
        for (auto& r : call.updates) {
            emulated::watch::read(r.p, r.bytes);
            emulated::watch::begin_copy(r.p, nullptr, r.bytes);
        }
        for (auto& r : call.writes) emulated::watch::begin_copy(r.p, nullptr, r.bytes);

        for (auto& r : call.writes) memset(r.p, 0xFF, r.bytes);  // a read that comes too early shows
        if (call.header.kind == Kind::AllGather && call.updates.empty() && call.writes.size() == 1)
            memcpy(call.out + l.comm->rank * call.bytes(), call.in, call.bytes());
    }
}

void finish(Launch& l) {
    if (l.began) resident--;
    else not_begun.erase(not_begun.find(l.order));
    l.comm->ended++;
    for (auto& call : l.calls) {
        if (!l.began) break;
        for (auto& r : call.reads) emulated::watch::finish_send(r.p, r.bytes);
        for (auto* ranges : {&call.updates, &call.writes})
            for (auto& r : *ranges) emulated::watch::finish_copy(r.p, nullptr, r.bytes);
    }
    std::erase_if(under_way, [&](const LaunchPointer& other) { return other.get() == &l; });
    processes().moved();
}

std::string rank_in_world() {
    const char* number = getenv("OMPI_COMM_WORLD_RANK");
    return number ? number : "of process " + std::to_string(getpid());
}

bool is_behind_hang(const Launch& l) {
    static const std::string hangs = getenv("NCCL_ON_CPU_HANG") ? getenv("NCCL_ON_CPU_HANG") : "";
    static const size_t colon = hangs.find(':');
    if (colon == std::string::npos || hangs.substr(0, colon) != rank_in_world()) return false;
    return l.order + 1 >= atoi(hangs.c_str() + colon + 1);
}

// on a channel, one transfer finishes before the next starts, also between calls of a launch
bool move_pieces(Launch& l) {
    [[maybe_unused]] emulated::watch::Unwatched transport;
    bool moved = false;
    std::set<std::pair<int, bool>> used;
    for (auto& call : l.calls) {
        for (auto& t : call.transfers)
            if (t.moved < t.bytes && used.insert({t.peer, t.sends}).second)
                moved |= advance(*l.comm, call, t);
        if (call.sums) moved |= add_up(*l.comm, call);
    }
    return moved;
}

emulated::Turn take_turn(Launch& l) {
    if (l.comm->aborted) {
        finish(l);
        return emulated::Turn::Done;
    }
    if (!l.began && is_behind_hang(l)) {
        processes().moved();  // a kernel that runs is not a deadlock
        return emulated::Turn::Went;
    }
    if (l.lost || (!l.began && !may_begin(l))) return emulated::Turn::Stuck;
    if (!l.began) begin(l);

    bool moved;
    try {
        moved = move_pieces(l);
    } catch (...) {
        finish(l);
        throw;
    }

    for (auto& call : l.calls) {
        if (call.is_done()) continue;
        if (moved) processes().moved();
        return moved ? emulated::Turn::Went : emulated::Turn::Stuck;
    }
    finish(l);
    return emulated::Turn::Done;
}

const char* why_not_begun(const Launch& l) {
    if (l.number != l.comm->ended) return "behind the communicator's earlier calls";
    if (*not_begun.begin() < l.order) return "behind earlier launches";
    if (resident) return "behind its stream's work, or because the device has no room";
    return "behind its stream's work";
}

// what this rank waits for: calls that have begun, and the first that have not
std::string describe_waits() {
    std::string out = "rank " + rank_in_world();
    if (under_way.empty()) return out + ": its host waits, no call is under way";

    int left_out = 0;
    for (auto& l : under_way) {
        const NcclCall* call = &l->calls[0];
        for (auto& each : l->calls)
            if (call->is_done()) call = &each;
        if (!l->began && l != under_way[0] && out.size() > 300) {
            left_out++;
            continue;
        }
        out += text("\n        %s: %s", l->comm->name.c_str(), call->describe().c_str());
        if (l->lost) out += ": lost";
        else if (!l->began) out += text(": has not begun, %s", why_not_begun(*l));
        else
            for (auto& t : call->transfers)
                if (!t.is_done()) out += text(", %s %d", t.sends ? "to" : "from", t.peer);
    }
    return out + (left_out ? text("\n        and %d others behind them", left_out) : "");
}

[[maybe_unused]] const bool is_told = [] {
    emulated::when_nothing_goes_on = [] { processes().try_again(describe_waits()); };
    return true;
}();

// waits until all ranks have joined a new communicator
ncclResult_t await_ranks(const ncclComm& comm) {
    for (bool all = false; !all; sched_yield()) {
        all = comm.shared->joined >= comm.size;
        for (int i = 0; i < comm.size; i++)
            if (int size = comm.shared->size_of[i]; size && size != comm.size)
                return refuse(ncclInvalidUsage, text("rank %d says that there are %d ranks, rank %d %d",
                                                     comm.rank, comm.size, i, size));
    }
    if (comm.rank == 0) shm_unlink(("/" + comm.segment).c_str());
    static const bool one_device = setting("NCCL_ON_CPU_ONE_DEVICE", 0);
    for (int i = 0; one_device && i < comm.size; i++)
        if (i != comm.rank && comm.shared->host_of[i] == comm.shared->host_of[comm.rank])
            return refuse(ncclInvalidUsage, text("duplicate GPU: ranks %d and %d are both on CUDA device 0",
                                                 comm.rank, i));
    return ncclSuccess;
}

// ---- calls and groups ------------------------------------------------------------------------------------

int depth = 0;                          // of groups
std::vector<LaunchPointer> collected;   // by the group, one a communicator

int64_t& counter_of(ncclComm& comm, const NcclCall& call) {
    if (call.header.kind != Kind::SendReceive) return comm.collectives;
    return call.in ? comm.sent[call.peer] : comm.received[call.peer];
}

EmulatedWork work_of(const LaunchPointer& l) {
    ncclComm& comm = *l->comm;
    for (auto& call : l->calls) call.header.number = counter_of(comm, call)++;
    static const std::string fails = getenv("NCCL_ON_CPU_FAIL") ? getenv("NCCL_ON_CPU_FAIL") : "";
    size_t colon = fails.rfind(':');

    comm.calls += (int64_t)l->calls.size();
    if (colon != std::string::npos && comm.name.rfind(fails.substr(0, colon), 0) == 0 &&
        comm.calls >= atoi(fails.c_str() + colon + 1)) {
        l->lost = true;
        comm.error = ncclRemoteError;
    }

    l->number = comm.launched++;
    l->order = launches++;
    under_way.push_back(l);
    not_begun.insert(l->order);
    return {[l] { return take_turn(*l); }, {}, {}};
}

// a copy in its initial state, for another launch of a graph
LaunchPointer copy_of(const Launch& l) {
    auto out = std::make_shared<Launch>(Launch{l.comm, l.stream});
    for (auto& call : l.calls) {
        NcclCall copy = {call.header, call.in, call.out, call.peer};
        add_ranges(*l.comm, copy);
        add_transfers(*l.comm, copy);
        out->calls.push_back(std::move(copy));
    }
    return out;
}

void launch(const LaunchPointer& l) {
    if (!emulated::stream_of(l->stream).recording) return emulated::enqueue(l->stream, work_of(l));
    emulated::enqueue(l->stream, EmulatedWork{nullptr, {}, {}, [l] { return work_of(copy_of(*l)); }});
}

ncclResult_t check_comm(const ncclComm* comm) {
    if (!comm) return refuse(ncclInvalidArgument, "no communicator");
    if (comm->aborted) return refuse(ncclInvalidUsage, comm->name + " was aborted");
    return comm->error;
}

ncclResult_t enqueue(ncclComm* comm, NcclCall call, Stream stream) {
    if (ncclResult_t wrong = check_comm(comm)) return wrong;
    add_ranges(*comm, call);
    std::string fault = find_fault(call);
    if (!fault.empty()) return refuse(ncclInvalidArgument, comm->name + ": " + fault);
    add_transfers(*comm, call);

    LaunchPointer to;
    for (auto& l : collected)
        if (l->comm == comm) to = l;
    if (to && to->stream != stream)
        return refuse(ncclInvalidUsage, comm->name + ": one group, two streams: not in the stand-in");

    if (!to) to = std::make_shared<Launch>(Launch{comm, stream});
    to->calls.push_back(std::move(call));
    if (!depth) launch(to);
    else if (to->calls.size() == 1) collected.push_back(to);
    return ncclSuccess;
}

ncclResult_t check_type(int type) {
    for (int has : {ncclBfloat16, ncclFloat32, ncclFloat64, ncclInt64})
        if (type == has) return ncclSuccess;
    return refuse(ncclInvalidArgument, "a type that the stand-in does not have");
}

// the header's number is set later, in work_of()
ncclResult_t collective(Header header, const void* in, void* out, ncclComm* comm, Stream stream) {
    if (ncclResult_t wrong = check_comm(comm)) return wrong;
    if (ncclResult_t wrong = check_type(header.type)) return wrong;
    if (header.op != ncclSum && header.op != ncclMax)
        return refuse(ncclInvalidArgument, "an operation that the stand-in does not have");
    return enqueue(comm, {header, (const char*)in, (char*)out}, stream);
}

ncclResult_t message(const void* in, void* out, size_t count, ncclDataType_t type, int peer, ncclComm* comm,
                     Stream stream) {
    if (ncclResult_t wrong = check_comm(comm)) return wrong;
    if (ncclResult_t wrong = check_type(type)) return wrong;
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return refuse(ncclInvalidArgument, text("a message of rank %d to or from rank %d", comm->rank, peer));
    Header header = {Kind::SendReceive, 0, (int64_t)count, type, 0};
    return enqueue(comm, {header, (const char*)in, (char*)out, peer}, stream);
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "in progress";
        default: return "internal error";
    }
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int made = 0;
    if (made == 0) remove_old();
    std::string name = name_of(getpid()) + "-" + std::to_string(made++);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, name.data(), name.size());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    if (rank < 0 || rank >= size || size > Processes::most)
        return refuse(ncclInvalidArgument, text("rank %d of %d", rank, size));
    auto* comm = new ncclComm{};
    comm->segment = id.internal;
    size_t bytes = sizeof(SharedComm) + (size_t)size * size * sizeof(Channel);
    comm->shared = (SharedComm*)share(comm->segment, bytes);
    comm->name = comm->segment;
    auto take_name = [&](auto* c) {  // NCCL before 2.27 has no names
        if constexpr (requires { c->commName; }) comm->name = c->commName ? c->commName : comm->name;
    };
    take_name(config);
    comm->rank = rank;
    comm->size = size;
    comm->sent.resize(size);
    comm->received.resize(size);
    if (comm->shared->size_of[rank].exchange(size))
        return refuse(ncclInvalidUsage, text("%s has a rank %d twice", comm->name.c_str(), rank));
    const char *host = getenv("NCCL_HOSTID"), *debug = getenv("NCCL_DEBUG");
    comm->shared->host_of[rank] = std::hash<std::string>()(host ? host : "this one");
    const char* in_world = getenv("OMPI_COMM_WORLD_RANK");
    if (rank == 0 && in_world) comm->shared->first = (int)(emulated::mix(atoi(in_world)) % size);
    int most = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
    if (debug && !strcmp(debug, "INFO"))
        fprintf(stderr, "NCCL INFO %s: maxCTAs %d\n", comm->name.c_str(), most);
    comm->shared->joined++;
    *out = comm;
    return await_ranks(*comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    *state = comm->error;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm->aborted) return refuse(ncclInvalidUsage, comm->name + " was aborted");
    comm->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    if (depth == 0) return refuse(ncclInvalidUsage, "the end of a group that nobody began");
    if (--depth) return ncclSuccess;
    // the stand-in's own order of communicators within a group, the same on all ranks
    auto key = [](const LaunchPointer& l) {
        return emulated::mix(emulated::seed ^ std::hash<std::string>()(l->comm->segment));
    };
    std::vector<LaunchPointer> all = std::exchange(collected, {});
    std::sort(all.begin(), all.end(), [&](auto& a, auto& b) { return key(a) < key(b); });
    for (auto& l : all) launch(l);
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective({Kind::AllReduce, 0, (int64_t)count, type, op}, in, out, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return collective({Kind::ReduceScatter, 0, (int64_t)count, type, op}, in, out, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return collective({Kind::AllGather, 0, (int64_t)count, type, ncclSum}, in, out, comm, stream);
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(in, nullptr, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(nullptr, out, count, type, peer, comm, stream);
}

}  // extern "C"
