// tasks.h   the tasks as lm-evaluation-harness words them (in autumn 2021), and the one table of them
//   A document is a record of the task's public files, flattened to fields: {"goal": "x", "options": ["a"]}
//   has goal = x and options.0 = a. `prepare` may add fields. In contexts and continuations {field} is
//   replaced. ./tasks shuffles documents by Python's generator with seed 42, which then draws their shots.
#pragma once
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include "../../layers/base/arguments.h"
#include "python_random.h"
#include "python_text.h"

struct TaskDocument {
    std::string where;  // file and line, to name it by
    long line;          // or number of the file in its folder
    std::string raw;    // the record as read; documents with equal ones are the same
    std::map<std::string, std::string> fields;
    std::set<std::string> numbers = {};  // fields that are numbers or booleans, not text
    std::string& at(const std::string& name) {
        auto found = fields.find(name);
        if (found == fields.end())
            fail("%s: has no \"%s\": is this the task's file?", where.c_str(), name.c_str());
        return found->second;
    }
};

enum class Records { Lines, Table, Folder };  // JSON lines; tab-separated with a header; a JSON file each

struct TaskForm {
    const char *task, *form = "";  // form "": the harness's of autumn 2021
    int version = 0;               // as the harness counts
    Records records = Records::Lines;
    // files in the task's folder (a|b: either); a second one holds labels. No train: shots come from `files`
    std::vector<const char*> files, train = {};
    void (*prepare)(TaskDocument&) = nullptr;     // adds fields
    std::vector<const char*> contexts;            // one for all continuations, or one for each
    std::vector<const char*> continuations = {};  // none: the document's own, continuations.0, …
    const char* gold = nullptr;                   // field that holds…
    std::vector<const char*> labels = {};   // …one of these, in the order of continuations; none: a number
    const char* metric = "choice";          // or greedy: is the continuation what greedy decoding gives?
    bool normalised = false;                // accuracy by characters as well
    std::vector<const char*> groups = {};   // accuracy is also reported by value of these (at most two)
    const char* prior = nullptr;            // a neutral context: probabilities are divided by those after it
    // fields with the questions, for decontamination; name. means name.0, name.1, …; given only in form ""
    std::vector<const char*> questions = {};
};

// ---- what a document's fields are made into --------------------------------------------------------------

// all but the last word, and that word
inline void prepare_lambada(TaskDocument& d) {
    std::string& all = d.at("text");
    size_t blank = all.rfind(' ');
    if (blank == all.npos || blank + 1 == all.size())
        fail("%s: the text is empty or has no last word after a blank", d.where.c_str());
    d.fields["before"] = all.substr(0, blank);
    d.fields["last"] = all.substr(blank + 1);
}

// drops what is in brackets: remnants of WikiHow's markup
inline std::string clean_hellaswag(const std::string& given, const std::string& where) {
    std::string s = replace_all(python_strip(given, where), " [title]", ". "), out;
    size_t next = 0;  // the bracket or end of line behind the last [ that was looked at
    for (size_t i = 0; i < s.size(); i++) {
        if (s[i] == '[' && next <= i) next = std::min(s.find_first_of("]\n", i), s.size());
        if (s[i] == '[' && next < s.size() && s[next] == ']') i = next;
        else out += s[i];
    }
    return replace_all(out, "  ", " ");
}

inline void prepare_hellaswag(TaskDocument& d) {
    d.fields["query"] = clean_hellaswag(
        d.at("activity_label") + ": " + d.at("ctx_a") + " " + python_capitalize(d.at("ctx_b"), d.where),
        d.where);
    for (int i = 0; i < 4; i++) {
        std::string& ending = d.at(text("endings.%d", i));
        ending = clean_hellaswag(ending, d.where);
    }
}

// what stands before the gap, and what follows it
inline void prepare_winogrande(TaskDocument& d) {
    std::string& all = d.at("sentence");
    size_t gap = all.find('_');
    if (gap == all.npos) fail("%s: the sentence has no gap _", d.where.c_str());
    d.fields["before"] = all.substr(0, gap);
    d.fields["after"] = python_strip(all.substr(gap + 1), d.where);
}

