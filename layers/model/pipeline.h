// pipeline.h   executes a pipeline schedule: a stage's instructions, one after the other
//   A message is (N_r, C) values of the residual stream or of its gradient. If every tensor-parallel rank
//   holds all rows (no sequence parallelism), each sends 1/t of the values, and the receivers gather them.
//   What runs concurrently, and who waits for whom:
//     stream           carries                               waits for
//     compute          layers, tensor-parallel calls,        a message, where its buffer is read (received)
//                      the update                            a send, where its buffer is written again (sent)
//                                                            a bucket's new parameters, where they are read
//                                                            all reduced gradients, before norm and update
//     Link::stream     messages of one direction,            compute, up to where the message is posted
//                      to or from one neighbour
//     Grid::dp_stream  buckets: gradients reduced,           compute, up to where the bucket is complete,
//                      parameters gathered                   or updated
//   At a schedule's end compute waits for all links. Over several ranks compute is CUDA's default stream,
//   except with --graph yes. The race detector checks this in every layout (scripts/mutate.py layouts).
//   Two links lead to each neighbour: a stage with one neighbour has four streams in all, with two it has
//   six. Inputs have no `sent` event: see Buffer (activations.h).
//   Generation (inference/packed_batch.h) has one micro-batch at a time, and messages on the compute stream.
#pragma once
#include <functional>
#include "../../comm/schedule.h"
#include "stage.h"

// the micro-batches of a pass, whose sizes every stage knows, and how one passes through a chunk
struct MicroBatches {
    std::vector<BatchShape> sizes;
    std::function<void(MicroBatch&)> load;     // its tokens, if this chunk reads them
    std::function<void(MicroBatch&)> forward;  // called when its input has arrived
};

// those whose tokens put_tokens_on_host() has stored; dloss: as in run_schedule()
inline MicroBatches token_batches(Model& model, const std::vector<BatchShape>& sizes, real dloss) {
    return {sizes, [&model](MicroBatch& mb) { copy_tokens(model, mb); },
            [&model, dloss](MicroBatch& mb) { forward(model, mb, dloss); }};
}

// ---- messages --------------------------------------------------------------------------------------------

struct MessagePart { long offset, n; };  // the part of a message's values that this rank sends or receives
inline MessagePart message_part(const Model& model, BatchShape batch) {
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
            return {grid.forward_out, model.in_flight[op.slot].y, "activations"};
        case Instruction::ReceiveForward: return {grid.forward_in, model.inputs[op.input], "activations"};
        case Instruction::SendBackward:
            return {grid.backward_out, model.dx_buffers[op.dx], "activation gradients"};
        default: return {grid.backward_in, model.dx_buffers[op.dx], "activation gradients"};
    }
}

inline void post_message(Model& model, const Instruction& op, BatchShape batch) {
    Section section({Pass::Message, op.micro_batch, op.chunk}, model.stream);
    Message m = message_of(model, op);
    MessagePart part = message_part(model, batch);
    if (!op.sends()) await_sent(model, m.buffer);
    comm::wait_stream(m.link.stream, model.stream);
    floatX* values = m.buffer.x + part.offset;
    if (op.sends()) comm::send(m.link.group, values, part.n, 1, m.label, m.link.stream);
    else comm::receive(m.link.group, values, part.n, 0, m.label, m.link.stream);
}

// Posts the exchange that begins at list[at], and returns its last index. Neighbours do not deadlock, because
//   - each direction has a stream of its own: a receive in progress holds up no send
//   - and a communicator of its own, on which both sides post the same messages in the same order
//   - the send is posted first: where calls start in the order in which they were posted (MPI), a receive may
//     wait for what the neighbour computes from that send
// group_begin/end only post them together: comm_nccl.cpp makes an NCCL group of each communicator's calls,
// and the device has room for all of them at once (comm/mpi/nccl_start.h)
inline size_t exchange_messages(Model& model, const std::vector<Instruction>& list, size_t at,
                                const MicroBatches& all) {
    size_t end = at;
    while (end + 1 < list.size() && list[end + 1].exchange == list[at].exchange) end++;
    comm::group_begin();
    for (size_t i = at; i <= end; i++) post_message(model, list[i], all.sizes[list[i].micro_batch]);
    comm::group_end();
    for (size_t i = at; i <= end; i++) {
        Message m = message_of(model, list[i]);
        (list[i].sends() ? m.buffer.sent : m.buffer.received) = comm::record_event(m.link.stream);
    }
    return end;
}

// waits for a received message; if this rank received only 1/t of it, gathers the rest
inline void await_message(Model& model, Buffer& buffer, const char* label, BatchShape batch) {
    if (!buffer.received.comm_stream) return;
    comm::wait_event(model.stream, buffer.received, label);
    buffer.received = {};
    if (model.tp.sequence_parallel || model.grid.t == 1) return;
    MessagePart part = message_part(model, batch);
    // this rank's 1/t of the values -> all values
    comm::all_gather(model.grid.tp, buffer.x, buffer.x + part.offset, part.n, label, model.stream);
}

// After a schedule: the compute stream (over MPI, the host) waits until no message is in transit between
// stages. A send is otherwise awaited only when its buffer is reused, which never happens for the last sends
// of a run; MPI cannot finish before every send has completed
inline void finish_messages(Model& model) {
    Grid& grid = model.grid;
    if (grid.p == 1) return;
    for (Link* link : {&grid.forward_in, &grid.forward_out, &grid.backward_in, &grid.backward_out})
        if (link->stream) comm::wait_event(model.stream, comm::record_event(link->stream), "messages");
}

// ---- the schedule ----------------------------------------------------------------------------------------

// Runs all micro-batches through this rank's stage; the last stage adds to the losses. dloss: gradient of a
// token's loss; 0: no gradients wanted
inline void run_schedule(Model& model, const Schedule& schedule, const MicroBatches& all, real dloss) {
    for (size_t i = 0; i < schedule.list.size(); i++) {
        const Instruction& op = schedule.list[i];
        if (!op.computes()) {
            i = exchange_messages(model, schedule.list, i, all);
            continue;
        }

        MicroBatch mb = {op.micro_batch, op.micro_batch == schedule.shape.micro_batches - 1, op.chunk,
                         all.sizes[op.micro_batch], model.in_flight[op.slot], model.inputs[op.input]};

        PlaceScope here({Pass(op.kind), op.micro_batch, op.chunk});
        if (op.kind == Instruction::Forward) {
            all.load(mb);
            await_message(model, mb.input, "activations", mb.batch);
            all.forward(mb);
        } else {
            mb.dx_buffer = &model.dx_buffers[op.dx];
            await_message(model, *mb.dx_buffer, "activation gradients", mb.batch);
            backward(model, mb, dloss);
        }
    }
    finish_messages(model);
}

// forward and backward of a step's micro-batches
inline void run_pipeline(Model& model, const Schedule& schedule, int micro_batches, real dloss) {
    std::vector<BatchShape> sizes(micro_batches, {model.setup.B, model.shape.T});
    run_schedule(model, schedule, token_batches(model, sizes, dloss), dloss);
}
