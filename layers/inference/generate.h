// generate.h   text, token by token, each drawn from softmax(logits / temperature)
//   Several texts at once, of any lengths: text i has rows [i T, (i + 1) T) of each block's qkv, which is the
//   key-value cache; its prompt is computed once, and from then on each token costs one row (when training
//   with full recomputation there is no cache, and everything is computed again). When a text ends, the next
//   prompt takes its place. When a sequence is full, its later half becomes the prompt of a new pass. The
//   random numbers depend on the text's seed and on how many tokens were drawn before, not on neighbours or
//   layout.
#pragma once
#include <numeric>
#include <set>
#include "../../comm/mpi/sum_over.h"
#include "../../data/tokenizer.h"
#include "../base/random.h"
#include "prompts.h"
#include "packed_batch.h"

inline void check_logits(const std::vector<real>& logits) {
    for (real x : logits)
        if (std::isnan(x) || x == INFINITY)
            fail("the model's logits are not numbers: resume from an earlier checkpoint");
}

// logits (V); u uniform in [0, 1)
inline int sample_token(const std::vector<real>& logits, const Sampling& how, double u) {
    check_logits(logits);
    if (how.temperature == 0) return (int)(std::max_element(logits.begin(), logits.end()) - logits.begin());
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    auto likelier = [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };

    size_t n = how.top_k > 0 ? std::min((size_t)how.top_k, order.size()) : order.size();
    // the likeliest tokens are sorted only as far as needed: usually a few are enough
    size_t sorted = 0;
    auto sort_to = [&](size_t end) {
        end = std::min(n, end);
        if (end <= sorted) return;
        std::partial_sort(order.begin() + (long)sorted, order.begin() + (long)end, order.end(), likelier);
        sorted = end;
    };

    sort_to(how.top_k > 0 ? n : 64);
    auto p = [&](size_t i) {
        if (i >= sorted) sort_to(4 * sorted);
        return std::exp((double)(logits[order[i]] - logits[order[0]]) / how.temperature);
    };

    double sum = 0, kept = 0, below = 0;
    bool is_whole = n == logits.size();  // then the sum needs no sorting
    for (size_t i = 0; i < n; i++)
        sum += std::exp((double)(logits[is_whole ? i : order[i]] - logits[order[0]]) / how.temperature);

    size_t last = n;
    if (how.top_p < 1)
        for (last = 0; last < n && (last == 0 || kept < how.top_p * sum); last++) kept += p(last);
    else kept = sum;
    for (size_t i = 0; i < last; i++)
        if ((below += p(i)) > u * kept) return order[i];
    return order[last - 1];
}

// a text being generated; of a prompt that is longer than the model's sequence, only the end is seen
struct Text {
    std::vector<int> tokens;  // at least one; the window that the model sees
    int left;                 // tokens still to be generated, at most
    Sampling how;
    std::set<int> seen = {};  // tokens that have occurred, for `repetition`
    int done = 0;             // tokens whose keys and values are in the cache
    int logprobs = -1;        // report log-probabilities of the token drawn and of so many likeliest; -1: no
};

// log-probabilities of a token and of the likeliest ones: the model's, without temperature and other options
struct Likelihood {
    double logprob = 0;
    std::vector<std::pair<int, double>> top;  // token, log-probability; the likeliest first
};

inline Likelihood likelihood_of(const std::vector<real>& logits, int token, int top) {
    check_logits(logits);
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    top = std::min(top, (int)order.size());
    std::partial_sort(order.begin(), order.begin() + top, order.end(), [&](int a, int b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });

    double largest = *std::max_element(logits.begin(), logits.end()), sum = 0;
    for (real x : logits) sum += std::exp((double)x - largest);
    Likelihood out = {logits[token] - largest - std::log(sum), {}};
    for (int i = 0; i < top; i++)
        out.top.push_back({order[i], (double)logits[order[i]] - largest - std::log(sum)});
    return out;
}