// the word as it stands in the first sentence; positions count characters
inline void prepare_wic(TaskDocument& d) {
    std::vector<uint32_t> codes = code_points(d.at("sentence1"), d.where);
    auto place = [&](const char* name) -> size_t {
        const std::string& digits = d.at(name);
        bool good =
            !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == digits.npos;
        if (!good) fail("%s: has %s \"%s\", expected a whole number", d.where.c_str(), name, digits.c_str());
        return (size_t)atol(digits.c_str());
    };
    size_t start = place("start1"), end = place("end1");
    if (start > end || end > codes.size())
        fail("%s: start1 %zu and end1 %zu are not within sentence1", d.where.c_str(), start, end);
    d.fields["word_there"] = from_code_points({codes.begin() + (long)start, codes.begin() + (long)end});
}

// HANS's files have a blank before the full stop; MT-NLG's announcement (figure 4) has none
inline void prepare_published_hans(TaskDocument& d) {
    for (const char* name : {"sentence1", "sentence2"}) {
        const std::string& sentence = d.at(name);
        if (sentence.ends_with(" .")) d.fields[name] = sentence.substr(0, sentence.size() - 2) + ".";
    }
}

// the article, all problems but the last with their answers, and the last question. If a question ends in a
// gap, form filled puts the answer into it; the harness drops the question, and keeps only gap and answer
inline void prepare_race(TaskDocument& d, bool filled) {
    std::string out = "Article: " + d.at("article") + "\n\n";
    int last = 0;
    while (d.fields.count(text("questions.%d", last + 1))) last++;
    for (auto& more :
         {text("answers.%d", last + 1), text("options.%d.0", last + 1), std::string("options.0.4")})
        if (d.fields.count(more))
            fail("%s: has %s, expected an answer and four options for each of %d questions", d.where.c_str(),
                 more.c_str(), last + 1);

    for (int i = 0; i <= last; i++) {
        const std::string &question = d.at(text("questions.%d", i)), &letter = d.at(text("answers.%d", i));
        if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D')
            fail("%s: answer %d is \"%s\", expected A, B, C or D", d.where.c_str(), i + 1, letter.c_str());
        const std::string& answer = d.at(text("options.%d.%d", i, letter[0] - 'A'));
        if (i == last) {
            out += question;
            d.fields["answer"] = letter;
        } else if (question.ends_with("  _  ."))
            out += (filled ? question.substr(0, question.size() - 5) : question.substr(question.size() - 5)) +
                   answer + "\n";
        else out += "Question: " + question + "\nAnswer: " + answer + "\n";
    }
    d.fields["problems"] = out;
    for (int i = 0; i < 4; i++) d.fields[text("option.%d", i)] = d.at(text("options.%d.%d", last, i));
}

// one's own requests have these fields and no others
inline void check_fields(TaskDocument& d) {
    int items = 0;
    for (auto& [name, value] : d.fields) {
        if (name == "continuations")
            fail("%s: \"continuations\": expected an array of strings", d.where.c_str());
        bool is_item = name.starts_with("continuations.");
        items += is_item;
        if (name != "context" && name != "gold" && name != "group" && !is_item)
            fail("%s: \"%s\": is not context, continuations, gold or group", d.where.c_str(), name.c_str());
        bool is_number = d.numbers.count(name) && name != "gold" && name != "group";
        if (is_number) fail("%s: \"%s\": expected a string", d.where.c_str(), name.c_str());
    }

    int strings = 0;  // continuations.0, continuations.1, …: not continuations.1.0, of a list within
    while (d.fields.count(text("continuations.%d", strings))) strings++;
    if (strings != items)
        fail("%s: \"continuations\": expected an array of strings, has another item", d.where.c_str());
}

// ---- the table -------------------------------------------------------------------------------------------

