// test_tasks.h   checks of the tasks: wording, order, shots, evaluation files
#pragma once
#include "../../layers/base/testing.h"
#include "evaluation.h"
#include "sha256.h"
#include "tasks.h"

// requests of (context, continuation) tokens; equal contexts are one
EvalFile requests_of(const std::vector<std::vector<std::pair<std::vector<int>, std::vector<int>>>>& documents,
                     int V) {
    EvalFile e;
    e.path = "a test";
    e.task = "piqa";
    e.metric = "choice";
    e.vocabulary_name = "bytes";
    e.hash = "-";
    e.from = "a file";
    e.vocabulary = V;
    e.normalised = true;

    std::map<std::vector<int>, int64_t> known;
    auto add = [&](const std::vector<int>& tokens) {
        auto [at, is_new] = known.emplace(tokens, (int64_t)e.tokens.size());
        if (is_new) e.tokens.insert(e.tokens.end(), tokens.begin(), tokens.end());
        return at->second;
    };

    for (auto& d : documents) {
        e.documents.push_back(
            {(int64_t)e.requests.size(), (int64_t)d.size(), 0, {-1, -1}, (int64_t)e.documents.size() + 1});
        for (auto& [context, own] : d) {
            int64_t a = add(context), b = add(own);
            e.requests.push_back({a, (int64_t)context.size(), b, (int64_t)own.size(), (int64_t)own.size()});
        }
    }

    return e;
}

