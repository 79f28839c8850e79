// watch.cpp   happens-before on the emulated device (watch.h); linked with SANITIZE=thread
//   The functions that the compiler calls: watch_hooks.cpp.
#include "watch.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <utility>
#include "cuda_on_cpu.h"
#include "line_table.h"
#include "watch_counts.h"

extern "C" char __ehdr_start;

namespace emulated::watch {

char* memory;

void join(Clock& to, const Clock& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++) to[i] = std::max(to[i], from[i]);
}

namespace {

// ---- who did what, and when ------------------------------------------------------------------------------

// Moments are numbered over the whole run. A new one begins with a turn of a stream's work, a launch, a block
// or a block barrier, and with the host's first access after it has enqueued work or waited.
struct Access {
    uint32_t moment = 0;  // 0: never
    uint32_t code = 0;    // address in the program, from its beginning
    uint16_t thread = 0;  // number in its block, with flags
    uint16_t warp_turn = 0;
};
constexpr uint16_t atomic = 0x8000, arriving = 0x4000, lanes = 0x2000, warps = 0x1000, blocks = 0x0800;
constexpr uint16_t departing = 0x0400;  // a read that lasts until finish_send
constexpr uint16_t thread_bits = 0x03FF;  // with `lanes` any thread of that warp

struct Cell {  // of a byte
    Access written, read;
};
bool same(const Cell& a, const Cell& b) {
    uint64_t x[3], y[3];
    static_assert(sizeof(Cell) == sizeof x && std::has_unique_object_representations_v<Cell>);
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

struct WorkStart {
    uint32_t moment;
    int stream;
    uint64_t index;
};

// what is ordered before a thread in other blocks of its launch; a block is identified by its first moment
struct Known {
    std::map<uint32_t, uint32_t> before;  // all of the block's moments before this one
    void join(const Known& other) {
        for (auto& [block, moment] : other.before) before[block] = std::max(before[block], moment);
    }
};

constexpr size_t shared_bytes = 1 << 20;

char* map(size_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) fail("SANITIZE=thread needs %zu bytes of address space", bytes);
    return (char*)p;
}

struct State {
    Cell* cells = (Cell*)map(span * sizeof(Cell));
    size_t used = shared_bytes;
    std::map<char*, size_t> allocated;

    uint32_t now = 0, block_start = 0, launch_start = 0;
    uint32_t done_moment = 0;  // the last that was looked up, of work that the running launch waited for
    std::vector<WorkStart> works;
    std::vector<uint32_t> block_starts;  // of the launch
    std::map<const void*, Known> published;
    Known known;                         // of the running block
    std::map<int, Known> waiting;        // by thread, to be known after the block's next barrier

    Clock host;
    bool host_open = false;  // its last moment has not ended yet
    Progress* stream = nullptr;
    int streams = 0, quiet = 0;
    bool in_kernel = false;
    std::string error;

