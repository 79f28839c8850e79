// watch.h   watches every access to the emulated device's memory, and what orders it: SANITIZE=thread
//   The compiler calls a function before each access (-fsanitize=thread): those in watch.cpp, not
//   ThreadSanitizer's. For each byte of device, pinned and shared memory it is known who wrote it last, and
//   who has read it since; an access that nothing orders after these is a Defect naming both lines, and so is
//   a kernel's read of memory that nobody has written. So a missing barrier is found whatever order the
//   threads ran in. What orders accesses:
//     __syncthreads()         all threads of a block
//     __syncwarp()            the lanes of a warp; a shuffle, a vote or an mma orders nothing
//     publish, wait_until     what precedes a block's barrier, for those who see the counter (mma.h)
//     copy_async_wait         a copy, for the thread that started it; until then it may arrive at any moment
//     streams                 each its own work; events, synchronize() and enqueueing, work between them
//   Atomics do not race with one another, and order nothing. Blocks run one after another, on one core.
//   Not seen: host threads other than the first, and what libc copies on the host; of two reads on two
//   streams only the later. watch_counts.h counts a kernel's sectors and bank conflicts on the way.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace emulated::watch {

// counts for a kernel (watch_counts.h)
struct Counts {
    long requests = 0, lanes = 0;     // of device memory
    long sectors = 0, used = 0;       // that these request; bytes of them that are used
    long turns = 0, least_turns = 0;  // of shared memory; if there were no bank conflict
    void add(const Counts& other) {
        requests += other.requests;
        lanes += other.lanes;
        sectors += other.sectors;
        used += other.used;
        turns += other.turns;
        least_turns += other.least_turns;
    }
};
using CountsByLine = std::map<std::string, Counts>;

// an access of a launch's first block, as its thread made it
struct Traced {
    const char* address;  // for shared memory, from the start of the block's
    int thread, bytes;
    int barriers;         // that the block had passed
    bool is_shared, writes;
    std::string line;     // file:line, the innermost function first
};

#if defined(WATCHED)

constexpr bool on = true;
using Clock = std::vector<uint64_t>;  // how much of each stream's work is known to be done; [0]: the host's

void* allocate(size_t bytes);     // device or pinned memory; an address is never used again
void release(void* p);
char* shared_memory();            // of the running block: a region for all that a block may have
void read(const void* p, size_t bytes);   // accesses that the compiler does not see: the device library's
void write(const void* p, size_t bytes);
void begin_copy(const void* to, const void* from, size_t bytes);  // by this thread; from is null: zeros
void finish_copy(const void* to, const void* from, size_t bytes);
void begin_send(const void* p, size_t bytes);  // until finish_send it may be read at any moment
void finish_send(const void* p, size_t bytes);

void load(void* to, const void* p, size_t bytes);  // copies in one access
void store(void* p, const void* from, size_t bytes);
template <class V>
[[gnu::always_inline]] inline V load_whole(const V* p) {
    V v;
    load(&v, p, sizeof v);
    return v;
}

template <class V>
[[gnu::always_inline]] inline void store_whole(V* p, const V& v) {
    store(p, &v, sizeof v);
}

extern char* memory;  // all that is watched: device, pinned and shared memory
constexpr size_t span = 64ull << 30;
inline bool is_inside(const void* p) { return (size_t)((const char*)p - memory) < span; }

// an access that the compiler has announced, and where it comes from
void seen(const void* p, size_t n, bool writing, const void* return_address);
void seen_atomic(const void* p, size_t n, bool acquires, bool releases, const void* return_address,
                 bool is_load);

void begin_launch();
void begin_block();
void end_block();
void block_barrier();

void count(bool on);  // in the first blocks of each launch
std::map<std::string, CountsByLine> take_counts();  // by kernel
void trace(bool on);
std::vector<Traced> take_trace();

// for accesses of the emulator itself, which do not exist on a device
struct Unwatched {
    Unwatched();
    ~Unwatched();
};

struct Progress {  // of a stream
    int id;
    uint64_t works = 0;
    Clock clock;
    std::vector<std::pair<uint64_t, std::shared_ptr<Clock>>> asked;
    Progress();
};
Clock given();  // what the host knows when it enqueues work
struct Work {   // a piece of a stream's work, while it runs
    Progress* outer;
    Work(Progress& stream, const Clock& given);
    ~Work();
};
std::shared_ptr<Clock> at(Progress& stream, uint64_t given, uint64_t done);  // what it will know then
void reached(Progress& stream, uint64_t done);
void join(Clock& to, const Clock& from);
void learn(const Clock& clock);  // whoever runs now has waited for it
void complain();                 // throws what was found outside of a kernel

#else

constexpr bool on = false;
struct Clock {};
struct Unwatched {
    Unwatched() {}
};
struct Progress {
    Clock clock;
};
struct Work {
    Work(Progress&, const Clock&) {}
};
inline void* allocate(size_t) { return nullptr; }
inline void release(void*) {}
inline char* shared_memory() { return nullptr; }
inline void read(const void*, size_t) {}
inline void write(const void*, size_t) {}
inline void begin_copy(const void*, const void*, size_t) {}
inline void finish_copy(const void*, const void*, size_t) {}
inline void begin_send(const void*, size_t) {}
inline void finish_send(const void*, size_t) {}
inline void begin_launch() {}
inline void begin_block() {}
inline void end_block() {}
inline void block_barrier() {}
inline Clock given() { return {}; }
inline std::shared_ptr<Clock> at(Progress&, uint64_t, uint64_t) { return nullptr; }
inline void reached(Progress&, uint64_t) {}
inline void join(Clock&, const Clock&) {}
inline void learn(const Clock&) {}
inline void complain() {}

#endif

}  // namespace emulated::watch
