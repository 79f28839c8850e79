// arguments.h   the one option parser; every program describes its options in a table and parses with it
//   On the command line an option is `--NAME VALUE`; in a file of options it is a line `NAME VALUE`, where #
//   begins a comment. The table also makes --help, the printed settings and what checkpoints record.
//   An unknown name is answered with the nearest one, a bad value with what is accepted.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>
#include "check.h"
#include "file_writer.h"

constexpr const char* program_version = "1.0.0";  // of all programs; checkpoints record it

struct OptionForm {
    enum Kind { Text, List, Number, Whole, Flag };  // Whole: an integer
    const char* name;
    Kind kind;
    const char* help;
    const char* value = "";  // the default, as text
    double least = 0, most = 9e15;
    const char* bare = nullptr;  // the value if the option is given without one
    bool takes_auto = false;
};

// Form: OptionForm, or what a program derives from it
template <class Form>
struct GivenOption {
    const Form* form;
    std::vector<std::string> values;
};

// edits from a to b: insertions, deletions, replacements, and swaps of neighbours
inline int edit_distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<int>> edits(a.size() + 1, std::vector<int>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); i++)
        for (size_t j = 0; j <= b.size(); j++) {
            if (!i || !j) {
                edits[i][j] = (int)(i + j);
                continue;
            }
            edits[i][j] = std::min({edits[i - 1][j - 1] + (a[i - 1] != b[j - 1]), edits[i - 1][j] + 1,
                                    edits[i][j - 1] + 1});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
        }
    return edits[a.size()][b.size()];
}

// "1", "1 or 2", "1, 2 or 4"
inline std::string alternatives(const std::vector<std::string>& all) {
    std::string out;
    for (size_t i = 0; i < all.size(); i++)
        out += (i == 0 ? "" : i + 1 < all.size() ? ", " : " or ") + all[i];
    return out;
}

inline std::string nearest(const std::string& word, const std::vector<std::string>& known) {
    return *std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(word, a) < edit_distance(word, b);
    });
}

inline double parse_number(const std::string& name, const std::string& value, double least, bool whole) {
    char* end = nullptr;
    errno = 0;
    double x = strtod(value.c_str(), &end);
    bool number = !value.empty() && *end == 0 && errno == 0 && std::abs(x) < 9e15;
    if (!number || (whole && x != (double)(long)x) || x < least)
        fail("--%s %s: expected %s from %g to below 9e15", name.c_str(), value.c_str(),
             whole ? "a whole number" : "a number", least);
    return x;
}

// what PyTorch's users, nanoGPT and Megatron-LM call some options
inline std::string name_elsewhere(const std::string& name) {
    static const std::map<std::string, std::string> names = {
        {"lr", "learning-rate"}, {"max-lr", "learning-rate"}, {"min-lr", "min-learning-rate"},
        {"batch-size", "batch"}, {"bs", "batch"},
        {"global-batch-size", "batch"}, {"micro-batch-size", "micro-batch"},
        {"n-layer", "layers"}, {"num-layers", "layers"}, {"n-embd", "hidden"}, {"hidden-size", "hidden"},
        {"n-head", "heads"}, {"num-attention-heads", "heads"}, {"block-size", "sequence"},
        {"seq-length", "sequence"}, {"seq-len", "sequence"}, {"vocab-size", "vocabulary"},
        {"max-iters", "steps"}, {"max-steps", "steps"}, {"train-iters", "steps"}, {"data", "train"},
        {"data-path", "train"}, {"dataset", "train"}, {"tp", "tensor-parallel"}, {"pp", "pipeline-parallel"},
        {"tensor-model-parallel-size", "tensor-parallel"},
        {"pipeline-model-parallel-size", "pipeline-parallel"}, {"grad-clip", "clip"}, {"clip-grad", "clip"},
        {"eval-interval", "evaluate-every"}, {"save-interval", "save-every"}, {"load", "resume"},
        {"out-dir", "save"}, {"prompt", "generate"}, {"max-new-tokens", "sample-tokens"},
        {"vocab", "vocabulary"}, {"max-tokens", "sample-tokens"}, {"eval-iters", "evaluate-sequences"},
        {"resume-from", "resume"}, {"checkpoint", "resume"}, {"init-from", "resume"},
        {"max-seq-len", "sequence"}, {"gradient-clipping", "clip"}, {"dp", ""}, {"threads", ""},
        {"nodes", ""}, {"epochs", ""}, {"dropout", ""}};  // "": there is nothing like it
    std::string spelt = name;
    std::replace(spelt.begin(), spelt.end(), '_', '-');
    auto found = names.find(spelt);
    return found == names.end() ? spelt : found->second;
}

// where: "" for the command line, else "FILE line N: "
template <class Form>
const Form& find_form(const std::vector<Form>& forms, const std::string& name,
                      const std::string& where = "") {
    std::vector<std::string> known;
    for (auto& form : forms) {
        if (name == form.name) return form;
        known.push_back(form.name);
    }
    for (const char* built : {"precision", "dtype", "bf16", "fp16", "device"})
        if (name == built)
            fail("%s--%s: device and precision are chosen when the program is built: make DEVICE=cpu "
                 "PRECISION=bf16", where.c_str(), built);
    std::string meant = name_elsewhere(name), near = nearest(meant, known);
    bool is_near = !meant.empty() && edit_distance(meant, near) <= std::max(2, (int)meant.size() / 2);
    fail("%sunknown option --%s%s (--help lists all)", where.c_str(), name.c_str(),
         is_near ? text(": did you mean --%s?", near.c_str()).c_str() : "");
}

