// test_data.h   checks of token files, loader, tokenizer and JSON
#pragma once
#include <set>
#include "../layers/base/testing.h"
#include "sets.h"
#include "formats/token_writer.h"
#include "json.h"
#include "tokenizer.h"

void test_json() {
    Json j = Json::parse(R"({"a": [1, -2.5e3, true, null], "s": "x\n\u00e9\ud83d\ude00\ud800!"})", "j");
    check(j.at("a", "j").items[1].number("j") == -2500 &&
          j.at("s", "j").text == "x\n\xc3\xa9\xf0\x9f\x98\x80\xef\xbf\xbd!", "values");
    for (const char* bad : {"", "{", "[1,]", "{\"a\" 1}", "\"\\x\"", "\"abc", "01", "1.", "tru", "[1] 2",
                            "\"\x01\"", "-"}) refuses("not JSON at offset", [&] { Json::parse(bad, "j"); });
    refuses("at most 1024 levels", [] { Json::parse(std::string(100000, '['), "j"); });
    check(Json::parse(json_quote("a\"\\\n\x02"), "j").text == "a\"\\\n\x02", "quoting and back");
    check(json_quote("\x1f ") == "\"\\u001f \"", "the last control character");
    j = Json::parse(R"({"a": 1, "b": "\ud83d\udfff\ud800\u0041", "a": 1E2, "n": 9223372036854775808})", "j");
    check(j.at("a", "j").number("j") == 100, "of two members with one name the last");
    check(j.at("b", "j").text == "\xf0\x9f\x9f\xbf\xef\xbf\xbd" "A", "halves of pairs");
    refuses("has 9223372036854775808, expected a whole number", [&] { j.at("n", "j").integer("j"); });
    std::string deep = std::string(1024, '[') + "1" + std::string(1024, ']');
    check(Json::parse(deep, "j").items.size() == 1, "1024 levels");
}

std::string make_tokens(const std::string& name, int n, int V, int seed = 1) {
    std::string path = scratch_folder + "/" + name;
    TokenWriter w(path, V == 257 ? "bytes" : "bpe", V, V - 1);
    for (int i = 0; i < n; i++) {
        uint32_t token = (uint32_t)(hash_of(i * 31 + seed) % V);
        w.add(&token, 1);
    }

    w.finish();
    return path;
}

// which losses count, compared with which tokens are in an answer, one by one
void test_answers() {
    std::string path = make_tokens("answers.bin", 100, 257), file = answers_path(path);
    std::vector<AnswerRange> ranges = {{3, 9}, {9, 10}, {40, 57}, {99, 100}};
    write_answers(path, 100, ranges);
    std::string whole(MappedFile(file).view());
    std::vector<char> is_answer(101, 0);
    for (auto& r : ranges) std::fill(is_answer.begin() + (long)r.first, is_answer.begin() + (long)r.end, 1);
    Answers answers(path, 100);

    bool counts = true, covers = true;
    for (uint64_t from = 0; from <= 100; from++) {
        covers = covers && answers.covers(from) == is_answer[from];
        for (uint64_t to = from, n = 0; to <= 100; n += is_answer[to++])
            counts = counts && answers.count(from, to) == n;
    }

    check(counts && covers, "tokens of answers, between any two");
    Loader loader({path}, 8, 1), all({path}, 8, 1);
    loader.V = all.V = 257;
    loader.take_answers();
    for (uint64_t sample = 0; sample < loader.samples(); sample++) {
        std::vector<int> some(9), tokens(9);
        loader.read_at(some.data(), sample);
        all.read_at(tokens.data(), sample);
        uint64_t counted = 0;
        bool same = true;
        for (int t = 0; t <= 8; t++) {
            bool answer = is_answer[sample * 8 + t];
            same = same && some[t] == (answer ? tokens[t] : -1 - tokens[t]);
            counted += answer && t > 0;
        }
        check(same && loader.counted(sample) == counted && all.counted(sample) == 8, "a sample's answers");
    }

    uint64_t sum = fingerprint_of(loader);
    write_answers(path, 100, {{3, 10}, {40, 57}, {98, 100}});
    Loader others({path}, 8, 1);
    others.take_answers();
    check(fingerprint_of(others) != sum && fingerprint_of(all) != sum, "other answers are other data");
    refuses("has no", [&] { Answers(make_tokens("unasked.bin", 10, 257), 10); });
    refuses("belongs to 100 tokens", [&] { Answers(path, 99); });
    refuses("its checksum differs", [&] { patch(file, 30, "x"); Answers(path, 100); });
    for (size_t size : {0, 7, 31, 40, (int)whole.size() - 1, (int)whole.size() + 1})
        refuses(file, [&] { write_file(file, (whole + "x").substr(0, size)); Answers(path, 100); });
    for (auto bad : {std::vector<AnswerRange>{{5, 5}}, {{5, 101}}, {{5, 9}, {8, 12}}})
        refuses("make it again", [&] { write_answers(path, 100, bad); Answers(path, 100); });
}

