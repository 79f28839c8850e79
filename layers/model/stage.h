// stage.h   what a pipeline stage computes, chunk by chunk, and the messages between stages
//   tokens, targets (B, T) int   loss of a position = cross entropy of the next token, natural logarithm
//   A message is (N_r, C) values of the residual stream or of its gradient. Where every tensor-parallel rank
//   holds all rows, each sends its t-th of the values, and they are gathered where they arrive.
//   A bucket's gradients go to their reduction over data-parallel ranks as soon as the last micro-batch has
//   added to them; the new parameters of a bucket are waited for where they are first read.
#pragma once
#include "../base/graph.h"
#include "model.h"

// ---- gradients, over the data-parallel ranks -------------------------------------------------------------

// each rank's gradients -> the sums, on all (one owner) or each its slice; runs beside the computations
inline void reduce_bucket(Model& m, int bucket) {
    const Bucket& b = m.table.buckets[bucket];
    const comm::Group& dp = m.grid.dp;
    real* g = m.gradients + b.offset;
    if (dp.size == 1) return;
    comm::fork(m.grid.reduction, m.stream);
    if (m.table.layout.d == 1) {
        // mine -> all's
        comm::all_reduce(dp, g, b.elements, comm::Op::Sum, "gradients", m.grid.reduction);
    } else {
        long slice = b.elements / dp.size;  // -> my slice
        comm::reduce_scatter(dp, g + dp.rank * slice, g, slice, "gradients", m.grid.reduction);
    }
}

// ---- computations ----------------------------------------------------------------------------------------

// before a buffer is written again
inline void await_sent(Model& m, Buffer& buffer) {
    comm::join(m.stream, buffer.sent);
    buffer.sent = {};
}

// windows (B, T + 1) -> tokens and targets, on the host, in the micro-batch's part of m.staged, which
// is not to be written again before the step is done.
inline void stage_batch(Model& m, const std::vector<int>& windows, Batch batch, int micro) {
    int N = batch.rows();
    int *tokens = m.staged + (long)micro * m.batch_ints(), *targets = tokens + m.rows();
    for (int b = 0; b < batch.B; b++)
        for (int t = 0; t < batch.T; t++) {
            tokens[b * batch.T + t] = windows[b * (batch.T + 1) + t];
            targets[b * batch.T + t] = windows[b * (batch.T + 1) + t + 1];
        }
    if (m.sorts()) sort_tokens(targets + m.rows(), targets + 2 * m.rows(), tokens, N, m.token_counts);
}
// -> a slot, if one is given, on the stages that have tokens; the host goes on
inline Batch load_batch(Model& m, Slot* slot, Batch batch, int micro) {
    if (slot && slot->tokens)
        copy_to_device(slot->tokens, m.staged + (long)micro * m.batch_ints(), m.batch_ints() * sizeof(int),
                       m.stream);
    return batch;
}

// inputs[input] or, in the first chunk, the slot's tokens -> slot.y. Generation, whose rows need not divide,
// passes ranks without sequence parallelism.
inline void chunk_forward(Model& m, int chunk, Slot& slot, int input, Batch batch, const Ranks& ranks) {
    int n = m.chunk_layers();
    await_sent(m, slot.y);
    floatX* x = m.inputs[input].x;
    if (m.first(chunk)) {
        m.await(m.table.list[m.table.wte]);
        m.await(m.table.list[m.table.wpe]);
        embed_forward(x, slot.tokens, m.weight(m.table.wte), m.weight(m.table.wpe), m.scratch, m.shape, ranks,
                      batch, m.stream);
    }
    for (int l = 0; l < n; l++) {
        BlockActivations a = slot.blocks[l];
        if (l == 0) a.x = x;
        m.await(m.table.block(chunk * n + l, LN1_W));
        block_forward(l + 1 < n ? slot.blocks[l + 1].x : slot.y.x, a, m.block_weights(chunk * n + l).data(),
                      m.scratch, m.shape, ranks, batch, m.stream);
    }
}

