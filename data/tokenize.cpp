// tokenize.cpp   text files -> token files, and back
//   ./tokenize --vocabulary bytes|PATH/vocab.bpe --output PREFIX [--validation 0.1] FILE…
//   writes PREFIX.bin, or PREFIX.train.bin and PREFIX.validation.bin; with a vocab.bpe also PREFIX.vocab.bpe
//   A plain file is one document, and so is each line of a .jsonl file; an end-of-text token follows each.
//   Lines with "prompt" and "answer" in place of "text" are for fine-tuning: see formats/answers.h.
//   Text is cut into pieces between words; all cores encode pieces, and one thread writes them in order.
#include <omp.h>
#include <chrono>
#include <filesystem>
#include <optional>
#include "../layers/base/random.h"
#include "../layers/base/arguments.h"
#include "../layers/base/process.h"
#include "json.h"
#include "tokenizer.h"
#include "formats/token_writer.h"

namespace {

constexpr char usage[] =
    "usage: ./tokenize --vocabulary bytes|PATH/vocab.bpe --output PREFIX [--OPTION VALUE]… FILE…\n"
    "       ./tokenize --decode FILE.bin [--vocabulary bytes|PATH/vocab.bpe] [--output FILE]\n"
    "  FILE - is standard input\n";

const std::vector<OptionForm> forms = {
    {"vocabulary", OptionForm::Text, "bytes (V = 257), GPT-2's vocab.bpe (V = 50257), or a tokenizer.json\n"
     "                       of its kind, as Hugging Face's tokenizers write it"},
    {"output", OptionForm::Text,
     "PREFIX.bin, or with --validation PREFIX.train.bin and PREFIX.validation.bin"},
    {"decode", OptionForm::Text, "token file to decode into text"},
    {"format", OptionForm::Text,
     "text (one document per file) or jsonl (one per line, in its \"text\" field, or in\n"
     "                       \"prompt\" and \"answer\" for train_gpt --loss-on answers)\n"
     "                       [jsonl for names that end in .jsonl, else text]"},
    {"validation", OptionForm::Number,
     "share of the documents held out, 0 to 1; from a single document, its end",
     "0"},
    {"seed", OptionForm::Whole, "seed for choosing the validation documents", "1234"},
};

struct Settings {
    std::string vocabulary, output, decode, format;
    double validation = 0;
    long seed = 1234;
    std::vector<std::string> files;

    explicit Settings(const Arguments& a)
        : vocabulary(a.get("vocabulary")),
          output(a.get("output")),
          decode(a.get("decode")),
          format(a.get("format")),
          validation(a.number("validation")),
          seed((long)a.number("seed")),
          files(a.words) {
        if (validation >= 1) fail("--validation %g: must be a share below 1", validation);
        if (!format.empty() && format != "text" && format != "jsonl")
            fail("--format %s: expected text or jsonl", format.c_str());
    }
};

constexpr size_t no_answer = (size_t)-1;

struct Piece {
    std::string_view text;
    bool ends_document;  // of plain text
    std::unique_ptr<uint32_t[]> tokens;
    struct Document { size_t end, answer; };  // one past its last token, the first of its answer
    std::vector<Document> documents;
    size_t count = 0;
    std::string error;
};

// by the first bytes; a text has no zeros
inline void refuse_what_is_no_text(std::string_view begin, const std::string& name) {
    struct { std::string_view magic; const char *is, *how; } known[] = {
        {"\x1f\x8b", "gzip", "gzip -dc FILE | ./tokenize … -"},
        {"\x28\xb5\x2f\xfd", "zstd", "zstd -dc FILE | ./tokenize … -"},
        {"BZh?1AY&SY", "bzip2", "bzip2 -dc FILE | ./tokenize … -"},  // ?: any byte
        {"\xfd" "7zXZ", "xz", "xz -dc FILE | ./tokenize … -"},
        {"PK\x03\x04", "a ZIP archive", "unzip it first"},
        {"%PDF", "a PDF", "extract its text first: pdftotext FILE - | ./tokenize … -"},
        {"PAR1", "Parquet", "write its texts as JSON lines with \"text\" first"},
        {"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | ./tokenize … -"},
        {"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | ./tokenize … -"}};
    auto has = [&](std::string_view magic) {
        for (size_t i = 0; i < magic.size(); i++)
            if (i >= begin.size() || (magic[i] != '?' && begin[i] != magic[i])) return false;
        return true;
    };
    for (auto& each : known)
        if (has(each.magic))
            fail("%s: is %s, expected UTF-8 text: %s%s", name.c_str(), each.is, each.how,
                 name.find(".jsonl") != name.npos && strstr(each.how, "tokenize") ? " --format jsonl" : "");
    size_t zero = begin.find('\0');
    if (zero != begin.npos)
        fail("%s: has a zero byte at offset %zu, which no text has: expected UTF-8 text (from UTF-16: iconv "
             "-f UTF-16LE -t UTF-8)", name.c_str(), zero);
}

struct Tokenizer {
    const Settings& settings;
    const Vocabulary& vocabulary;
    std::optional<TokenWriter> train, validation;
    std::vector<std::unique_ptr<Encoder>> encoders;
    std::vector<Piece> pieces;
    std::vector<AnswerRange> answers[2];  // of training, of validation
    uint64_t documents = 0, bytes = 0;
    bool to_validation = false;  // where the current document goes
    std::string name;            // of the file being read
    size_t line = 1;             // of JSONL, at the start of the next piece

