// activations.h   what a rank keeps from forward to backward, and its scratch: sizes and addresses
//   A pipeline has several micro-batches in flight; each has its own activations (InFlight). With full
//   recomputation a micro-batch keeps only the inputs of its blocks, and all blocks share one set of the
//   other activations; with light recomputation, or --fp8, blocks share only the outputs of layer norms and
//   GELU.
//   To add a tensor to a block: a pointer above `shares`, and a line in place(), which both measures and
//   places it (base/arena.h), or in place_shareable(), if light recomputation shall recompute it and backward
//   with --fp8 does not read it; it is computed before block.h's after_attention_forward() returns without an
//   output. A tensor that is not placed fails ./test_gpt training; one that blocks share by mistake fails
//   scripts/test_parallel.py or, with --fp8, ./test_gpt training.
#pragma once
#include <memory>
#include "../../comm/grid.h"
#include "../base/arena.h"
#include "../base/gemm.h"
#include "../cross_entropy.cuh"
#include "../embedding.cuh"
#include "../fast/flash.h"
#include "../layernorm.cuh"
#include "../linear.cuh"
#include "params.h"

// which activations are recomputed in backward instead of kept
enum class Recompute {
    None,
    Light,  // outputs of layer norms and GELU: cheap to recompute, and 6 C of the 16 C values kept per token
            // and layer (t = 1). Results are bitwise the same, unless GELU was computed in a GEMM's epilogue:
            // then they are the same up to rounding. With --fp8 nothing is left to recompute
    Full,   // everything but the block's input
};

// sizes and features of a model instance; setup_of() in setup.h derives them from the options
struct Setup {
    int B = 1;                    // sequences in a micro-batch
    bool training = true;         // false: forward only, no gradients
    bool sequence_parallel = false;
    bool samples_text = false;    // --sample-every: text is generated between training steps
    bool packs = false;           // packed batches are computed as well
    // inference only: blocks keep keys and values from one batch to the next (a KV cache)
    bool inference_cache = false;
    bool notes_greedy = false;    // record whether each target is the most likely token
    int outputs = 0;              // rows of logits in a batch; 0: all rows
    Recompute recompute = Recompute::None;
    bool flash = false;           // attention without a (T, T) tensor
    bool fp8 = false;             // the blocks' linear layers use FP8 GEMMs
    bool bf16_moments = false;    // AdamW's moments are bf16; otherwise real
    bool master_weights = true;   // false: the bf16 parameters are the only copy of the weights
    bool several_micro_batches = false;  // some step has more than one: gradients are accumulated
    bool loss_in_backward = false;  // forward keeps no logits: backward computes logits and loss itself
    int micro_batches = 1;        // most in a step or a round of evaluation; each has its tokens and losses
    int loss_rows = 0;            // rows of logits held at once; 0: all
    int optimizer_shards = 1;     // data-parallel ranks that the optimizer state is sharded over
    int chunks = 1;               // model chunks (groups of layers) per pipeline stage
    int slots = 1, inputs = 1, dx_buffers = 1;
    Precision precision = {};                       // of this build, except in plans
    size_t workspace = dev::gemm_workspace();  // bytes for GEMMs: of this build, except in plans
};

// ---- a batch ---------------------------------------------------------------------------------------------

struct BatchShape {
    int B, T;
    int rows() const { return B * T; }  // N
};

// evaluation and generation compute packed batches of variable-length segments: layers/inference
struct PackedSegments;
constexpr int packed_ints = 9;  // ints that they take per row, at most

// ---- a block ---------------------------------------------------------------------------------------------

struct BlockActivations {
    floatX* x = nullptr;    // (N_r, C): the block's input; placed in stage.h
    floatX* ln1 = nullptr;  // (N_r, C): the first layer norm's output
    floatX* qkv = nullptr;  // (N, 3 C_r): queries, keys and values of this rank's heads
    floatX* o = nullptr;    // (N, C_r): the heads' outputs
    floatX* mid = nullptr;  // (N_r, C): the residual stream after attention
    floatX* ln2 = nullptr;  // (N_r, C): the second layer norm's output
    floatX* up = nullptr;   // (N, 4 C_r): GELU's input …
    floatX* act = nullptr;  // … and output
    // --fp8: the linear layers' inputs ln1, o, ln2 and act, for backward
    Fp8Input qkv_in, out_in, up_in, down_in;
    floatX* probabilities = nullptr;  // (B, NH_r, T, T): kept by materialised attention …
    real* lse = nullptr;              // … and (B, NH_r, T) by flash attention
    NormStats ln1_stats, ln2_stats;   // (N_r) each
    // what is placed stands above this line
    // ln1, ln2 and act are shared by all blocks: backward recomputes them (light recomputation) or does not
    // need them (--fp8)
    bool shares = false;

