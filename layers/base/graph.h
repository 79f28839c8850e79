// graph.h   work of a stream that is recorded once, and then launched as a whole: a CUDA graph
//   What the work reads from the host it must read from memory of host_malloc, when its turn comes; kernels'
//   arguments are those of the recording.
#pragma once
#include "device.h"

#if HAS_KERNELS
class Graph {
    cudaGraphExec_t whole = nullptr;

public:
    Graph() = default;
    Graph(const Graph&) = delete;
    ~Graph() {
        if (whole) cudaGraphExecDestroy(whole);
    }
    // gives the work to the stream; true: work() was called, to be recorded
    template <class Work>
    bool run(Stream s, Work work) {
        bool first = !whole;
        if (first) record(s, work);
        check_cuda(cudaGraphLaunch(whole, s), "launching a graph");
        return first;
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
    bool run(Stream, Work work) {
        work();
        return true;
    }
};
#endif
