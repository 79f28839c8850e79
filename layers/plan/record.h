// record.h   a log of one step of the run: every operation, call and wait of every rank, in order
//   JSON lines. The first:
//     {"record": 1, "step": …, "precision": …, "model": {layers, hidden, heads, sequence, vocabulary,
//      padded_vocabulary}, "tensor": t, "data": d, "pipeline": p, "chunks": v, "batch": …, "micro_batch": …,
//      "sequence_parallel": …, "recompute": …, "optimizer_shards": …, "pipeline_group": …, "computed_twice":
//      by --check-every}
//   Then the lines of rank 0, in the order in which it enqueued them, those of rank 1, and so on:
//     rank, n           which of that rank's lines this is, from 0
//     kind, name        compute, call or wait; the operation's name, for a call the one in comm.h
//     pass, micro_batch, chunk, bucket, layer   what it belongs to: chunk and bucket are numbered on the
//                       stage, layer over the whole model; what does not apply is left out
//     stream            compute; for messages forward in, forward out, backward in or backward out; buckets
//     file, line        where it is called: the first line of the call
//     flops, bytes      of its GEMMs; read and written in the device's memory
//     tensors           name, use (read, written, updated), type, shape and, for at most --record-values
//                       values, `values`; for an update also `before`. A call on a comm stream or in a group
//                       has not delivered its result yet: only the values that it sends are logged
//     label, group, ranks, values_in_all      of a call: its purpose, its group, and how many values
//     label, awaited    of a wait: its purpose, and the stream that this one waits for
#pragma once
#include <filesystem>
#include "../../data/json.h"
#include "../run/setup.h"
#include "dry_run.h"

class Record : public Listener {
    const Model& model;
    long most_values;
    int rank;
    long lines = 0;
    std::string written;
    std::vector<std::string> before;  // the tensors' values before the current activity

    const char* stream_name(Stream s) const {
        const Grid& g = model.grid;
        if (s == model.stream) return "compute";
        if (s == g.forward_in.stream) return "forward in";
        if (s == g.forward_out.stream) return "forward out";
        if (s == g.backward_in.stream) return "backward in";
        if (s == g.backward_out.stream) return "backward out";
        return "buckets";
    }

    template <class T>
    std::string list(const TensorAccess& t) const {
        std::vector<T> values((size_t)(t.rows * t.columns));
        copy_to_host(values.data(), t.data, values.size() * sizeof(T), model.stream);
        std::string out = "[";
        for (auto& x : values) {
            double value = (double)x;
            // JSON has no NaN
            std::string number = "null";
            if (std::isfinite(value)) number = text("%.*g", sizeof(T) == 8 ? 17 : 9, value);
            out += (out.size() > 1 ? "," : "") + number;
        }
        return out + "]";
    }

    std::string values_of(const TensorAccess& t) const {
        long count = t.rows * t.columns;
        if (count == 0 || count > most_values) return "";
        switch (t.element) {
            case Element::X: return list<floatX>(t);
            case Element::Real: return list<real>(t);
            case Element::Fp64: return list<double>(t);
            case Element::Fp32: return list<float>(t);
            case Element::Bf16: return list<bf16>(t);
            case Element::Int32: return list<int>(t);
            default: return "";  // not numbers
        }
    }

    static const char* type_of(Element e) {
        static constexpr const char* names[] = {"",      "",      "fp64",  "fp32",  "bf16",
                                                "int64", "int32", "int16", "8 bits"};
        if (e == Element::X) return PRECISION_NAME;
        if (e == Element::Real) return sizeof(real) == 8 ? "fp64" : "fp32";
        return names[(int)e];
    }

    std::string tensor(const TensorAccess& t, const std::string& old, const std::string& now) const {
        static constexpr const char* uses[] = {"read", "written", "updated"};
        std::string out = text("{\"name\":%s,\"use\":\"%s\",\"type\":\"%s\",\"shape\":[%ld,%ld]",
                               json_quote(t.name).c_str(), uses[t.use], type_of(t.element), t.rows,
                               t.columns);
        if (t.use == TensorAccess::Updated && !old.empty()) out += ",\"before\":" + old;
        if (!now.empty()) out += ",\"values\":" + now;
        return out + "}";
    }

