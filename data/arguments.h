// arguments.h   what a tool was asked: --NAME VALUE, and words that are no option
#pragma once
#include <map>
#include <string>
#include <vector>
#include "../layers/base/config.h"

struct Arguments {
    std::map<std::string, std::string> values;
    std::vector<std::string> files;

    // known: the names of options; --help prints the usage and ends the program
    Arguments(int argc, char** argv, const char* usage, const std::vector<std::string>& known) {
        for (int i = 1; i < argc; i++) {
            std::string word = argv[i];
            if (word == "--help") {
                fputs(usage, stdout);
                exit(0);
            }
            if (word.rfind("--", 0) != 0) {
                files.push_back(word);
                continue;
            }
            std::string name = word.substr(2);
            if (std::find(known.begin(), known.end(), name) == known.end())
                fail("unknown option %s: did you mean --%s? (--help lists all)", word.c_str(),
                     nearest(name, known).c_str());
            if (i + 1 == argc) fail("%s: wants a value (--help explains)", word.c_str());
            values[name] = argv[++i];
        }
    }
    bool has(const char* name) const { return values.count(name) > 0; }
    std::string get(const char* name) const {
        auto found = values.find(name);
        return found == values.end() ? "" : found->second;
    }
    // wants: what to give, where it is missing
    std::string need(const char* name, const char* wants) const {
        if (get(name).empty()) fail("wants --%s %s (--help explains)", name, wants);
        return get(name);
    }
    double number(const char* name, double otherwise, double least, bool whole) const {
        return has(name) ? parse_number(name, get(name), least, whole) : otherwise;
    }
};
