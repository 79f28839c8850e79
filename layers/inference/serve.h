// serve.h   --generate -.jsonl: prompts as JSON lines on standard input, answered while they are drawn
//   An input line is a prompt as in prompts.h, with these additional keys:
//     "id": N              repeated in every output line about it
//     "prompt"             a text, or an array of tokens
//     "logprobs": k        asks for log-probabilities of the tokens drawn, and of the k likeliest ones
//     "echo": true         asks for the prompt's tokens too; with "logprobs", for theirs
//   or {"cancel": N}. Output lines, each printed at once; the first when requests can be answered:
//     {"sequence": T, "vocabulary": V, "end_of_text": t}
//     {"id": N, "sample": s, "prompt_tokens": n}       it has begun; with echo also
//         "prompt": [token, …], "bytes": ["hex", …], "logprobs": [null, x, …],
//         "top": [null, [[token, x], …], …]
//     {"id": N, "sample": s, "token": t, "bytes": "hex", "logprob": x, "top": [[token, x], …]}
//     {"id": N, "sample": s, "stopped": "length"}      or "stop", "end of text", "cancelled"
//     {"id": N, "error": "…"}                          the request is rejected as a whole
//   --batch texts are generated at once (continuous batching); the others wait in order. When standard input
//   ends, all requests are still answered; then the program ends.
#pragma once
#include <poll.h>
#include <unistd.h>
#include <deque>
#include "../run/same_run.h"
#include "generate.h"

constexpr int most_logprobs = 20, most_samples = 128;

struct ServedText {
    int64_t id = 0;
    Prompt prompt;
    bool echo = false;
    Text text = {};  // its tokens are the prompt's until the first is drawn
    Answer answer = {};
    bool wants_scores() const { return echo && text.logprobs >= 0; }  // of the prompt's tokens
    bool is_computed() const { return wants_scores() || text.left > 0; }
};

// rank 0's text -> all ranks
inline std::string share_text(std::string text) {
    std::vector<int64_t> sizes = comm::gather_numbers(comm::everyone(), {(int64_t)text.size()}, "a length");
    size_t size = (size_t)sizes[0];
    text.resize(size);
    std::vector<int64_t> words((size + 7) / 8);  // eight bytes each
    if (size == 0) return "";  // on all ranks
    memcpy(words.data(), text.data(), size);
    words = comm::gather_numbers(comm::everyone(), words, "prompt");
    memcpy(text.data(), words.data(), size);  // rank 0's come first
    return text;
}

// ---- lines in and out ------------------------------------------------------------------------------------

// rank 0's standard input, as much as has come
struct StandardInput {
    std::string held;
    bool ended = false;
    // one part of it, if any comes within `seconds`: held grows, or it has ended
    bool read(double seconds) {
        pollfd in = {STDIN_FILENO, POLLIN, 0};
        if (ended || poll(&in, 1, (int)(1000 * seconds)) <= 0) return false;
        char part[65536];
        ssize_t n = ::read(STDIN_FILENO, part, sizeof part);
        if (n > 0) held.append(part, (size_t)n);
        ended = n == 0 || (n < 0 && errno != EINTR);
        return true;
    }

    // complete lines; if there are none yet, waits at most `seconds` for each part
    std::string read_lines(double seconds) {
        size_t end = held.rfind('\n');
        for (size_t seen = held.size(); end == held.npos && read(seconds); seen = held.size()) {
            if (ended && !held.empty()) held += '\n';  // a last line without its end
            size_t last = std::string_view(held).substr(seen).rfind('\n');
            if (last != held.npos) end = seen + last;
        }

        if (end == held.npos) return "";
        std::string lines = held.substr(0, end + 1);
        held.erase(0, end + 1);
        return lines;
    }
};

inline std::string hex_of(const std::string& bytes) {
    std::string out;
    for (unsigned char c : bytes) out += text("%02x", c);
    return out;
}

inline std::string top_json(const Likelihood& one) {
    std::string out = "[";
    for (auto& [token, logprob] : one.top)
        out += text("%s[%d, %.9g]", out.size() > 1 ? ", " : "", token, logprob);
    return out + "]";
}

inline std::string list_json(size_t n, const std::function<std::string(size_t)>& item) {
    std::string out = "[";
    for (size_t i = 0; i < n; i++) out += (i ? ", " : "") + item(i);
    return out + "]";
}

