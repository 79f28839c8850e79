// graph.h   a stream's work, captured once as a CUDA graph and then launched as a whole
//   Host memory that the work reads must come from host_malloc; every launch reads it anew. Kernel arguments
//   stay those of the capture.
#pragma once
#include <cstdio>
#include "../base/device.h"

// A step's work as a CUDA graph, shared by all steps of one batch size that read the same token buffer. If it
// cannot be captured, it is enqueued call by call or, with must_capture (all ranks must do the same), the
// error is thrown
class CapturedStep {
#if HAS_KERNELS
    cudaGraphExec_t graph = nullptr;  // only one batch's at a time: graphs take memory
    int captured_batch = 0;
    bool failed = false;

    void free() {
        if (graph) cudaGraphExecDestroy(graph);
        graph = nullptr;
        captured_batch = 0;
    }

    template <class Work>
    void capture(Stream s, Work work) {
        cudaGraph_t captured = nullptr;
        check_cuda(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "recording a graph");
        try {
            work();
        } catch (...) {
            cudaStreamEndCapture(s, &captured);
            if (captured) cudaGraphDestroy(captured);
            cudaGetLastError();
            throw;
        }
        check_cuda(cudaStreamEndCapture(s, &captured), "recording a graph");

        cudaError_t e = cudaGraphInstantiate(&graph, captured, 0);
        cudaGraphDestroy(captured);
        check_cuda(e, "making a graph");
    }

public:
    bool must_capture = false;
    CapturedStep() = default;
    CapturedStep(const CapturedStep&) = delete;
    ~CapturedStep() { free(); }

    // launches the work of this batch size; the first time, work() is called and captured
    template <class Work>
    void enqueue(Stream s, int batch, Work work) {
        if (failed) return work();
        bool is_new = captured_batch != batch;
        try {
            if (is_new) {
                free();
                capture(s, work);
            }
            check_cuda(cudaGraphLaunch(graph, s), "launching a graph");
            captured_batch = batch;
        } catch (const DeviceError& e) {
            if (must_capture || !is_new) throw;
            fprintf(stderr, "note: a step cannot be captured as a CUDA graph (%s): running it call by call "
                            "instead\n", e.what());
            free();
            failed = true;
            work();
        }
    }
#else
public:
    bool must_capture = false;
    template <class Work>
    void enqueue(Stream, int, Work work) {
        work();
    }
#endif
};
