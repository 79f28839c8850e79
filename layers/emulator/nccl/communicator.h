// communicator.h   a communicator of NCCL's stand-in: channels in shared memory, and calls that use them
//   Between any two ranks there are two channels, one each way, each a ring of two pieces. A call's first
//   piece says what the call is; the receiver compares it with its own call, and an error names both.
//
//     channel   written, read (pieces)  |  piece 0  |  piece 1
//     piece     Header                  |  up to 4,096 bytes
//
//   Every collective is a set of sends and receives. Sums begin at a rank that differs by communicator, as
//   NCCL's order may (SharedComm::first), and are rounded to the type after each addition. Each turn moves at
//   most one piece over each channel: a call reads its inputs and writes its outputs while other streams
//   advance, so that a missing wait shows in the results.
#pragma once
#include <nccl.h>
#include <algorithm>
#include <deque>
#include <memory>
#include <vector>
#include "../../base/numbers.h"
#include "processes.h"

namespace nccl_on_cpu {

enum class Kind { AllReduce, ReduceScatter, AllGather, SendReceive };
constexpr const char* kind_names[] = {"all-reduce", "reduce-scatter", "all-gather", "message"};

inline size_t bytes_of(ncclDataType_t type) {
    return type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 8;
}

struct Header {
    Kind kind;
    int64_t number;  // of the communicator's collectives or, for a message, of those on this channel
    int64_t count;
    int type, op;

    bool operator==(const Header&) const = default;
    std::string describe() const {
        constexpr const char* types[] = {"", "", "", "", "int64", "", "", "fp32", "fp64", "bf16"};
        const char* name = kind_names[(int)kind];
        std::string out = text("%s %ld of %ld %s", name, (long)number, (long)count, types[type]);
        if (sums()) out += op == ncclSum ? " sum" : " max";
        return out;
    }
    bool sums() const { return kind == Kind::AllReduce || kind == Kind::ReduceScatter; }
};

struct Channel {
    static constexpr int pieces = 2;
    struct Piece {
        Header header;
        char bytes[4096];
    };
    std::atomic<int64_t> written, read;  // in pieces
    Piece ring[pieces];
};

// one way of a call between this rank and another
struct Transfer {
    Channel* channel;
    int peer;
    bool sends;
    char* data;         // read or written
    int64_t bytes;
    int64_t moved = -1;  // bytes; -1: not even the header
    int64_t last = 0;    // of a send: the piece that must have been read before it is done

    bool is_done() const { return moved == bytes && (!sends || channel->read >= last); }
};

struct Range {
    char* p;
    size_t bytes;
};

struct NcclCall {
    Header header;
    const char* in;
    char* out;
    int peer = -1;  // of a send or a receive
    bool sums = false;  // what this rank receives
    std::vector<Transfer> transfers = {};
    std::vector<std::vector<char>> received = {};  // by rank: what is to be summed
    int64_t summed = 0;                            // bytes
    std::vector<Range> reads = {}, writes = {}, updates = {};

    std::string describe() const {
        const char* which = peer < 0 ? "" : in ? "sends " : "receives ";
        return which + header.describe();
    }

    int64_t bytes() const { return header.count * (int64_t)bytes_of((ncclDataType_t)header.type); }
    bool is_done() const {
        for (auto& t : transfers)
            if (!t.is_done()) return false;
        return !sums || summed == bytes();
    }
};

struct SharedComm {
    std::atomic<int> joined;
    std::atomic<int> size_of[Processes::most];  // as each rank gave it; 0: it has not joined yet
    size_t host_of[Processes::most];            // a hash of each rank's host
    std::atomic<int> first;  // the rank at which sums begin: follows from rank 0's world rank
    Channel channels[];
};

}  // namespace nccl_on_cpu

// nccl.h's ncclComm_t points to it
struct ncclComm {
    nccl_on_cpu::SharedComm* shared;
    std::string name, segment;
    int rank, size;
    bool aborted = false;
    ncclResult_t error = ncclSuccess;
    int64_t collectives = 0;
    std::vector<int64_t> sent, received;  // messages, by rank
    int64_t launched = 0, ended = 0, calls = 0;

    nccl_on_cpu::Channel* channel(int from, int to) { return &shared->channels[from * size + to]; }
};