    State() { memory = map(span); }
};
[[gnu::init_priority(101)]] State s;  // constructed before all streams
thread_local bool is_host = false;
const bool host_is_here = is_host = true;  // the thread that starts the program

void advance(Clock& clock, int stream, uint64_t index) {
    if (clock.size() <= (size_t)stream) clock.resize(stream + 1);
    clock[stream] = index;
    if (s.now > UINT32_MAX / 2) fail("SANITIZE=thread: the run is too long");
    s.works.push_back({++s.now, stream, index});
    s.block_start = s.launch_start = s.now;
}

Clock& current_clock() { return s.stream ? s.stream->clock : s.host; }

// ---- the rule --------------------------------------------------------------------------------------------

bool is_shared(const char* p) { return p < memory + shared_bytes; }

bool is_known(const Known& known, const Access& a) {
    uint32_t block = *std::prev(std::upper_bound(s.block_starts.begin(), s.block_starts.end(), a.moment));
    auto found = known.before.find(block);
    return found != known.before.end() && a.moment < found->second;
}

// whether `a` happens before what `thread` does now
bool is_ordered(const Access& a, int thread, uint16_t warp_turn) {
    if (a.thread & (arriving | departing) || (a.thread & blocks && a.moment >= s.launch_start)) return false;
    if (a.moment >= s.block_start) {  // of this block: before its last barrier, or by this thread or warp
        if (a.moment < s.now) return true;
        if (a.thread & warps) return false;
        int other = a.thread & thread_bits;
        if (other == thread && !(a.thread & lanes)) return true;
        return other / 32 == thread / 32 && a.warp_turn < warp_turn;
    }
    if (a.moment >= s.launch_start) {  // of another block of this launch
        auto mine = s.waiting.find(thread);
        return is_known(s.known, a) || (mine != s.waiting.end() && is_known(mine->second, a));
    }

    // of earlier work
    if (s.in_kernel && a.moment == s.done_moment) return true;
    auto next = std::upper_bound(s.works.begin(), s.works.end(), a.moment,
                                 [](uint32_t moment, const WorkStart& w) { return moment < w.moment; });
    const WorkStart& work = *std::prev(next);
    const Clock& clock = current_clock();
    bool is_done = (size_t)work.stream < clock.size() && clock[work.stream] >= work.index;
    if (s.in_kernel && is_done) s.done_moment = a.moment;
    return is_done;
}

std::string who(const Access& a) {
    int t = a.thread & thread_bits;
    std::string what = line_of(a.code);
    if (a.thread & arriving) return what + text(" (a copy of thread %d that may still arrive)", t);
    if (a.moment < s.launch_start) return what + " (earlier work, for which this did not wait)";
    if (a.moment < s.block_start) return what + " (another block)";
    if (a.thread & warps) return what + " (several warps of this block)";
    if (a.thread & lanes) return what + text(" (several lanes of warp %d)", t / 32);
    return what + text(" (thread %d)", t);
}

// in a kernel, does not return; otherwise keeps the error for complain(), and returns false
bool found(const std::string& what) {
    if (!s.in_kernel) {
        if (s.error.empty()) s.error = what;
        return false;
    }
    Worker& w = *worker;
    w.error = w.where(w.current) + ": " + what;
    w.stop();
}

std::string unwritten(const char* p, uint32_t code) {
    return text("the read of %s memory at %s: nobody has written it", is_shared(p) ? "shared" : "device",
                line_of(code).c_str());
}

bool race(const char* p, bool writes, uint32_t code, const Access& before, bool was_written) {
    if (!s.in_kernel && !s.error.empty()) return false;  // reports the first only
    std::string what = text("the %s of %s memory at %s races with the %s at %s", writes ? "write" : "read",
                            is_shared(p) ? "shared" : "device", line_of(code).c_str(),
                            was_written ? "write" : "read", who(before).c_str());
    return found(what);
}

struct Me {
    int thread = 0;
    uint16_t warp_turn = 0;
};
bool is_watched(const void* p, Me& me) {
    if (!is_inside(p) || s.quiet || !is_host) return false;
    if (s.in_kernel) {
        me = {worker->current, worker->warps[worker->current / 32].turn};
    } else if (!s.stream && !s.host_open) {
        if (s.host.empty()) s.host.resize(1);
        advance(s.host, 0, s.host[0] + 1);
        s.host_open = true;
    }
    return true;
}

// one record for `mine` and an unordered `other`: whatever is ordered after it is after both
Access merged(Access mine, const Access& other) {
    int a = mine.thread & thread_bits, b = other.thread & thread_bits;
    if (other.moment < s.launch_start) return mine;
    if (other.moment < s.block_start) mine.thread |= blocks;
    else if (other.thread & warps || a / 32 != b / 32) mine.thread |= warps;
    else mine.thread |= lanes;
    mine.thread |= other.thread & blocks;
    return mine;
}

// calls change(cell, address) for each byte until it returns false; just once for adjacent equal cells
template <class Change>
void change_cells(const char* p, size_t n, Change change) {
    Cell *cells = s.cells + (p - memory), before;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && same(cells[i], before)) {
            cells[i] = cells[i - 1];
            continue;
        }
        before = cells[i];
        if (!change(cells[i], p + i)) return;
    }
}

// whether there was such an access at all; in shared memory, those of earlier blocks do not count
bool counts(const Access& a, const char* p) {
    return a.moment && !(is_shared(p) && a.moment < s.block_start);
}