// how a text begins; scores: of the prompt's tokens from the second on, where they are wanted
inline std::string begin_json(const ServedText& t, const std::vector<Likelihood>& scores,
                              const Vocabulary& v) {
    std::string out = text("{\"id\": %lld, \"sample\": %d, \"prompt_tokens\": %zu", (long long)t.id,
                           t.prompt.sample, t.text.tokens.size());
    if (!t.echo) return out + "}\n";
    size_t n = t.text.tokens.size();
    out += ", \"prompt\": " + list_json(n, [&](size_t i) { return std::to_string(t.text.tokens[i]); });
    out += ", \"bytes\": " +
        list_json(n, [&](size_t i) { return "\"" + hex_of(v.tokens[(size_t)t.text.tokens[i]]) + "\""; });
    if (!t.wants_scores()) return out + "}\n";
    out += ", \"logprobs\": " +
        list_json(n, [&](size_t i) { return i ? text("%.9g", scores[i - 1].logprob) : "null"; });
    out += ", \"top\": " + list_json(n, [&](size_t i) { return i ? top_json(scores[i - 1]) : "null"; });
    return out + "}\n";
}

inline std::string token_json(const ServedText& t, int token, const Likelihood* one, const Vocabulary& v) {
    std::string out =
        text("{\"id\": %lld, \"sample\": %d, \"token\": %d, \"bytes\": \"%s\"", (long long)t.id,
             t.prompt.sample, token, hex_of(v.tokens[(size_t)token]).c_str());
    if (one) out += text(", \"logprob\": %.9g, \"top\": ", one->logprob) + top_json(*one);
    return out + "}\n";
}

inline std::string stopped_json(const ServedText& t, const char* why) {
    return text("{\"id\": %lld, \"sample\": %d, \"stopped\": \"%s\"}\n", (long long)t.id, t.prompt.sample,
                why);
}

// ---- requests --------------------------------------------------------------------------------------------

// the texts that a line asks for; number: of those before
inline std::vector<ServedText> parse_request(const Json& json, int64_t id, const Options& o,
                                             const ModelShape& shape, const Vocabulary& v, size_t number) {
    ServedText t;
    t.id = id;
    std::optional<std::vector<int>> tokens;
    PromptLine line = parse_prompt(json, "a request", o, [&](const std::string& key, const Json& value) {
        if (key == "id") return true;
        if (key == "echo") {
            if (value.kind != Json::Boolean) fail("\"echo\": expected true or false");
            t.echo = value.text == "true";
        } else if (key == "logprobs") {
            int64_t count = value.integer("\"logprobs\"");
            if (count < 0 || count > most_logprobs)
                fail("\"logprobs\" %lld: must be from 0 to %d", (long long)count, most_logprobs);
            t.text.logprobs = (int)count;
        } else if (key == "prompt" && value.kind == Json::Array) {
            tokens.emplace();
            for (auto& item : value.items) {
                int64_t token = item.integer("\"prompt\"");
                if (token < 0 || token >= v.size())
                    fail("\"prompt\" has token %lld: the vocabulary has 0 to %d", (long long)token,
                         v.size() - 1);
                tokens->push_back((int)token);
            }
        } else return false;
        return true;
    });

    json.at("prompt", "a request");
    t.text.left = line.prompt.tokens;
    // what is neither computed nor copied, as a text to be tokenized, may be of any length
    bool is_limited = t.is_computed() || line.samples > 1;
    if (is_limited && line.prompt.text.size() > (size_t)shape.T * v.longest_token())
        fail("the prompt has %zu bytes, the model takes %d tokens: shorten it", line.prompt.text.size(),
             shape.T);  // before it is tokenized, while others wait

    t.text.tokens = tokens ? *tokens : encode_text(v, line.prompt.text);
    if (t.text.tokens.empty()) t.text.tokens.push_back(v.end_of_text);
    t.text.seen.insert(t.text.tokens.begin(), t.text.tokens.end());

    if (is_limited && (int)t.text.tokens.size() > shape.T)
        fail("the prompt has %zu tokens, the model takes %d: shorten it", t.text.tokens.size(), shape.T);
    if (line.samples > most_samples) fail("\"samples\" %d: must be at most %d", line.samples, most_samples);

    std::vector<ServedText> out;
    for (int s = 0; s < line.samples; s++) {
        out.push_back(t);
        out.back().prompt = line.sample(s, number + (size_t)s);
        out.back().text.how = out.back().prompt.how;
    }
    return out;
}

// likelihoods of the prompt's tokens from the second on; fills the cache at `place` with its keys and values
inline std::vector<Likelihood> score_prompt(Model& model, int place, Text& text) {
    int n = (int)text.tokens.size(), base = place * model.shape.T;
    int most = std::min(model.max_logit_rows(), model.max_rows());
    std::vector<std::pair<int, double>> top(std::min(text.logprobs, model.shape.V));
    std::vector<Likelihood> out(n - 1, {0, top});
    for (int first = 0; first < n; first += most) {
        PackedBatch packed;
        int rows = std::min(most, n - first);
        packed.add_segment(&text.tokens[(size_t)first], rows, first, base + first, base);
        for (int i = 0; i < rows; i++) {
            packed.cache_slots.push_back(base + first + i);
            packed.rows_with_logits.push_back(i);
            packed.targets.push_back(0);
        }

        std::vector<std::vector<real>> logits = packed_logits(model, packed);
        in_parallel(std::min((long)logits.size(), n - 1L - first), [&](long i) {
            out[first + i] = likelihood_of(logits[i], text.tokens[(size_t)(first + i + 1)], text.logprobs);
        });
    }

    text.done = n - 1;  // the last row is computed again when the first token is drawn
    share_likelihoods(model.grid, out);
    return out;
}