    // Places what blocks may share: stage.h then places one set and every block copies its pointers;
    // otherwise place() gives each block a set of its own
    void place_shareable(Arena& arena, const ModelShape& shape, const TensorParallel& tp,
                         const Setup& setup) {
        long B = setup.B, N_r = tp.row_capacity(setup.B, shape.T);
        ln1 = arena.take_x(N_r * shape.C);
        ln2 = arena.take_x(N_r * shape.C);
        // GELU's output is made in 8 bits only, but in packed batches
        if (!setup.fp8 || setup.packs) act = arena.take_x(B * shape.T * 4 * (shape.C / tp.group.size));
    }

    void place(Arena& arena, const ModelShape& shape, const TensorParallel& tp, const Setup& setup) {
        int B = setup.B;
        long N = (long)B * shape.T, N_r = tp.row_capacity(B, shape.T);
        long C_r = shape.C / tp.group.size, NH_r = shape.NH / tp.group.size;
        if (!shares) place_shareable(arena, shape, tp, setup);
        qkv = arena.take_x(N * 3 * C_r);
        if (setup.training && setup.flash) lse = arena.take_real(N * NH_r);
        else if (setup.training) probabilities = arena.take_x(B * NH_r * shape.T * shape.T);
        o = arena.take_x(N * C_r);
        mid = arena.take_x(N_r * shape.C);
        up = arena.take_x(N * 4 * C_r);
        for (real** stat : {&ln1_stats.mean, &ln1_stats.rstd, &ln2_stats.mean, &ln2_stats.rstd})
            *stat = arena.take_real(N_r);
        if (!setup.fp8) return;
        qkv_in.place(arena, N, shape.C);
        out_in.place(arena, N, C_r);
        up_in.place(arena, N, shape.C);
        down_in.place(arena, N, 4 * C_r);
    }
};

// ---- the LM head -----------------------------------------------------------------------------------------

struct LmHeadActivations {
    floatX* ln;                 // (N_r, C): the final layer norm's output
    NormStats stats;            // (N_r): of its rows
    // (N, C): ln gathered over t, kept for backward; nullptr: nothing is gathered, and backward reads ln, or
    // backward itself gathers them (loss_in_backward), into scratch
    floatX* input_rows;
    floatX* logits;             // (rows_held, Vp_r); overwritten by their gradient if one is wanted
    real* losses;               // (micro_batches, outputs)
    real* is_greedy = nullptr;  // (micro_batches, outputs): see cross_entropy.cuh
    real *largest, *sums;       // (rows_held), (2, rows_held): see cross_entropy.cuh
    int outputs;                // most rows of logits in a batch
    int rows_held;              // rows of logits held at once
    bool loss_in_backward;      // backward computes logits and losses itself: see vocabulary.h

    void place(Arena& arena, const ModelShape& shape, const TensorParallel& tp, const Setup& setup,
               int most_outputs) {
        outputs = most_outputs;
        rows_held = setup.loss_rows ? std::min(setup.loss_rows, outputs) : outputs;
        loss_in_backward = setup.loss_in_backward;
        long N_r = tp.row_capacity(setup.B, shape.T);
        losses = arena.take_real((long)setup.micro_batches * outputs);
        if (setup.notes_greedy) is_greedy = arena.take_real((long)setup.micro_batches * outputs);
        ln = arena.take_x(N_r * shape.C);
        bool gathers = tp.sequence_parallel && setup.training && !loss_in_backward;
        input_rows = gathers ? arena.take_x((long)setup.B * shape.T * shape.C) : nullptr;
        logits = arena.take_x((long)rows_held * (shape.Vp / tp.group.size));
        stats.mean = arena.take_real(N_r);
        stats.rstd = arena.take_real(N_r);
        largest = arena.take_real(rows_held);
        sums = arena.take_real(2L * rows_held);
    }
};

