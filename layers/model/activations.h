// activations.h   what a rank keeps from forward to backward, and its scratch: shapes and pointers
//   A pipeline has several micro-batches in flight; each has its own activations (InFlight). With full
//   recomputation a micro-batch keeps only the inputs of its blocks, and all blocks share one set of the
//   other activations; with light recomputation, or --fp8, blocks share only the outputs of layer norms and
//   GELU.
//   How large each is and where it lies, and how to add one: run/allocate.h
#pragma once
#include <memory>
#include "../../comm/grid.h"
#include "../base/gemm.h"
#include "../cross_entropy.cuh"
#include "../embedding.cuh"
#include "../attention.cuh"
#include "../layernorm.cuh"
#include "../linear.cuh"
#include "params.h"

// which activations are recomputed in backward instead of kept
enum class Recompute {
    None,
    Light,  // outputs of layer norms and GELU: cheap to recompute, and 6 C of the 16 C values kept per token
            // and layer (t = 1). Results are bitwise the same, unless GELU was computed in a GEMM's epilogue:
            // then they are the same up to rounding. With --fp8 nothing is left to recompute
    Full,   // everything but the block's input; results are bitwise the same
};

// sizes and features of a model instance; setup_of() in run/setup.h derives them from the options
struct Setup {
    int B = 1;                    // sequences in a micro-batch
    bool training = true;         // false: forward only, no gradients
    bool sequence_parallel = false;  // as requested; in effect (Model.grid) with t > 1 only
    bool samples_text = false;    // --sample-every: text is generated between training steps
    bool packs = false;           // packed batches are computed as well
    // inference only: blocks keep keys and values from one batch to the next (a KV cache)
    bool inference_cache = false;
    bool notes_greedy = false;    // record whether each target is the most likely token: tokens_ahead
    int logit_rows = 0;           // rows of logits in a batch; 0: all rows
    Recompute recompute = Recompute::None;
    bool flash = false;           // attention without a (T, T) tensor
    bool fp8 = false;             // the blocks' linear layers use FP8 GEMMs
    bool fp8_lm_head = false;     // with fp8: the logits' as well
    bool bf16_moments = false;    // AdamW's moments are bf16; otherwise real
    bool master_weights = true;   // false: the bf16 parameters are the only copy of the weights
    bool several_micro_batches = false;  // some step has more than one (see sums_wte_apart())
    // forward keeps no logits, backward computes logits and loss itself: --loss-chunk, or some pipelines
    bool loss_in_backward = false;
    int micro_batches = 1;        // most in a step or a round of evaluation; each has its tokens and losses
    int logit_rows_held = 0;      // rows of logits held at once; 0: all
    int optimizer_shards = 1;     // data-parallel ranks that the optimizer state is sharded over
    int chunks = 1;               // model chunks (groups of layers) per pipeline stage
    int slots = 1, inputs = 1, dx_buffers = 1;
    Precision precision = {};                       // of this build, except in plans
    size_t workspace = dev::gemm_workspace();  // bytes for GEMMs: of this build, except in plans
};

// --fp8: a linear layer's input in 8 bits, from forward to backward; their scratch (fast/fp8_linear.h)
struct Fp8Inputs;
struct Fp8Scratch;

// a range of device memory; base nullptr: only measured
struct Allocation {
    const char* name;
    char* base;
    size_t bytes;
};

// ---- a batch ---------------------------------------------------------------------------------------------

// evaluation and generation compute packed batches of variable-length segments: layers/inference
struct PackedSegments;
constexpr int packed_ints = 9;  // ints that they take per row, at most

// ---- a block ---------------------------------------------------------------------------------------------

struct BlockActivations {
    floatX* x = nullptr;    // (N_r, C): the block's input; of a chunk's first block, the chunk's
    floatX* ln1 = nullptr;  // (N_r, C): the first layer norm's output
    floatX* qkv = nullptr;  // (N, 3 C_r): queries, keys and values of this rank's heads
    floatX* o = nullptr;    // (N, C_r): the heads' outputs
    floatX* mid = nullptr;  // (N_r, C): the residual stream after attention
    floatX* ln2 = nullptr;  // (N_r, C): the second layer norm's output
    floatX* up = nullptr;   // (N, 4 C_r): GELU's input …
    floatX* act = nullptr;  // … and output
    floatX* probabilities = nullptr;  // (B, NH_r, T, T): kept by materialised attention …
    real* lse = nullptr;              // … and (B, NH_r, T) by flash attention
    NormStats ln1_stats, ln2_stats;   // (N_r) each
    // ln1, ln2 and act alone are shared by all blocks: backward recomputes them (light recomputation) or does
    // not need them (--fp8). With full recomputation all but x is shared, and this is false
    bool shares_outputs = false;
    // --fp8: of the linear layers' inputs ln1, o, ln2 and act
    std::shared_ptr<Fp8Inputs> qkv_fp8, out_fp8, up_fp8, down_fp8;
};

// ---- the LM head -----------------------------------------------------------------------------------------