    Tokenizer(const Settings& a, const Vocabulary& v) : settings(a), vocabulary(v) {
        std::string name = v.name();
        train.emplace(a.output + (a.validation > 0 ? ".train.bin" : ".bin"), name, v.size(), v.end_of_text);
        if (a.validation > 0) validation.emplace(a.output + ".validation.bin", name, v.size(), v.end_of_text);
        for (int t = 0; t < omp_get_max_threads(); t++) encoders.push_back(std::make_unique<Encoder>(v));
        choose();
    }

    void choose() {
        to_validation = settings.validation > 0 &&
                        uniform((uint64_t)settings.seed, purpose("validation"),
                                documents) < settings.validation;
    }

    void encode_jsonl(Piece& piece, Encoder& encoder) {
        size_t at = 0;
        for (size_t number = 0; at < piece.text.size(); number++) {
            size_t end = std::min(piece.text.find('\n', at), piece.text.size());
            std::string_view row = piece.text.substr(at, end - at);
            at = end + 1;
            if (row.find_first_not_of(" \t\r") == row.npos) continue;

            try {
                Json document = Json::parse(row, "document");
                auto encode = [&](const char* field) {
                    std::string quoted = std::string("\"") + field + "\"";
                    const std::string& words = document.at(field, "document").string(quoted);
                    uint32_t* tokens = piece.tokens.get();
                    piece.count = encoder.encode(tokens + piece.count, words) - tokens;
                    return piece.count;
                };

                bool has_text = document.find("text");  // other fields beside it are not read
                if (has_text && document.find("prompt") && document.find("answer"))
                    fail("has \"text\", \"prompt\" and \"answer\": leave out what is not to be learnt");
                bool is_asked = !has_text && (document.find("prompt") || document.find("answer"));
                size_t answer = is_asked ? encode("prompt") : 0, end = encode(is_asked ? "answer" : "text");
                piece.documents.push_back({end, is_asked ? answer : no_answer});
            } catch (const Error& e) {
                piece.error = text("%zu ", number) + e.what();
                return;
            }
        }
    }

    // the pieces gathered so far, in parallel; then written in order
    void flush(bool jsonl) {
        #pragma omp parallel for schedule(dynamic)
        for (size_t i = 0; i < pieces.size(); i++) {
            Piece& piece = pieces[i];
            Encoder& encoder = *encoders[omp_get_thread_num()];
            piece.tokens.reset(new uint32_t[piece.text.size() + 4]);
            if (jsonl) encode_jsonl(piece, encoder);
            else {
                piece.count = encoder.encode(piece.tokens.get(), piece.text) - piece.tokens.get();
                if (piece.ends_document) piece.documents.push_back({piece.count, no_answer});
            }
        }

        // one writer, in order
        for (auto& piece : pieces) {
            if (!piece.error.empty()) {
                size_t number = strtoul(piece.error.c_str(), nullptr, 10);
                fail("%s line %zu: %s", name.c_str(), line + number,
                     piece.error.substr(piece.error.find(' ') + 1).c_str());
            }

            size_t from = 0;
            for (auto [end, answer] : piece.documents) {
                uint64_t begin = writer().count;
                writer().add(piece.tokens.get() + from, end - from);
                writer().end_document();
                if (answer != no_answer)
                    answers[to_validation].push_back({begin + answer - from, writer().count});
                from = end;
                documents++;
                choose();
            }

            writer().add(piece.tokens.get() + from, piece.count - from);
            bytes += piece.text.size();
            if (jsonl) line += std::count(piece.text.begin(), piece.text.end(), '\n');
        }
        pieces.clear();
    }

    TokenWriter& writer() { return to_validation ? *validation : *train; }