// ---- a micro-batch in flight -----------------------------------------------------------------------------

// rows of the residual stream, or of its gradient, that stages send to each other
struct Buffer {
    floatX* x;                          // (N_r, C)
    comm::StreamEvent received;         // awaited before x is read
    // Awaited before x is overwritten: of y and dx. Inputs are not sent; a receive into one waits for the
    // computations before it (post_message), among them the last that read it (Pool, schedule.h)
    comm::StreamEvent sent;
};

struct InFlight {
    std::vector<BlockActivations> blocks;  // one per layer of the chunk
    Buffer y;                              // the chunk's output
    int *tokens = nullptr, *targets;       // (N), on the first and last stage
    int *sorted_rows, *run_starts;         // tokens sorted (see embedding.cuh); in training, first stage
    int* segment_arrays = nullptr;         // of a packed batch, and what they hold
    std::shared_ptr<PackedSegments> packed;
};

// one micro-batch in one model chunk of this rank's stage, with its buffers there
struct MicroBatch {
    int index;       // within the step: the first one sets gradients, later ones add to them
    bool is_last_micro_batch;  // of the step: after it, gradients are complete
    int chunk;
    BatchShape batch;
    InFlight& kept;
    Buffer& input;
    Buffer* dx_buffer = nullptr;  // read in backward only
};

// ---- scratch: within one layer's or block's forward or backward ------------------------------------------

struct Scratch {
    floatX* partial;   // (N, C): what a GEMM puts out towards the residual stream, or its gradient towards a
                       // layer's input; over t ranks partial sums, as the looked-up rows of wte are. In
                       // between, attention's backward has d_o there
    floatX* reduced;   // (N_r, C): whole sums; without sequence parallelism `partial` itself, in place
    floatX* all_rows;  // (N, C): gathered rows; with sequence parallelism only
    floatX* wide;      // (N, 4 C / t): gradients of act, up and qkv; qkv of a packed batch
    floatX* scores_gradient = nullptr;  // (B, NH_r, T, T): for materialised attention …
    FlashScratch flash = {};            // … or for flash attention
    real* columns = nullptr;            // for column sums, and LayerNormBackward
    Fp8Scratch fp8 = {};                // only with --fp8

    void place(Arena& arena, const ModelShape& shape, const TensorParallel& tp, const Setup& setup) {
        int B = setup.B, NH_r = shape.NH / tp.group.size;
        long N = (long)B * shape.T, N_r = tp.row_capacity(B, shape.T), t = tp.group.size, C = shape.C;

        partial = arena.take_x(N * C);
        reduced = tp.sequence_parallel ? arena.take_x(N_r * C) : partial;
        all_rows = tp.sequence_parallel ? arena.take_x(N * C) : nullptr;
        wide = arena.take_x(N * 4 * C / t);
        if (!setup.training) return;

        if (setup.fp8) {
            long rows = N * std::max<long>(C, 4 * C / t);
            for (uint8_t** p : {&fp8.x, &fp8.dy, &fp8.dy_t}) *p = arena.take<uint8_t>(rows);
            for (Fp8Scale** p : {&fp8.dy_scale, &fp8.d_up_scale}) *p = arena.take<Fp8Scale>(1);
            fp8.parts = arena.take<float>(most_fp8_parts(4 * C / t));
        }

        if (setup.flash) {
            flash.query_terms = arena.take_real(flash_query_terms(B, NH_r, shape.T));
            flash.dq = arena.take_real(flash_dq(B, NH_r, shape.T, shape.HS()));
            flash.turns = arena.take<int>(flash_turns(B, NH_r, shape.T));
            flash.bias = arena.take_real(flash_bias({B, shape.T, NH_r, shape.HS()}));
        } else {
            scores_gradient = arena.take_x((long)B * NH_r * shape.T * shape.T);
        }
        columns = arena.take_real(std::max(column_sum_scratch(4 * shape.C), row_scratch(shape.C)));
    }
};

// what every layer's call needs
struct LayerContext {
    const ModelShape& shape;
    const TensorParallel& tp;
    const Scratch& scratch;
    Stream stream;
    bool accumulate = false;  // backward adds to parameter gradients; otherwise it sets them
};
