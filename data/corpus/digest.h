// digest.h   message digests by OpenSSL, and the spellings in which others write them down
//   hexadecimal   md5sum, sha1sum, sha256sum: "HEX  PATH"
//   Base32        WARC-Block-Digest: "sha1:BASE32" (RFC 4648, as crawlers write it)
//   Base64        HTTP: "Repr-Digest: sha-256=:BASE64:" (RFC 9530), "Digest: sha-256=BASE64", "Content-MD5"
#pragma once
#include <openssl/evp.h>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include "../../layers/base/file.h"

struct Digest {
    std::string algorithm;  // md5, sha1 or sha256
    std::string bytes;

    bool operator==(const Digest&) const = default;
    std::string hex() const {
        std::string out = algorithm + " ";
        for (unsigned char c : bytes) out += text("%02x", c);
        return out;
    }
};

class Digester {
    std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> state{EVP_MD_CTX_new(), EVP_MD_CTX_free};
    std::string algorithm;

public:
    explicit Digester(const std::string& algorithm) : algorithm(algorithm) {
        const EVP_MD* method = EVP_get_digestbyname(algorithm.c_str());
        if (!method || !EVP_DigestInit_ex(state.get(), method, nullptr))
            fail("OpenSSL has no %s here", algorithm.c_str());
    }

    void add(std::string_view data) { EVP_DigestUpdate(state.get(), data.data(), data.size()); }
    Digest finish() {
        unsigned char out[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        EVP_DigestFinal_ex(state.get(), out, &size);
        return {algorithm, std::string((const char*)out, size)};
    }
};

inline Digest digest_of(std::string_view data, const std::string& algorithm) {
    Digester digester(algorithm);
    digester.add(data);
    return digester.finish();
}

// of a file, without holding it
inline Digest digest_of_file(const std::string& path, const std::string& algorithm) {
    InputFile file(path);
    Digester digester(algorithm);
    std::string part(std::min<size_t>(file.size, 4 << 20), 0);
    for (size_t at = 0; at < file.size; at += part.size()) {
        size_t n = std::min(part.size(), file.size - at);
        file.read(part.data(), at, n, "its digest");
        digester.add({part.data(), n});
    }
    return digester.finish();
}

// bits: 4, 5 or 6 of each character; '=' at the end counts for nothing. Nothing where a character is no digit
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

inline size_t digest_size(std::string_view algorithm) {
    return algorithm == "md5" ? 16 : algorithm == "sha1" ? 20 : algorithm == "sha256" ? 32 : 0;
}

// digits: in any of the three encodings, which differ in length; empty if they are in none of them
inline std::optional<Digest> parse_digest(std::string algorithm, std::string_view digits) {
    std::erase(algorithm, '-');
    std::transform(algorithm.begin(), algorithm.end(), algorithm.begin(), ::tolower);
    size_t size = digest_size(algorithm);
    std::string upper(digits), lower(digits);
    std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
    std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
    static constexpr const char *base16 = "0123456789abcdef", *base32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
        *base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (auto& bytes :
         {decode_digits(lower, base16, 4), decode_digits(upper, base32, 5), decode_digits(digits, base64, 6)})
        if (size && bytes && bytes->size() == size) return Digest{algorithm, *bytes};
    return {};
}
