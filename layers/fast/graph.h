// graph.h   a stream's work, captured once as a CUDA graph and then launched as a whole
//   Host memory that the work reads must come from host_malloc; every launch reads it anew. Kernel arguments
//   stay those of the capture.
#pragma once
#include <cstdio>
#include <memory>
#include "../base/device.h"

#if HAS_KERNELS
class Graph {
    cudaGraphExec_t whole = nullptr;

public:
    Graph() = default;
    Graph(const Graph&) = delete;
    ~Graph() {
        if (whole) cudaGraphExecDestroy(whole);
    }
    // enqueues the work on the stream; the first time, work() is called and recorded
    template <class Work>
    void run(Stream s, Work work) {
        if (!whole) record(s, work);
        check_cuda(cudaGraphLaunch(whole, s), "launching a graph");
    }

private:
    template <class Work>
    void record(Stream s, Work work) {
        cudaGraph_t graph = nullptr;
        check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "recording a graph");
        try {
            work();
        } catch (...) {
            cudaStreamEndCapture(s, &graph);
            if (graph) cudaGraphDestroy(graph);
            cudaGetLastError();
            throw;
        }
        check_cuda(cudaStreamEndCapture(s, &graph), "recording a graph");

        cudaError_t e = cudaGraphInstantiate(&whole, graph, 0);
        cudaGraphDestroy(graph);
        check_cuda(e, "making a graph");
    }
};
#else
struct Graph {
    template <class Work>
    void run(Stream, Work work) {
        work();
    }
};
#endif

// A step's work as a CUDA graph, shared by all steps of one batch size that read the same token buffer. If it
// cannot be captured, it is enqueued call by call or, with must_capture (all ranks must do the same), the
// error is thrown
class CapturedStep {
    std::unique_ptr<Graph> graph;
    bool failed = false;
    int captured_batch = 0;

public:
    bool must_capture = false;

    template <class Work>
    void enqueue(Stream s, int batch, Work work) {
        if (failed) return work();
        if (captured_batch == batch) return graph->run(s, work);

        graph = std::make_unique<Graph>();  // only one batch's at a time: graphs take memory
        captured_batch = 0;
        try {
            graph->run(s, work);
        } catch (const DeviceError& e) {
            if (must_capture) throw;
            fprintf(stderr, "note: a step cannot be captured as a CUDA graph (%s): running it call by call "
                            "instead\n", e.what());
            failed = true;
            graph = nullptr;
            return work();
        }

        captured_batch = batch;
    }
};