    // whether a character that is neither white space nor a control character ends at s[end]
    static bool ends_word(std::string_view s, size_t end) {
        if ((unsigned char)s[end] < 0x80) return s[end] > 32 && s[end] < 127;
        size_t at = end;
        while (at > 0 && end - at < 3 && (s[at] & 0xC0) == 0x80) at--;
        const unsigned char* begin = (const unsigned char*)s.data() + at;
        return decode_char(begin, end + 1 - at, char_classes().data()).kind != Space;
    }

    // the first place at or after `from` where text can be cut without touching a word, or npos
    static size_t cut(std::string_view s, size_t from, bool jsonl) {
        for (size_t i = std::max(from, (size_t)1); i < s.size(); i++)
            if (jsonl ? s[i - 1] == '\n' : (s[i] == ' ' || s[i] == '\n') && ends_word(s, i - 1)) return i;
        return s.npos;
    }

    // encodes the complete pieces of s or, if s is the last of the text, all of it; returns the bytes taken
    size_t take(std::string_view s, bool last, bool jsonl) {
        constexpr size_t piece_bytes = 1 << 20;
        size_t at = 0;
        bool ended = false;
        while (at < s.size()) {
            size_t length = cut(s.substr(at), piece_bytes, jsonl);
            if (length == s.npos) {
                if (!last) break;
                length = s.size() - at;
                ended = true;
            }

            pieces.push_back({s.substr(at, length), ended, nullptr, {}, 0, ""});
            at += length;
            if (pieces.size() == 8 * encoders.size()) flush(jsonl);
        }

        if (last && !ended && !jsonl) pieces.push_back({"", true, nullptr, {}, 0, ""});  // an empty file
        flush(jsonl);
        return at;
    }

    static void note_json_lines(std::string_view text, const std::string& from) {
        std::string_view line = text.substr(0, text.find('\n'));
        bool has_field = line.find("\"text\"") != line.npos || line.find("\"prompt\"") != line.npos;
        if (line.starts_with("{\"") && has_field)
            fprintf(stderr, "note: %s begins like JSON lines and is read as plain text: --format jsonl reads "
                    "its lines\n", from.c_str());
    }

    void add_file(const std::string& path, bool jsonl) {
        name = path;
        line = 1;
        if (path != "-") {
            MappedFile file(path);
            std::string_view all = file.text();
            refuse_what_is_no_text(all.substr(0, 1 << 16), path);
            if (!jsonl) note_json_lines(all, path);
            bool lone = !jsonl && settings.files.size() == 1 && settings.validation > 0;
            size_t head = all.size();
            if (lone) {  // one document: its end is the validation set
                head = cut(all, (size_t)((double)all.size() * (1 - settings.validation)), false);
                if (head == std::string::npos)
                    fail("%s: too short to be split: leave out --validation", path.c_str());
                to_validation = false;
            }
            take(all.substr(0, head), true, jsonl);
            if (!lone) return;
            to_validation = true;
            take(all.substr(head), true, jsonl);
            return;
        }

        if (!jsonl && settings.validation > 0)
            fail("standard input is one document of plain text: give a file, or --format jsonl, with "
                 "--validation");

        std::string buffer;
        bool first = true;
        for (bool last = false; !last;) {
            size_t had = buffer.size(), want = (size_t)32 << 20;
            buffer.resize(had + want);
            size_t got = fread(buffer.data() + had, 1, want, stdin);
            if (ferror(stdin)) fail("standard input: cannot be read: %s", strerror(errno));
            buffer.resize(had + got);
            last = got < want;
            if (std::exchange(first, false)) {
                buffer.erase(0, buffer.size() - without_mark(buffer).size());
                refuse_what_is_no_text(std::string_view(buffer).substr(0, 1 << 16), "standard input");
                if (!jsonl) note_json_lines(buffer, "standard input");
            }
            buffer.erase(0, take(buffer, last, jsonl));
        }
    }