namespace nccl_on_cpu {

// ---- a call as sends and receives ------------------------------------------------------------------------

inline void add_transfers(ncclComm& comm, NcclCall& call) {
    int64_t bytes = call.bytes();
    int rank = comm.rank;
    Kind kind = call.header.kind;

    auto send = [&](int to, const char* from, int64_t n) {
        call.transfers.push_back({comm.channel(rank, to), to, true, (char*)from, n});
    };
    auto receive = [&](int from, char* to, int64_t n) {
        call.transfers.push_back({comm.channel(from, rank), from, false, to, n});
    };

    if (kind == Kind::SendReceive)
        return call.in ? send(call.peer, call.in, bytes) : receive(call.peer, call.out, bytes);
    call.sums = call.header.sums();
    if (call.sums) call.received.resize(comm.size);

    for (int peer = 0; peer < comm.size; peer++) {
        if (peer == rank) continue;
        if (call.sums) call.received[peer].resize(bytes);
        char* part = call.sums ? call.received[peer].data() : nullptr;
        switch (kind) {
            case Kind::AllReduce:
                send(peer, call.in, bytes);
                receive(peer, part, bytes);
                break;
            case Kind::ReduceScatter:
                send(peer, call.in + peer * bytes, bytes);
                receive(peer, part, bytes);
                break;
            case Kind::AllGather:
                send(peer, call.in, bytes);
                receive(peer, call.out + peer * bytes, bytes);
                break;
            case Kind::SendReceive: break;
        }
    }
}

// what the call reads, writes, or both, of the device's memory
inline void add_ranges(const ncclComm& comm, NcclCall& call) {
    size_t bytes = call.bytes(), before = comm.rank * bytes, behind = (comm.size - 1 - comm.rank) * bytes;
    char *in = (char*)call.in, *out = call.out;
    bool in_place = in == out;
    switch (call.header.kind) {
        case Kind::ReduceScatter:
            if (out != in + before) break;
            call.reads = {{in, before}, {out + bytes, behind}};
            call.updates = {{out, bytes}};
            return;
        case Kind::AllGather:
            if (in != out + before) break;
            call.reads = {{in, bytes}};
            call.writes = {{out, before}, {in + bytes, behind}};
            return;
        case Kind::AllReduce:
            if (!in_place) break;
            call.updates = {{out, bytes}};
            return;
        case Kind::SendReceive: break;
    }

    bool scatters = call.header.kind == Kind::ReduceScatter, gathers = call.header.kind == Kind::AllGather;
    if (in) call.reads = {{in, scatters ? bytes * comm.size : bytes}};
    if (out) call.writes = {{out, gathers ? bytes * comm.size : bytes}};
}

// why the device could not do it; "" if it can
inline std::string find_fault(const NcclCall& call) {
    std::vector<Range> all;
    for (auto* ranges : {&call.reads, &call.writes, &call.updates})
        for (auto& r : *ranges) {
            if (!r.bytes) continue;
            if (!emulated::lies_in(emulated::on_device, r.p, r.bytes) &&
                !emulated::lies_in(emulated::pinned, r.p, r.bytes))
                return text("%zu bytes that the device cannot reach", r.bytes);
            if ((size_t)r.p % bytes_of((ncclDataType_t)call.header.type))
                return "an address that is not aligned";
            for (auto& other : all)
                if (r.p < other.p + other.bytes && other.p < r.p + r.bytes)
                    return "input and output overlap, and are not in place";
            all.push_back(r);
        }
    return "";
}

// ---- a turn ----------------------------------------------------------------------------------------------

// at most a piece; false: the channel is full, or empty
inline bool advance(const ncclComm& comm, const NcclCall& call, Transfer& t) {
    Channel& c = *t.channel;
    if (t.sends ? c.written - c.read == Channel::pieces : c.written == c.read) return false;
    Channel::Piece& piece = c.ring[(t.sends ? c.written : c.read) % Channel::pieces];
    int64_t n = t.moved < 0 ? 0 : std::min<int64_t>(sizeof piece.bytes, t.bytes - t.moved);

    if (t.sends && t.moved < 0) piece.header = call.header;
    if (!t.sends && t.moved < 0 && !(piece.header == call.header))
        throw Defect(text("NCCL's stand-in: the ranks of %s do not agree: rank %d calls %s, rank %d calls %s",
                          comm.name.c_str(), comm.rank, call.header.describe().c_str(), t.peer,
                          piece.header.describe().c_str()));

    if (t.moved < 0) t.moved = 0;
    else if (t.sends) memcpy(piece.bytes, t.data + t.moved, n);
    else memcpy(t.data + t.moved, piece.bytes, n);

    t.moved += n;
    (t.sends ? c.written : c.read)++;
    if (t.sends && t.moved == t.bytes) t.last = c.written;
    return true;
}

template <class T>
void sum_range(const ncclComm& comm, const NcclCall& call, const char* own, int64_t first, int64_t last) {
    bool adds = call.header.op == ncclSum;
    for (int64_t i = first / (int64_t)sizeof(T); i < last / (int64_t)sizeof(T); i++) {
        T sum = {};
        for (int i_rank = 0; i_rank < comm.size; i_rank++) {
            int rank = (comm.shared->first + i_rank) % comm.size;
            const char* part = rank == comm.rank ? own : call.received[rank].data();
            T x = ((const T*)part)[i];
            if (i_rank == 0) sum = x;
            else if (adds) sum = T(sum + x);
            else if (x > sum) sum = x;
        }
        ((T*)call.out)[i] = sum;
    }
}

// adds up as many bytes as have arrived from all ranks and have been sent to all: out may overwrite in
inline bool add_up(const ncclComm& comm, NcclCall& call) {
    int64_t upto = call.bytes();
    for (auto& t : call.transfers)
        if (t.bytes) upto = std::min(upto, std::max<int64_t>(t.moved, 0));
    if (upto <= call.summed) return false;

    const char* own = call.in + (call.header.kind == Kind::ReduceScatter ? comm.rank * call.bytes() : 0);
    switch (call.header.type) {
        case ncclBfloat16: sum_range<bf16>(comm, call, own, call.summed, upto); break;
        case ncclFloat32: sum_range<float>(comm, call, own, call.summed, upto); break;
        case ncclFloat64: sum_range<double>(comm, call, own, call.summed, upto); break;
        default: sum_range<int64_t>(comm, call, own, call.summed, upto);
    }
    call.summed = upto;
    return true;
}

}  // namespace nccl_on_cpu
