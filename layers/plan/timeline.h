// timeline.h   a step drawn: one row per stage or rank, time to the right; of a simulation or a run (trace.h)
//   FILE.svg    upper part of a row: forward (light) and backward (dark), coloured by micro-batch, with
//               tensor-parallel calls (red) and waits (white) in them; lower part, thin: messages (by
//               micro-batch), buckets reduced (grey) and gathered (green), the update (black). For a run, the
//               plan is drawn below, to the same scale
//   FILE.json   Chrome's trace format (chrome://tracing, Perfetto): one process per row, times in
//               microseconds; for a run with every operation and call
#pragma once
#include <cmath>
#include <map>
#include "../base/file.h"
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

// ---- SVG -------------------------------------------------------------------------------------------------

// if there are few, neighbours get different colours; if many, the colour shows the place in the step
inline std::string span_colour(const Span& s, int micro_batches) {
    if (s.kind == Span::Reduce) return "#8a8a8a";
    if (s.kind == Span::Gather) return "#2e9e6b";
    if (s.kind == Span::Update) return "#222222";
    if (s.kind == Span::Collective) return "#b3261e";
    if (s.kind == Span::Wait) return "#ffffff";
    double hue = micro_batches <= 24 ? s.micro_batch * 137 % 360 : s.micro_batch * 12 % 360;
    double light = s.kind == Span::Backward ? 0.56 : 0.78, reach = 0.72 * std::min(light, 1 - light);
    auto channel = [&](double n) {  // from hue, saturation, lightness to red, green, blue
        double k = std::fmod(n + hue / 30, 12);
        return (int)(255 * (light - reach * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}))) + 0.5);
    };
    return text("#%02x%02x%02x", channel(0), channel(8), channel(4));
}

// where in its row, which is 1 high, a span is drawn: offset, height
struct RowPart { double from, height; };
inline RowPart part_of_row(Span::Kind kind) {
    switch (kind) {
        case Span::Forward:
        case Span::Backward: return {0.04, 0.7};
        case Span::Wait: return {0.04, 0.5};
        case Span::Collective: return {0.04, 0.14};
        case Span::Message: return {0.75, 0.09};
        default: return {0.85, 0.12};
    }
}

class SvgPicture {
    static constexpr double left = 90, width = 1500;
    double scale;  // pixels a second
    std::string out;
    double height = 0;

    void add_panel(const Timeline& p) {
        double row = std::clamp(760.0 / (double)p.rows.size(), 9.0, 44.0), top = height + 46;
        std::map<std::pair<int, std::string>, std::string> paths;  // in drawing order: the last is on top
        std::string labels;

        for (auto& s : p.spans) {
            RowPart part = part_of_row(s.kind);
            double x = left + s.start * scale, w = std::max(0.15, (s.end - s.start) * scale);
            double y = top + (s.row + part.from) * row, h = part.height * row;
            int order = s.kind == Span::Wait ? 1 : s.kind == Span::Collective ? 2 : 0;
            paths[{order, span_colour(s, p.micro_batches)}] += text("M%.2f %.1fh%.2fv%.1fh-%.2fz", x, y, w, h,
                                                                    w);

            std::string name =
                p.chunks > 1 ? text("%d.%d", s.micro_batch, s.chunk) : text("%d", s.micro_batch);
            if (s.kind <= Span::Backward && w > 8.0 * (double)name.size() && row > 14)
                labels += text("<text x=\"%.1f\" y=\"%.1f\">%s</text>", x + w / 2, y + h * 0.6 + 4,
                               name.c_str());
        }

        out += text("<text x=\"%.0f\" y=\"%.0f\" font-size=\"15\">%s</text>\n<text x=\"%.0f\" y=\"%.0f\" "
                    "fill=\"#666\">%s</text>\n",
                    left, height + 18, p.title.c_str(), left, height + 36, legend(p).c_str());
        out += text("<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.1f\" fill=\"#f1f1f1\"/>\n", left,
                    top, width, row * (double)p.rows.size());
        for (auto& [key, d] : paths)
            out += text("<path fill=\"%s\" d=\"%s\"/>\n", key.second.c_str(), d.c_str());

        out += "<g text-anchor=\"middle\" font-size=\"11\">" + labels +
               "</g>\n<g text-anchor=\"end\" fill=\"#444\">";
        for (size_t i = 0; i < p.rows.size(); i += row < 12 ? 2 : 1)
            out += text("<text x=\"%.0f\" y=\"%.1f\">%s</text>", left - 6, top + ((double)i + 0.5) * row + 4,
                        p.rows[i].c_str());

        // the axis of time
        out += "</g>\n<g text-anchor=\"middle\" fill=\"#444\">";
        double all = width / scale, tick = std::pow(10, std::floor(std::log10(all / 5)));
        while (all / tick > 12) tick *= all / tick > 30 ? 5 : 2;
        height = top + row * (double)p.rows.size();
        for (double t = 0; t <= all * 1.0001; t += tick)
            out += text("<text x=\"%.1f\" y=\"%.1f\">%.4g s</text>", left + t * scale, height + 18, t);
        out += "</g>\n";
        height += 40;
    }

    static std::string legend(const Timeline& p) {
        bool has[Span::kinds] = {};
        for (auto& s : p.spans) has[s.kind] = true;
        std::string out = "light: forward, dark: backward, a colour a micro-batch";
        if (has[Span::Collective]) out += "; red: tensor-parallel calls";
        if (has[Span::Wait]) out += "; white: waits";
        out += "; below: ";
        if (has[Span::Message]) out += "messages, ";
        if (has[Span::Reduce] || has[Span::Gather]) out += "buckets reduced (grey), gathered (green), ";
        return out + "update (black)";
    }

public:
    explicit SvgPicture(const std::vector<Timeline>& panels) {
        double longest = 0;
        for (auto& p : panels) longest = std::max(longest, p.seconds);
        scale = width / longest;
        for (auto& p : panels) add_panel(p);
    }

    std::string text_of() const {
        return text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                    "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
                    "fill=\"#ffffff\"/>\n", left + width + 30, height) + out + "</svg>\n";
    }
};

// ---- Chrome ----------------------------------------------------------------------------------------------

inline std::string chrome_name(int process, int lane, const char* what, const std::string& name) {
    return text("{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"args\": {\"name\": "
                "\"%s\"}},\n", process, lane, what, name.c_str());
}

constexpr const char* chrome_lanes[] = {"computations", "messages", "buckets", "tensor-parallel calls"};
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

// events: additional ones, as JSON, each followed by a comma
inline std::string chrome_trace(const std::vector<Timeline>& panels, const std::string& events = "") {
    std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events;
    int first = 0;
    for (auto& p : panels) {
        out += chrome_events(p, first);
        first += 100000;
    }
    return out + text("{\"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"name\": \"step\", \"ts\": 0, "
                      "\"dur\": %.3f}\n]}\n", panels[0].seconds * 1e6);
}

inline void check_timeline_path(const char* option, const std::string& path) {
    if (!path.empty() && !path.ends_with(".svg") && !path.ends_with(".json"))
        fail("--%s %s: wants FILE.svg or FILE.json", option, path.c_str());
}

inline void save_timeline(const std::string& path, const std::vector<Timeline>& panels,
                          const std::string& events = "") {
    FileWriter file(path);
    file.write(path.ends_with(".svg") ? SvgPicture(panels).text_of() : chrome_trace(panels, events));
    file.finish();
}
