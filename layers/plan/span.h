// span.h   what a timeline consists of, planned (simulate.h) or traced (trace.h)
#pragma once
#include <iterator>
#include <string>
#include <vector>

struct Span {
    enum Kind { Forward, Backward, Message, Reduce, Gather, Update, Collective, Wait, kinds } kind;
    int row;                         // a stage of a plan; or a rank of a run, in the first replica
    int micro_batch, chunk, bucket;  // -1: none
    double start, end;               // seconds
};
constexpr const char* span_names[] = {"forward", "backward",   "message", "reduce",
                                      "gather",  "update",     "collective", "wait"};
static_assert(std::size(span_names) == Span::kinds);

struct Timeline {
    std::string title;
    std::vector<std::string> rows;
    int micro_batches, chunks;
    double seconds;
    std::vector<Span> spans;
};
