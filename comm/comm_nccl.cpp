// comm_nccl.cpp   the transport over NCCL: one communicator per group, its id exchanged over MPI
//   Calls are enqueued on the stream given; a comm stream is a CUDA stream of its own, ordered against the
//   compute stream by events.
//   How communicators are made: mpi/nccl_start.h. What watches and times the calls: mpi/nccl_watch.h.
//   With DEVICE=emulated a stand-in for NCCL is linked: layers/emulator/nccl.
#include <functional>
#include <utility>
#include "mpi/nccl_watch.h"

namespace comm {
namespace {

ncclComm_t comm_of(const Group& g) { return (ncclComm_t)handle_of(g).nccl; }

ncclDataType_t type_nccl(Element type) {
    return type == Element::Bf16 ? ncclBfloat16 : type == Element::Fp32 ? ncclFloat32
        : type == Element::Fp64 ? ncclFloat64 : ncclInt64;
}

struct Posted {
    Call call;
    std::string here;  // what the call is, for messages about it
};
std::vector<Posted> posted;  // calls of the open group

struct CommStream {
    Event forked;  // where the compute stream was when this stream last waited for it
    // events are reused: a wait for a reused one would wait for a later point of the same stream, but far
    // fewer are ever outstanding (check_pipeline in run/schedules.h limits them)
    static constexpr int mark_slots = 1024;
    std::vector<std::unique_ptr<Event>> marks;
    bool is_captured = false;     // has joined the capture
    long given = 0;               // events recorded
    long calls = 0, awaited = 0;  // calls enqueued, and those before an event that was awaited
    long calls_at[mark_slots] = {};  // calls enqueued before each event
};
std::map<Stream, std::unique_ptr<CommStream>> comm_streams;

ncclResult_t post_nccl(const Call& c, ncclComm_t comm) {
    ncclDataType_t type = type_nccl(c.type);
    switch (c.kind) {
        case Collective::AllReduce:
            return ncclAllReduce(c.in, c.out, c.n, type,
                                 c.op == ReduceOp::Sum ? ncclSum : ncclMax, comm, c.stream);
        case Collective::ReduceScatter:
            return ncclReduceScatter(c.in, c.out, c.n, type, ncclSum, comm, c.stream);
        case Collective::AllGather: return ncclAllGather(c.in, c.out, c.n, type, comm, c.stream);
        case Collective::Send: return ncclSend(c.in, c.n, type, c.peer, comm, c.stream);
        case Collective::Receive: return ncclRecv(c.out, c.n, type, c.peer, comm, c.stream);
    }
    return ncclInvalidArgument;
}

}  // namespace

// Loads all kernels eagerly: loading may wait for the device, which may wait for another rank. Gives each
// stream its own hardware queue, so that comm streams do not queue behind one another. Connects all
// algorithms of a communicator when it is made, not within a step. Turns off sums in the NVSwitch (NVLS)
// where they are not repeatable: with drivers before CUDA 12.8's (NVIDIA/nccl, issues 1497 and 2360).
// Calls of several communicators begin in any order, as each finds room on the device (nccl_start.h). With
// NCCL_LAUNCH_ORDER_IMPLICIT=1, or few hardware queues, they would begin in the host's order: a pipeline
// whose --pipeline-group is more than p would then hang, as neighbours' hosts have different orders.
void start(int* argc, char*** argv) {
    int overwrite = launched();  // one rank may load lazily
    setenv("CUDA_MODULE_LOADING", "EAGER", overwrite);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);

    bool is_old = driver_version() < 12080 || (kernel_driver() > 0 && kernel_driver() < 570);
    if (is_old) setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    setenv("NCCL_COMM_BLOCKING", "1", 1);  // otherwise calls return before they are enqueued
    if (!launched()) return;

    start_mpi(argc, argv);
    check_environment();
    while_waiting = look;
    if (world_size() > 1) after_operation = stay_near_the_device;
    if (const char* share = getenv("TRAIN_GPT_SHARE_GPU"); share && strcmp(share, "1") == 0) share_gpu();
}