    void finish() {
        if (bytes == 0 && documents == 1) fail("there is no text: the document is empty");
        if (documents == 0) fail("there are no documents: expected a line {\"text\": \"…\"} for each");
        uint64_t tokens = 0;
        for (auto* w : {&train, &validation}) tokens += *w ? (*w)->count - (*w)->documents : 0;
        if (tokens == 0)
            fail("there is no text: %llu documents, all empty", (unsigned long long)documents);
        for (auto* w : {&train, &validation})
            if (*w && (*w)->count == 0 && documents == 1)
                fail("--validation %g: one document cannot be in both files: leave the option out",
                     settings.validation);
        for (auto* w : {&train, &validation})
            if (*w && (*w)->count == 0)
                fail("%s: would be empty, since all %llu documents went to the other file: choose a %s "
                     "--validation, or another --seed", (*w)->file.path.c_str(),
                     (unsigned long long)documents, w == &train ? "smaller" : "larger");

        for (auto* w : {&train, &validation}) {
            if (!*w) continue;
            (*w)->finish();
            auto& ranges = answers[w == &validation];
            const std::string& path = (*w)->file.path;
            if (!ranges.empty()) write_answers(path, (*w)->count, ranges);
            else remove_answers(path);
        }

        if (vocabulary.kind != "bpe") return;
        write_file(settings.output + ".vocab.bpe", vocabulary.source);
    }
};

int decode(const Settings& a) {
    if (!a.files.empty() || !a.format.empty() || a.validation > 0)
        fail("--decode takes --vocabulary and --output, nothing else (--help explains)");

    TokenFile file(a.decode);
    std::string spec = a.vocabulary;
    if (spec.empty()) {
        if (file.vocabulary_name != "bytes")
            fail("%s: decoding requires --vocabulary PATH/vocab.bpe", a.decode.c_str());
        spec = "bytes";
    }

    Vocabulary v = Vocabulary::open(spec);
    if (file.vocabulary && file.vocabulary != v.size())
        fail("%s: has vocabulary %d, %s has %d: choose the one it was made with", a.decode.c_str(),
             file.vocabulary, spec.c_str(), v.size());
    if (!file.vocabulary_name.empty() && !may_be_one_vocabulary(file.vocabulary_name, v.name()))
        fail("%s: is in tokens of vocabulary %s, %s is %s: choose the one it was made with",
             a.decode.c_str(), file.vocabulary_name.c_str(), spec.c_str(), v.name().c_str());

    refuse_overwriting({a.output}, {a.decode, spec, index_path(a.decode)});
    std::optional<FileWriter> out;
    if (!a.output.empty()) out.emplace(a.output);
    std::vector<int> tokens(1 << 20);
    for (uint64_t at = 0; at < file.count; at += tokens.size()) {
        uint64_t n = std::min((uint64_t)tokens.size(), file.count - at);
        file.read(tokens.data(), at, n, v.size());

        std::string text;
        for (uint64_t i = 0; i < n; i++) {
            if (tokens[i] != v.end_of_text) text += v.tokens[tokens[i]];
            else if (at + i + 1 < file.count) text += "<|endoftext|>";
        }
        if (out) out->write(text);
        else fwrite(text.data(), 1, text.size(), stdout);
    }

    if (out) out->finish();
    check_standard_output();
    return 0;
}

int tokenize(const Settings& a) {
    if (a.vocabulary.empty()) fail("missing --vocabulary bytes or PATH/vocab.bpe (--help explains)");
    if (a.output.empty()) fail("missing --output PREFIX (--help explains)");
    if (a.files.empty()) fail("missing FILE, or - for standard input (--help explains)");

    std::vector<std::string> inputs = a.files, outputs;
    for (const char* ending : {".bin", ".train.bin", ".validation.bin", ".answers", ".train.answers",
                               ".validation.answers", ".vocab.bpe"})
        outputs.push_back(a.output + ending);
    refuse_overwriting(outputs, inputs);

    Vocabulary v = Vocabulary::open(a.vocabulary);
    outputs.pop_back();
    // onto itself, it would be the same bytes
    bool copies = v.kind == "bpe" && WholeFile(a.vocabulary).text() == v.source;
    if (!copies) outputs.push_back(a.output + ".vocab.bpe");
    refuse_overwriting(outputs, {a.vocabulary == "bytes" ? "" : a.vocabulary});
    auto start = std::chrono::steady_clock::now();
    Tokenizer tokenizer(a, v);
    for (auto& path : a.files) {
        bool named = path.size() > 6 && path.substr(path.size() - 6) == ".jsonl";
        tokenizer.add_file(path, a.format.empty() ? named : a.format == "jsonl");
    }
    tokenizer.finish();

    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (auto* w : {&tokenizer.train, &tokenizer.validation})
        if (*w)
            printf("%s: %llu tokens of text in %s, vocabulary %d\n", (*w)->file.path.c_str(),
                   (unsigned long long)((*w)->count - (*w)->documents),
                   counted((long)(*w)->documents, "document").c_str(), v.size());
    printf("%.1f MB in %.2f s, %.0f MB/s\n", (double)tokenizer.bytes * 1e-6, s,
           (double)tokenizer.bytes * 1e-6 / s);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    open_standard_streams();
    let_waiting_threads_sleep(argv);
    try {
        Settings a(Arguments(argc, argv, usage, forms));
        return a.decode.empty() ? tokenize(a) : decode(a);
    } catch (const std::exception& e) {
        fprintf(stderr, "tokenize: %s\n", e.what());
        return 1;
    }
}