// A new multiple-choice task is one more entry: where its records lie, how they are worded, which is right.
using Words = std::vector<const char*>;
inline const Words race_options = {" {option.0}", " {option.1}", " {option.2}", " {option.3}"};
inline const Words letters = {"A", "B", "C", "D"}, yes_no = {" yes", " no"}, truth = {"true", "false"};
inline const std::vector<TaskForm> task_table = {
    {.task = "lambada", .files = {"lambada_test.jsonl"}, .prepare = prepare_lambada,
     .contexts = {"{before}"}, .continuations = {" {last}"}, .metric = "greedy", .questions = {"text"}},
    {.task = "lambada", .form = "cloze", .files = {"lambada_test.jsonl"}, .prepare = prepare_lambada,
     .contexts = {"{before} ____. ->"}, .continuations = {" {last}"}, .metric = "greedy"},
    {.task = "lambada", .form = "mtnlg", .files = {"lambada_test.jsonl"}, .prepare = prepare_lambada,
     .contexts = {"{before} ____. →"}, .continuations = {" {last}"}, .metric = "greedy"},

    {.task = "race", .records = Records::Folder, .files = {"test/high|test"}, .train = {"train/high|train"},
     .prepare = [](TaskDocument& d) { prepare_race(d, false); },
     .contexts = {"{problems}"}, .continuations = race_options, .gold = "answer", .labels = letters,
     .questions = {"questions."}},
    {.task = "race", .form = "filled", .records = Records::Folder, .files = {"test/high|test"},
     .train = {"train/high|train"}, .prepare = [](TaskDocument& d) { prepare_race(d, true); },
     .contexts = {"{problems}"}, .continuations = race_options, .gold = "answer", .labels = letters},
    {.task = "race", .form = "mtnlg", .records = Records::Folder, .files = {"test/high|test"},
     .train = {"train/high|train"}, .prepare = [](TaskDocument& d) { prepare_race(d, true); },
     .contexts = {"{problems}\nAnswer:"}, .continuations = race_options, .gold = "answer", .labels = letters,
     .prior = "Answer:"},

    {.task = "boolq", .files = {"val.jsonl"}, .train = {"train.jsonl"},
     .contexts = {"{passage}\nQuestion: {question}\nAnswer:"}, .continuations = yes_no, .gold = "label",
     .labels = truth, .questions = {"question"}},
    {.task = "boolq", .form = "v1", .version = 1, .files = {"val.jsonl"}, .train = {"train.jsonl"},
     .contexts = {"{passage}\nQuestion: {question}?\nAnswer:"}, .continuations = yes_no, .gold = "label",
     .labels = truth},

    {.task = "piqa", .files = {"valid.jsonl", "valid-labels.lst"},
     .train = {"train.jsonl", "train-labels.lst"},
     .contexts = {"Question: {goal}\nAnswer:"}, .continuations = {" {sol1}", " {sol2}"}, .gold = "label",
     .labels = {"0", "1"}, .normalised = true, .questions = {"goal"}},

    {.task = "hellaswag", .files = {"hellaswag_val.jsonl"}, .train = {"hellaswag_train.jsonl"},
     .prepare = prepare_hellaswag, .contexts = {"{query}"},
     .continuations = {" {endings.0}", " {endings.1}", " {endings.2}", " {endings.3}"},
     .gold = "label", .labels = {"0", "1", "2", "3"}, .normalised = true, .questions = {"ctx"}},

    {.task = "winogrande", .files = {"dev.jsonl"}, .train = {"train_xl.jsonl"},
     .prepare = prepare_winogrande, .contexts = {"{before}{option1}", "{before}{option2}"},
     .continuations = {" {after}", " {after}"}, .gold = "answer", .labels = {"1", "2"},
     .questions = {"sentence"}},

    {.task = "anli-r2", .files = {"test.jsonl"}, .train = {"train.jsonl"},
     .contexts = {"{context}\nQuestion: {hypothesis} True, False, or Neither?\nAnswer:"},
     .continuations = {" True", " Neither", " False"}, .gold = "label", .labels = {"e", "n", "c"},
     .questions = {"hypothesis"}},

    {.task = "hans", .records = Records::Table, .files = {"heuristics_evaluation_set.txt"},
     .contexts = {"{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:"},
     .continuations = {" True", " False"}, .gold = "gold_label", .labels = {"entailment", "non-entailment"},
     .groups = {"heuristic", "subcase"}, .questions = {"sentence1", "sentence2"}},
    {.task = "hans", .form = "mtnlg", .records = Records::Table, .files = {"heuristics_evaluation_set.txt"},
     .prepare = prepare_published_hans, .contexts = {"{sentence1}\nQuestion: {sentence2} True or False?\n"},
     .continuations = {"True", "False"}, .gold = "gold_label", .labels = {"entailment", "non-entailment"},
     .groups = {"heuristic", "subcase"}},

    {.task = "wic", .files = {"val.jsonl"}, .train = {"train.jsonl"}, .prepare = prepare_wic,
     .contexts = {"Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: Is the word '{word_there}' "
                  "used in the same way in the two sentences above?\nAnswer:"},
     .continuations = yes_no, .gold = "label", .labels = truth, .questions = {"sentence1", "sentence2"}},

    // a user's own: {"context": "…", "continuations": ["…", …], "gold": 0, "group": "…"} a line
    {.task = "requests", .files = {"requests.jsonl"},
     .prepare = check_fields, .contexts = {"{context}"}, .gold = "gold",
     .normalised = true, .groups = {"group"}, .questions = {"context"}},
};

