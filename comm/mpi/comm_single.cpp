// comm_single.cpp   the transport for a single process: no communication
#include <cstdlib>
#include "capture.h"

namespace comm {

void start(int*, char***) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);  // a kernel that is loaded late may disturb a graph's capture
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        const char* size = getenv(name);
        if (size && atoi(size) > 1)
            fail("started as %s ranks, but built without MPI: install Open MPI and run make again", size);
    }
}

void finish() {}
void abort_all(int code) { _Exit(code); }
int world_rank() { return 0; }
int world_size() { return 1; }
Group everyone() { return {}; }
Group make_group(const char* name, const std::vector<int>& members, int) {
    return {name, 0, 1, members, nullptr};
}
Group make_host_group(const char* name, const std::vector<int>& members) {
    return {name, 0, 1, members, nullptr};
}

std::vector<int64_t> gather_numbers(const Group&, const std::vector<int64_t>& mine, const char*) {
    return mine;
}

void barrier(const Group&, const char*) {}

Stream make_comm_stream() { return nullptr; }
void transport_wait_stream(Stream, Stream) {}
double waited_seconds() { return 0; }
SentMessages sent_messages() { return {}; }
StreamEvent transport_record_event(Stream) { return {}; }
void transport_wait_event(Stream, const StreamEvent&) {}
long unawaited_calls() { return 0; }
const bool can_capture = true;
void begin_capture() {}
void end_capture(Stream) {}
void watch_graph(const Group&, Stream) {}
void transport_group_end() {}

void post(const Call&) {}

}  // namespace comm
