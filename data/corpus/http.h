// http.h   an HTTP response as a crawler stored it -> the page as UTF-8
//   Transfer and content encodings are undone only if the body really has them: crawlers often store the body
//   decoded, with the original header. Charset: that of a byte order mark; else UTF-8 if all bytes are valid
//   and none is an escape; else what the header or the page declares; else what uchardet detects; else
//   windows-1252. Names mean what they mean to browsers (ISO-8859-1 is windows-1252; WHATWG Encoding
//   Standard).
#pragma once
#include <brotli/decode.h>
#include <iconv.h>
#include <uchardet/uchardet.h>
#include "warc.h"

// ---- encodings of the body -------------------------------------------------------------------------------

// false: this is not chunked; a body that ends early is kept as far as it goes
inline bool undo_chunks(std::string_view in, std::string& out) {
    out.clear();
    bool any = false;
    while (!in.empty()) {
        size_t n = 0, digits = 0;
        while (digits < in.size() && isxdigit((unsigned char)in[digits]) && digits < 9) {
            n = n * 16 + (size_t)(isdigit((unsigned char)in[digits]) ? in[digits] - '0'
                                  : (in[digits] | 32) - 'a' + 10);
            digits++;
        }

        size_t line = in.substr(0, 1024).find('\n');
        bool clean = digits && line != in.npos &&
            (in[digits] == '\r' || in[digits] == '\n' || in[digits] == ';' || in[digits] == ' ');
        if (!clean) return any;
        if (n == 0) return true;

        any = true;
        in.remove_prefix(line + 1);
        out.append(in.substr(0, n));
        in.remove_prefix(std::min(n, in.size()));
        while (!in.empty() && (in[0] == '\r' || in[0] == '\n')) in.remove_prefix(1);
    }
    return any;
}

// bits: zlib's window bits; false where nothing came out
inline bool inflate_all(std::string_view in, std::string& out, int bits, size_t longest) {
    z_stream s = {};
    if (inflateInit2(&s, bits) != Z_OK) return false;
    s.next_in = (Bytef*)in.data();
    s.avail_in = (uInt)in.size();
    out.clear();

    for (int result = Z_OK; result == Z_OK && out.size() <= longest;) {
        size_t had = out.size();
        out.resize(had + std::max((size_t)64 << 10, had));
        s.next_out = (Bytef*)out.data() + had;
        s.avail_out = (uInt)(out.size() - had);
        result = inflate(&s, Z_NO_FLUSH);
        out.resize(out.size() - s.avail_out);
        if (result == Z_OK && !s.avail_in && s.avail_out) break;
    }
    inflateEnd(&s);
    return !out.empty();
}

inline bool unbrotli(std::string_view in, std::string& out, size_t longest) {
    BrotliDecoderState* state = BrotliDecoderCreateInstance(nullptr, nullptr, nullptr);
    const uint8_t* next = (const uint8_t*)in.data();
    size_t left = in.size();
    out.clear();
    for (BrotliDecoderResult result = BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT;
         result == BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT && out.size() <= longest;) {
        size_t had = out.size(), space = std::max((size_t)64 << 10, had);
        out.resize(had + space);
        uint8_t* to = (uint8_t*)out.data() + had;
        result = BrotliDecoderDecompressStream(state, &left, &next, &space, &to, nullptr);
        out.resize(out.size() - space);
    }
    BrotliDecoderDestroyInstance(state);
    return !out.empty();
}

inline bool unzstd(std::string_view in, std::string& out, size_t longest) {
    ZSTD_DCtx* state = ZSTD_createDCtx();
    ZSTD_inBuffer from = {in.data(), in.size(), 0};
    out.clear();
    for (size_t had = 0; out.size() <= longest;) {
        out.resize(had + std::max((size_t)64 << 10, had));
        ZSTD_outBuffer to = {out.data(), out.size(), had};
        size_t result = ZSTD_decompressStream(state, &to, &from);
        out.resize(had = to.pos);
        if (ZSTD_isError(result) || result == 0 || (from.pos == from.size && to.pos < to.size)) break;
    }
    ZSTD_freeDCtx(state);
    return !out.empty();
}

