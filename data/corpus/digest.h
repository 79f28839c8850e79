// digest.h   WARC-Block-Digest: "sha1:BASE32" as crawlers write it (RFC 4648); md5 and sha256 too, or in hex
#pragma once
#include <openssl/evp.h>
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

// bits: 4 or 5 of each character; '=' at the end is ignored. Nothing if a character is not in the alphabet
inline std::optional<std::string> decode_digits(std::string_view digits, const char* alphabet, int bits) {
    while (digits.ends_with('=')) digits.remove_suffix(1);
    std::string out;
    unsigned held = 0;
    int count = 0;
    for (char c : digits) {
        const char* found = c ? strchr(alphabet, c) : nullptr;
        if (!found) return {};
        held = held << bits | (unsigned)(found - alphabet);
        count += bits;
        if (count < 8) continue;
        count -= 8;
        out += (char)(held >> count);
    }
    return out;
}

// whether `content` has the digest; true if the digest's kind is not known
inline bool has_digest(std::string_view content, std::string_view written) {
    size_t colon = written.find(':');
    if (colon == written.npos) return true;
    std::string name(written.substr(0, colon)), digits(written.substr(colon + 1)), upper = digits;
    std::erase(name, '-');
    std::transform(digits.begin(), digits.end(), digits.begin(), ::tolower);
    std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
    const EVP_MD* method = EVP_get_digestbyname(name.c_str());
    if (!method) return true;

    unsigned char is[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_Digest(content.data(), content.size(), is, &size, method, nullptr);
    bool known = false;
    for (auto& wants : {decode_digits(digits, "0123456789abcdef", 4),
                        decode_digits(upper, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 5)}) {
        if (!wants || wants->size() != size) continue;
        known = true;
        if (!memcmp(wants->data(), is, size)) return true;
    }
    return !known;
}
