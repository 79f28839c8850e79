// test_ranks.h   every call between ranks, of every type, on the compute stream and on a comm stream
//   mpirun -n 4 ./test_gpt ranks
#pragma once
#include "../layers/fast/graph.h"
#include "../layers/base/hardware.h"
#include "../layers/base/testing.h"
#include "mpi/capture.h"
#include "mpi/collective_check.h"
#include "mpi/hosts.h"

template <class T>
void ranks_calls(const comm::Group& g, Stream comm_stream, const char* type) {
    constexpr int n = 1000;  // small whole numbers, so that every type sums them exactly
    auto value = [](int rank, int i) { return (double)((rank * 7 + i * 3) % 11) - 4; };
    auto whole = [&](int i) {
        double sum = 0;
        for (int r = 0; r < g.size; r++) sum += value(r, i);
        return sum;
    };

    std::vector<T> host((size_t)n * g.size), out(host.size());
    T* x = (T*)device_malloc(host.size() * sizeof(T), "a test");
    T* y = (T*)device_malloc(host.size() * sizeof(T), "a test");

    // fills x, makes the call where it belongs, fetches `from` into out
    auto call = [&](Stream where, T* from, auto make) {
        for (size_t i = 0; i < host.size(); i++) host[i] = T((float)value(g.rank, (int)i));
        copy_to_device(x, host.data(), host.size() * sizeof(T), nullptr);
        set_zero(y, host.size() * sizeof(T), nullptr);
        if (where) comm::wait_stream(where, nullptr);
        make(where);
        if (where) comm::wait_event(nullptr, comm::record_event(where), "a test");
        copy_to_host(out.data(), from, out.size() * sizeof(T), nullptr);
    };

    auto expect = [&](const char* what, bool on_channel, int from, int count, auto wanted) {
        int wrong = 0;
        for (int i = 0; i < count; i++) wrong += (double)(float)out[from + i] != wanted(i);
        check(wrong == 0, text("%s, %s%s: %d of %d values wrong", what, type,
                               on_channel ? ", on a comm_stream" : "", wrong, count));
    };

    int last = g.size - 1, size = n * g.size;
    int left = (g.rank + last) % g.size, right = (g.rank + 1) % g.size;
    for (Stream s : {(Stream) nullptr, comm_stream}) {
        call(s, x, [&](Stream s) { comm::all_reduce(g, x, size, comm::ReduceOp::Sum, "a test", s); });
        expect("all-reduce, sum", s, 0, size, whole);
        call(s, x, [&](Stream s) { comm::all_reduce(g, x, size, comm::ReduceOp::Max, "a test", s); });
        expect("all-reduce, max", s, 0, size, [&](int i) {
            double most = value(0, i);
            for (int r = 1; r < g.size; r++) most = std::max(most, value(r, i));
            return most;
        });
        call(s, x, [&](Stream s) { comm::reduce_scatter(g, x + g.rank * n, x, n, "a test", s); });
        expect("reduce-scatter in place", s, g.rank * n, n, [&](int i) { return whole(g.rank * n + i); });
        call(s, x, [&](Stream s) { comm::all_gather(g, x, x + g.rank * n, n, "a test", s); });
        expect("all-gather in place", s, 0, size, [&](int i) { return value(i / n, i); });
        if (g.size > 1) {
            call(s, y, [&](Stream s) {  // everybody sends to the right: only together can this end
                comm::group_begin();
                comm::send(g, x, n, right, "a test", s);
                comm::receive(g, y, n, left, "a test", s);
                comm::group_end();
            });
            expect("send and receive", s, 0, n, [&](int i) { return value(left, i); });
        }
    }

    call(nullptr, y, [&](Stream s) { comm::reduce_scatter(g, y, x, n, "a test", s); });
    expect("reduce-scatter", false, 0, n, [&](int i) { return whole(g.rank * n + i); });
    call(nullptr, y, [&](Stream s) { comm::all_gather(g, y, x, n, "a test", s); });
    expect("all-gather", false, 0, size, [&](int i) { return value(i / n, i % n); });
    device_free(x);
    device_free(y);
}

// A graph with a call on a comm stream that nobody waits for within it: it ends when the call has ended
void captured_call(const comm::Group& world, Stream comm_stream) {
    Stream compute = make_stream();
    double* x = (double*)device_malloc(sizeof(double), "a test");
    double got = 1, want = world.size;
    copy_to_device(x, &got, sizeof got, compute);
    {
        CapturedStep graph;
        graph.must_capture = true;
        for (int launch = 0; launch < 3; launch++, want *= world.size) {
            graph.enqueue(compute, 1, [&] {
                comm::begin_capture();
                comm::wait_stream(comm_stream, compute);
                comm::all_reduce(world, x, 1, comm::ReduceOp::Sum, "a test", comm_stream);
                comm::end_capture(compute);
            });
            comm::watch_graph(world, compute);
            copy_to_host(&got, x, sizeof got, compute);
            check(got == want, text("launch %d of a graph with a call: %g, expected %g", launch, got, want));
        }
    }

    device_free(x);
}