// flags: atomic, which does not race with other atomics, or departing
void reads(const char* p, size_t n, uint32_t code, Me me, uint16_t flags = 0) {
    Access mine = {s.now, code, (uint16_t)(me.thread | (flags & departing)), me.warp_turn};
    change_cells(p, n, [&](Cell& c, const char* at) {
        bool both_atomic = flags & atomic && c.written.thread & atomic;
        bool is_written = counts(c.written, at), is_read = counts(c.read, at);
        if (is_written && !both_atomic && !is_ordered(c.written, me.thread, me.warp_turn))
            return race(at, false, code, c.written, true);
        if (s.in_kernel && !is_written) return found(unwritten(at, code));
        if (is_read && c.read.thread & departing) return true;
        bool beside = is_read && !is_ordered(c.read, me.thread, me.warp_turn);
        c.read = beside ? merged(mine, c.read) : mine;
        return true;
    });
}

void writes(const char* p, size_t n, uint32_t code, Me me, uint16_t flags = 0) {
    Access mine = {s.now, code, (uint16_t)(me.thread | flags), me.warp_turn};
    change_cells(p, n, [&](Cell& c, const char* at) {
        bool both_atomic = flags & atomic && c.written.thread & atomic, is_written = counts(c.written, at);
        bool beside = is_written && !is_ordered(c.written, me.thread, me.warp_turn);
        if (beside && !both_atomic) return race(at, true, code, c.written, true);
        if (s.in_kernel && flags & atomic && !is_written) return found(unwritten(at, code));
        if (counts(c.read, at) && !is_ordered(c.read, me.thread, me.warp_turn))
            return race(at, true, code, c.read, false);
        c = {beside ? merged(mine, c.written) : mine, {}};
        return true;
    });
}

uint32_t code_of(const void* return_address) { return (uint32_t)((char*)return_address - &__ehdr_start); }

Counter counter;  // of the running block, if it is one of those counted
bool counting = false, in_counted_block = false;
constexpr int counted_blocks = 2;  // per launch
Tracer tracer;
bool tracing = false, in_traced_block = false;

void note(const char* p, size_t n, bool writing, uint32_t code, int thread) {
    bool shared = is_shared(p);
    if (in_counted_block) counter.note(p - memory, shared, n, writing, code, thread);
    const char* address = shared ? (const char*)(p - memory) : p;
    if (in_traced_block)
        tracer.note({address, thread, (int)n, (int)(s.now - s.block_start), shared, writing, ""}, code);
}

}  // namespace

void seen(const void* p, size_t n, bool writing, const void* return_address) {
    Me me;
    if (!is_watched(p, me)) return;
    note((const char*)p, n, writing, code_of(return_address), me.thread);
    if (writing) writes((const char*)p, n, code_of(return_address), me);
    else reads((const char*)p, n, code_of(return_address), me);
}

void seen_atomic(const void* p, size_t n, bool acquires, bool releases, const void* return_address,
                 bool is_load) {
    Me me;
    if (!is_watched(p, me)) return;
    if (s.in_kernel && acquires) s.waiting[me.thread].join(s.published[p]);
    if (s.in_kernel && releases) {
        Known& to = s.published[p];
        to = s.known;
        to.join(s.waiting[me.thread]);
        to.before[s.block_start] = s.now;
    }
    if (is_load) reads((const char*)p, n, code_of(return_address), me, atomic);
    else writes((const char*)p, n, code_of(return_address), me, atomic);
}

// ---- what the emulator says ------------------------------------------------------------------------------

void* allocate(size_t bytes) {
    size_t whole = (bytes + 255) / 256 * 256;
    if (s.used + whole > span) fail("SANITIZE=thread: %zu bytes of memory are used up", span);
    char* p = memory + s.used;
    s.used += whole + 256;
    s.allocated[p] = whole;
    return p;
}

void release(void* p) {
    auto found = s.allocated.find((char*)p);
    if (found == s.allocated.end()) return;
    auto give_back = [](char* from, size_t n) {  // whole pages
        uintptr_t first = ((uintptr_t)from + 4095) / 4096 * 4096, last = ((uintptr_t)from + n) / 4096 * 4096;
        if (first < last) madvise((void*)first, last - first, MADV_DONTNEED);
    };
    give_back(found->first, found->second);
    give_back((char*)(s.cells + (found->first - memory)), found->second * sizeof(Cell));
    s.allocated.erase(found);
}

