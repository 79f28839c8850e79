// pipeline.h   executes a pipeline schedule: a stage's instructions, one after the other
//   A message is the residual stream's N C values, or their gradient, of which each tensor-parallel rank
//   sends 1/t: with sequence parallelism the rows that it holds; otherwise its part of the rows that all
//   hold, which the receivers gather.
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

// ---- messages --------------------------------------------------------------------------------------------

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

// the n values of a buffer that this rank sends or receives
inline floatX* own_values(const Model& model, const Buffer& buffer, long n) {
    return buffer.x + (model.grid.sequence_parallel ? 0 : n * model.grid.tensor);
}

// N: rows of the micro-batch
inline void post_message(Model& model, const Instruction& op, int N) {
    Section section({Pass::Message, op.micro_batch, op.chunk}, model.stream);
    Message m = message_of(model, op);
    if (!op.sends()) await_sent(model, m.buffer);
    comm::wait_stream(m.link.stream, model.stream);
    long n = (long)N * model.shape.C / model.grid.t;
    floatX* values = own_values(model, m.buffer, n);
    if (op.sends()) comm::send(m.link.group, values, n, 1, m.label, m.link.stream);
    else comm::receive(m.link.group, values, n, 0, m.label, m.link.stream);
}

// Posts the exchange that begins at list[at], and returns its last index. Neighbours do not deadlock, because
//   - each direction has a stream of its own: a receive in progress holds up no send
//   - and a communicator of its own, on which both sides post the same messages in the same order
//   - the send is posted first: where calls start in the order in which they were posted (MPI), a receive may
//     wait for what the neighbour computes from that send
// group_begin/end only post them together: comm_nccl.cpp makes an NCCL group of each communicator's calls,
// and the device has room for all of them at once (comm/mpi/nccl_start.h)
inline size_t exchange_messages(Model& model, const std::vector<Instruction>& list, size_t at,
                                const std::vector<int>& rows) {
    size_t end = at;
    while (end + 1 < list.size() && list[end + 1].exchange == list[at].exchange) end++;
    comm::group_begin();
    for (size_t i = at; i <= end; i++) post_message(model, list[i], rows[list[i].micro_batch]);
    comm::group_end();
    for (size_t i = at; i <= end; i++) {
        Message m = message_of(model, list[i]);
        (list[i].sends() ? m.buffer.sent : m.buffer.received) = comm::record_event(m.link.stream);
    }
    return end;
}

// waits for a received message; if this rank received only 1/t of it, gathers the rest
inline void await_message(Model& model, Buffer& buffer, const char* label, int N) {
    if (!buffer.received.comm_stream) return;
    comm::wait_event(model.stream, buffer.received, label);
    buffer.received = {};
    if (model.grid.sequence_parallel || model.grid.t == 1) return;
    long n = (long)N * model.shape.C / model.grid.t;
    // this rank's 1/t of the values -> all values
    comm::all_gather(model.grid.tp, buffer.x, own_values(model, buffer, n), n, label, model.stream);
}

// After a schedule: the compute stream (over MPI, the host) waits until no message is in transit between
// stages. A send is otherwise awaited only when its buffer is reused, which never happens for the last sends
// of a run; MPI cannot finish before every send has completed
inline void finish_messages(Model& model) {
    Grid& grid = model.grid;
    for (Link* link : {&grid.forward_in, &grid.forward_out, &grid.backward_in, &grid.backward_out})
        if (link->stream) comm::wait_event(model.stream, comm::record_event(link->stream), "messages");
}

// ---- the schedule ----------------------------------------------------------------------------------------

// Runs micro-batches of these rows through this rank's stage; the last stage sets each token's loss.
// host_tokens, dloss: as in MicroBatch. Packed batches (--evaluate) load their tokens, and compute a chunk's
// forward when its input has arrived, in a way of their own
inline void run_schedule(Model& model, const Schedule& schedule, const std::vector<int>& rows,
                         const int* host_tokens, real dloss,
                         const std::function<void(MicroBatch&)>& load = {},
                         const std::function<void(MicroBatch&)>& pass = {}) {
    for (size_t i = 0; i < schedule.list.size(); i++) {
        const Instruction& op = schedule.list[i];
        if (!op.computes()) {
            i = exchange_messages(model, schedule.list, i, rows);
            continue;
        }

        MicroBatch mb = {.index = op.micro_batch,
                         .is_last_micro_batch = op.micro_batch == schedule.shape.micro_batches - 1,
                         .chunk = op.chunk, .N = rows[op.micro_batch], .in_flight = model.in_flight[op.slot],
                         .input = model.inputs[op.input],
                         .host_tokens = host_tokens, .dloss = dloss};

        bool is_forward = op.kind == Instruction::Forward;
        PlaceScope here({is_forward ? Pass::Forward : Pass::Backward, op.micro_batch, op.chunk});
        if (is_forward) {
            if (load) load(mb);
            else copy_tokens(model, mb);
            await_message(model, mb.input, "activations", mb.N);
            if (pass) pass(mb);
            else forward(model, mb);
        } else {
            mb.dx_buffer = &model.dx_buffers[op.dx];
            await_message(model, *mb.dx_buffer, "activation gradients", mb.N);
            backward(model, mb);
        }
    }
    finish_messages(model);
}
