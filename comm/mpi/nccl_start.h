// nccl_start.h   how NCCL's communicators are made: with a timeout, and connected before the first step
//   NCCL's calls would take up to 32 of the device's SMs: make_grid.h says how many each group's may; NCCL's
//   variable NCCL_MAX_CTAS overrides that.
//   TRAIN_GPT_SHARE_GPU=1, for checks on a machine with one GPU: NCCL refuses two ranks on one device of one
//   host, so each rank calls itself a host. They then communicate by sockets, slowly.
#pragma once
#include <nccl.h>
#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <memory>
#include <thread>
#include "../../layers/base/hardware.h"
#include "make_grid.h"
#include "mpi_world.h"

namespace comm {
namespace {

void check_nccl(ncclResult_t result, const char* what) {
    if (result != ncclSuccess)
        fail("NCCL, %s: %s (%s): NCCL_DEBUG=INFO says more", what, ncclGetErrorString(result),
             ncclGetLastError(nullptr));
}

// A rank has at most six calls on the device at once, whose blocks take an SM each: on four links, over d and
// on the compute stream. 5 * 8 + 32 = 72 of an A100's 108 SMs: each call finds room, in whatever order they
// begin; on a GPU of fewer than 72 SMs, as an L4's 58, the last takes less
int most_ctas(int wanted) {
    int left = multiprocessors() - 5 * sms_beside_kernels;
    return std::min(wanted, std::max(left, sms_beside_kernels));
}

// NCCL waits for all ranks of a new communicator without a timeout: a separate thread does that while this
// one watches the clock. If the run ends meanwhile, the thread is left behind
struct Joining {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclSuccess;
    std::exception_ptr error;
    std::atomic<bool> done = false;
};
ncclComm_t join(const Group& g, ncclUniqueId id, int most_sms) {
    auto joining = std::make_shared<Joining>();
    auto set_name = [&](auto& config) {  // NCCL before 2.27 has no names
        if constexpr (requires { config.commName; }) config.commName = handle_of(g).name.c_str();
    };
    set_name(joining->config);
    joining->config.maxCTAs = most_ctas(most_sms);
    std::thread joins([joining, id, size = g.size, rank = g.rank, device = current_device()] {
        try {
            use_device(device);
            joining->result = ncclCommInitRankConfig(&joining->comm, size, id, rank, &joining->config);
        } catch (...) {
            joining->error = std::current_exception();
        }
        joining->done = true;
    });

    try {
        WaitLoop loop;
        while (!joining->done) loop.turn("NCCL's start of " + handle_of(g).name, g.members);
    } catch (...) {
        joins.detach();
        throw;
    }

    joins.join();
    note_progress();
    if (joining->error) std::rethrow_exception(joining->error);
    check_nccl(joining->result, handle_of(g).name.c_str());
    return joining->comm;
}

// NCCL connects two ranks when they first communicate, and the host blocks. A host that blocks in the middle
// of a schedule may hold back what its neighbours wait for, so all connections are made here. Only links, of
// two ranks, send and receive: their connections take memory of their own.
void connect(const Group& g, const char* name) {
    auto* x = (int64_t*)device_malloc((g.size + 2) * sizeof(int64_t), name);
    set_zero(x, (g.size + 2) * sizeof(int64_t), nullptr);
    auto connect_by = [&](Collective kind, void* out, const void* in, int peer = -1) {
        post({.kind = kind, .group = &g, .out = out, .in = in, .n = 1, .type = Element::Int64, .peer = peer,
              .label = "connecting"});
    };
    connect_by(Collective::AllReduce, x, x);
    connect_by(Collective::ReduceScatter, x + g.rank, x);
    connect_by(Collective::AllGather, x, x + g.rank);

    if (g.size == 2) {
        group_begin();
        connect_by(Collective::Send, nullptr, x + 2, 1 - g.rank);
        connect_by(Collective::Receive, x + 3, nullptr, 1 - g.rank);
        group_end();
    }

    synchronize(nullptr);
    device_free(x);
}

// The kernel driver's major version, 570 for CUDA 12.8's; a container's libcuda may be newer. 0: not known
int kernel_driver() {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    std::getline(file, line);
    return driver_named_in(line);
}

// Settings of a site or a user that these calls cannot run with are replaced or refused; those that change
// how many SMs NCCL takes are noted
void check_environment() {
    const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
    if (world_size() > 1 && blocking && strcmp(blocking, "0") != 0)
        fail("CUDA_LAUNCH_BLOCKING=%s over %d ranks: a rank would block in a send until its neighbour "
             "receives: unset it", blocking, world_size());
    for (const char* name : {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"})
        if (world_rank() == 0 && getenv(name))
            fprintf(stderr, "note: %s=%s replaces this program's choice of the SMs that NCCL takes beside "
                            "GEMMs\n", name, getenv(name));
}

// NCCL knows a host by a hash, which NCCL_HOSTID replaces
void share_gpu() {
    setenv("NCCL_HOSTID", text("train_gpt, rank %d", world_rank()).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    if (world_rank() == 0)
        fprintf(stderr, "note: TRAIN_GPT_SHARE_GPU=1: ranks may share a GPU, and NCCL treats each as a "
                        "separate host: slow, for checks only\n");
}

}  // namespace
}  // namespace comm
