// scoring.h   log-likelihoods of continuations: how the model evaluates a file of tasks
//   As in lm-evaluation-harness: the last T + 1 tokens of context and continuation count, the very last one
//   only as a target; a continuation's log-likelihood is the sum over its tokens.
//   A context is computed once for all its continuations in a batch, whose rows attend to it
//   (packed_attention.cuh). Only the end of a batch is padded, to a multiple of rows_unit().
//   Documents are put into batches in order, and batches are dealt to the replicas.
#pragma once
#include <numeric>
#include "../../comm/mpi/sum_over.h"
#include "../../data/tasks/evaluation.h"
#include "packed_batch.h"

struct Score {
    double log_likelihood = 0;
    bool is_greedy = false;  // each token of the continuation is the one that greedy decoding takes
};

// continuations that share a context, of which the first `cut` tokens are left out
struct ScoreItem {
    int cut = 0;
    std::vector<int> requests;
};
struct ScoreBatch {
    std::vector<ScoreItem> items;
    int rows = 0, logit_rows = 0;
};

// A continuation must fit into the model's T positions (a context may be cut): documents with a longer one
// are left out and counted, or, if `strict`, refused
inline void leave_out_long(EvalFile& file, int T, bool strict) {
    size_t before = file.documents.size();
    int64_t longest = 0;
    std::erase_if(file.documents, [&](const EvalDocument& d) {
        int64_t most = 0;
        for (int64_t r = d.first; r < d.first + d.count; r++)
            most = std::max(most, file.requests[r].continuation_tokens);
        longest = std::max(longest, most);
        if (most > T && strict)
            fail("%s: %s line %lld has a continuation of %lld tokens, the model takes %d: leave out "
                 "--long-continuations refuse, or use a model with a longer --sequence", file.path.c_str(),
                 file.from.c_str(), (long long)d.line, (long long)most, T);
        return most > T;
    });
    file.left_out = (long)(before - file.documents.size());
    if (file.documents.empty())
        fail("%s: every document has a continuation of more than the %d tokens that the model takes (up to "
             "%lld): use a model with a longer --sequence", file.path.c_str(), T, (long long)longest);
}

// A batch's rows, and those with logits, are padded to a multiple of this: of t with sequence parallelism, so
// that ranks have equal shares, and on a GPU of up to 128, as cuBLASLt is asked for an algorithm for each new
// number of rows
inline int rows_unit(const Model& model) {
    int shares = model.grid.sequence_parallel ? model.grid.t : 1;
    return std::lcm(shares, host_is_device ? 1 : std::gcd(model.shape.T, 128));
}

struct ScoreBatches {
    const EvalFile& file;
    int unit, most_logit_rows;
    std::vector<ScoreBatch> batches;
    long truncated = 0;  // documents whose context was cut
    long rows = 0;       // of all batches, without padding

    // T: the model's positions; most_rows, most_logit_rows: limits of a batch; unit: rows_unit(). Without
    // `share`, each continuation has a context of its own
    ScoreBatches(const EvalFile& file, int T, int most_rows, int most_logit_rows, int unit, bool share = true)
        : file(file), unit(unit), most_logit_rows(most_logit_rows) {
        for (size_t d = 0; d < file.documents.size(); d++) {
            const EvalDocument& document = file.documents[d];
            // (context, its length, tokens cut from it) -> its continuations
            std::map<std::tuple<int64_t, int64_t, int>, std::vector<int>> same;
            bool cut_here = false;
            for (int64_t r = document.first; r < document.first + document.count; r++) {
                const EvalRequest& q = file.requests[r];
                int cut = (int)std::max((int64_t)0, q.context_tokens + q.continuation_tokens - (T + 1));
                cut_here |= cut > 0;
                same[{share ? q.context : r, q.context_tokens, cut}].push_back((int)r);
            }

            truncated += cut_here;
            for (auto& [key, requests] : same) add(std::get<2>(key), requests, most_rows);
        }

        for (auto& b : batches) {
            rows += b.rows;
            b.rows = (b.rows + unit - 1) / unit * unit;
        }
    }

