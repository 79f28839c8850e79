// timeline.h   a step drawn: a row a stage, time to the right; from a simulation or from a run (trace.h)
//   FILE.svg    above: forward (light) and backward (dark), coloured by micro-batch; below, thin: buckets
//               reduced (grey) and gathered (green), the update (black)
//   FILE.json   Chrome's trace format (chrome://tracing, Perfetto): a process a stage, microseconds
#pragma once
#include <cmath>
#include <map>
#include "../base/file.h"
#include "simulate.h"

struct Timeline {
    std::string title;
    int stages, micro_batches, chunks;
    double seconds;
    std::vector<Span> spans;
};

inline Timeline draw(const Simulation& s, const PipelineShape& shape, const std::string& title) {
    Timeline out = {title, shape.p, shape.micro_batches, shape.chunks, s.seconds, s.spans};
    for (auto& span : out.spans)  // what the update leaves for the next step is what this one began with
        if (span.start >= s.seconds) {
        span.start -= s.seconds;
        span.end -= s.seconds;
    }
    return out;
}

// neighbours differ where they are few; where they are many, a colour is a place in the step
inline std::string span_colour(const Span& s, int micro_batches) {
    if (s.kind == Span::Reduce) return "#8a8a8a";
    if (s.kind == Span::Gather) return "#2e9e6b";
    if (s.kind == Span::Update) return "#222222";
    double hue = micro_batches <= 24 ? s.micro_batch * 137 % 360 : s.micro_batch * 12 % 360;
    double light = s.kind == Span::Forward ? 0.78 : 0.56, reach = 0.72 * std::min(light, 1 - light);
    auto channel = [&](double n) {  // from hue, saturation, lightness to red, green, blue
        double k = std::fmod(n + hue / 30, 12);
        return (int)(255 * (light - reach * std::max(-1.0, std::min({k - 3, 9 - k, 1.0}))) + 0.5);
    };
    return text("#%02x%02x%02x", channel(0), channel(8), channel(4));
}

inline std::string svg(const Timeline& p) {
    const double left = 60, top = 46, width = 1500;
    double row = std::clamp(760.0 / p.stages, 9.0, 44.0), height = top + row * p.stages + 40;
    auto at = [&](double t) { return left + t / p.seconds * width; };
    std::map<std::string, std::string> paths;
    std::string labels;
    bool buckets = false;
    for (auto& s : p.spans) {
        if (s.kind == Span::Message) continue;
        buckets |= s.kind == Span::Reduce || s.kind == Span::Gather;
        bool main = s.kind == Span::Forward || s.kind == Span::Backward;
        double y = top + s.stage * row + (main ? 0.5 : row * 0.78), h = main ? row * 0.74 : row * 0.18;
        double x = at(s.start), w = std::max(0.15, at(s.end) - x);
        paths[span_colour(s, p.micro_batches)] += text("M%.2f %.1fh%.2fv%.1fh-%.2fz", x, y, w, h, w);
        std::string name = p.chunks > 1 ? text("%d.%d", s.micro_batch, s.chunk) : text("%d", s.micro_batch);
        if (main && w > 8.0 * (double)name.size() && row > 14)
            labels += text("<text x=\"%.1f\" y=\"%.1f\">%s</text>", x + w / 2, y + h * 0.5 + 4, name.c_str());
    }
    std::string out = text(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        left + width + 30, height);
    out += text(
        "<text x=\"%.0f\" y=\"18\" font-size=\"15\">%s</text>\n<text x=\"%.0f\" y=\"36\" "
        "fill=\"#666\">light: forward, dark: backward, a colour a micro-batch; below: %supdate "
        "(black)</text>\n",
        left, p.title.c_str(), left, buckets ? "buckets reduced (grey), gathered (green), " : "");
    out += text("<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.1f\" fill=\"#f1f1f1\"/>\n", left, top,
                width, row * p.stages);
    for (auto& [colour, d] : paths) out += text("<path fill=\"%s\" d=\"%s\"/>\n", colour.c_str(), d.c_str());
    out += "<g text-anchor=\"middle\" font-size=\"11\">" + labels +
           "</g>\n<g text-anchor=\"end\" fill=\"#444\">";
    for (int s = 0; s < p.stages; s += row < 12 ? 2 : 1)
        out += text("<text x=\"%.0f\" y=\"%.1f\">%s%d</text>", left - 6, top + (s + 0.5) * row + 4,
                    s ? "" : "stage ", s);
    out += "</g>\n<g text-anchor=\"middle\" fill=\"#444\">";
    double tick = std::pow(10, std::floor(std::log10(p.seconds / 5)));
    while (p.seconds / tick > 12) tick *= p.seconds / tick > 30 ? 5 : 2;
    for (double t = 0; t <= p.seconds * 1.0001; t += tick)
        out += text("<text x=\"%.1f\" y=\"%.1f\">%.4g s</text>", at(t), top + row * p.stages + 18, t);
    return out + "</g>\n</svg>\n";
}

inline std::string chrome_trace(const Timeline& p) {
    std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    const char* lanes[] = {"computations", "messages", "buckets"};
    for (int stage = 0; stage < p.stages; stage++) {
        out += text(
            "{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": {\"name\": \"stage %d\"}},\n",
            stage, stage);
        for (int lane = 0; lane < 3; lane++)
            out += text(
                "{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", \"args\": {\"name\": "
                "\"%s\"}},\n",
                stage, lane, lanes[lane]);
    }
    for (auto& s : p.spans) {
        int lane = s.kind == Span::Message ? 1 : s.kind == Span::Reduce || s.kind == Span::Gather ? 2 : 0;
        std::string name = span_names[s.kind];
        if (s.micro_batch >= 0) name += text(" %d", s.micro_batch);
        out += text(
            "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"ts\": %.3f, \"dur\": %.3f, "
            "\"args\": "
            "{\"micro_batch\": %d, \"%s\": %d}},\n",
            s.stage, lane, name.c_str(), s.start * 1e6, (s.end - s.start) * 1e6, s.micro_batch,
            lane == 2 ? "bucket" : "chunk", s.chunk);
    }
    out += text("{\"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"name\": \"step\", \"ts\": 0, \"dur\": %.3f}\n]}\n",
                p.seconds * 1e6);
    return out;
}

inline void check_timeline_path(const char* option, const std::string& path) {
    if (!path.empty() && !path.ends_with(".svg") && !path.ends_with(".json"))
        fail("--%s %s: wants FILE.svg or FILE.json", option, path.c_str());
}
inline void save_timeline(const std::string& path, const Timeline& p) {
    FileWriter file(path);
    file.write(path.ends_with(".svg") ? svg(p) : chrome_trace(p));
    file.finish();
}