// the last stage's -> all stages; the other stages pass equally many, whose values are ignored
inline void share_likelihoods(const Grid& g, std::vector<Likelihood>& all) {
    if (g.p == 1 || all.empty()) return;
    std::vector<double> numbers;
    for (auto& one : all) {
        numbers.push_back(one.logprob);
        for (auto& [token, logprob] : one.top) numbers.insert(numbers.end(), {(double)token, logprob});
    }
    if (!g.is_last_stage()) numbers.assign(numbers.size(), 0);
    numbers = comm::sum_over(g.stages_on_host, numbers, "log-probabilities");

    size_t at = 0;
    for (auto& one : all) {
        one.logprob = numbers[at++];
        for (auto& [token, logprob] : one.top) {
            token = (int)numbers[at++];
            logprob = numbers[at++];
        }
    }
}

// draws the next token; logits (V)
inline int draw_token(Text& text, std::vector<real>& logits) {
    if (text.how.repetition != 1)
        for (int t : text.seen)
            logits[t] =
                real(logits[t] > 0 ? logits[t] / text.how.repetition : logits[t] * text.how.repetition);
    return sample_token(logits, text.how, uniform(text.how.seed, purpose("sample"), text.how.draw++));
}

// Draws the next token of as many texts as fit into a batch; the others wait for the next call. The result
// is on all stages. texts[i] has slot i of the cache (nullptr: no text); without a cache there is one text.
// likelihoods: of the tokens drawn, in their order, for the texts that want them
inline std::vector<int> next_tokens(Model& model, const std::vector<Text*>& texts,
                                    std::vector<Likelihood>* likelihoods = nullptr) {
    PackedBatch packed;
    int T = model.shape.T, room = model.setup.training ? T : model.max_rows();
    std::vector<Text*> asked;
    for (size_t place = 0; place < texts.size(); place++) {
        Text* t = texts[place];
        if (!t) continue;

        if ((int)t->tokens.size() > T) {
            t->tokens.erase(t->tokens.begin(), t->tokens.end() - (T + 1) / 2);
            t->done = 0;
        }
        if (!keeps_cache(model)) t->done = 0;

        int n = (int)t->tokens.size() - t->done, base = (int)place * T;
        if (packed.rows() + n > room) break;
        int first = packed.add_segment(t->tokens.data() + t->done, n, t->done, base + t->done, base);
        for (int i = 0; i < n; i++) packed.cache_slots.push_back(base + t->done + i);
        packed.rows_with_logits.push_back(first + n - 1);
        packed.targets.push_back(0);
        t->done = (int)t->tokens.size();
        asked.push_back(t);
    }

    std::vector<std::vector<real>> logits = packed_logits(model, packed);
    std::vector<int64_t> drawn(asked.size(), 0);
    std::vector<Likelihood> of_each(asked.size()), noted;
    auto top_of = [&](size_t i) { return likelihoods ? std::min(asked[i]->logprobs, model.shape.V) : -1; };
    in_parallel((long)logits.size(), [&](long i) {
        std::vector<real> raw;
        if (top_of(i) >= 0) raw = logits[i];  // repetition changes them
        drawn[i] = draw_token(*asked[i], logits[i]);
        if (top_of(i) >= 0) of_each[i] = likelihood_of(raw, (int)drawn[i], top_of(i));
    });
    for (size_t i = 0; i < asked.size(); i++) {
        if (top_of(i) < 0) continue;
        if (logits.empty()) of_each[i].top.resize(top_of(i));
        noted.push_back(of_each[i]);
    }

    share_likelihoods(model.grid, noted);
    if (likelihoods) *likelihoods = std::move(noted);
    std::vector<int64_t> all = drawn;
    if (model.grid.p > 1)  // of the last stage -> all
        all = comm::gather_numbers(model.grid.stages_on_host, drawn, "tokens of generation");

    std::vector<int> out;
    for (size_t i = 0; i < asked.size(); i++) {
        int token = (int)all[all.size() - asked.size() + i];
        if (logits.empty()) asked[i]->how.draw++;
        asked[i]->tokens.push_back(token);
        asked[i]->seen.insert(token);
        asked[i]->left--;
        out.push_back(token);
    }
    return out;
}