inline const TaskForm& find_task(const std::string& task, const std::string& form) {
    std::vector<std::string> names, forms;
    for (auto& t : task_table) {
        if (task == t.task && form == t.form) return t;
        if (task == t.task) forms.push_back(*t.form ? t.form : "(none)");
        names.push_back(t.task);
    }
    if (forms.empty())
        fail("--task %s: unknown; did you mean %s? (--help lists all)", task.c_str(),
             nearest(task, names).c_str());
    std::string all;
    for (auto& f : forms) all += " " + f;
    fail("--form %s: %s has%s", form.c_str(), task.c_str(), all.c_str());
}

// ---- reading ---------------------------------------------------------------------------------------------

// null, or an empty list, counts as absent in an object, and is refused in a list, where it would shift the
// items after it
inline void flatten(TaskDocument& d, const std::string& name, const Json& value) {
    for (size_t i = 0; i < value.items.size(); i++) {
        const Json& item = value.items[i];
        bool is_list = item.kind == Json::Array || item.kind == Json::Object;
        if (item.kind == Json::Null || (is_list && item.items.empty() && item.members.empty()))
            fail("%s: \"%s\" has %s as its item %zu", d.where.c_str(), name.c_str(),
                 is_list ? "an empty list" : "null", i + 1);
        flatten(d, text("%s.%zu", name.c_str(), i), value.items[i]);
    }
    if (value.kind == Json::Array || value.kind == Json::Object || value.kind == Json::Null) return;
    d.fields[name] = value.text;
    if (value.kind != Json::String) d.numbers.insert(name);
}

inline TaskDocument parse_document(std::string_view text, const std::string& where, long line) {
    Json json = Json::parse(text, where);
    if (json.kind != Json::Object) fail("%s: expected a JSON object", where.c_str());
    TaskDocument d = {where, line, std::string(text), {}};
    for (auto& [key, value] : json.members) flatten(d, key, value);
    return d;
}

