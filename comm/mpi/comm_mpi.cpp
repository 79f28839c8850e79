// comm_mpi.cpp   the transport over MPI; on a GPU the data goes through host memory
//   Every call is non-blocking. On the compute stream it is waited for at once. On a comm stream it is posted
//   when the computations before its wait_stream are done and the stream's earlier calls are posted, and it
//   makes progress whenever this rank waits for anything. Waiting yields the processor, so that there can be
//   more ranks than cores.
#include <deque>
#include "call_times.h"
#include "capture.h"
#include "../../layers/emulator/watch.h"
#include "mpi_world.h"

namespace comm {
namespace {

namespace watch = emulated::watch;  // the emulated device's race detector: must know what MPI accesses

MPI_Datatype bf16_type;
MPI_Op bf16_sum, bf16_max;

MPI_Datatype type_mpi(Element type) {
    return type == Element::Bf16 ? bf16_type : type == Element::Fp32 ? MPI_FLOAT
        : type == Element::Fp64 ? MPI_DOUBLE : MPI_INT64_T;
}

MPI_Op op_mpi(Element type, ReduceOp op) {
    if (type == Element::Bf16) return op == ReduceOp::Sum ? bf16_sum : bf16_max;
    return op == ReduceOp::Sum ? MPI_SUM : MPI_MAX;
}

void add_bf16(void* in, void* inout, int* n, MPI_Datatype*) {
    [[maybe_unused]] watch::Unwatched transport;
    for (int i = 0; i < *n; i++) ((bf16*)inout)[i] = bf16(float(((bf16*)inout)[i]) + float(((bf16*)in)[i]));
}

void max_bf16(void* in, void* inout, int* n, MPI_Datatype*) {
    [[maybe_unused]] watch::Unwatched transport;
    for (int i = 0; i < *n; i++)
        if (float(((bf16*)in)[i]) > float(((bf16*)inout)[i])) ((bf16*)inout)[i] = ((bf16*)in)[i];
}

// a host copy of device memory; if the host is the device, the memory itself
struct Staged {
    void* device;
    size_t bytes;
    std::vector<char> copy;
    void* host;
    Staged(const void* p, size_t n, bool separate = false) : device((void*)p), bytes(n), host((void*)p) {
        if (host_is_device && !separate) return;
        copy.resize(bytes);
        host = copy.data();
    }

    void load(Stream s) {
        if (host != device) copy_to_host(host, device, bytes, s);
        else watch::begin_send(device, bytes);
    }

    void replace(Stream s) {  // load(), and expect() in place
        if (host != device) return load(s);
        watch::read(device, bytes);
        expect();
    }

    void expect() {  // announces what store() will write
        if (host == device) watch::begin_copy(device, nullptr, bytes);
    }

    void store(Stream s) {
        if (host == device) return watch::finish_copy(device, nullptr, bytes);
        copy_to_device(device, host, bytes, s);
        synchronize(s);
    }

    void sent() {
        if (host == device) watch::finish_send(device, bytes);
    }
};

struct PendingCall {
    Group group;
    const char *what, *label;
    long n;
    std::function<void(MPI_Request*, Stream)> post;
    std::function<void(Stream)> finish = {};
    std::shared_ptr<Event> after = {};  // what must be computed before it is posted
    watch::Clock given = {};  // the host's clock when it was enqueued
    watch::Clock end = {};    // the stream's clock at its end
    std::string here = {};
    std::shared_ptr<CallTimes> times = std::move(times_of_next_call);
    MPI_Request request = MPI_REQUEST_NULL;
    bool posted = false, done = false;

    void begin(Stream s) {
        here = note(group, what, label, n);
        if (times) times->began = seconds();
        post(&request, s);
        posted = true;
    }

    void test(Stream s) {
        int complete = 0;
        MPI_Test(&request, &complete, MPI_STATUS_IGNORE);
        if (complete && finish) finish(s);
        if (complete && times) times->ended = seconds();
        done = complete;
    }
};

struct CommStream {
    Stream copies;             // for staging, on a device
    std::deque<PendingCall> queue;    // posted or not, in order
    long given = 0, done = 0, awaited = 0;  // numbers of calls
    std::shared_ptr<Event> after;
    watch::Progress progress;
    std::deque<watch::Clock> ends;  // end clocks of the last calls, up to call `done`