// checks how many values there are, and what they are
inline void check_values(const OptionForm& form, const std::vector<std::string>& values) {
    bool list = form.kind == OptionForm::List, flag = form.kind == OptionForm::Flag;
    if (list ? values.empty() : values.size() != (flag ? 0 : 1))
        fail("--%s: has %s, expected %s", form.name,
             values.empty() ? "no value" : text("%zu values", values.size()).c_str(),
             list ? "at least one" : flag ? "none" : "one");
    for (auto& value : values) {
        if (value.empty()) fail("--%s: has an empty value: leave the option out", form.name);
        bool number = form.kind == OptionForm::Number || form.kind == OptionForm::Whole;
        if (!number || (form.takes_auto && value == "auto")) continue;
        double x = parse_number(form.name, value, form.least, form.kind == OptionForm::Whole);
        if (x > form.most) fail("--%s %s: must be at most %g", form.name, value.c_str(), form.most);
    }
}

// words: collects arguments that are not options; nullptr: such arguments are refused
template <class Form>
std::vector<GivenOption<Form>> parse_command_line(int argc, char** argv, const std::vector<Form>& forms,
                                                  std::vector<std::string>* words = nullptr) {
    std::vector<GivenOption<Form>> given;
    for (int i = 1; i < argc;) {
        std::string word = argv[i++];
        if (word == "-h") word = "--help";
        bool is_option = word.rfind("--", 0) == 0;
        if (!is_option && words) {
            words->push_back(word);
            continue;
        }
        if (!is_option)
            fail("%s: options begin with --, as in --%s VALUE (--help lists all)", word.c_str(),
                 forms[0].name);

        if (size_t equals = word.find('='); equals != word.npos)
            fail("%s: write %s %s, with a space", word.c_str(), word.substr(0, equals).c_str(),
                 word.substr(equals + 1).c_str());

        const Form& form = find_form(forms, word.substr(2));
        // of other options the last one counts, as usual; of these a value would be lost
        for (auto& before : given)
            if (form.kind == OptionForm::List && before.form == &form)
                fail("--%s is given twice: write all its values after one --%s", form.name, form.name);
        std::vector<std::string> values;
        auto takes_more = [&] {
            return form.kind == OptionForm::List || (form.kind != OptionForm::Flag && values.empty());
        };
        while (i < argc && takes_more() && strncmp(argv[i], "--", 2) != 0) values.push_back(argv[i++]);

        if (form.bare && values.empty()) values = {form.bare};
        check_values(form, values);
        given.push_back({&form, values});
    }
    return given;
}

// other(words, where) sees each line first, and returns true if it has handled it; options in `named`, that
// is, given on the command line, are skipped
template <class Form, class Other>
std::vector<GivenOption<Form>> read_option_file(const std::string& path, const std::vector<Form>& forms,
                                                const std::set<std::string>& named, Other other) {
    WholeFile file(path);
    std::istringstream lines{std::string(file.text())};
    std::vector<GivenOption<Form>> given;
    std::set<std::string> seen;
    std::string line;

    for (int number = 1; std::getline(lines, line); number++) {
        std::istringstream words(without_comment(line));
        std::string where = text("%s line %d: ", path.c_str(), number);
        std::vector<std::string> all;
        for (std::string word; words >> word;) all.push_back(word);
        if (all.empty() || other(all, where)) continue;

        if (all[0].starts_with("--")) all[0].erase(0, 2);  // as on the command line
        const Form& form = find_form(forms, all[0], where);
        std::vector<std::string> values(all.begin() + 1, all.end());
        if (!values.empty() && values[0] == "=")
            fail("%swrite `%s VALUE`, without =", where.c_str(), form.name);
        if (!seen.insert(form.name).second) fail("%s%s is given a second time", where.c_str(), form.name);
        if (named.count(form.name)) continue;

        if (form.bare && values.empty()) values = {form.bare};
        try {
            check_values(form, values);
        } catch (const Error& e) {
            fail("%s%s", where.c_str(), e.what());
        }
        given.push_back({&form, values});
    }
    return given;
}

inline std::string help_lines(const std::vector<OptionForm>& forms) {
    std::string out;
    for (auto& form : forms)
        out += text("  --%-18s %s%s\n", form.name, form.help,
                    *form.value ? text(" [%s]", form.value).c_str() : "");
    return out;
}

// a program's options as text, which is all that the tools other than the trainer need
struct Arguments {
    const std::vector<OptionForm>& forms;
    std::map<std::string, std::string> values;
    std::vector<std::string> words;  // arguments that are not options

    // --help prints `usage` and the options, --version the program's version; both end the program
    Arguments(int argc, char** argv, const std::string& usage, const std::vector<OptionForm>& forms)
        : forms(forms) {
        for (int i = 1; i < argc; i++)
            if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
                fputs((usage + help_lines(forms)).c_str(), stdout);
                check_standard_output();
                exit(0);
            } else if (!strcmp(argv[i], "--version")) {
                printf("%s\n", program_version);
                check_standard_output();
                exit(0);
            }
        for (auto& given : parse_command_line(argc, argv, forms, &words))
            values[given.form->name] = given.values[0];
    }

    bool has(const char* name) const { return values.count(name) > 0; }
    std::string get(const char* name) const {
        auto found = values.find(name);
        return found == values.end() ? find_form(forms, name).value : found->second;
    }

    // wants: what to give where it is missing
    std::string need(const char* name, const char* wants) const {
        if (get(name).empty()) fail("missing --%s %s (--help explains)", name, wants);
        return get(name);
    }

    double number(const char* name) const {
        return parse_number(name, get(name), find_form(forms, name).least, false);
    }
};