// calls line(text, where, number) for each line; empty lines are refused, except at the end
template <class Line>
void each_line(const WholeFile& file, Line line) {
    std::string_view all = file.text();
    while (!all.empty() && (all.back() == '\n' || all.back() == '\r')) all.remove_suffix(1);
    if (all.empty()) fail("%s: is empty", file.path.c_str());

    for (size_t at = 0, number = 1; at <= all.size(); number++) {
        size_t end = std::min(all.find('\n', at), all.size());
        std::string_view one = all.substr(at, end - at);
        if (one.ends_with('\r')) one.remove_suffix(1);
        std::string where = text("%s line %zu", file.path.c_str(), number);
        if (one.empty()) fail("%s: is an empty document", where.c_str());
        code_points(one, where);  // all must be UTF-8
        line(one, where, (long)number);
        at = end + 1;
    }
}

// the path of "a|b" in a folder, whichever is there
inline std::string which_path(const std::string& folder, const char* names) {
    std::string first, rest = names;
    while (!rest.empty()) {
        std::string name = rest.substr(0, rest.find('|'));
        rest = name.size() == rest.size() ? "" : rest.substr(name.size() + 1);
        std::string path = folder + "/" + name;
        if (std::filesystem::exists(path)) return path;
        if (first.empty()) first = path;
    }
    return first;
}

inline std::vector<TaskDocument> read_table(const std::string& path) {
    std::vector<TaskDocument> out;
    std::vector<std::string> header;
    each_line(WholeFile(path), [&](std::string_view line, const std::string& where, long number) {
        std::vector<std::string> cells;
        for (size_t at = 0; at <= line.size();) {
            size_t end = std::min(line.find('\t', at), line.size());
            cells.emplace_back(line.substr(at, end - at));
            at = end + 1;
        }

        if (header.empty()) {
            for (auto& name : header = cells)
                if (std::count(cells.begin(), cells.end(), name) > 1)
                    fail("%s: has two columns \"%s\"", where.c_str(), name.c_str());
            return;
        }

        if (cells.size() != header.size())
            fail("%s: has %zu columns, the header %zu", where.c_str(), cells.size(), header.size());
        out.push_back({where, number, std::string(line), {}});
        for (size_t i = 0; i < cells.size(); i++) out.back().fields[header[i]] = cells[i];
    });
    if (out.empty()) fail("%s: has a header but no document", path.c_str());
    return out;
}

// files of a folder in the order of their names; articles that are equal become one document
inline std::vector<TaskDocument> read_folder(const std::string& folder) {
    std::vector<std::string> paths;
    std::error_code e;
    for (auto& entry : std::filesystem::directory_iterator(folder, e))
        if (entry.path().extension() == ".txt") paths.push_back(entry.path());
    if (e || paths.empty())
        fail("%s: has no .txt files: expected RACE's folder with test and train", folder.c_str());

    std::sort(paths.begin(), paths.end());
    std::vector<TaskDocument> out;
    std::map<std::string, size_t> known;
    for (auto& path : paths) {
        WholeFile file(path);
        TaskDocument d = parse_document(file.text(), path, &path - paths.data() + 1);
        auto [at, is_new] = known.emplace(d.at("article"), out.size());
        if (is_new) {
            out.push_back(d);
            continue;
        }

        TaskDocument& same = out[at->second];
        int had = 0;
        while (same.fields.count(text("questions.%d", had))) had++;
        same.raw += d.raw;
        for (auto& [name, value] : d.fields)  // questions.0 -> questions.3, options.0.2 -> options.3.2
            if (size_t dot = name.find('.'); dot != name.npos) {
                size_t next = std::min(name.find('.', dot + 1), name.size());
                int number = atoi(name.substr(dot + 1, next - dot - 1).c_str());
                same.fields[name.substr(0, dot + 1) + std::to_string(number + had) + name.substr(next)] =
                    value;
            }
    }
    return out;
}

// the files that read_task() reads; from, here and below: the task's folder, or its one file
inline std::vector<std::string> files_of(const TaskForm& task, const std::string& from) {
    if (!std::filesystem::is_directory(from)) return {from};
    std::vector<std::string> out;
    for (auto* names : {&task.files, &task.train})
        for (auto* name : *names) out.push_back(which_path(from, name));
    return out;
}