void test_loader() {
    test_answers();
    for (uint64_t n : {1, 2, 3, 5, 64, 1000, 4097}) {
        std::set<uint64_t> seen;
        for (uint64_t i = 0; i < n; i++) seen.insert(permute(i, n, 9, 0));
        check(seen.size() == n && *seen.rbegin() == n - 1, text("a permutation of %d", (int)n));
    }

    check(permute(0, 1000, 9, 0) != permute(0, 1000, 9, 1) &&
          permute(0, 1000, 9, 0) != permute(0, 1000, 8, 0), "each epoch and each key has its order");
    check(permute(338999999999ull, 339000000000ull, 9, 0) < 339000000000ull, "of 339e9 windows as well");
    for (int V : {65536, 65537})
        check(TokenFile(make_tokens("w.bin", 9, V)).width == (V > 65536 ? 4 : 2), "the largest token fits");
    for (int V : {257, 70000}) {  // uint16 and uint32
        std::string a = make_tokens("a.bin", 1001, V), b = make_tokens("b.bin", 57, V, 2);
        Loader loader({a, b}, 8, 5);
        loader.V = V;
        check(loader.samples() == 125 + 7 && loader.file_vocabulary() == V, "samples of two files");
        std::vector<int> w(9), v(9), all(1001);
        loader.files[0].read(all.data(), 0, 1001, V);
        loader.read_at(w.data(), 3);
        loader.read_at(v.data(), 4);
        check(w[8] == v[0] && w[0] == all[24] && all[5] == (int)(hash_of(5 * 31 + 1) % V),
              "samples overlap by one");
        std::vector<int> count(132, 0);
        for (uint64_t n = 0; n < 2 * 132; n++) count[loader.order(n)]++;
        check(std::count(count.begin(), count.end(), 2) == 132, "every window once an epoch");
    }

    std::string path = make_tokens("c.bin", 100000, 257), whole(MappedFile(path).view());
    auto reads = [&](int V = 257) { std::vector<int> t(100000); TokenFile(path).read(t.data(), 0, 100000, V);
                                   };
    reads();
    uint64_t before = fingerprint_of(TokenFile(path));
    make_tokens("c.bin", 100000, 257);
    check(fingerprint_of(TokenFile(path)) == before, "equal files have one fingerprint");
    make_tokens("c.bin", 100000, 257, 2);
    check(fingerprint_of(TokenFile(path)) != before, "files of other tokens have another");
    write_file(path, whole);
    refuses("between offsets 64 and", [&] { patch(path, 64, std::string("\1\1", 2)); reads(); });
    write_file(path, whole);
    refuses("damaged between offsets 131136 and", [&] { patch(path, 64 + 2 * 70000, "x"); reads(); });
    write_file(path, whole);
    refuses("the vocabulary has 200", [&] { reads(200); });
    for (size_t n : {3, 30, 63, 64, 1000, (int)whole.size() - 1})
        refuses(path, [&] { write_file(path, whole.substr(0, n)); TokenFile f(path); });
    refuses("truncated or damaged", [&] { write_file(path, whole.substr(0, 1000)); TokenFile f(path); });
    refuses("is empty", [&] { write_file(path, ""); TokenFile f(path); });
    refuses("is not a token file", [&] { write_file(path, "To be, or not to be"); TokenFile f(path); });
    refuses("cannot be read", [&] { TokenFile f("/nowhere.bin"); });
    refuses("damaged between offsets 0 and 64", [&] { write_file(path, whole);
                                                     patch(path, 16, std::string(8, '\x7f'));
                                         TokenFile f(path); });
    refuses("version 9", [&] { write_file(path, whole); patch(path, 8, "\x09"); TokenFile f(path); });
    check(Loader({make_tokens("d.bin", 80, 257)}, 8, 1).samples() == 9 &&
          Loader({make_tokens("d.bin", 81, 257)}, 8, 1).samples() == 10, "the last target is a token too");
    refuses("one sample needs", [&] { Loader({make_tokens("d.bin", 8, 257)}, 8, 1); });
    refuses("must agree", [&] { Loader({make_tokens("d.bin", 100, 257), make_tokens("e.bin", 100, 300)}, 8,
                                       1); });

    // llm.c and Megatron-LM
    auto bytes = [](auto... values) { std::string s; (s.append((const char*)&values, sizeof values), ...);
                                     return s; };
    std::string header = bytes(20240520, 1, 4) + std::string(1012, 0),
        tokens = bytes((uint16_t)5, (uint16_t)6, (uint16_t)7, (uint16_t)50000);
    std::vector<int> t(4);
    write_file(path, header + tokens);
    TokenFile(path).read(t.data(), 0, 4, 50257);
    check(t == std::vector<int>({5, 6, 7, 50000}), "llm.c's file");
    TokenFile changing(path);
    usleep(20000);  // a file system's clock may be coarse
    patch(path, 1024, "x");
    refuses("has been written to while it was in use", [&] { changing.read(t.data(), 0, 4, 50257); });
    write_file(path, header + tokens);
    auto sum_of_llmc = [&](int at) {  // of a file with another token there
        std::string many(200000, 'a');
        many[at] = 'b';
        write_file(path, bytes(20240520, 1, 100000) + std::string(1012, 0) + many);
        return fingerprint_of(TokenFile(path));
    };
    check(sum_of_llmc(0) != sum_of_llmc(199998) && sum_of_llmc(100000) != sum_of_llmc(199998),
          "without checksums, the first and the last tokens tell files apart");
    write_file(path, header + tokens);
    refuses("token 50000 at offset 1030", [&] { TokenFile(path).read(t.data(), 0, 4, 50000); });
    refuses("truncated or damaged", [&] { write_file(path, header + tokens.substr(1)); TokenFile f(path); });
    refuses("of unknown version 2", [&] {
        write_file(path, bytes(20240520, 2, 4) + header.substr(12) + tokens);
        TokenFile f(path);
    });
    write_file(path, tokens);

    std::string magic("MMIDIDX\0\0", 9), index = scratch_folder + "/c.idx";
    auto idx = [&](uint8_t type, int first, long second) {
        return magic + bytes((uint64_t)1, type, (uint64_t)2, (uint64_t)3, first, 1, 0l, second, 0l, 1l, 2l);
    };
    write_file(index, idx(8, 3, 6));
    TokenFile(path).read(t.data(), 0, 4, 50257);
    check(t == std::vector<int>({5, 6, 7, 50000}), "Megatron-LM's pair");
    write_file(path, bytes(5, 6, 70000));  // type 4: int32
    write_file(index, idx(4, 2, 8).replace(34, 8, bytes(2, 1)));
    TokenFile(path).read(t.data(), 0, 3, 70001);
    check(std::vector<int>(t.begin(), t.begin() + 3) == std::vector<int>({5, 6, 70000}), "of int32");
    write_file(path, tokens);
    refuses("has token type 3", [&] { write_file(index, idx(3, 3, 6)); TokenFile f(path); });
    refuses("expected pointer 6", [&] { write_file(index, idx(8, 3, 4)); TokenFile f(path); });
    refuses("its index", [&] { write_file(index, idx(8, 2, 4)); TokenFile f(path); });
    refuses("its header says", [&] { write_file(index, idx(8, 3, 6).substr(0, 50)); TokenFile f(path); });
    refuses("is not a Megatron-LM index", [&] { write_file(index, "nonsense, but long enough");
                                            TokenFile f(path); });

    // an index that is read in several parts
    constexpr long many = 70000;
    std::string sizes, pointers, start = magic + bytes((uint64_t)1, (uint8_t)8, (uint64_t)many, (uint64_t)0);
    for (long i = 0; i < many; i++) {
        sizes += bytes(1);
        pointers += bytes(2 * i);
    }
    write_file(path, std::string(2 * many, 0));
    write_file(index, start + sizes + pointers);
    check(TokenFile(path).count == many, "an index of 70,000 sequences");
    pointers[8 * 69999]++;
    write_file(index, start + sizes + pointers);
    refuses("sequence 69999 has size 1 and pointer 139999", [&] { TokenFile f(path); });
    fs::remove(index);
}