char* shared_memory() { return memory; }
void read(const void* p, size_t bytes) { seen(p, bytes, false, __builtin_return_address(0)); }
void write(const void* p, size_t bytes) { seen(p, bytes, true, __builtin_return_address(0)); }

void load(void* to, const void* p, size_t bytes) {
    seen(p, bytes, false, __builtin_return_address(0));
    memcpy(to, p, bytes);
}

void store(void* p, const void* from, size_t bytes) {
    seen(p, bytes, true, __builtin_return_address(0));
    memcpy(p, from, bytes);
}

void begin_copy(const void* to, const void* from, size_t bytes) {
    Me me;
    if (!is_watched(to, me)) return;
    uint32_t code = code_of(__builtin_return_address(0));
    if (from) seen(from, bytes, false, __builtin_return_address(0));
    note((const char*)to, bytes, true, code, me.thread);
    writes((const char*)to, bytes, code, me, arriving);
}

void finish_copy(const void* to, const void* from, size_t bytes) {
    Me me;
    if (!is_watched(to, me)) return;
    if (is_inside(from))
        reads((const char*)from, bytes, code_of(__builtin_return_address(0)), me);
    for (size_t i = 0; i < bytes; i++) {
        Access& a = s.cells[(const char*)to - memory + i].written;
        a.thread &= (uint16_t)~arriving;
        a.moment = s.now;
        a.warp_turn = me.warp_turn;
    }
}

void begin_send(const void* p, size_t bytes) {
    Me me;
    if (!is_watched(p, me)) return;
    reads((const char*)p, bytes, code_of(__builtin_return_address(0)), me, departing);
}

void finish_send(const void* p, size_t bytes) {
    Me me;
    if (!is_watched(p, me)) return;
    for (size_t i = 0; i < bytes; i++) {
        Access& a = s.cells[(const char*)p - memory + i].read;
        if (a.thread & departing) a = {s.now, a.code, (uint16_t)me.thread, me.warp_turn};
    }
}

void begin_launch() {
    s.launch_start = ++s.now;
    s.done_moment = 0;
    s.block_starts.clear();
    s.published.clear();
}

void begin_block() {
    s.block_start = ++s.now;
    s.block_starts.push_back(s.now);
    s.known = {};
    s.waiting.clear();
    s.in_kernel = true;
    in_counted_block = counting && s.block_starts.size() <= counted_blocks;
    in_traced_block = tracing && s.block_starts.size() == 1;
}

void end_block() {
    s.in_kernel = false;
    if (in_counted_block) counter.finish_block(worker->kernel, line_of);
    in_counted_block = in_traced_block = false;
}

void block_barrier() {
    s.now++;
    for (auto& [thread, known] : s.waiting) s.known.join(known);
    s.waiting.clear();
}

void count(bool on) { counting = on; }
std::map<std::string, CountsByLine> take_counts() { return std::exchange(counter.kernels, {}); }
void trace(bool on) { tracing = on; }
std::vector<Traced> take_trace() { return tracer.take(line_of); }

Unwatched::Unwatched() { s.quiet++; }
Unwatched::~Unwatched() { s.quiet--; }

Progress::Progress() : id(++s.streams) {}
Clock given() {
    s.host_open = false;
    return current_clock();
}

Work::Work(Progress& stream, const Clock& given) : outer(s.stream) {
    s.stream = &stream;
    s.host_open = false;
    join(stream.clock, given);
    advance(stream.clock, stream.id, ++stream.works);
}

Work::~Work() { s.stream = outer; }
std::shared_ptr<Clock> at(Progress& stream, uint64_t given, uint64_t done) {
    auto clock = std::make_shared<Clock>();
    if (done >= given) *clock = stream.clock;
    else stream.asked.push_back({given, clock});
    return clock;
}

void reached(Progress& stream, uint64_t done) {
    std::erase_if(stream.asked, [&](auto& a) {
        if (a.first > done) return false;
        *a.second = stream.clock;
        return true;
    });
}

void learn(const Clock& clock) {
    s.host_open = false;
    join(current_clock(), clock);
}

void complain() {
    std::string error;
    std::swap(error, s.error);
    if (!error.empty()) throw Defect(error);
}

}  // namespace emulated::watch