// false: an unknown encoding, or nothing could be decoded
inline bool undo_content_encoding(std::string_view name, std::string_view in, std::string& out,
                                  size_t longest) {
    auto is = [&](std::string_view known) { return HeaderFields::same(name, known); };
    if (is("gzip") || is("x-gzip")) return inflate_all(in, out, 15 + 32, longest);
    if (is("deflate")) return inflate_all(in, out, 15, longest) || inflate_all(in, out, -15, longest);
    if (is("br")) return unbrotli(in, out, longest);
    if (is("zstd")) return unzstd(in, out, longest);
    return false;
}

// ---- charset ---------------------------------------------------------------------------------------------

struct CharsetAlias { const char *label, *means; };
constexpr CharsetAlias charset_aliases[] = {
    {"iso-8859-1", "CP1252"},    {"latin1", "CP1252"},
    {"latin-1", "CP1252"},       {"us-ascii", "CP1252"},
    {"ascii", "CP1252"},         {"x-cp1252", "CP1252"},
    {"iso-8859-9", "CP1254"},    {"latin5", "CP1254"},
    {"iso-8859-11", "CP874"},    {"tis-620", "CP874"},
    {"gb2312", "GB18030"},       {"gbk", "GB18030"},
    {"x-gbk", "GB18030"},        {"shift_jis", "CP932"},
    {"shift-jis", "CP932"},      {"x-sjis", "CP932"},
    {"sjis", "CP932"},           {"euc-kr", "CP949"},
    {"ks_c_5601-1987", "CP949"}, {"big5", "BIG5-HKSCS"},
    {"utf8", "UTF-8"},           {"unicode-1-1-utf-8", "UTF-8"},
    {"utf-16", "UTF-16LE"},      {"x-user-defined", "CP1252"},
    {"x-euc-jp", "EUC-JP"},
};

// false: the charset is unknown here
inline bool convert(std::string_view in, const std::string& charset, std::string& out, size_t* wrong) {
    iconv_t state = iconv_open("UTF-8", charset.c_str());
    if (state == (iconv_t)-1) return false;
    out.clear();
    out.reserve(in.size() + in.size() / 4);
    char* from = (char*)in.data();
    size_t left = in.size();
    char piece[32 << 10];

    while (left) {
        char* to = piece;
        size_t space = sizeof piece;
        size_t result = iconv(state, &from, &left, &to, &space);
        out.append(piece, sizeof piece - space);
        if (result != (size_t)-1 || errno == E2BIG) continue;
        out += "\xEF\xBF\xBD";
        ++*wrong;  // a byte that is none, or a character cut off
        from++;
        left--;
    }
    iconv_close(state);
    return true;
}

// the value of charset= in the page's first bytes, or in a Content-Type
inline std::string declared_charset(std::string_view s, bool in_page) {
    s = s.substr(0, 4096);
    for (size_t i = 0; i + 8 < s.size(); i++) {
        if (strncasecmp(s.data() + i, "charset=", 8)) continue;
        if (in_page) {  // inside a <meta …>
            size_t tag = s.rfind('<', i);
            if (tag == s.npos || strncasecmp(s.data() + tag, "<meta", std::min(i - tag, (size_t)5))) continue;
        }

        std::string_view value = s.substr(i + 8);
        while (!value.empty() && (value[0] == '"' || value[0] == '\'' || value[0] == ' '))
            value.remove_prefix(1);
        size_t n = 0;
        while (n < value.size() && (isalnum((unsigned char)value[n]) || strchr("-_.:+", value[n]))) n++;
        std::string name(value.substr(0, std::min(n, (size_t)40)));
        for (char& c : name) c = (char)tolower((unsigned char)c);
        return name;
    }
    return "";
}

