// tasks.cpp   a task's public files -> an evaluation file, each request as lm-evaluation-harness makes it
//   ./tasks --task piqa --from FOLDER --vocabulary PATH/vocab.bpe --output piqa.eval [--shots 5]
//   Documents in the order of random.Random(42).shuffle; the same generator then draws each document's shots,
//   from the train split, or where there is none from the evaluated documents without the document itself.
#include "../../layers/base/arguments.h"
#include "../../layers/base/process.h"
#include "evaluation.h"
#include "published_scores.h"
#include "sha256.h"
#include "tasks.h"

namespace {

const std::string usage = [] {
    std::string names;
    for (auto& t : task_table) if (!*t.form && strcmp(t.task, "requests")) names += std::string(" ") + t.task;
    return "usage: ./tasks --task NAME --from FOLDER --vocabulary bytes|PATH/vocab.bpe --output FILE.eval\n"
           "               [--OPTION VALUE]…\n"
           "  NAME is one of" + names + ";\n"
           "  or requests: your own, one per line:\n"
           "  {\"context\": …, \"continuations\": […], \"gold\": 0, \"group\": …};\n"
           "  or all: every task with a subfolder of its name in FOLDER, into a folder of .eval files\n";
}();

const std::vector<OptionForm> forms = {
    {"task", OptionForm::Text, "see above"},
    {"from", OptionForm::Text,
     "folder with the task's files as distributed, or the file if there is only one"},
    {"shots", OptionForm::Text,
     "examples before each document, from the train split if there is one; few:\n"
     "                       as many as in MT-NLG's announcement", "0"},
    {"form", OptionForm::Text,
     "alternative wording: lambada cloze, mtnlg; race filled, mtnlg; boolq v1; hans mtnlg\n"
     "                       [the harness's, autumn 2021]"},
    {"vocabulary", OptionForm::Text, "the model's vocabulary: bytes, GPT-2's vocab.bpe or a tokenizer.json"},
    {"output", OptionForm::Text, "evaluation file for train_gpt --evaluate"},
    {"requests", OptionForm::Text, "also write the requests as text: the JSON whose SHA-256 is printed"},
    {"limit", OptionForm::Whole, "number of documents to take from the shuffled order [all]", "", 1},
};

// the requests of one document, behind its shots
struct DocumentRequests {
    std::vector<TaskRequest> requests;
    int gold;
    TaskDocument* document;
};

std::vector<DocumentRequests> ask(const TaskForm& task, std::vector<TaskDocument>& documents,
                                  std::vector<TaskDocument>& train, uint32_t shots, size_t limit) {
    std::vector<uint32_t> order(documents.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = (uint32_t)i;
    PythonRandom random(42);
    random.shuffle(order);
    order.resize(std::min(order.size(), limit));

    std::vector<DocumentRequests> out;
    for (uint32_t i : order) {
        TaskDocument& d = documents[i];
        std::string before;
        auto add = [&](TaskDocument& shot) { before += render_shot(task, shot) + "\n\n"; };
        if (shots && !task.train.empty()) {
            for (uint32_t s : random.sample((uint32_t)train.size(), shots)) add(train[s]);
        } else if (shots) {
            uint32_t taken = 0;
            for (uint32_t s : random.sample((uint32_t)documents.size(), shots + 1))
                if (documents[s].raw != d.raw && taken < shots) {
                    add(documents[s]);
                    taken++;
                }
        }

        DocumentRequests item = {render(task, d), 0, &d};
        item.gold = gold_of(task, d, item.requests.size());
        for (auto& r : item.requests) r.context = before + r.context;
        out.push_back(std::move(item));
    }
    return out;
}

// [["context", "continuation"], …] as Python's json.dumps writes it; a greedy request appears twice, because
// the harness asks once for its probability and once whether greedy decoding would give it
std::string as_json(const std::vector<DocumentRequests>& all, bool twice) {
    std::string out = "[";
    for (auto& item : all)
        for (auto& r : item.requests)
            for (int i = 0; i < 1 + twice; i++)
                out += (out.size() > 1 ? ", [" : "[") + python_json(r.context, item.document->where) + ", " +
                       python_json(r.continuation, item.document->where) + "]";
    return out + "]";
}

// what an evaluation file says of its task
EvalFile describe_task(const TaskForm& task, const Vocabulary& v) {
    EvalFile e;
    e.task = task.task;
    e.form = task.form;
    e.version = task.version;
    e.metric = task.metric;
    e.normalised = task.normalised;
    e.priors = task.prior != nullptr;
    e.vocabulary = v.size();
    e.vocabulary_name = v.name();
    return e;
}

// all documents say which continuation is right, or none does: then there is no accuracy
void check_gold(EvalFile& e, const std::vector<DocumentRequests>& all) {
    auto has_none = [](auto& item) { return item.gold < 0; };
    if (std::all_of(all.begin(), all.end(), has_none)) {
        e.metric = "none";
        e.normalised = false;
        return;
    }

    auto first = std::find_if(all.begin(), all.end(), has_none);
    if (first != all.end())
        fail("%s: has no \"gold\", but others do: say for each which continuation is right, or for none",
             first->document->where.c_str());
}

// The tokens of a continuation in one's own requests, as today's lm-evaluation-harness finds them: white
// space at the context's end moves to the continuation, and both are encoded together. (The tasks' wording
// is of 2021, when each was encoded by itself.)
std::vector<int> tokens_behind(std::string& context, std::string continuation, Encoder& encoder,
                               const std::string& where) {
    size_t end = 0;  // of what is not white space at the end, as Python's str.rstrip() has it
    for (size_t i = 0, bytes; i < context.size(); i += bytes)
        if (!python_space(decode_at(context, i, &bytes))) end = i + bytes;
    continuation = context.substr(end) + continuation;
    context.resize(end);
    std::vector<int> all = encoder.tokens_of(context + continuation);
    size_t own = encoder.tokens_of(context).size();
    if (all.size() <= own)
        fail("%s: the continuation has no token of its own, as the context's last one takes it in: end the "
             "context with a whole word", where.c_str());
    return {all.begin() + (long)own, all.end()};
}

EvalFile encode_task(const TaskForm& task, const std::vector<DocumentRequests>& all, const Vocabulary& v) {
    EvalFile e = describe_task(task, v);
    Encoder encoder(v);
    auto add_tokens = [&](const std::vector<int>& tokens) -> std::pair<int64_t, int64_t> {
        e.tokens.insert(e.tokens.end(), tokens.begin(), tokens.end());
        return {(int64_t)(e.tokens.size() - tokens.size()), (int64_t)tokens.size()};
    };
    auto add = [&](const std::string& words) {  // nothing before: the text begins
        return add_tokens(words.empty() ? std::vector{v.end_of_text} : encoder.tokens_of(words));
    };
    std::map<std::string, int64_t> groups;
    std::pair<int64_t, int64_t> prior = {-1, 0};
    if (task.prior) prior = add(task.prior);

    for (auto& item : all) {
        EvalDocument d = {(int64_t)e.requests.size(), 0, item.gold, {-1, -1}, item.document->line};

        for (size_t g = 0; g < task.groups.size(); g++) {
            if (task.labels.empty() && !item.document->fields.count(task.groups[g]))
                continue;  // optional in a user's own requests
            std::string name = std::string(task.groups[g]) + " " + item.document->at(task.groups[g]);
            auto [at, is_new] = groups.emplace(name, (int64_t)groups.size());
            if (is_new) e.groups.push_back(name);
            d.groups[g] = at->second;
        }

        std::map<std::string, std::pair<int64_t, int64_t>> contexts;
        for (auto& r : item.requests) {
            std::string before = r.context;
            auto [from, n] = !strcmp(task.task, "requests") && !before.empty()
                ? add_tokens(tokens_behind(before, r.continuation, encoder, item.document->where))
                : add(r.continuation);
            if (!contexts.count(before)) contexts[before] = add(before);
            auto [context, length] = contexts[before];
            bool blank = r.continuation[0] == ' ';
            int64_t characters = (int64_t)code_points(r.continuation, item.document->where).size() - blank;
            e.requests.push_back({context, length, from, n, characters});
        }

        for (size_t i = 0; task.prior && i < item.requests.size(); i++) {
            EvalRequest r = e.requests[(size_t)d.first + i];
            r.context = prior.first;
            r.context_tokens = prior.second;
            e.requests.push_back(r);
        }

        d.count = (int64_t)e.requests.size() - d.first;
        e.documents.push_back(d);
    }

    check_gold(e, all);
    return e;
}

uint32_t parse_shots(const std::string& value, const TaskForm& task) {
    if (value != "few") return (uint32_t)parse_number("shots", value, 0, true);
    const PublishedScores* p = find_published(task.task);
    if (!p) fail("--shots few: %s has no published number of shots: give a number", task.task);
    return (uint32_t)p->few;
}

// what an evaluation file is made of
struct Job {
    std::string from, output, requests;  // requests: a file too, or ""
    std::string shots;
    size_t limit;            // documents
    std::string vocabulary;  // "bytes", or its file
};

void make_file(const TaskForm& task, const Job& job, const Vocabulary& vocabulary) {
    uint32_t shots = parse_shots(job.shots, task);
    std::vector<std::string> inputs = files_of(task, job.from);
    if (job.vocabulary != "bytes") inputs.push_back(job.vocabulary);
    refuse_overwriting({job.output, job.requests}, inputs);
    refuse_overwriting({job.output}, {job.requests});
    refuse_replacing_other(job.output, {"GPTEVALS"}, "no evaluation file");
    refuse_replacing_other(job.requests, {"[[", "[]"}, "no requests");

    std::vector<TaskDocument> documents = read_task(task, job.from, false), train;
    try {
        if (shots && !task.train.empty()) train = read_task(task, job.from, true);
    } catch (const Error& e) {
        fail("--shots %u are drawn from the train split: %s", shots, e.what());
    }

    size_t pool = task.train.empty() ? documents.size() - 1 : train.size();
    if (shots > pool)
        fail("--shots %u: %s has %zu documents to draw them from: choose at most %zu", shots,
             job.from.c_str(), pool, pool);

    std::vector<DocumentRequests> items = ask(task, documents, train, shots, job.limit);
    std::string json = as_json(items, std::string(task.metric) == "greedy");
    Sha256 sum;
    sum.add(json);

    EvalFile e = encode_task(task, items, vocabulary);
    e.shots = (int)shots;
    e.hash = sum.digits();
    e.from = job.from;
    e.save(job.output);

    if (!job.requests.empty())
        write_file(job.requests, json);

    printf("%s%s%s: %zu documents, %u shots, %zu continuations, %zu tokens\nsha256 of all requests %s\n",
           task.task, *task.form ? " " : "", task.form, e.documents.size(), shots, e.requests.size(),
           e.tokens.size(), e.hash.c_str());
    check_standard_output();
}

// Makes the published tasks that have a folder of their name; in the given form, if a task has it. Tasks that
// cannot be made are reported and left out; if none can be made, that is an error
void make_all(const Arguments& a, const Job& job, const Vocabulary& vocabulary) {
    if (a.has("requests")) fail("--requests: is for one task; --task all makes several");
    std::string form = a.get("form"), folder = job.output, all;
    std::set<std::string> forms;
    for (auto& t : task_table) forms.insert(t.form);
    for (auto& f : forms) all += (f.empty() ? "" : " ") + f;
    if (!forms.count(form))
        fail("--form %s: no task has it: choose one of%s", form.c_str(), all.c_str());
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail("--output %s: cannot be created: %s", folder.c_str(), error.message().c_str());

    int found = 0, made = 0;
    for (auto& p : published_scores) {
        bool has_form = false;
        for (auto& t : task_table) has_form |= !strcmp(t.task, p.task) && form == t.form;
        std::string from = job.from + "/" + p.task;
        std::string name = p.task + (has_form && !form.empty() ? "-" + form : "");
        if (!std::filesystem::exists(from)) {
            printf("%s: left out: there is no %s; the files are at %s\n", p.task, from.c_str(), p.files);
            continue;
        }
        found++;
        try {
            make_file(find_task(p.task, has_form ? form : ""),
                      {from, folder + "/" + name + ".eval", "", job.shots, job.limit, job.vocabulary},
                      vocabulary);
            made++;
        } catch (const Error& e) {
            printf("%s: left out: %s\n", p.task, e.what());
        }
    }

    if (!found)
        fail("%s: has none of the nine tasks: expected folders with their names", job.from.c_str());
    if (!made)
        fail("%s: none of the nine tasks can be made, although %d of them are there: the reasons are above",
             job.from.c_str(), found);
}

int run(const Arguments& a) {
    std::string name = a.need("task", "NAME");
    const TaskForm* task = name == "all" ? nullptr : &find_task(name, a.get("form"));
    Job job = {a.need("from", "FOLDER"), a.need("output", "FILE.eval"), a.get("requests"),
               a.get("shots"), a.has("limit") ? (size_t)a.number("limit") : SIZE_MAX,
               a.need("vocabulary", "bytes or PATH/vocab.bpe")};
    Vocabulary vocabulary = Vocabulary::open(job.vocabulary);
    if (!a.words.empty()) fail("%s: options begin with -- (--help explains)", a.words[0].c_str());
    if (task) make_file(*task, job, vocabulary);
    else make_all(a, job, vocabulary);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    open_standard_streams();
    try {
        return run(Arguments(argc, argv, usage, forms));
    } catch (const std::exception& e) {
        fprintf(stderr, "tasks: %s\n", e.what());
        return 1;
    }
}