Group make_group(const char* name, const std::vector<int>& members, int most_sms) {
    Group g = make_host_group(name, members);
    if (g.size == 1) return g;

    ncclUniqueId id;
    if (g.rank == 0) check_nccl(ncclGetUniqueId(&id), "a group's id");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, handle_of(g).mpi);
    handle_of(g).nccl = join(g, id, most_sms);
    communicators.push_back(&handle_of(g));
    connect(g, name);
    return g;
}

// ---- order: comm streams against the compute stream, by events -------------------------------------------

Stream make_comm_stream() {
    Stream s = make_stream(true);
    comm_streams[s] = std::make_unique<CommStream>();
    for (int i = 0; i < CommStream::mark_slots; i++)
        comm_streams[s]->marks.push_back(std::make_unique<Event>());
    return s;
}

void transport_wait_stream(Stream comm_stream, Stream compute) {
    CommStream& c = *comm_streams.at(comm_stream);
    c.forked.record(compute);
    c.forked.block(comm_stream);
    c.is_captured |= capturing;
}

StreamEvent transport_record_event(Stream comm_stream) {
    CommStream& c = *comm_streams.at(comm_stream);
    c.marks[++c.given % CommStream::mark_slots]->record(comm_stream);
    c.calls_at[c.given % CommStream::mark_slots] = c.calls;
    return {comm_stream, c.given};
}

// while a graph is captured, nothing is timed: the wait becomes an edge of the graph
void transport_wait_event(Stream compute, const StreamEvent& event) {
    CommStream& c = *comm_streams.at(event.comm_stream);
    long mark = event.position % CommStream::mark_slots;
    c.awaited = std::max(c.awaited, c.calls_at[mark]);
    if (capturing) c.marks[mark]->block(compute);
    else time_wait(compute, [&] { c.marks[mark]->block(compute); });
}

const bool can_capture = true;
void begin_capture() { capturing = true; }

// a capture ends on the stream on which it began: all others that have joined it must first lead back there
void end_capture(Stream compute) {
    for (auto& [stream, c] : comm_streams) {
        if (!std::exchange(c->is_captured, false)) continue;
        c->forked.record(stream);
        c->forked.block(compute);
        c->awaited = c->calls;
    }
    capturing = false;
}

// a launched graph is watched as if it were one call of all ranks
void watch_graph(const Group& world, Stream compute) {
    watch_call(note(world, "CUDA graph", "a step", 0), world, compute);
    end_calls();
}

long unawaited_calls() {
    long n = 0;
    for (auto& [stream, c] : comm_streams) n += c->calls - c->awaited;
    return n;
}

// ---- calls -----------------------------------------------------------------------------------------------

// Within an NCCL group, NCCL starts the communicators in an order of its own, which may deadlock. So each
// communicator's calls get an NCCL group of their own, in the order of the host's calls
void transport_group_end() {
    auto group = std::exchange(posted, {});
    auto on_compute_stream = [](const Posted& each) { return !comm_streams.count(each.call.stream); };
    auto waiting = std::find_if(group.begin(), group.end(), on_compute_stream);
    auto post_all = [&] {
        while (!group.empty()) {
            ncclComm_t comm = comm_of(*group.front().call.group);
            check_nccl(ncclGroupStart(), "the start of a group");
            for (auto& [call, here] : group)
                if (comm_of(*call.group) == comm) check_nccl(post_nccl(call, comm), here.c_str());
            check_nccl(ncclGroupEnd(), "the end of a group");
            std::erase_if(group, [&](const Posted& each) { return comm_of(*each.call.group) == comm; });
        }
    };

    if (waiting == group.end() || capturing) post_all();
    else time_wait(waiting->call.stream, post_all);
    end_calls();
}

void post(const Call& call) {
    const Group& g = *call.group;
    Stream s = call.stream;
    std::string here = note(g, name_of(call.kind), call.label, call.n);
    watch_call(here, g, s);

    auto comm_stream = comm_streams.find(s);
    bool on_comm_stream = comm_stream != comm_streams.end();
    if (on_comm_stream) comm_stream->second->calls++;

    ncclComm_t comm = comm_of(g);
    auto post_checked = [&] { check_nccl(post_nccl(call, comm), here.c_str()); };

    time_call(s);
    if (in_group) posted.push_back({call, here});
    else if (on_comm_stream || capturing) post_checked();
    else time_wait(s, post_checked);
    if (!in_group) end_calls();
}

}  // namespace comm
