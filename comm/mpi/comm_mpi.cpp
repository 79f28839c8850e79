// comm_mpi.cpp   the transport over MPI; on a GPU the data goes through host memory
//   Every call is non-blocking. On the compute stream it is waited for at once. On a comm stream it is posted
//   when the computations before its wait_stream are done and the stream's earlier calls are posted, and it
//   makes progress whenever this rank waits for anything. Waiting yields the processor, so that there can be
//   more ranks than cores.
#include <deque>
#include "../../layers/emulator/watch.h"
#include "mpi_world.h"

namespace comm {
namespace {

namespace watch = emulated::watch;  // the emulated device's race detector: must know what MPI accesses

MPI_Datatype bf16_type;
MPI_Op bf16_sum, bf16_max;

MPI_Datatype type_mpi(Type type) {
    return type == Type::Bf16 ? bf16_type : type == Type::Fp32 ? MPI_FLOAT : type == Type::Fp64 ? MPI_DOUBLE
        : MPI_INT64_T;
}

MPI_Op op_mpi(Type type, Op op) {
    if (type == Type::Bf16) return op == Op::Sum ? bf16_sum : bf16_max;
    return op == Op::Sum ? MPI_SUM : MPI_MAX;
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

// MPI counts in int: calls piece(first value, count) for each part of a call that would be too long
template <class Piece>
void cut(long n, Piece piece) {
    for (long first = 0; first < n; first += most_mpi_values)
        piece(first, std::min(n - first, most_mpi_values));
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

}  // namespace

void start(int* argc, char*** argv) {
    if (!launched()) return;
    start_mpi(argc, argv);
    MPI_Type_contiguous(2, MPI_BYTE, &bf16_type);
    MPI_Type_commit(&bf16_type);
    MPI_Op_create(add_bf16, 1, &bf16_sum);
    MPI_Op_create(max_bf16, 1, &bf16_max);
}

Group make_group(const char* name, const std::vector<int>& members, bool) {
    return make_mpi_group(name, members);
}
Group make_host_group(const char* name, const std::vector<int>& members) {
    return make_mpi_group(name, members);
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

void all_reduce_bytes(const Group& g, void* x, long n, Type type, Op op, const char* label, Stream s) {
    cut(n, [&](long first, long count) {
        auto data = std::make_shared<Staged>((char*)x + first * bytes_of(type), count * bytes_of(type));
        enqueue({g, "all-reduce", label, count, [=](MPI_Request* r, Stream copies) {
            data->replace(copies);
            MPI_Iallreduce(MPI_IN_PLACE, data->host, (int)count, type_mpi(type), op_mpi(type, op),
                           handle_of(g).mpi, r);
        }, [=](Stream copies) { data->store(copies); }}, s);
    });
}

// the sum, on root
static void reduce_bytes(const Group& g, void* out, const void* in, long n, Type type, int root,
                         const char* label, Stream s) {
    bool receives = g.rank == root, in_place = receives && in == out;
    cut(n, [&](long first, long count) {
        long offset = first * bytes_of(type), bytes = count * bytes_of(type);
        auto from = std::make_shared<Staged>((const char*)in + offset, bytes);
        auto to = std::make_shared<Staged>((char*)out + offset, receives ? bytes : 0, in_place);
        enqueue({g, "reduce", label, count, [=](MPI_Request* r, Stream copies) {
            from->load(copies);
            if (receives) to->expect();
            MPI_Ireduce(from->host, receives ? to->host : nullptr, (int)count, type_mpi(type),
                        op_mpi(type, Op::Sum), root, handle_of(g).mpi, r);
        }, [=](Stream copies) {
            from->sent();
            if (receives) to->store(copies);
        }}, s);
    });
}

void reduce_scatter_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                          Stream s) {
    if (n * g.size > most_mpi_values) {  // too long for one call: reduce each rank's slice to it separately
        for (int root = 0; root < g.size; root++)
            reduce_bytes(g, out, (const char*)in + root * n * bytes_of(type), n, type, root, label, s);
        return;
    }

    bool in_place = (char*)out == (const char*)in + g.rank * n * bytes_of(type);
    auto from = std::make_shared<Staged>(in, g.size * n * bytes_of(type));
    auto to = std::make_shared<Staged>(out, n * bytes_of(type), in_place);
    enqueue({g, "reduce-scatter", label, n, [=](MPI_Request* r, Stream copies) {
        from->load(copies);
        to->expect();
        MPI_Ireduce_scatter_block(from->host, to->host, (int)n, type_mpi(type), op_mpi(type, Op::Sum),
                                  handle_of(g).mpi, r);
    }, [=](Stream copies) {
        from->sent();
        to->store(copies);
    }}, s);
}

// root sends from `in` itself, and copies it to `out`
static void broadcast_bytes(const Group& g, void* out, const void* in, long n, Type type, int root,
                            const char* label, Stream s) {
    bool sends = g.rank == root;
    cut(n, [&](long first, long count) {
        long offset = first * bytes_of(type), bytes = count * bytes_of(type);
        auto data = std::make_shared<Staged>(sends ? (const char*)in + offset : (char*)out + offset, bytes);
        void* copy = sends && in != out ? (char*)out + offset : nullptr;
        enqueue({g, "broadcast", label, count, [=](MPI_Request* r, Stream copies) {
            if (sends) data->load(copies);
            else data->expect();
            MPI_Ibcast(data->host, (int)count, type_mpi(type), root, handle_of(g).mpi, r);
        }, [=](Stream copies) {
            if (sends) data->sent();
            else data->store(copies);
            if (!copy) return;
            copy_on_device(copy, data->device, bytes, copies);
            synchronize(copies);
        }}, s);
    });
}

void all_gather_bytes(const Group& g, void* out, const void* in, long n, Type type, const char* label,
                      Stream s) {
    long bytes = n * bytes_of(type);
    if (n * g.size > most_mpi_values) {
        for (int root = 0; root < g.size; root++)
            broadcast_bytes(g, (char*)out + root * bytes, in, n, type, root, label, s);
        return;
    }

    bool in_place = (const char*)in == (char*)out + g.rank * bytes;
    auto to = std::make_shared<Staged>(out, g.size * bytes), from = std::make_shared<Staged>(in, bytes);
    enqueue({g, "all-gather", label, n, [=](MPI_Request* r, Stream copies) {
        if (!in_place) from->load(copies);
        in_place ? to->replace(copies) : to->expect();
        MPI_Iallgather(in_place ? MPI_IN_PLACE : from->host, (int)n, type_mpi(type), to->host, (int)n,
                       type_mpi(type), handle_of(g).mpi, r);
    }, [=](Stream copies) {
        if (!in_place) from->sent();
        to->store(copies);
    }}, s);
}

void send_bytes(const Group& g, const void* x, long n, Type type, int to, const char* label, Stream s) {
    cut(n, [&](long first, long count) {
        auto data =
            std::make_shared<Staged>((const char*)x + first * bytes_of(type), count * bytes_of(type));
        enqueue({g, "send", label, count, [=](MPI_Request* r, Stream copies) {
            data->load(copies);
            MPI_Isend(data->host, (int)count, type_mpi(type), to, 0, handle_of(g).mpi, r);
        }, [=](Stream) { data->sent(); }}, s);
    });
}

void receive_bytes(const Group& g, void* x, long n, Type type, int from, const char* label, Stream s) {
    cut(n, [&](long first, long count) {
        auto data = std::make_shared<Staged>((char*)x + first * bytes_of(type), count * bytes_of(type));
        enqueue({g, "receive", label, count, [=](MPI_Request* r, Stream) {
            data->expect();
            MPI_Irecv(data->host, (int)count, type_mpi(type), from, 0, handle_of(g).mpi, r);
        }, [=](Stream copies) { data->store(copies); }}, s);
    });
}

}  // namespace comm