// the page as UTF-8; charset: what it was taken for
inline std::string to_utf8(std::string_view body, std::string_view content_type, std::string* charset) {
    size_t wrong = 0;

    // a byte-order mark decides
    for (auto [mark, name] :
         {std::pair{"\xEF\xBB\xBF", "UTF-8"}, {"\xFF\xFE", "UTF-16LE"}, {"\xFE\xFF", "UTF-16BE"}})
        if (body.starts_with(mark)) {
            std::string out;
            body.remove_prefix(strlen(mark));
            *charset = name;
            return name[4] == '8' || !convert(body, name, out, &wrong) ? valid_utf8(body, &wrong)
                : valid_utf8(out, &wrong);
        }

    std::string out = valid_utf8(body, &wrong), other;
    auto is_in = [&](const std::string& name) {  // then `other` is the page
        size_t errors = 0;
        if (name.empty() || !convert(body, name, other, &errors) || errors > body.size() / 100) return false;
        *charset = name;
        other = valid_utf8(other, &errors);
        return true;
    };

    *charset = "UTF-8";
    bool may_be_7_bit = body.find('\x1b') != body.npos;  // ISO-2022-JP: ASCII bytes and escapes
    if (!wrong && !may_be_7_bit) return out;

    for (std::string name : {declared_charset(content_type, false), declared_charset(body, true)}) {
        for (auto& alias : charset_aliases) if (name == alias.label) name = alias.means;
        if (name.empty() || (name == "utf-8" && wrong > body.size() / 100))
            continue;  // it is not what it says
        if (name == "utf-8" || name == "UTF-8") return out;
        if (is_in(name)) return other;
    }

    // what it looks like
    uchardet_t detector = uchardet_new();
    uchardet_handle_data(detector, body.data(), std::min(body.size(), (size_t)64 << 10));
    uchardet_data_end(detector);
    std::string found = uchardet_get_charset(detector);
    uchardet_delete(detector);
    if (found == "UTF-8") return out;
    return is_in(found) || is_in("CP1252") ? other : out;
}

// ---- the whole of it -------------------------------------------------------------------------------------

// the page in a response's content as UTF-8; or "" and why there is none
inline std::string page_of(std::string_view content, size_t longest, Counts& counts, std::string* charset,
                           const char** why) {
    size_t head = header_end(content.substr(0, 256 << 10));
    *why = "responses without an HTTP header";
    if (!content.starts_with("HTTP/") || head == content.npos) return "";
    size_t blank = content.find(' ');
    *why = "responses of another status than 2xx";
    if (blank == content.npos || blank + 1 >= head || content[blank + 1] != '2') return "";

    HeaderFields fields(content.substr(0, head));
    std::string_view type = fields.get("Content-Type"), body = content.substr(head);
    auto names = [&](const char* known) {
        return !strncasecmp(type.data(), known, std::min(type.size(), strlen(known)));
    };
    *why = "pages that are not HTML";
    if (!type.empty() && !(type.size() >= 9 && names("text/html")) &&
        !(type.size() >= 21 && names("application/xhtml+xml"))) return "";

    std::string unchunked, decoded;
    std::string_view transfer = fields.get("Transfer-Encoding");
    if (transfer.size() >= 7 && !strncasecmp(transfer.data() + transfer.size() - 7, "chunked", 7)) {
        if (undo_chunks(body, unchunked)) body = unchunked;
        else counts["pages that are not chunked as declared"]++;
    }

    std::string_view encodings = fields.get("Content-Encoding");
    for (int rounds = 0; !encodings.empty() && rounds < 3; rounds++) {  // the last one was applied last
        size_t comma = encodings.rfind(',');
        std::string_view name =
            HeaderFields::strip(encodings.substr(comma == encodings.npos ? 0 : comma + 1));
        encodings = comma == encodings.npos ? std::string_view() : encodings.substr(0, comma);
        if (name == "identity" || name.empty()) continue;
        std::string out;
        if (undo_content_encoding(name, body, out, longest)) {
            decoded = std::move(out);
            body = decoded;
        } else counts["pages that are not encoded as declared"]++;
    }

    *why = "pages longer than --longest-page";
    if (body.size() > longest) return "";
    *why = "empty pages";
    if (HeaderFields::strip(body).empty()) return "";

    std::string_view start = HeaderFields::strip(body.substr(0, 1024));
    *why = "pages that are not HTML";
    if (start.starts_with("%PDF") || start.starts_with("\x89PNG") || start.starts_with("GIF8") ||
        start.starts_with("\xFF\xD8\xFF") || start.starts_with("PK\x03\x04")) return "";
    if (type.empty() && start.find('<') == start.npos) return "";
    return to_utf8(body, type, charset);
}