void test_ranks() {
    comm::Group world = comm::make_group("a test", comm::everyone().members);
    Stream first = comm::make_comm_stream();
    ranks_calls<bf16>(world, first, "bf16");
    ranks_calls<float>(world, first, "fp32");
    ranks_calls<double>(world, first, "fp64");
    ranks_calls<int64_t>(world, first, "int64");

    for (auto [line, version] : {
             std::pair("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024", 535),
             {"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build", 570},
             {"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  575.57.08  Release Build", 575},
             {"", 0}, {"NVRM version: 535", 0}})
        check(driver_named_in(line) == version, text("the driver's version in \"%s\"", line));

    // three quarters of a unit of the last place: to the nearest, not cut off
    bf16 addend = bf16(world.rank == 0 ? 1.0f : world.rank == 1 ? 3 * 0x1p-9f : 0.0f);
    bf16* sum = (bf16*)device_malloc(sizeof addend, "a test");
    copy_to_device(sum, &addend, sizeof addend, nullptr);
    comm::all_reduce(world, sum, 1, comm::ReduceOp::Sum, "a test", nullptr);
    copy_to_host(&addend, sum, sizeof addend, nullptr);
    check((float)addend == (world.size > 1 ? 1 + 0x1p-7f : 1), "a sum in bf16 is rounded to the nearest");
    device_free(sum);

    // what four ranks send for 400 bytes in all, and how many values a call of 100 each has
    struct { comm::Collective kind; long sent, whole; } kinds[] = {
        {comm::Collective::AllReduce, 600, 100}, {comm::Collective::ReduceScatter, 300, 100L * world.size},
        {comm::Collective::AllGather, 300, 100L * world.size}, {comm::Collective::Send, 400, 100},
        {comm::Collective::Receive, 0, 100}};
    check(!name_of(comm::Collective(std::size(kinds))),
          "each kind of call has a line in kinds: add it, and try it in ranks_calls");
    for (auto& k : kinds) {
        comm::Call call = {.kind = k.kind, .group = &world, .out = nullptr, .in = nullptr, .n = 100,
                           .type = Element::Fp32};
        long sent = comm::sent_bytes(k.kind, 4, 400);
        check(sent == k.sent && call.whole() == k.whole,
              text("%s: sends %ld bytes of %ld values, expected %ld of %ld", name_of(k.kind), sent,
                   call.whole(), k.sent, k.whole));
    }

    comm::Call long_call = {.kind = comm::Collective::AllReduce, .group = &world, .out = nullptr,
                            .in = nullptr, .n = 1L << 31, .type = Element::Bf16, .label = "a long call"};
    if (world.size > 1 && !comm::can_capture)
        refuses("a long call: 2147483648 values, but MPI takes at most", [&] { comm::post(long_call); });
    std::vector<int64_t> all = comm::gather_numbers(world, {world.rank, 5}, "a test");
    bool right = true;
    for (int r = 0; r < world.size; r++) right = right && all[2 * r] == r && all[2 * r + 1] == 5;
    check(right, "numbers of all ranks");
    check(comm::rank_list({0, 1, 2, 5, 7, 8}) == "0 to 2 5 7 to 8", "a list of ranks");

    auto notes = [](std::vector<std::string> hosts, int t, int devices, const char* says) {
        std::string notes = comm::host_notes(hosts, t, devices);
        check(*says ? notes.find(says) != notes.npos : notes.empty(), "notes about hosts: " + notes);
    };
    notes({"a", "a", "b", "b"}, 2, 2, "");
    notes({"a", "a", "b", "b"}, 1, 0, "");
    notes({"a", "a", "a", "b", "b", "b"}, 2, 4,
          "1 of 3 tensor-parallel groups of 2 span more than one host (rank 2 on a and rank 3 on b)");
    notes({"a", "b", "a", "b"}, 2, 4, "2 of 2 tensor-parallel groups");
    notes({"a", "a", "b", "b"}, 2, 1, "a has 2 ranks, and 1 more host too many, for 1 GPU:");
    if (comm::can_capture && world.size > 1) captured_call(world, first);

    // two comm streams, the second after the first by way of the compute stream, many times over
    Stream second = comm::make_comm_stream();
    double* x = (double*)device_malloc(sizeof(double), "a test");
    double one = 1, got = 0, want = 1;
    copy_to_device(x, &one, sizeof one, nullptr);

    for (int i = 0; i < 20; i++, want *= world.size) {
        Stream s = i % 2 ? second : first;
        comm::wait_stream(s, nullptr);
        comm::all_reduce(world, x, 1, comm::ReduceOp::Sum, "a test", s);
        comm::wait_event(nullptr, comm::record_event(s), "a test");
    }

    copy_to_host(&got, x, sizeof got, nullptr);
    device_free(x);
    check(got == want, text("a chain over two comm streams: %g, expected %g", got, want));
}