// on the last chunk: what the logits are made of, from slot.y
inline const floatX* model_end(Model& m, const Slot& slot, Batch batch, const Ranks& ranks) {
    m.await(m.table.list[m.table.wte]);
    m.await(m.table.list[m.table.lnf]);
    return logits_input(m.end, slot.y.x, m.weight(m.table.lnf), m.weight(m.table.lnf + 1), m.scratch, m.shape,
                        ranks, batch, m.stream);
}
// this rank's logits (outputs, Vp / t), where all of them are held at once
inline void model_logits(Model& m, const Slot& slot, Batch batch, const Ranks& ranks) {
    const floatX* rows = model_end(m, slot, batch, ranks);
    logits_forward(m.end, rows, m.weight(m.table.wte), batch.outputs(), m.shape, ranks, m.stream);
}
// the losses of a micro-batch
inline void model_loss(Model& m, const Slot& slot, int micro, Batch batch) {
    const floatX* rows = model_end(m, slot, batch, m.ranks);
    long at = (long)micro * m.outputs();
    loss_forward(m.end.losses + at, batch.segments ? m.end.hits + at : nullptr, m.end, rows,
                 m.weight(m.table.wte), slot.targets, batch.outputs(), m.shape, m.ranks, m.stream);
}

// streams[s]: the gradient of slot.y on entry (the last chunk computes losses and logits here), of the input
// on return. The step's first micro-batch sets all gradients, the others add to them, and the last one's go
// to reduction.
inline void chunk_backward(Model& m, int chunk, Slot& slot, int input, int stream, int micro, Batch batch,
                           real dloss, bool last_micro) {
    const ParameterTable& t = m.table;
    int n = m.chunk_layers();
    bool add = micro > 0;
    floatX *d = m.streams[stream].x, *x = m.inputs[input].x;
    auto complete = [&](const Parameter& p) {
        if (last_micro) reduce_bucket(m, p.bucket);
    };
    await_sent(m, m.streams[stream]);
    if (m.last(chunk)) {
        const floatX* rows = model_end(m, slot, batch, m.ranks);
        loss_backward(d, m.end.losses + (long)micro * m.outputs(), m.end, rows, slot.y.x, m.weight(t.lnf),
                      m.weight(t.wte), m.gradient(t.lnf), m.gradient(t.lnf + 1), m.logits_gradient,
                      slot.targets, dloss, m.scratch, m.shape, m.ranks, batch, add, m.stream);
        complete(t.list[t.lnf]);
        if (m.grid.p > 1) complete(t.list[t.wte]);
    }
    for (int l = n - 1; l >= 0; l--) {
        BlockActivations a = slot.blocks[l];
        if (l == 0) a.x = x;
        int layer = chunk * n + l;
        auto w = m.block_weights(layer);
        if (m.setup.recompute == Recompute::Full)
            block_forward(nullptr, a, w.data(), m.scratch, m.shape, m.ranks, batch, m.stream);
        block_backward(d, a, w.data(), m.block_gradients(layer).data(), m.scratch, m.shape, m.ranks, batch,
                       add, m.stream);
        complete(t.block(layer, LN1_W));
    }
    if (!m.first(chunk)) return;
    real* looked_up = m.gradient(t.wte);  // the logits' product has set it where it is theirs as well
    if (!add && looked_up != m.logits_gradient)
        set_zero(looked_up, t.list[t.wte].size * sizeof(real), m.stream);
    embed_backward(looked_up, m.gradient(t.wpe), d, slot.tokens, {slot.rows, slot.starts}, m.scratch, m.shape,
                   m.ranks, batch, add, m.stream);
    if (last_micro && m.sums_apart())
        dev::add_to(looked_up, m.logits_gradient, t.list[t.wte].size, m.stream);
    complete(t.list[t.wte]);
    complete(t.list[t.wpe]);
}