    void add(int cut, const std::vector<int>& requests, int most_rows) {
        int context_length = (int)file.requests[requests[0]].context_tokens - cut;
        ScoreBatch* b = batches.empty() ? nullptr : &batches.back();
        ScoreItem* item = nullptr;
        for (int r : requests) {
            int n = (int)file.requests[r].continuation_tokens, more = n - 1 + (item ? 0 : context_length);
            if (!b || b->rows + more > most_rows || b->logit_rows + n > most_logit_rows) {
                batches.emplace_back();
                b = &batches.back();
                item = nullptr;
                more = n - 1 + context_length;
            }

            if (!item) {
                b->items.push_back({cut, {}});
                item = &b->items.back();
            }
            item->requests.push_back(r);
            b->rows += more;
            b->logit_rows += n;
        }
    }

    PackedBatch pack_batch(const ScoreBatch& b) const {
        PackedBatch out;
        for (auto& item : b.items) {
            const EvalRequest& first = file.requests[item.requests[0]];
            int n = (int)first.context_tokens - item.cut;
            int context_row = out.add_uncached(&file.tokens[first.context + item.cut], n, 0);
            for (int r : item.requests) {
                const int* own = &file.tokens[file.requests[r].continuation];
                int length = (int)file.requests[r].continuation_tokens;
                int row = length > 1 ? out.add_uncached(own, length - 1, n, context_row, n) : 0;

                for (int i = 0; i < length; i++) {
                    out.rows_with_logits.push_back(i ? row + i - 1 : context_row + n - 1);
                    out.targets.push_back(own[i]);
                }
            }
        }
        out.pad_rows(unit, most_logit_rows);
        return out;
    }
};

// the scores of a batch that was micro-batch `micro_batch` of the last stage
inline void collect_scores(Model& model, const ScoreBatches& plan, const ScoreBatch& b, int micro_batch,
                           std::vector<Score>& scores) {
    std::vector<real> losses(b.logit_rows), ahead(b.logit_rows);
    long from = (long)micro_batch * model.max_logit_rows();
    copy_to_host(losses.data(), model.lm_head.losses + from, losses.size() * sizeof(real), model.stream);
    copy_to_host(ahead.data(), model.lm_head.tokens_ahead + from, ahead.size() * sizeof(real), model.stream);

    size_t at = 0;
    for (auto& item : b.items)
        for (int r : item.requests) {
            scores[r] = {0, true};
            for (int i = 0; i < plan.file.requests[r].continuation_tokens; i++, at++) {
                scores[r].log_likelihood -= losses[at];
                scores[r].is_greedy &= ahead[at] == 0;
            }
        }
}

// the scores of batches [first, end), each on one replica's last stage and 0 elsewhere -> all ranks
inline void share_scores(const Grid& g, const ScoreBatches& plan, size_t first, size_t end,
                         std::vector<Score>& scores) {
    std::vector<Score*> these;
    std::vector<double> numbers;
    for (size_t b = first; b < end; b++)
        for (auto& item : plan.batches[b].items)
            for (int r : item.requests) these.push_back(&scores[r]);

    for (auto* s : these) {
        numbers.push_back(s->log_likelihood);
        numbers.push_back(s->is_greedy);
    }

    numbers = comm::sum_over(g.dp, numbers, "scores");
    if (!g.is_last_stage()) numbers.assign(numbers.size(), 0);
    if (g.p > 1) numbers = comm::sum_over(g.stages_on_host, numbers, "scores");
    for (size_t i = 0; i < these.size(); i++) *these[i] = {numbers[2 * i], numbers[2 * i + 1] > 0};
}

// scores every continuation of a file; the result is on all ranks (evaluate.cpp)
std::vector<Score> score_file(Model& model, const ScoreBatches& plan);