void test_tasks() {
    PythonRandom random(42);  // as CPython 3 prints
    bool good = true;
    for (uint32_t want : {2746317213u, 478163327u, 107420369u, 3184935163u})
        good = good && random.next() == want;
    check(good, "random.Random(42).getrandbits(32)");
    random = PythonRandom(42);
    std::vector<int> ten = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    random.shuffle(ten);
    check(ten == std::vector<int>({7, 3, 2, 8, 5, 6, 9, 4, 0, 1}) &&
              random.sample(100, 5) == std::vector<uint32_t>({75, 54, 4, 3, 11}),
          "shuffle, then sample from a set");
    Sha256 sum, empty;
    for (char c : std::string(1000, 'a')) sum.add(std::string(1, c));
    check(empty.digits() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" &&
              sum.digits() == "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3",
          "SHA-256 (FIPS 180-4)");
    check(python_json("a\"\\/\n\x7f\xc3\xa9\xf0\x9f\x98\x80", "x") ==
              "\"a\\\"\\\\/\\n\\u007f\\u00e9\\ud83d\\ude00\"",
          "as json.dumps writes it");
    refuses("here: has a byte 0xff that is not UTF-8, 1 bytes into a text",
            [] { python_json("a\xff", "here"); });
    check(python_capitalize("tHE \xc3\x89T\xc3\x89", "") == "The \xc3\xa9t\xc3\xa9" &&
              python_strip("\xc2\xa0 a b\x1c\n", "") == "a b" &&
              python_capitalize("\xc3\xa9", "") == "\xc3\x89",
          "capitalize and strip");

    auto rendered = [](const char* task, const char* form, const std::string& line) {
        const TaskForm& t = find_task(task, form);
        TaskDocument d = parse_document(line, "a test", 1);
        if (t.prepare) t.prepare(d);
        std::string out;
        std::vector<TaskRequest> all = render(t, d);
        for (auto& r : all) out += r.context + "|" + r.continuation + "\n--\n";
        return out + std::to_string(gold_of(t, d, all.size()));
    };

    check(rendered("lambada", "", R"({"text": "a b  c d."})") == "a b  c| d.\n--\n0", "LAMBADA");
    check(rendered("lambada", "cloze", R"({"text": "a b"})") == "a ____. ->| b\n--\n0", "LAMBADA as a cloze");
    check(rendered("boolq", "", R"({"question": "is it", "passage": "P.", "label": false})") ==
          "P.\nQuestion: is it\nAnswer:| yes\n--\nP.\nQuestion: is it\nAnswer:| no\n--\n1", "BoolQ");
    check(rendered("boolq", "v1", R"({"question": "q", "passage": "P", "label": true})")
                  .find("q?\nAnswer:| yes") != std::string::npos,
          "BoolQ, version 1");
    check(rendered("piqa", "", R"({"goal": "g", "sol1": "s ", "sol2": "t", "label": 1})") ==
          "Question: g\nAnswer:| s \n--\nQuestion: g\nAnswer:| t\n--\n1", "PiQA");
    check(
        rendered("hellaswag", "",
                 R"({"activity_label": "Do it", "ctx_a": "[header] A [title] b  c.", "ctx_b": "the Man",
          "endings": [" a [x] b", "[title] c", "d", "e"], "label": 2})") ==
            "Do it: A. b c. The man| a b\n--\nDo it: A. b c. The man|  c\n--\nDo it: A. b c. The man| d\n--\n"
            "Do it: A. b c. The man| e\n--\n2",
        "HellaSwag");
    check(rendered(
              "winogrande", "",
              R"({"sentence": "X told Y that _ is _. ", "option1": "X", "option2": "Y", "answer": "2"})") ==
              "X told Y that X| is _.\n--\nX told Y that Y| is _.\n--\n1",
          "WinoGrande");
    check(rendered("anli-r2", "", R"({"context": "p", "hypothesis": "h.", "label": "n"})")
                  .starts_with("p\nQuestion: h. True, False, or Neither?\nAnswer:| True\n--\n") &&
              rendered("anli-r2", "", R"({"context": "p", "hypothesis": "h.", "label": "n"})")
                  .ends_with("Answer:| False\n--\n1"),
          "ANLI");
    check(rendered("wic", "", R"({"word": "go", "sentence1": "\u00e9 went", "sentence2": "b", "start1": 2,
          "end1": 6, "label": true})").starts_with("Sentence 1: \xc3\xa9 went\nSentence 2: b\nQuestion: Is "
          "the word 'went' used in the same way in the two sentences above?\nAnswer:| yes\n--\n"), "WiC");
    std::string banker = R"({"sentence1": "The banker forgot that the judge advised the professors .",
        "sentence2": "The judge advised the professors .", "gold_label": "non-entailment", "heuristic": "s",
        "subcase": "t"})";
    check(rendered("hans", "", banker)
              .starts_with("The banker forgot that the judge advised the professors .\nQuestion: The judge "
                           "advised the professors . True or False?\nAnswer:| True\n--\n"),
          "HANS");
    check(rendered("hans", "mtnlg", banker) ==
              "The banker forgot that the judge advised the professors.\nQuestion: The judge advised the "
              "professors. True or False?\n|True\n--\nThe banker forgot that the judge advised the "
              "professors.\nQuestion: The judge advised the professors. True or False?\n|False\n--\n1",
          "HANS as the announcement words it");
    std::string race =
        R"({"article": "A.", "questions": ["It is  _  .", "Why?", "Who?"], "answers": ["B", "A", "D"],
        "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"], ["i", "j", "k", "l"]]})";
    check(rendered("race", "", race)
                  .starts_with("Article: A.\n\n _  .b\nQuestion: Why?\nAnswer: e\nWho?| i\n--\n") &&
              rendered("race", "", race).ends_with("| l\n--\n3"),
          "RACE");
    check(rendered("race", "filled", race).starts_with("Article: A.\n\nIt is b\nQuestion: Why?"),
          "RACE, gaps filled");
    check(rendered("requests", "", R"({"context": "c", "continuations": [" a", " b"], "gold": 1})") ==
              "c| a\n--\nc| b\n--\n1",
          "one's own");

    // files: HANS's table, RACE's folder with one article in two files, PiQA's labels
    fs::path folder = scratch_folder + "/tasks";
    fs::create_directories(folder / "test");
    std::string where = folder;
    write_file(where + "/heuristics_evaluation_set.txt",
               "gold_label\tsentence1\tsentence2\theuristic\tsubcase\n"
               "non-entailment\tThe a .\tThe b .\tlexical_overlap\tln_x\n");
    const TaskForm& hans = find_task("hans", "");
    std::vector<TaskDocument> docs = read_task(hans, where, false);
    check(docs.size() == 1 &&
              render(hans, docs[0])[1].context == "The a .\nQuestion: The b . True or False?\nAnswer:" &&
              gold_of(hans, docs[0], 2) == 1,
          "HANS");
    for (const char* name : {"9.txt", "10.txt"})
        write_file(where + "/test/" + name,
                   R"({"article": "A", "questions": [")" + std::string(name) +
                       R"("], "answers": ["A"], "options": [["a", "b", "c", "d"]]})");
    docs = read_task(find_task("race", ""), where, false);
    check(
        docs.size() == 1 && docs[0].fields["problems"] == "Article: A\n\nQuestion: 10.txt\nAnswer: a\n9.txt",
        "RACE: one document an article");
    write_file(where + "/valid.jsonl", R"({"goal": "g", "sol1": "a", "sol2": "b"})" "\n"
               R"({"goal": "h", "sol1": "a", "sol2": "b"})" "\n");

    auto labels = [&](const char* text) {
        write_file(where + "/valid-labels.lst", text);
        read_task(find_task("piqa", ""), where, false);
    };
    refuses("has 1 labels, " + where + "/valid.jsonl has 2 documents", [&] { labels("0\n"); });
    refuses("valid-labels.lst line 3: has more labels", [&] { labels("0\n1\n1\n"); });
    refuses("valid-labels.lst line 2: is an empty document", [&] { labels("0\n\n1\n"); });

    refuses("valid.jsonl line 1: has label \"2\", expected one of 0 1", [&] {
        labels("2\n1\n");
        docs = read_task(find_task("piqa", ""), where, false);
        gold_of(find_task("piqa", ""), docs[0], 2);
    });

    refuses("is this the task's file?", [&] {
        docs = read_task(find_task("boolq", ""), where + "/valid.jsonl", false);
        render(find_task("boolq", ""), docs[0]);
    });
    for (const char* none : {R"({"text": ""})", R"({"text": "a b "})"})
        refuses("the text is empty or has no last word", [&] { rendered("lambada", "", none); });
    refuses("has options.0.4, expected an answer and four options", [&] {
        rendered("race", "", R"({"article": "A.", "questions": ["Why?"], "answers": ["B"],
            "options": [["a", "b", "c", "d", "e"]]})");
    });
    refuses("has no label \"label\"", [&] { rendered("boolq", "", R"({"question": "q", "passage": "P"})"); });
    refuses("did you mean piqa", [&] { find_task("pica", ""); });
    refuses("--form v2: boolq has (none) v1", [&] { find_task("boolq", "v2"); });
    EvalFile file = requests_of({{{{1, 2}, {3}}}}, 9);
    std::string path = where + "/x.eval";
    file.save(path);
    EvalFile back = EvalFile::open(path);
    check(back.tokens == file.tokens && back.task == "piqa" && back.documents.size() == 1 && back.normalised,
          "an evaluation file");
    std::string bytes(MappedFile(path).view());

    auto spoilt = [&](const std::string& text) {
        write_file(path, text);
        EvalFile::open(path);
    };
    refuses("is not an evaluation file", [&] { spoilt("GPTTOKEN"); });
    refuses("not what its header says", [&] { spoilt(bytes.substr(0, bytes.size() - 1)); });
    bytes[bytes.size() - 1] ^= 1;
    refuses("damaged: its checksum differs", [&] { spoilt(bytes); });
    bytes[20] ^= 1;
    refuses("the header's checksum differs", [&] { spoilt(bytes); });
    file.requests[0].context_tokens = 4;
    file.save(path);
    refuses("continuation 0 is inconsistent", [&] { EvalFile::open(path); });
    file = requests_of({{{{1, 2}, {3}}, {{1, 2}, {4}}}}, 9);
    file.priors = true;  // then the second continuation is the first one behind a neutral context
    file.documents[0].gold = 1;
    file.save(path);
    refuses("document 0 is inconsistent", [&] { EvalFile::open(path); });
    file = requests_of({{{{1, 2}, {9}}}}, 9);
    file.save(path);
    refuses("has a token 9, its vocabulary has 9", [&] { EvalFile::open(path); });
}
