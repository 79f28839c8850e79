// pipeline.h   executes a schedule: a stage's instructions, one after the other
//   A message is (N_r, C) values of the residual stream or of its gradient. Where every tensor-parallel rank
//   holds all rows, each sends 1/t of the values, and they are gathered where they arrive.
//   What runs beside what, and who waits for whom:
//     stream           carries                               waits for
//     compute          layers, tensor-parallel calls,        a message, where its buffer is read (received)
//                      the update                            a send, where its buffer is written again (sent)
//                                                            a bucket's new parameters, where they are read
//                                                            all reduced gradients, before norm and update
//                                                            with --tensor-chunks, a chunk's rows or sums
//     Link::stream     messages of one direction,            compute, up to where the message is posted
//                      to or from one neighbour
//     Grid::dp_stream  buckets: gradients reduced,           compute, up to where the bucket is complete,
//                      parameters gathered                   or updated
//     Grid::tp_stream  with --tensor-chunks: calls of        compute, up to where a chunk's rows are
//                      blocks (overlap.h)                    computed
#pragma once
#include <functional>
#include "../../comm/schedule.h"
#include "stage.h"

// what passes through the pipeline; every stage knows the sizes, tokens are loaded where they are needed
struct MicroBatches {
    std::vector<BatchShape> sizes;
    std::function<void(InFlight& to, int micro_batch)> load;
};

// those whose tokens put_tokens_on_host has put on the host
inline MicroBatches token_batches(Model& model, const std::vector<BatchShape>& sizes) {
    return {sizes, [&model](InFlight& to, int micro_batch) { copy_tokens(model, to, micro_batch); }};
}

// ---- messages --------------------------------------------------------------------------------------------

struct Share { long offset, n; };  // of a message's values, what this rank sends and receives
inline Share message_share(const Model& model, BatchShape batch) {
    long values = (long)model.tp.rows(batch.rows()) * model.shape.C;
    if (model.tp.sequence_parallel) return {0, values};
    return {values / model.grid.t * model.grid.tensor, values / model.grid.t};
}

struct Message {
    Link& link;
    Buffer& buffer;
    const char* label;
};
inline Message message_of(Model& model, const Instruction& op) {
    Grid& grid = model.grid;
    switch (op.kind) {
        case Instruction::SendForward:
            return {grid.forward_out, model.in_flight[op.in_flight].y, "activations"};
        case Instruction::ReceiveForward: return {grid.forward_in, model.inputs[op.input], "activations"};
        case Instruction::SendBackward:
            return {grid.backward_out, model.dx_buffers[op.dx], "their gradient"};
        default: return {grid.backward_in, model.dx_buffers[op.dx], "their gradient"};
    }
}

inline void post_message(Model& model, const Instruction& op, BatchShape batch) {
    Section section({Pass::Message, op.micro_batch, op.chunk}, model.stream);
    Message m = message_of(model, op);
    Share share = message_share(model, batch);
    if (!op.sends()) await_sent(model, m.buffer);
    comm::wait_stream(m.link.stream, model.stream);
    floatX* values = m.buffer.x + share.offset;
    if (op.sends()) comm::send(m.link.group, values, share.n, 1, m.label, m.link.stream);
    else comm::receive(m.link.group, values, share.n, 0, m.label, m.link.stream);
}

// the messages from list[at] on that belong to one group, sends before receives: calls begin in this order on
// the device, and a receive may wait for what the neighbour makes of the send. Returns the last
inline size_t exchange_messages(Model& model, const std::vector<Instruction>& list, size_t at,
                                const MicroBatches& all) {
    size_t end = at;
    while (end + 1 < list.size() && list[end + 1].exchange == list[at].exchange) end++;
    comm::group_begin();
    for (bool sends : {true, false})
        for (size_t i = at; i <= end; i++)
            if (list[i].sends() == sends) post_message(model, list[i], all.sizes[list[i].micro_batch]);
    comm::group_end();
    for (size_t i = at; i <= end; i++) {
        Message m = message_of(model, list[i]);
        (list[i].sends() ? m.buffer.sent : m.buffer.received) = comm::record_event(m.link.stream);
    }
    return end;
}

// what was received becomes whole
inline void await_message(Model& model, Buffer& buffer, const char* label, BatchShape batch) {
    if (!buffer.received.comm_stream) return;
    comm::wait_event(model.stream, buffer.received, label);
    buffer.received = {};
    if (model.tp.sequence_parallel || model.grid.t == 1) return;
    Share share = message_share(model, batch);
    // my t-th -> all values
    comm::all_gather(model.grid.tp, buffer.x, buffer.x + share.offset, share.n, label, model.stream);
}

// Nothing is on its way between stages any more. Buffers are waited for where they are written again; but
// nothing else waits for a run's last sends, and MPI ends only when every send has been seen to end
inline void finish_messages(Model& model) {
    Grid& grid = model.grid;
    if (grid.p == 1) return;
    for (Link* link : {&grid.forward_in, &grid.forward_out, &grid.backward_in, &grid.backward_out})
        if (link->stream) comm::wait_event(model.stream, comm::record_event(link->stream), "messages");
}

// The compute stream waits for all that earlier steps gather and send: a CUDA graph of a step begins and ends
// so, because events inside and outside of a graph cannot wait for each other
inline void settle(Model& model) {
    model.await_parameters();
    for (InFlight& kept : model.in_flight) await_sent(model, kept.y);
    for (Buffer& buffer : model.dx_buffers) await_sent(model, buffer);
}

// ---- the schedule ----------------------------------------------------------------------------------------

// all micro-batches through this rank's stage; losses are added to on the last. dloss: of a token's loss, 0
// where no gradients are wanted
inline void run_schedule(Model& model, const Schedule& schedule, const MicroBatches& all, real dloss) {
    for (size_t i = 0; i < schedule.list.size(); i++) {
        const Instruction& op = schedule.list[i];
        if (!op.computes()) {
            i = exchange_messages(model, schedule.list, i, all);
            continue;
        }
        MicroBatch mb = {op.micro_batch, op.micro_batch == schedule.shape.micro_batches - 1, op.chunk,
                         all.sizes[op.micro_batch], model.in_flight[op.in_flight], model.inputs[op.input]};
        PlaceScope here({Pass(op.kind), op.micro_batch, op.chunk});
        if (op.kind == Instruction::Forward) {
            if (model.chunk_reads_tokens(op.chunk)) all.load(mb.kept, op.micro_batch);
            if (mb.kept.is_packed) mb.batch.segments = &mb.kept.segments;
            await_message(model, mb.input, "activations", mb.batch);
            forward(model, mb, dloss);
        } else {
            mb.dx_buffer = &model.dx_buffers[op.dx];
            await_message(model, *mb.dx_buffer, "their gradient", mb.batch);
            backward(model, mb, dloss);
        }
    }
    finish_messages(model);
}
