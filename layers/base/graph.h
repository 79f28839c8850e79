// graph.h   work of a stream that is recorded once, and then launched as a whole: a CUDA graph
//   What the work reads from the host it must read from memory of host_malloc, when its turn comes; kernels'
//   arguments are those of the recording.
#pragma once
#include <memory>
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
    // gives the work to the stream; the first time work() is called, and recorded
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

// the work of a step, the same in all that have the same batch: enqueued call by call, or as a CUDA graph
class CapturedStep {
    std::unique_ptr<Graph> graph;
    int captured_batch = 0;
    int64_t counted = 0;  // by the captured work

public:
    // counter: what `work` counts while it is enqueued; a graph that is launched again counts the same
    template <class Work>
    void enqueue(Stream s, int batch, bool as_graph, int64_t& counter, Work work) {
        int64_t before = counter;
        if (!as_graph) return work();
        if (captured_batch == batch) {
            counter += counted;
            return graph->run(s, work);
        }
        graph = std::make_unique<Graph>();  // one at a time: they take memory
        captured_batch = 0;
        graph->run(s, work);
        captured_batch = batch;
        counted = counter - before;
    }
};
