// watch.h   watches every access to the emulated device's memory, and what orders it: SANITIZE=thread
//   With -fsanitize=thread the compiler calls a function before each access; watch_hooks.cpp has these
//   functions, in place of ThreadSanitizer's. For each byte of device, pinned and shared memory, the last
//   write and the reads since are recorded. A conflicting access that is not ordered after them is a Defect
//   naming both lines, and so is a kernel's read of memory that was never written. So a missing barrier is
//   found in whatever order the threads run. What orders accesses:
//     __syncthreads()         those of all threads of a block
//     __syncwarp()            those of a warp's lanes; a shuffle, a vote or an mma orders nothing
//     publish, wait_until     what the publishing block did before its last barrier, before what follows in
//                             the waiting thread and, after its next barrier, in its whole block (turns.h)
//     copy_async_wait         a copy, for the thread that started it; until then it may arrive at any moment
//     streams                 work on one stream, in order; work on different streams and the host's
//                             accesses, by events, synchronize() and enqueueing
//   Atomics do not race with one another; atomicAdd orders nothing. Blocks run one after another, on one
//   core. Not seen: host threads other than the first; copies by libc on the host; and, of unordered reads on
//   two streams, the earlier. watch_counts.h also counts a kernel's sectors and bank conflicts.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// a bug that the emulated device finds in this program: not an Error, so that no code recovers from it
struct Defect : std::runtime_error {
    using std::runtime_error::runtime_error;
};

namespace emulated::watch {

// counts for a kernel (watch_counts.h)
struct Counts {
    long requests = 0, lanes = 0;     // to device memory; lanes that take part in them
    long sectors = 0, used = 0;       // of device memory that these touch; bytes of them that are used
    long turns = 0, least_turns = 0;  // of shared memory; how many without bank conflicts
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
Clock given();  // the clock of whoever enqueues work
struct Work {   // a piece of a stream's work, while it runs
    Progress* outer;
    Work(Progress& stream, const Clock& given);
    ~Work();
};
std::shared_ptr<Clock> at(Progress& stream, uint64_t given, uint64_t done);  // its clock once `given` is done
void reached(Progress& stream, uint64_t done);
void join(Clock& to, const Clock& from);
void learn(const Clock& clock);  // joined into the clock of whoever runs now
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