// every computation of a step, on whatever lies there, before the first one: products are timed, and kernels
// loaded; with `graphs`, says whether a CUDA graph of them is faster. Gradients are 0 afterwards.
inline bool rehearse(Model& m, bool graphs) {
    Batch batch = {m.setup.B, m.shape.T};
    Slot& slot = m.slots[0];
    if (slot.tokens) set_zero(slot.tokens, m.batch_ints() * sizeof(int), m.stream);
    auto compute = [&] {
        for (int micro = 0; micro < std::min(2, m.setup.losses); micro++)  // which sets gradients, which adds
            for (int chunk = 0; chunk < m.setup.chunks; chunk++) {
                chunk_forward(m, chunk, slot, 0, batch, m.ranks);
                chunk_backward(m, chunk, slot, 0, 0, micro, batch, 0, false);
            }
    };
    tuning.on = true;
    compute();
    Graph graph;
    std::string key = text("graph " PRECISION_NAME
                           " %d layers %d hidden %d heads %d x %d of %d recompute %d "
                           "flash %d fp8 %d rows of logits %d",
                           m.shape.L, m.shape.C, m.shape.NH, batch.B, batch.T, m.shape.Vp,
                           (int)m.setup.recompute, m.setup.flash, m.setup.fp8, m.logits_held());
    bool faster = graphs && tuning.choose(key, 2, 0, m.stream, [&](int way) {
        try {
            if (way) graph.run(m.stream, compute);
            else compute();
        } catch (const std::runtime_error&) {
            return false;
        }
        return true;
    }) == 1;
    synchronize(m.stream);
    tuning.on = false;
    m.clear_gradients();
    return faster;
}

// the sum of the losses of each sequence of the first `micro_batches`; on the last stage
inline std::vector<double> sequence_losses(Model& m, int micro_batches) {
    std::vector<real> losses((size_t)micro_batches * m.setup.B * m.shape.T);
    if (!losses.empty())
        copy_to_host(losses.data(), m.end.losses, losses.size() * sizeof(real), m.stream);
    std::vector<double> sums((size_t)micro_batches * m.setup.B, 0);
    for (size_t i = 0; i < losses.size(); i++) sums[i / m.shape.T] += losses[i];
    return sums;
}
inline void clear_losses(Model& m) {
    if (m.grid.last())
        set_zero(m.end.losses, (size_t)m.setup.losses * m.outputs() * sizeof(real), m.stream);
}

// ---- messages between stages -----------------------------------------------------------------------------

struct Share { long offset, n; };  // of a message's values, what this rank sends and receives
inline Share message_share(const Model& m, Batch batch) {
    long values = (long)m.ranks.rows(batch.rows()) * m.shape.C;
    if (m.ranks.sequence) return {0, values};
    return {values / m.grid.t * m.grid.tensor, values / m.grid.t};
}

inline void post_send(Model& m, const Link& link, const Buffer& from, const char* label, Batch batch) {
    Share share = message_share(m, batch);
    comm::fork(link.channel, m.stream);
    comm::send(link.group, from.x + share.offset, share.n, 1, label, link.channel);
}
inline void post_receive(Model& m, const Link& link, Buffer& to, const char* label, Batch batch) {
    Share share = message_share(m, batch);
    await_sent(m, to);
    comm::fork(link.channel, m.stream);
    comm::receive(link.group, to.x + share.offset, share.n, 0, label, link.channel);
}
// what has arrived becomes whole
inline void await_message(Model& m, Buffer& from, const char* label, Batch batch) {
    if (!from.arrived.channel) return;
    comm::join(m.stream, from.arrived);
    from.arrived = {};
    if (m.ranks.sequence || m.grid.t == 1) return;
    Share share = message_share(m, batch);
    comm::all_gather(m.grid.tp, from.x, from.x + share.offset, share.n, label, m.stream);  // my t-th -> all
}

// nothing is on its way between stages any more
inline void finish_messages(Model& m) {
    if (m.grid.p == 1) return;
    for (Link* link : {&m.grid.forward_in, &m.grid.forward_out, &m.grid.backward_in, &m.grid.backward_out})
        if (link->channel) comm::join(m.stream, comm::mark(link->channel));
}
