// test_record.h   ./test_gpt check-record FILE: is what --record wrote a step that the schedule allows?
#pragma once
#include <fstream>
#include "../base/testing.h"
#include "report.h"

// computations and messages of one rank, in its order, as a schedule has them
std::vector<Instruction> recorded_instructions(const std::vector<Json>& lines) {
    std::vector<Instruction> out;
    auto number = [](const Json& line, const char* key) {
        const Json* value = line.find(key);
        return value ? (int)value->integer(key) : -1;
    };

    for (auto& line : lines) {
        const Json* pass = line.find("pass");
        std::string name = line.at("name", "a line").text, kind = line.at("kind", "a line").text;
        Instruction i = {Instruction::Forward, number(line, "micro_batch"), number(line, "chunk")};
        if (pass && pass->text == "message" && kind == "call") {
            bool forward = line.at("group", "a message").text == "forward";
            if (name == "send") i.kind = forward ? Instruction::SendForward : Instruction::SendBackward;
            else i.kind = forward ? Instruction::ReceiveForward : Instruction::ReceiveBackward;
        } else if (pass && kind == "compute" && (pass->text == "forward" || pass->text == "backward")) {
            if (pass->text == "backward") i.kind = Instruction::Backward;
            auto is_same = [&](const Instruction& a) {
                return a.kind == i.kind && a.micro_batch == i.micro_batch && a.chunk == i.chunk;
            };
            if (!out.empty() && is_same(out.back())) continue;  // the next operation of one computation
        } else continue;
        out.push_back(i);
    }

    return out;
}

void check_record(const std::vector<std::string>& words) {
    if (words.size() != 1) fail("check-record: expected one FILE that --record wrote");
    std::ifstream file(words[0]);
    std::string text_line;
    if (!std::getline(file, text_line)) fail("%s: cannot be read", words[0].c_str());
    Json header = Json::parse(text_line, words[0]);
    auto of = [&](const char* key) { return (int)header.at(key, words[0]).integer(key); };
    std::map<int, std::vector<Json>> lines;

    while (std::getline(file, text_line)) {
        Json line = Json::parse(text_line, words[0]);
        int rank = (int)line.at("rank", words[0]).integer("rank");
        check(line.at("n", words[0]).integer("n") == (long)lines[rank].size(), "lines are in order");
        lines[rank].push_back(std::move(line));
    }

    int t = of("tensor"), d = of("data"), p = of("pipeline"), world = t * d * p;
    check((int)lines.size() == world, text("%zu ranks of %d", lines.size(), world));
    int micro_batches = of("batch") / d / of("micro_batch");
    PipelineShape shape = {p, micro_batches, of("chunks"), 1};
    shape.interleave_group = of("pipeline_group");
    bool twice = header.at("computed_twice", words[0]).text == "true";
    std::vector<Schedule> all = all_stages(shape);
    check(ScheduleChecker(all).check().empty(), "the schedule is accepted");

    for (auto& [rank, its] : lines) {
        std::vector<Instruction> done = recorded_instructions(its);
        std::vector<Instruction> wanted = all[place_in_grid(rank, world, t, p).stage].list;
        for (size_t i = 0, n = wanted.size(); twice && i < n; i++) wanted.push_back(Instruction(wanted[i]));
        bool equal = done.size() == wanted.size();
        for (size_t i = 0; equal && i < done.size(); i++)
            equal = done[i].kind == wanted[i].kind && done[i].micro_batch == wanted[i].micro_batch &&
                done[i].chunk == wanted[i].chunk;
        check(equal, text("rank %d: %zu computations and messages, the schedule has %zu, in its order", rank,
                          done.size(), wanted.size()));
    }

    printf("%d passed, %d failed\n", passed, failed);
}
