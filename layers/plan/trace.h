// trace.h   one step of the run, for every rank of the first replica: when each operation, call and message
//   began and ended, and who waited
#pragma once
#include <list>
#include "../../comm/mpi/call_times.h"
#include "../../comm/mpi/hosts.h"
#include "span.h"

// joins every rank's text, in the order of the ranks, on rank 0; collective over the world. In pieces: only
// rank 0 holds all of it, the others some megabytes at a time
inline std::string collect_text(const comm::Group& world, const std::string& mine) {
    size_t piece = std::max<size_t>(64, (8 << 20) / sizeof(int64_t) / (size_t)world.size);  // numbers
    std::vector<int64_t> lengths = comm::gather_numbers(world, {(int64_t)mine.size()}, "lengths of texts");
    std::vector<std::string> all(lengths.size());
    size_t longest = (size_t)*std::max_element(lengths.begin(), lengths.end());

    for (size_t at = 0; at < longest; at += piece * sizeof(int64_t)) {
        std::vector<int64_t> numbers(std::min(piece, (longest - at + 7) / 8), 0);
        size_t mine_left = at < mine.size() ? mine.size() - at : 0;
        memcpy(numbers.data(), mine.data() + std::min(at, mine.size()),
               std::min(mine_left, numbers.size() * sizeof(int64_t)));

        std::vector<int64_t> texts = comm::gather_numbers(world, numbers, "texts");
        for (size_t rank = 0; world.rank == 0 && rank < all.size(); rank++) {
            size_t length = std::min((size_t)lengths[rank] - std::min(at, (size_t)lengths[rank]),
                                     numbers.size() * sizeof(int64_t));
            all[rank].append((const char*)&texts[rank * numbers.size()], length);
        }
    }

    std::string out;
    for (auto& each : all) out += each;
    return out;
}

class Trace : public Listener {
    struct Entry {
        Activity activity;
        TimedEvent begin, end;
        std::shared_ptr<comm::CallTimes> times;  // of a call that ends later than its function
    };
    std::list<Entry> entries;
    std::vector<Entry*> open;
    TimedEvent origin;
    double host_origin = 0, shift = 0;  // shift: how far this rank's origin is behind the first on its host

    // a comm stream that waits for computations: how long it waits cannot be measured
    static bool is_comm_stream_waiting(const Activity& a) {
        return a.kind == Activity::Wait && a.position < 0;
    }

public:
    // collective over the world. Ranks of one host share a clock; hosts agree to within the barrier
    void start(const comm::Group& world, Stream stream) {
        synchronize(stream);
        comm::barrier(world, "the traced step");
        origin.record(stream);
        host_origin = seconds();
        int64_t host = comm::host_id();
        auto all = comm::gather_numbers(world, {host, std::bit_cast<int64_t>(host_origin)}, "clocks");
        for (size_t i = 0; i < all.size(); i += 2)
            if (all[i] == host) shift = std::max(shift, host_origin - std::bit_cast<double>(all[i + 1]));
    }

    void begin(const Activity& a) override {
        if (is_comm_stream_waiting(a)) return;
        entries.emplace_back();
        Entry& entry = entries.back();
        entry.activity = a;
        open.push_back(&entry);
        if (!a.ends_later()) return entry.begin.record(a.stream);
        entry.times = std::make_shared<comm::CallTimes>();
        comm::times_of_next_call = entry.times;
    }

    void end(const Activity& a) override {
        if (is_comm_stream_waiting(a)) return;
        if (!a.ends_later()) open.back()->end.record(a.stream);
        open.pop_back();
    }

    struct Event {
        const Activity* activity;
        double start, end;  // seconds
    };
    // of the step, when all of it has ended
    std::vector<Event> events() const {
        std::vector<Event> out;
        for (auto& e : entries) {
            auto [start, end] = e.times ? e.times->span(origin, host_origin)
                                        : std::pair{e.begin.since(origin), e.end.since(origin)};
            out.push_back({&e.activity, start + shift, end + shift});
        }
        return out;
    }
};

// ---- as spans and as Chrome's events ---------------------------------------------------------------------

// how the picture shows it; false: not at all
inline bool span_of(const Activity& a, Span& span) {
    static constexpr Span::Kind of_pass[] = {Span::Forward, Span::Backward, Span::Message,
                                             Span::Reduce,  Span::Gather,   Span::Update};
    bool is_shown_section = a.kind == Activity::Section &&
        (a.place.pass == Pass::Forward || a.place.pass == Pass::Backward || a.place.pass == Pass::Update);
    if (a.kind == Activity::Compute || (a.kind == Activity::Section && !is_shown_section)) return false;

    if (a.kind == Activity::Wait) span.kind = Span::Wait;
    else if (a.kind == Activity::Communicate && !a.call.on_comm_stream) span.kind = Span::Collective;
    else if (a.place.pass == Pass::None) return false;
    else span.kind = of_pass[(int)a.place.pass];

    span.micro_batch = a.place.micro_batch;
    span.chunk = a.place.chunk;
    span.bucket = a.place.bucket;
    return true;
}

inline std::string chrome_event(const Trace::Event& e, int process) {
    const Activity& a = *e.activity;
    bool is_call = a.kind == Activity::Communicate;
    int lane = !is_call || !a.call.on_comm_stream ? 0
        : a.place.pass == Pass::Message           ? 1
                                                  : 2;

    std::string name = a.name, more;
    if (a.kind == Activity::Section && a.place.micro_batch >= 0) name += text(" %d", a.place.micro_batch);
    if (a.kind == Activity::Wait) name = text("wait: %s", a.label);
    if (is_call) {
        name = text("%s: %s", a.name, a.label);
        more = text(", \"group\": \"%s\", \"values\": %ld", a.call.group, a.call.count);
    }

    if (a.place.layer >= 0) more += text(", \"layer\": %d", a.place.layer);
    return text("{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"ts\": %.3f, \"dur\": %.3f, "
                "\"args\": {\"pass\": \"%s\", \"micro_batch\": %d, \"%s\": %d%s}},\n",
                process, lane, name.c_str(), e.start * 1e6, (e.end - e.start) * 1e6,
                a.place.pass == Pass::None ? "" : pass_names[(int)a.place.pass], a.place.micro_batch,
                lane == 2 ? "bucket" : "chunk", lane == 2 ? a.place.bucket : a.place.chunk, more.c_str());
}