    void add(const Activity& a) {
        static constexpr const char* kinds[] = {"section", "compute", "call", "wait"};
        std::string out = text("{\"rank\":%d,\"n\":%ld,\"kind\":\"%s\",\"name\":%s", rank, lines++,
                               kinds[a.kind], json_quote(a.name).c_str());

        if (a.place.pass != Pass::None) out += text(",\"pass\":\"%s\"", pass_names[(int)a.place.pass]);
        if (a.place.micro_batch >= 0) out += text(",\"micro_batch\":%d", a.place.micro_batch);
        if (a.place.chunk >= 0) out += text(",\"chunk\":%d", a.place.chunk);
        if (a.place.bucket >= 0) out += text(",\"bucket\":%d", a.place.bucket);
        if (a.place.layer >= 0) out += text(",\"layer\":%d", a.place.layer);
        out += text(",\"stream\":\"%s\"", stream_name(a.stream));

        if (a.kind == Activity::Wait) {
            written += out + text(",\"label\":\"%s\",\"awaited\":\"%s\"}\n", a.label, stream_name(a.awaited));
            return;
        }

        double flops = 0;
        for (auto& work : a.works) flops += work.gemm.flops();
        std::string file = std::filesystem::path(a.where.file_name()).lexically_normal().string();
        out += text(",\"file\":%s,\"line\":%u,\"flops\":%.17g,\"bytes\":%.17g", json_quote(file).c_str(),
                    (unsigned)a.where.line(), flops, bytes_moved(a, {}));

        if (a.kind == Activity::Communicate) {
            out += text(",\"label\":%s,\"group\":\"%s\",\"ranks\":[", json_quote(a.label).c_str(),
                        a.call.group);
            for (size_t i = 0; i < a.call.members->size(); i++)
                out += text(i ? ",%d" : "%d", (*a.call.members)[i]);
            out += text("],\"values_in_all\":%ld", a.call.count);
        }

        out += ",\"tensors\":[";
        for (size_t i = 0; i < a.tensors.size(); i++) {
            const TensorAccess& t = a.tensors[i];
            if (t.rows == 0) continue;  // an optional tensor, absent here
            std::string now;
            if (!a.ends_later()) now = values_of(t);
            else if (t.use == TensorAccess::Read) now = before[i];
            out += (out.back() == '[' ? "" : ",") + tensor(t, before[i], now);
        }
        written += out + "]}\n";
    }

public:
    Record(const Model& model, long most_values)
        : model(model), most_values(most_values), rank(model.grid.world.rank) {}
    void begin(const Activity& a) override {
        before.clear();
        for (auto& t : a.tensors) before.push_back(t.use == TensorAccess::Written ? "" : values_of(t));
    }

    void end(const Activity& a) override {
        if (a.kind != Activity::Section) add(a);
    }

    const std::string& lines_written() const { return written; }
};

inline std::string record_header(const Model& model, const Options& o, long step, int batch) {
    const ModelShape& m = model.shape;
    const Grid& g = model.grid;
    bool repeated = o.check_every && step % o.check_every == 0;
    return text("{\"record\":1,\"step\":%ld,\"precision\":\"%s\",\"model\":{\"layers\":%d,\"hidden\":%d,"
                "\"heads\":%d,\"sequence\":%d,\"vocabulary\":%d,\"padded_vocabulary\":%d},"
                "\"tensor\":%d,\"data\":%d,\"pipeline\":%d,\"chunks\":%d,\"batch\":%d,\"micro_batch\":%d,"
                "\"sequence_parallel\":%s,\"recompute\":\"%s\",\"optimizer_shards\":%d,\"pipeline_group\":%d,"
                "\"computed_twice\":%s}\n",
                step, PRECISION_NAME, m.L, m.C, m.NH, m.T, m.V, m.Vp, g.t, g.d, g.p, model.setup.chunks,
                batch, model.setup.B, model.grid.sequence_parallel ? "true" : "false", o.recompute.c_str(),
                model.setup.optimizer_shards, pipeline_shape(o, g.d, batch).interleave_group,
                repeated ? "true" : "false");
}