    CommStream() : copies(make_stream()) {}
    CommStream(const CommStream&) = delete;
    ~CommStream() { destroy_stream(copies); }
    bool has_reached(PendingCall& call) {
        [[maybe_unused]] watch::Work now(progress, call.given);
        return call.after->reached();
    }

    void advance() {
        for (auto& call : queue) {
            if (!call.posted) {
                if (call.after && !has_reached(call)) break;
                [[maybe_unused]] watch::Work now(progress, call.given);
                call.begin(copies);
            }
            if (call.done) continue;
            {
                [[maybe_unused]] watch::Work now(progress, call.given);
                call.test(copies);
            }
            call.end = progress.clock;
        }

        for (; !queue.empty() && queue.front().done; done++) {
            ends.push_back(queue.front().end);
            if (ends.size() > 1) watch::join(ends.back(), ends[ends.size() - 2]);
            queue.pop_front();
            if (ends.size() > 1000) ends.pop_front();
        }
    }

    // the clock of an event at `position`, without the calls that ended later; but the clock of a call's end
    // includes what calls in flight beside it have learnt
    watch::Clock known_at(long position) const {
        if (position == 0 || ends.empty()) return {};
        size_t since = std::min((size_t)(done - position), ends.size() - 1);
        return ends[ends.size() - 1 - since];
    }
};
std::vector<std::unique_ptr<CommStream>> comm_streams;
std::vector<PendingCall> collected;   // on the compute stream, in an open group

void advance_comm_streams() {
    for (auto& c : comm_streams) c->advance();
}

void wait_for(PendingCall& call) {
    WaitLoop loop;
    for (;;) {
        call.test(nullptr);
        if (call.done) return;
        loop.turn(call.here, call.group.members);
    }
}

void enqueue(PendingCall call, Stream s) {
    if (s) {
        CommStream& c = *(CommStream*)s;
        call.after = c.after;
        call.given = watch::given();
        c.queue.push_back(std::move(call));
        c.given++;
        return c.advance();
    }
    synchronize(nullptr);
    call.begin(nullptr);
    if (in_group) return collected.push_back(std::move(call));
    wait_for(call);
}

// ---- the calls -------------------------------------------------------------------------------------------

void all_reduce(const Call& c) {
    auto data = std::make_shared<Staged>(c.out, c.n * bytes_of(c.type));
    enqueue({*c.group, name_of(c.kind), c.label, c.n,
             [=, n = (int)c.n, type = type_mpi(c.type), op = op_mpi(c.type, c.op),
              comm = handle_of(*c.group).mpi](MPI_Request* r, Stream copies) {
        data->replace(copies);
        MPI_Iallreduce(MPI_IN_PLACE, data->host, n, type, op, comm, r);
    }, [=](Stream copies) { data->store(copies); }}, c.stream);
}

// whether a rank's slice, the smaller of the two, lies at its place in the whole
bool is_in_place(const Call& c, const void* whole, const void* slice) {
    return slice == (const char*)whole + c.group->rank * c.n * bytes_of(c.type);
}

void reduce_scatter(const Call& c) {
    auto from = std::make_shared<Staged>(c.in, c.whole() * bytes_of(c.type));
    auto to = std::make_shared<Staged>(c.out, c.n * bytes_of(c.type), is_in_place(c, c.in, c.out));
    enqueue({*c.group, name_of(c.kind), c.label, c.n,
             [=, n = (int)c.n, type = type_mpi(c.type), sum = op_mpi(c.type, ReduceOp::Sum),
              comm = handle_of(*c.group).mpi](MPI_Request* r, Stream copies) {
        from->load(copies);
        to->expect();
        MPI_Ireduce_scatter_block(from->host, to->host, n, type, sum, comm, r);
    }, [=](Stream copies) {
        from->sent();
        to->store(copies);
    }}, c.stream);
}

void all_gather(const Call& c) {
    bool in_place = is_in_place(c, c.out, c.in);
    auto to = std::make_shared<Staged>(c.out, c.whole() * bytes_of(c.type));
    auto from = std::make_shared<Staged>(c.in, c.n * bytes_of(c.type));
    enqueue({*c.group, name_of(c.kind), c.label, c.n,
             [=, n = (int)c.n, type = type_mpi(c.type),
              comm = handle_of(*c.group).mpi](MPI_Request* r, Stream copies) {
        if (!in_place) from->load(copies);
        in_place ? to->replace(copies) : to->expect();
        MPI_Iallgather(in_place ? MPI_IN_PLACE : from->host, n, type, to->host, n, type, comm, r);
    }, [=](Stream copies) {
        if (!in_place) from->sent();
        to->store(copies);
    }}, c.stream);
}

void send(const Call& c) {
    auto data = std::make_shared<Staged>(c.in, c.n * bytes_of(c.type));
    enqueue({*c.group, name_of(c.kind), c.label, c.n,
             [=, n = (int)c.n, to = c.peer, type = type_mpi(c.type),
              comm = handle_of(*c.group).mpi](MPI_Request* r, Stream copies) {
        data->load(copies);
        MPI_Isend(data->host, n, type, to, 0, comm, r);
    }, [=](Stream) { data->sent(); }}, c.stream);
}

void receive(const Call& c) {
    auto data = std::make_shared<Staged>(c.out, c.n * bytes_of(c.type));
    enqueue({*c.group, name_of(c.kind), c.label, c.n,
             [=, n = (int)c.n, from = c.peer, type = type_mpi(c.type),
              comm = handle_of(*c.group).mpi](MPI_Request* r, Stream) {
        data->expect();
        MPI_Irecv(data->host, n, type, from, 0, comm, r);
    }, [=](Stream copies) { data->store(copies); }}, c.stream);
}

}  // namespace

void start(int* argc, char*** argv) {
    if (!launched()) return;
    start_mpi(argc, argv);
    MPI_Type_contiguous(2, MPI_BYTE, &bf16_type);
    MPI_Type_commit(&bf16_type);
    MPI_Op_create(add_bf16, 1, &bf16_sum);
    MPI_Op_create(max_bf16, 1, &bf16_max);
}

Group make_group(const char* name, const std::vector<int>& members, int) {
    return make_host_group(name, members);
}

Stream make_comm_stream() {
    comm_streams.push_back(std::make_unique<CommStream>());
    return (Stream)comm_streams.back().get();
}

void transport_wait_stream(Stream comm_stream, Stream compute) {
    auto event = std::make_shared<Event>();
    event->record(compute);
    ((CommStream*)comm_stream)->after = event;
}

double waited_seconds() { return host_waited; }
StreamEvent transport_record_event(Stream comm_stream) {
    return {comm_stream, ((CommStream*)comm_stream)->given};
}
void transport_wait_event(Stream, const StreamEvent& event) {
    CommStream& c = *(CommStream*)event.comm_stream;
    c.awaited = std::max(c.awaited, event.position);
    WaitLoop loop;
    for (advance_comm_streams(); c.done < event.position;) {
        PendingCall& next = c.queue.front();
        loop.turn(next.posted ? next.here : text("a computation before %s of %s", next.what, next.label),
                      next.group.members);
    }
    watch::learn(c.known_at(event.position));
}

long unawaited_calls() {
    long n = 0;
    for (auto& c : comm_streams) n += c->given - c->awaited;
    return n;
}

const bool can_capture = false;
void begin_capture() {}
void end_capture(Stream) {}
void watch_graph(const Group&, Stream) {}
void transport_group_end() {
    for (auto& call : collected) wait_for(call);
    collected.clear();
}

void post(const Call& c) {
    if (c.whole() > INT_MAX)
        fail("%s: %ld values, but MPI takes at most %d per call: build with COMM=nccl, or raise "
             "--tensor-parallel", c.label, c.whole(), INT_MAX);
    switch (c.kind) {
        case Collective::AllReduce: return all_reduce(c);
        case Collective::ReduceScatter: return reduce_scatter(c);
        case Collective::AllGather: return all_gather(c);
        case Collective::Send: return send(c);
        case Collective::Receive: return receive(c);
    }
    fail("%s: MPI's transport has no such call: this is a bug", c.label);
}

}  // namespace comm