void test_tokenizer() {
    auto words = [](std::string_view s) {
        std::vector<std::string> out;
        split_words(s, [&](size_t a, size_t b) { out.emplace_back(s.substr(a, b - a)); });
        return out;
    };

    using W = std::vector<std::string>;
    check(words("I'll say it's  fine, 'tis\n\n 42nd!! \t x ") == W({"I", "'ll", " say", " it", "'s", " ",
                                                                    " fine", ",", " '", "tis", "\n\n", " 42",
                                                                    "nd", "!!", " \t", " x", " "}),
                                                                    "English");
    check(words("'S don'T 've'd") == W({"'", "S", " don", "'", "T", " '", "ve", "'d"}),
          "contractions are lower case, without a space");
    check(words("I'm you're don't'd") == W({"I", "'m", " you", "'re", " don", "'t", "'d"}), "contractions");
    check(words("\xc3\xa9t\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xc2\xbd\xe2\x82\xac") ==
              W({"\xc3\xa9t\xc3\xa9", " \xe4\xbd\xa0\xe5\xa5\xbd", " \xc2\xbd", "\xe2\x82\xac"}),
          "letters, numbers and signs beyond ASCII");
    check(words("\xce\xb1\xce\xb2 \xd0\xb4\xd0\xb0 \xc3\xa9 \xd7\xa9\xd7\x9c \xd8\xb9\xd8\xb1") ==
              W({"\xce\xb1\xce\xb2", " \xd0\xb4\xd0\xb0", " \xc3\xa9", " \xd7\xa9\xd7\x9c",
                 " \xd8\xb9\xd8\xb1"}), "Greek, Cyrillic, French, Hebrew and Arabic letters");
    check(words("a\xc2\xa0\xc2\xa0" "b\xe3\x80\x80") == W({"a", "\xc2\xa0", "\xc2\xa0", "b", "\xe3\x80\x80"}),
          "spaces beyond ASCII");
    check(words("a\xff\xc0\x80 \xed\xa0\x80 b\xe4\xbd") == W({"a", "\xff\xc0\x80", " \xed\xa0\x80", " b",
                                                              "\xe4\xbd"}), "bytes that are not UTF-8");
    check(words("  ") == W({"  "}) && words("").empty() && words(" ") == W({" "}) &&
          words("\n\na") == W({"\n", "\n", "a"}) && words("a!\r\n") == W({"a", "!", "\r\n"}), "edges");
    std::string path = scratch_folder + "/small.bpe";
    write_file(path, "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xc4\xa0 w\nl o\n");
    Vocabulary v = Vocabulary::open(path), bytes = Vocabulary::open("bytes");
    check(v.size() == 263 && v.end_of_text == 262, "a token for each byte and merge, and the end of text");
    write_file(path, "#version: 0.2\r\nh e\r\nl l\r\nhe ll\r\nhell o\r\n\xc4\xa0 w\r\nl o");
    check(v.name() == Vocabulary::open(path).name(), "the same tokens from other line ends have one name");
    write_file(path, "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xc4\xa0 w\no l\n");
    Vocabulary other = Vocabulary::open(path);
    check(other.size() == v.size() && !may_be_one_vocabulary(v.name(), other.name()),
          "vocabularies of one size have different names");
    check(may_be_one_vocabulary("bpe", v.name()) && !may_be_one_vocabulary("bpe", "bytes") &&
          !may_be_one_vocabulary(v.name(), bytes.name()), "bpe alone may be any of them");

    auto spell = [&](std::string_view s) {
        W out;
        for (int t : encode_text(v, s)) out.push_back(v.tokens[t]);
        return out;
    };

    check(spell("hello hello wlo") == W({"hello", " ", "hello", " w", "lo"}), "merges, the earliest first");
    std::string noise, letters;
    for (int i = 0; i < 20000; i++) {
        noise += (char)hash_of(i);
        letters += "hello"[hash_of(i) % 5];
    }

    for (auto* vocabulary : {&v, &bytes})
        for (auto* s : {&noise, &letters}) {
            std::string back;
            for (int t : encode_text(*vocabulary, *s)) back += vocabulary->tokens[t];
            check(back == *s, "any bytes come back");
        }
    Encoder encoder(v);
    std::string part = letters.substr(0, 50), twice;  // a long word is merged by other code than a short one
    std::vector<uint32_t> a(60), b(60);
    encoder.symbols.clear();
    for (char c : part) encoder.symbols.push_back((uint32_t)v.byte_token[(unsigned char)c]);
    std::vector<uint32_t> start = encoder.symbols;
    encoder.merge_short();
    a = encoder.symbols;
    encoder.symbols = start;
    encoder.merge_long();
    check(a == encoder.symbols, "long and short words merge alike");

    refuses("line 2: \"h qq\"", [&] {
        write_file(path, "h e\nh q\n");
        write_file(path, "#version: 0.2\nh qq\n");
        Vocabulary::open(path);
    });

    refuses("cannot be read", [] { Vocabulary::open("/nowhere.bpe"); });
    refuses("has no merges", [&] {
        write_file(path, "#version: 0.2\n");
        Vocabulary::open(path);
    });
}
