// timeline.h   a step in time, one row per stage or rank: of a simulation or a run (trace.h), as JSON
//   Chrome's trace format (chrome://tracing, Perfetto): one process per row, times in microseconds; for a run
//   with every operation and call, and the plan below. "timelines" has the same for scripts/draw.py, which
//   makes a picture of it: {"title", "seconds", "micro_batches", "chunks", "rows", "spans": [[kind, row,
//   micro-batch, chunk, start, end]…]}, in seconds
#pragma once
#include "../../data/json.h"
#include "../base/file_writer.h"
#include "simulate.h"

inline Timeline draw(const Simulation& s, const PipelineShape& shape, const std::string& title) {
    Timeline out = {title, {}, shape.micro_batches, shape.chunks, s.seconds, s.spans};
    for (int stage = 0; stage < shape.p; stage++) out.rows.push_back(text("stage %d", stage));
    for (auto& span : out.spans)  // what runs into the next step is drawn at this one's beginning
        if (span.start >= s.seconds) {
            span.start -= s.seconds;
            span.end -= s.seconds;
        }
    return out;
}

// ---- Chrome ----------------------------------------------------------------------------------------------

inline std::string chrome_name(int process, int lane, const char* what, const std::string& name) {
    return text("{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"args\": {\"name\": "
                "\"%s\"}},\n", process, lane, what, name.c_str());
}

constexpr const char* chrome_lanes[] = {"computations", "messages", "buckets"};
inline int chrome_lane(Span::Kind kind) {
    return kind == Span::Message ? 1 : kind == Span::Reduce || kind == Span::Gather ? 2 : 0;
}

// first: the process of the first row
inline std::string chrome_events(const Timeline& p, int first) {
    std::string out;
    for (size_t row = 0; row < p.rows.size(); row++) {
        int process = first + (int)row;
        out += chrome_name(process, 0, "process_name", first ? "planned, " + p.rows[row] : p.rows[row]);
        for (int lane = 0; lane < (int)std::size(chrome_lanes); lane++)
            out += chrome_name(process, lane, "thread_name", chrome_lanes[lane]);
    }

    for (auto& s : p.spans) {
        int lane = chrome_lane(s.kind);
        std::string name = span_names[s.kind];
        if (s.micro_batch >= 0) name += text(" %d", s.micro_batch);
        out += text("{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"ts\": %.3f, "
                    "\"dur\": %.3f, \"args\": {\"micro_batch\": %d, \"%s\": %d}},\n",
                    first + s.row, lane, name.c_str(), s.start * 1e6, (s.end - s.start) * 1e6, s.micro_batch,
                    lane == 2 ? "bucket" : "chunk", lane == 2 ? s.bucket : s.chunk);
    }
    return out;
}

inline std::string timeline_json(const Timeline& p) {
    std::string out = text("{\"title\": %s, \"seconds\": %.9g, \"micro_batches\": %d, \"chunks\": %d, ",
                           json_quote(p.title).c_str(), p.seconds, p.micro_batches, p.chunks) + "\"rows\": [";
    for (auto& row : p.rows) out += (&row == &p.rows[0] ? "" : ", ") + json_quote(row);
    out += "], \"spans\": [";
    for (auto& s : p.spans)
        out += text("%s[\"%s\", %d, %d, %d, %.9g, %.9g]", &s == &p.spans[0] ? "\n" : ",\n",
                    span_names[s.kind], s.row, s.micro_batch, s.chunk, s.start, s.end);
    return out + "]}";
}

// events: of panels[0], if it is a run: as JSON, each followed by a comma; "": its spans are its events
inline std::string chrome_trace(const std::vector<Timeline>& panels, const std::string& events = "") {
    std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events, timelines;
    for (size_t i = 0; i < panels.size(); i++) {
        if (i || events.empty()) out += chrome_events(panels[i], (int)i * 100000);
        timelines += (i ? ",\n" : "") + timeline_json(panels[i]);
    }
    out += text("{\"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"name\": \"step\", \"ts\": 0, \"dur\": %.3f}\n],\n",
                panels[0].seconds * 1e6);
    return out + "\"timelines\": [" + timelines + "]}\n";
}

inline void save_timeline(const std::string& path, const std::vector<Timeline>& panels,
                          const std::string& events = "") {
    write_file(path, chrome_trace(panels, events));
}

inline void check_timeline_path(const char* option, const std::string& path) {
    if (!path.empty() && !path.ends_with(".json"))
        fail("--%s %s: expected FILE.json, from which scripts/draw.py timeline makes a picture", option,
             path.c_str());
}