// generates all texts to their ends, `at_once` at a time; emit(number of the text, token) is called for each
// token as it is drawn, and returns whether the text continues
template <class Emit>
void generate(Model& model, std::vector<Text> texts, int at_once, Emit emit) {
    std::vector<Text*> active(at_once, nullptr);
    size_t next = 0;
    for (;;) {
        std::vector<size_t> places;
        for (int i = 0; i < at_once; i++) {
            while (!active[i] && next < texts.size()) {
                Text& t = texts[next++];
                t.seen.insert(t.tokens.begin(), t.tokens.end());
                if ((int)t.tokens.size() > model.shape.T)
                    t.tokens.erase(t.tokens.begin(), t.tokens.end() - model.shape.T);
                if (t.left > 0) active[i] = &t;
            }
            if (active[i]) places.push_back(i);
        }
        if (places.empty()) return;

        std::vector<int> tokens = next_tokens(model, active);
        for (size_t i = 0; i < tokens.size(); i++) {
            Text*& t = active[places[i]];
            bool more = emit((size_t)(t - texts.data()), tokens[i]);
            if (!more || t->left == 0) t = nullptr;
        }
    }
}

// ---- answers to prompts -----------------------------------------------------------------------------------

struct Answer {
    std::vector<int> tokens;
    std::string text;                  // up to where it stopped
    const char* stopped = "length";    // or "end of text", "stop"
};

// appends a token; false: the text ends with it
inline bool take_token(Answer& a, int token, const Prompt& p, const Vocabulary& v) {
    a.tokens.push_back(token);
    if (token == v.end_of_text) {
        a.stopped = "end of text";
        return false;
    }

    size_t had = a.text.size(), first = a.text.npos;
    a.text += v.tokens[token];
    for (auto& stop : p.stop)
        first = std::min(first, a.text.find(stop, had > stop.size() ? had - stop.size() : 0));

    if (first == a.text.npos) return true;
    a.text.resize(first);
    a.stopped = "stop";
    return false;
}

// the answers to `prompts`, which are distributed over the replicas; the result is on all ranks
inline std::vector<Answer> answer_all(Model& model, const std::vector<Prompt>& prompts, const Vocabulary& v,
                                      int at_once) {
    const Grid& g = model.grid;
    std::vector<Answer> answers(prompts.size());
    std::vector<Text> texts;
    std::vector<size_t> mine;
    long cut = 0;
    for (size_t i = 0; i < prompts.size(); i++) {
        if ((int)(i % g.d) != g.data) continue;
        std::vector<int> tokens = encode_text(v, prompts[i].text);
        if (tokens.empty()) tokens.push_back(v.end_of_text);
        cut += (int)tokens.size() > model.shape.T;
        texts.push_back({tokens, prompts[i].tokens, prompts[i].how});
        mine.push_back(i);
    }

    if (cut && g.tensor == 0 && g.is_first_stage())
        fprintf(stderr, "note: %s of more than the %d tokens that the model reads: only the end counts\n",
                counted(cut, "prompt").c_str(), model.shape.T);
    generate(model, texts, at_once, [&](size_t i, int token) {
        return take_token(answers[mine[i]], token, prompts[mine[i]], v);
    });
    if (g.d == 1) return answers;

    // the answers of other replicas
    int64_t most = 0;
    for (auto& a : answers) most = std::max(most, (int64_t)a.tokens.size());
    for (int64_t other : comm::gather_numbers(g.dp, {most}, "longest answer")) most = std::max(most, other);
    std::vector<int64_t> numbers((size_t)(most + 1) * ((prompts.size() + g.d - 1) / g.d), -1);
    for (size_t i = 0; i < mine.size(); i++)
        std::copy(answers[mine[i]].tokens.begin(), answers[mine[i]].tokens.end(),
                  numbers.begin() + (long)i * (most + 1));
    std::vector<int64_t> all = comm::gather_numbers(g.dp, numbers, "answers");  // each replica's -> all

    for (size_t i = 0; i < prompts.size(); i++) {
        if ((int)(i % g.d) == g.data) continue;
        const int64_t* from = &all[(i % g.d) * numbers.size() + i / g.d * (size_t)(most + 1)];
        for (; *from >= 0; from++) take_token(answers[i], (int)*from, prompts[i], v);
    }
    return answers;
}

inline std::string answer_json(const Prompt& p, const Answer& a) {
    std::string right = p.answer ? text(", \"right\": %s", a.text == *p.answer ? "true" : "false") : "";
    return text("{\"prompt\": %s, \"sample\": %d, \"text\": %s, \"tokens\": %zu, \"stopped\": \"%s\"%s}\n",
                json_quote(whole_utf8(p.text)).c_str(), p.sample, json_quote(whole_utf8(a.text)).c_str(),
                a.tokens.size(), a.stopped, right.c_str());
}