inline std::vector<TaskDocument> read_task(const TaskForm& task, const std::string& from, bool train) {
    const auto& names = train ? task.train : task.files;
    bool folder = std::filesystem::is_directory(from);
    if (!folder && (train || names.size() > 1 || task.records == Records::Folder))
        fail("--from %s: expected the folder that holds %s", from.c_str(), names.back());
    std::string path = folder ? which_path(from, names[0]) : from;

    std::vector<TaskDocument> out;
    if (task.records == Records::Folder) out = read_folder(path);
    else if (task.records == Records::Table) out = read_table(path);
    else
        each_line(WholeFile(path), [&](std::string_view line, const std::string& where, long number) {
            out.push_back(parse_document(line, where, number));
        });

    if (names.size() > 1) {
        std::string labels = which_path(from, names[1]);
        size_t n = 0;
        each_line(WholeFile(labels), [&](std::string_view line, const std::string& where, long) {
            if (n == out.size())
                fail("%s: has more labels than %s has documents (%zu)", where.c_str(), path.c_str(), n);
            out[n++].fields[task.gold] = std::string(line);
        });
        if (n < out.size())
            fail("%s: has %zu labels, %s has %zu documents", labels.c_str(), n, path.c_str(), out.size());
    }
    if (task.prepare) for (auto& d : out) task.prepare(d);
    return out;
}

// ---- rendering -------------------------------------------------------------------------------------------

inline std::string fill(const char* form, TaskDocument& d) {
    std::string out, s = form;
    for (size_t at = 0;;) {
        size_t open = s.find('{', at);
        out.append(s, at, open == s.npos ? open : open - at);
        if (open == s.npos) return out;
        size_t close = s.find('}', open);
        std::string name = s.substr(open + 1, close - open - 1);
        if (d.numbers.count(name)) fail("%s: \"%s\": expected a string", d.where.c_str(), name.c_str());
        out += d.at(name);
        at = close + 1;
    }
}

struct TaskRequest { std::string context, continuation; };

inline int gold_of(const TaskForm& task, TaskDocument& d, size_t choices) {
    if (!task.gold) return 0;
    if (task.labels.empty() && !d.fields.count(task.gold))
        return -1;  // one's own: only likelihoods are asked for
    if (!d.fields.count(task.gold)) fail("%s: has no label \"%s\"", d.where.c_str(), task.gold);
    const std::string& label = d.fields[task.gold];
    std::string known;
    for (size_t i = 0; i < choices; i++) {
        std::string name = task.labels.empty() ? std::to_string(i) : task.labels[i];
        if (name == label) return (int)i;
        known += " " + name;
    }
    fail("%s: has label \"%s\", expected one of%s", d.where.c_str(), label.c_str(), known.c_str());
}

// a document's own requests, without shots
inline std::vector<TaskRequest> render(const TaskForm& task, TaskDocument& d) {
    std::vector<std::string> continuations;
    for (auto* c : task.continuations) continuations.push_back(fill(c, d));
    for (int i = 0; task.continuations.empty() && d.fields.count(text("continuations.%d", i)); i++)
        continuations.push_back(d.fields[text("continuations.%d", i)]);
    if (continuations.empty()) fail("%s: has no \"continuations\"", d.where.c_str());
    std::vector<TaskRequest> out;
    for (size_t i = 0; i < continuations.size(); i++) {
        out.push_back({fill(task.contexts[task.contexts.size() == 1 ? 0 : i], d), continuations[i]});
        if (continuations[i].empty()) fail("%s: continuation %zu is empty", d.where.c_str(), i + 1);
    }
    return out;
}

// a document as an example: its text with the answer
inline std::string render_shot(const TaskForm& task, TaskDocument& d) {
    std::vector<TaskRequest> all = render(task, d);
    int right = gold_of(task, d, all.size());
    if (right < 0)
        fail("%s: has no \"gold\", which --shots need: say which continuation is right", d.where.c_str());
    return all[(size_t)right].context + all[(size_t)right].continuation;
}
