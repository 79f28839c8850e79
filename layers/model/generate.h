// generate.h   the model speaks: one token after the other, each drawn from softmax(logits / temperature)
//   The prompt is one forward pass over all its tokens; from then on a token costs one row, and the rows
//   before it are found in the blocks' qkv, which is the key-value cache. When the sequence is full, its
//   later half becomes the prompt of a new pass.
#pragma once
#include "../base/rng.h"
#include "stage.h"

struct Sampling {
    double temperature = 1, top_p = 1;  // temperature 0: the likeliest
    int top_k = 0;                      // 0: all
    uint64_t seed = 0;
    uint64_t draw = 0;  // number of the next random number
};

// logits (V); u uniform in [0, 1)
inline int sample_token(const std::vector<real>& logits, const Sampling& how, double u) {
    std::vector<int> order(logits.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = (int)i;
    auto likelier = [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    if (how.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
    std::sort(order.begin(), order.end(), likelier);
    size_t n = how.top_k > 0 ? std::min((size_t)how.top_k, order.size()) : order.size();
    std::vector<double> p(n);
    double sum = 0, kept = 0;
    for (size_t i = 0; i < n; i++)
        sum += p[i] = std::exp((double)(logits[order[i]] - logits[order[0]]) / how.temperature);
    size_t last = 0;
    for (; last < n; last++) {
        kept += p[last];
        if (kept >= how.top_p * sum) break;
    }
    last = std::min(last + 1, n);
    double below = 0;
    for (size_t i = 0; i < last; i++)
        if ((below += p[i]) > u * kept) return order[i];
    return order[last - 1];
}

// the next-token logits (V) after `tokens`, of which those before `done` have been computed; the same on
// every rank. The row passes through the stages, chunk c in slot c, and the last stage tells all.
inline std::vector<real> next_logits(Model& m, const std::vector<int>& tokens, int done) {
    if (m.setup.recompute) done = 0;  // slots keep no keys and values
    Batch batch = {1, (int)tokens.size() - done, done};
    Ranks ranks = {m.ranks.tp};
    Grid& grid = m.grid;
    long values = (long)batch.T * m.shape.C;
    Buffer& input = m.inputs[0];
    if (grid.first())
        copy_to_device(m.slots[0].tokens, tokens.data() + done, batch.T * sizeof(int), m.stream);
    for (int chunk = 0; chunk < m.setup.chunks; chunk++) {
        if (!m.first(chunk))
            comm::receive(grid.forward_in.group, input.x, values, 0, "rows of generation", m.stream);
        chunk_forward(m, chunk, m.slots[chunk], 0, batch, ranks);
        if (!m.last(chunk))
            comm::send(grid.forward_out.group, m.slots[chunk].y.x, values, 1, "rows of generation", m.stream);
    }
    if (grid.last()) {
        int Vp_r = m.shape.Vp / grid.t;
        model_logits(m, m.slots[m.setup.chunks - 1], batch, ranks);
        comm::all_gather(m.ranks.tp, m.row, m.end.logits + (long)(batch.T - 1) * Vp_r, Vp_r,
                         "logits of a position", m.stream);  // my columns -> all columns
    }
    comm::broadcast(grid.pp, m.row, m.shape.Vp, grid.p - 1, "logits of a position", m.stream);
    std::vector<floatX> row(m.shape.V);
    copy_to_host(row.data(), m.row, row.size() * sizeof(floatX), m.stream);
    return {row.begin(), row.end()};
}

// n tokens after the prompt, each handed to `emit` as it is drawn, until emit returns false
template <class Emit>
void generate(Model& m, std::vector<int> tokens, int n, Sampling how, Emit emit) {
    int done = 0;
    for (int i = 0; i < n; i++) {
        if ((int)tokens.size() > m.shape.T) {
            tokens.erase(tokens.begin(), tokens.end() - (m.shape.T + 1) / 2);
            done = 0;
        }
        std::vector<real> logits = next_logits(m, tokens, done);
        done = (int)tokens.size();
        int token = sample_token(logits, how, uniform(how.seed, purpose("sample"), how.draw++));
        tokens.push_back(token);
        if (!emit(token)) return;
    }
}