struct LmHeadActivations {
    floatX* ln;                 // (N_r, C): the final layer norm's output
    NormStats stats;            // (N_r): of its rows
    // (N, C): ln gathered over t, kept for backward; nullptr if backward reads ln (nothing is gathered),
    // gathers the rows itself, into scratch (loss_in_backward), or reads rows_fp8
    floatX* input_rows;
    floatX* logits;             // (logit_rows_held, Vp_r); overwritten by their gradient, if asked for
    real* losses;               // (micro_batches, logit_rows)
    real* tokens_ahead = nullptr;  // (micro_batches, logit_rows): fast/tokens_ahead.cuh
    real *largest, *exp_sums;   // (logit_rows_held), (2, logit_rows_held): see cross_entropy.cuh
    int logit_rows;             // most rows of logits in a batch; like the next, never 0, unlike Setup's
    int logit_rows_held;        // rows of logits held at once
    bool loss_in_backward;      // backward computes logits and losses itself: see vocabulary.h
    // --fp8-lm-head: of logit_rows_held rows of its input. Its GEMMs are in 8 bits where the blocks' are
    std::shared_ptr<Fp8Inputs> rows_fp8;
};

// ---- a micro-batch in flight -----------------------------------------------------------------------------

// rows of the residual stream, or of its gradient, that stages send to each other
struct Buffer {
    floatX* x;                          // (N_r, C)
    comm::StreamEvent received;         // awaited before x is read
    // awaited before x is overwritten. Of y and dx: inputs are never sent, and a receive into one waits for
    // the last computation that reads it (wait_stream)
    comm::StreamEvent sent;
};

struct InFlight {
    std::vector<BlockActivations> blocks;  // one per layer of the chunk
    Buffer y;                              // the chunk's output
    // contiguous, as copy_tokens (stage.h) fills them in one copy
    int *tokens = nullptr, *targets;       // (N) each, on the first and on the last stage
    int *sorted_rows, *run_starts;         // (N), (N + 1): see embedding.cuh; first stage, in training
    int* segment_arrays = nullptr;         // memory of a packed batch's arrays; `packed` points into it
    std::shared_ptr<PackedSegments> packed;
};

// one micro-batch in one model chunk of this rank's stage, with its buffers there
struct MicroBatch {
    int index;       // within the step: the first one sets gradients, later ones add to them
    bool is_last_micro_batch = false;  // of the step: after it, gradients are complete
    int chunk;
    int N;           // rows: B * T; of a packed batch, those of all its segments
    InFlight& in_flight;
    Buffer& input;   // of the chunk
    Buffer* dx_buffer = nullptr;  // used by backward alone, in place
    const int* host_tokens = nullptr;  // of the step's micro-batches: one of Model's buffers
    real dloss = 0;  // the gradient of the step's loss with respect to one token's; 0: no gradients wanted

    BlockActivations block(int l) const {  // of layer l of the chunk
        BlockActivations a = in_flight.blocks[l];
        if (l == 0) a.x = input.x;
        return a;
    }
};

// ---- scratch: within one layer's or block's forward or backward ------------------------------------------

// one for all layers and the LM head, in the order of one stream
struct Scratch {
    // (N, C): in backward the gradients of ln (LM head), ln2, o and ln1 (when: the table in block.h); with
    // t > 1 all but o's are partial sums over t. In forward, with t > 1 or --fp8, a branch's last GEMM's
    // output, with sequence parallelism the looked-up rows of wte, in packed batches the LM head's rows
    floatX* unreduced;
    floatX* reduced;     // (N_r, C): their sums, with sequence parallelism; else these are in `unreduced`
    floatX* all_rows;    // (N, C): gathered rows; with sequence parallelism only
    floatX* mlp_or_qkv;  // (N, 4 C / t): gradient of act, in place that of up; later that of qkv
    floatX* scores_gradient = nullptr;  // (B, NH_r, T, T): for materialised attention …
    FlashScratch flash = {};            // … or for flash attention
    real* columns = nullptr;            // column_scratch of all layers: as large as the largest needs
    std::shared_ptr<Fp8Scratch> fp8;    // only with --fp8
};

// what every layer's call needs
struct LayerContext {
    const ModelShape& shape;
    const Grid& grid;
    const Scratch& scratch;
    Stream stream;
    int N;                    // rows of the micro-batch; a rank's share of the residual stream: grid.rows(N)
    bool accumulate = false;  // backward adds to parameter gradients; otherwise it sets them
    bool fp8 = false;         // --fp8: linear layers compute in 8 bits
};

// w (OC, C) -> the 8-bit copies that GEMMs read; a linear layer in 8 bits (fast/fp8_linear.cuh)
void round_weight(const floatX* w, int OC, int C, const Fp8Scratch&, Stream,
                  std::source_location where = std::source_location::current());
template <class Layer>
void compute_in_fp8(const Layer&, const Fp8Inputs&, const Fp8Scratch&, Stream, std::source_location where);

// a linear layer, with --fp8 in 8 bits; fp8: of its input; nullptr: this layer never is
template <class Layer>
void compute_linear(const Layer& layer, const Fp8Inputs* fp8, const LayerContext& ctx,
                    std::source_location where = std::source_location::current()) {
    if (ctx.fp8 && fp8) compute_in_fp8(layer, *fp8, *ctx.scratch.fp8, ctx.stream, where);
    else compute(layer, ctx.stream, where);
}