// ---- the loop --------------------------------------------------------------------------------------------

class PromptServer {
    const Run& run;
    Model& model;
    const Vocabulary& v;
    StandardInput input;
    std::deque<ServedText> waiting;
    std::vector<std::optional<ServedText>> places;
    size_t requests = 0;

public:
    PromptServer(const Run& run, Model& model)
        : run(run), model(model), v(*run.vocabulary), places((size_t)run.options.batch) {
        if (run.grid.d > 1)
            fail("--generate -.jsonl over %d replicas: start one (t p = %d ranks)", run.grid.d,
                 run.grid.t * run.grid.p);
    }

    void serve() {
        print(text("{\"sequence\": %d, \"vocabulary\": %d, \"end_of_text\": %d}\n", model.shape.T, v.size(),
                   v.end_of_text));
        double patience = std::min(1.0, comm::timeout / 4);  // in which the other ranks wait in a call
        for (;;) {
            bool idle = waiting.empty() && std::none_of(places.begin(), places.end(),
                                                        [](auto& p) { return p.has_value(); });
            std::string lines = run.is_rank0() ? input.read_lines(idle ? patience : 0) : "";
            if (run.is_rank0() && input.ended && lines.empty() && idle) lines = "end";
            if (run.grid.world.size > 1) lines = share_text(lines);
            if (lines == "end") return;

            for (size_t at = 0, end; (end = lines.find('\n', at)) != lines.npos; at = end + 1)
                take_line(lines.substr(at, end - at));
            fill_places();
            draw();
        }
    }

private:
    void print(const std::string& line) const {
        if (!run.is_rank0()) return;
        fputs(line.c_str(), stdout);
        check_standard_output();
    }

    void take_line(const std::string& line) {
        if (line.find_first_not_of(" \t\r") == line.npos) return;
        int64_t id = -1;
        try {
            Json json = Json::parse(line, "a request");
            if (const Json* cancelled = json.find("cancel")) return cancel(cancelled->integer("\"cancel\""));
            if (const Json* given = json.find("id")) id = given->integer("\"id\"");
            std::vector<ServedText> asked =
                parse_request(json, id, run.options, model.shape, v, requests);
            requests += asked.size();
            for (auto& t : asked)
                if (t.is_computed()) waiting.push_back(std::move(t));
                else print(begin_json(t, {}, v) + stopped_json(t, "length"));  // needs no model
        } catch (const Error& e) {
            print(text("{\"id\": %lld, \"error\": %s}\n", (long long)id,
                       json_quote(whole_utf8(e.what())).c_str()));
        }
    }

    void cancel(int64_t id) {
        for (auto& t : waiting)
            if (t.id == id) print(stopped_json(t, "cancelled"));
        std::erase_if(waiting, [&](auto& t) { return t.id == id; });
        for (auto& place : places)
            if (place && place->id == id) {
                print(stopped_json(*place, "cancelled"));
                place.reset();
            }
    }

    // one text for each free place, even if it only asks for scores: then the others go on
    void fill_places() {
        for (size_t i = 0; i < places.size(); i++)
            if (!places[i] && !waiting.empty()) {
                ServedText& t = places[i].emplace(std::move(waiting.front()));
                waiting.pop_front();
                std::vector<Likelihood> scores;
                if (t.wants_scores()) scores = score_prompt(model, (int)i, t.text);
                print(begin_json(t, scores, v));
                if (t.text.left > 0) continue;
                print(stopped_json(t, "length"));
                places[i].reset();
            }
    }

    // a token for each text in its place; as many as fit into a batch
    void draw() {
        std::vector<Text*> texts;
        std::vector<size_t> drawn;
        for (size_t i = 0; i < places.size(); i++) {
            texts.push_back(places[i] ? &places[i]->text : nullptr);
            if (places[i]) drawn.push_back(i);
        }
        if (drawn.empty()) return;

        std::vector<Likelihood> likelihoods;
        std::vector<int> tokens = next_tokens(model, texts, &likelihoods);

        size_t next = 0;
        for (size_t i = 0; i < tokens.size(); i++) {
            ServedText& t = *places[drawn[i]];
            bool more = take_token(t.answer, tokens[i], t.prompt, v);
            const Likelihood* one = t.text.logprobs >= 0 ? &likelihoods[next++] : nullptr;
            print(token_json(t, tokens[i], one, v));
            if (more && t.text.left > 0) continue;
            print(stopped_json(t, more ? "length" : t.answer.stopped));
            places[drawn[i]].reset();
        }
    }
};
