// prompts.h   what the model is asked to continue, and how tokens are drawn
//   A file of prompts has one JSON object per line:
//     {"prompt": "…", "samples": 1, "seed": 1, "tokens": 64, "temperature": 1, "top_k": 0, "top_p": 1,
//      "repetition": 1, "stop": ["…"], "answer": "…"}
//   All but "prompt" may be left out; the options give the defaults. "answer": the expected text
#pragma once
#include <optional>
#include "../../data/json.h"
#include "../run/config.h"

struct Sampling {
    double temperature = 1, top_p = 1;  // temperature 0: always the likeliest
    int top_k = 0;                      // 0: all
    double repetition = 1;  // logits of tokens seen before are divided by it or, if negative, multiplied
    uint64_t seed = 0;
    uint64_t draw = 0;  // number of the next random number
};

struct Prompt {
    std::string text;
    int sample;  // which of the prompt's samples
    int tokens;
    Sampling how;
    std::vector<std::string> stop;
    std::optional<std::string> answer;
};

constexpr size_t most_prompts = 1000000;

// of a line of JSON
struct PromptLine {
    Prompt prompt;
    int samples = 1;
    bool own_seed = false;
    // sample s of this prompt; number: how many texts were requested before it
    Prompt sample(int s, size_t number) const {
        Prompt out = prompt;
        out.sample = s;
        out.how.draw = (own_seed ? (uint64_t)s : number) << 32;
        return out;
    }
};

// set_other(key, value): takes a key that only some callers know, or returns false
template <class SetOther>
PromptLine parse_prompt(const Json& json, const std::string& where, const Options& o, SetOther set_other) {
    PromptLine out;
    Prompt& p = out.prompt;
    p = {"", 0, o.sample_tokens, {o.temperature, o.top_p, o.top_k, o.repetition, (uint64_t)o.seed, 0},
         {}, {}};
    for (auto& member : json.members) {
        const std::string& key = member.first;
        const Json& value = member.second;
        auto number_of = [&](double least, bool whole) {
            if (value.kind != Json::Number) fail("%s: \"%s\": expected a number", where.c_str(), key.c_str());
            try {
                return parse_number(key, value.text, least, whole);
            } catch (const Error& e) {
                fail("%s: %s", where.c_str(), e.what());
            }
        };
        auto count_of = [&](double least) { return (int)std::min(number_of(least, true), 1e9); };

        if (set_other(key, value)) continue;
        else if (key == "prompt") p.text = value.string(where + ": \"prompt\"");
        else if (key == "answer") p.answer = value.string(where + ": \"answer\"");
        else if (key == "samples") out.samples = count_of(1);
        else if (key == "seed") {
            p.how.seed = (uint64_t)number_of(0, true);
            out.own_seed = true;
        } else if (key == "tokens") p.tokens = count_of(0);
        else if (key == "temperature") p.how.temperature = number_of(0, false);
        else if (key == "top_k") p.how.top_k = count_of(0);
        else if (key == "top_p" && number_of(1e-9, false) <= 1) p.how.top_p = number_of(1e-9, false);
        else if (key == "repetition") p.how.repetition = number_of(1e-3, false);
        else if (key == "stop" && value.kind == Json::Array)
            for (auto& s : value.items) p.stop.push_back(s.string(where));
        else if (key == "top_p")
            fail("%s: \"top_p\" %s: must be at most 1", where.c_str(), value.text.c_str());
        else
            fail("%s: \"%s\": expected prompt, answer, samples, seed, tokens, temperature, top_k, top_p, "
                 "repetition, or stop with an array", where.c_str(), key.c_str());
    }

    for (auto& s : p.stop) if (s.empty()) fail("%s: \"stop\" has an empty string", where.c_str());
    return out;
}

inline std::vector<Prompt> read_prompts(const Options& o) {
    WholeFile file(o.generate);
    std::vector<Prompt> out;
    std::string_view left = file.text();
    for (int number = 1; !left.empty(); number++) {
        std::string_view line = left.substr(0, left.find('\n'));
        left.remove_prefix(std::min(line.size() + 1, left.size()));
        std::string where = text("%s line %d", o.generate.c_str(), number);
        if (line.find_first_not_of(" \t\r") == line.npos) continue;

        Json json = Json::parse(line, where);
        json.at("prompt", where);
        PromptLine one = parse_prompt(json, where, o, [](auto&, auto&) { return false; });
        if (out.size() + (size_t)one.samples > most_prompts)
            fail("%s: asks for more than %zu answers in all: split it into several files", where.c_str(),
                 most_prompts);
        for (int s = 0; s < one.samples; s++) out.push_back(one.sample(s, out.size()));
    }

    if (out.empty())
        fail("%s: has no prompts: expected a line {\"prompt\": \"…\"} for each", o.generate.c_str());
    return out;
}
