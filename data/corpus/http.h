// http.h   an HTTP response as a crawler stored it -> the page as UTF-8
//   Transfer and content encodings are undone only if the body really has them: crawlers often store the body
//   decoded, with the original header. A body may have several gzip members or zstd frames; what cannot be
//   decoded behind the first, or is cut short, is counted.
#pragma once
#include <brotli/decode.h>
#include "charset.h"
#include "warc.h"

// ---- encodings of the body -------------------------------------------------------------------------------

// `cut`, here and below: set if the data end early, or what follows cannot be decoded

// false: this is not chunked; a body that ends early is kept as far as it goes
inline bool undo_chunks(std::string_view in, std::string& out, bool& cut) {
    out.clear();
    bool any = false;
    while (!in.empty()) {
        size_t n = 0, begin = std::min(in.find_first_not_of(" \t"), in.size()), at = begin;
        for (; at < in.size() && isxdigit((unsigned char)in[at]); at++) {
            int digit = isdigit((unsigned char)in[at]) ? in[at] - '0' : (in[at] | 32) - 'a' + 10;
            n = std::min(n * 16 + (size_t)digit, (size_t)1 << 40);  // more than any page has
        }

        size_t line = in.substr(0, 1024).find('\n');
        bool clean = at > begin && at < in.size() && line != in.npos &&
            std::string_view("\r\n; \t").find(in[at]) != std::string_view::npos;
        if (!clean) break;
        if (n == 0) return true;

        any = true;
        in.remove_prefix(line + 1);
        out.append(in.substr(0, n));
        in.remove_prefix(std::min(n, in.size()));
        while (!in.empty() && (in[0] == '\r' || in[0] == '\n')) in.remove_prefix(1);
    }
    cut = any;  // the last chunk, of size 0, was not found
    return any;
}

// bits: zlib's window bits; false where nothing came out
inline bool inflate_all(std::string_view in, std::string& out, int bits, size_t longest, bool& cut) {
    z_stream s = {};
    if (inflateInit2(&s, bits) != Z_OK) return false;
    s.next_in = (Bytef*)in.data();
    s.avail_in = (uInt)in.size();
    out.clear();

    char piece[64 << 10];
    int result = Z_OK;
    while (result == Z_OK && out.size() <= longest) {
        s.next_out = (Bytef*)piece;
        s.avail_out = sizeof piece;
        result = inflate(&s, Z_NO_FLUSH);
        out.append(piece, sizeof piece - s.avail_out);
        if (result == Z_OK && !s.avail_in && s.avail_out) break;
        // RFC 1952: a gzip file is one member after another; what else follows is padding
        bool another = s.avail_in >= 2 && s.next_in[0] == 0x1f && s.next_in[1] == 0x8b;
        if (result == Z_STREAM_END && another) result = inflateReset(&s);
    }
    cut = result != Z_STREAM_END && out.size() <= longest;
    inflateEnd(&s);
    return !out.empty();
}

inline bool unbrotli(std::string_view in, std::string& out, size_t longest, bool& cut) {
    BrotliDecoderState* state = BrotliDecoderCreateInstance(nullptr, nullptr, nullptr);
    const uint8_t* next = (const uint8_t*)in.data();
    size_t left = in.size();
    out.clear();
    uint8_t piece[64 << 10];
    BrotliDecoderResult result = BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT;
    while (result == BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT && out.size() <= longest) {
        size_t space = sizeof piece;
        uint8_t* to = piece;
        result = BrotliDecoderDecompressStream(state, &left, &next, &space, &to, nullptr);
        out.append((const char*)piece, sizeof piece - space);
    }
    cut = result != BROTLI_DECODER_RESULT_SUCCESS && out.size() <= longest;
    BrotliDecoderDestroyInstance(state);
    return !out.empty();
}

// RFC 8878: any number of frames
inline bool unzstd(std::string_view in, std::string& out, size_t longest, bool& cut) {
    ZSTD_DCtx* state = ZSTD_createDCtx();
    ZSTD_inBuffer from = {in.data(), in.size(), 0};
    out.clear();
    char piece[64 << 10];
    size_t left = 1;  // 0: a frame has ended
    while (out.size() <= longest) {
        ZSTD_outBuffer to = {piece, sizeof piece, 0};
        left = ZSTD_decompressStream(state, &to, &from);
        out.append(piece, to.pos);
        if (ZSTD_isError(left) || (from.pos == from.size && to.pos < to.size)) break;
        if (from.pos == from.size && left == 0) break;
    }
    cut = left != 0 && out.size() <= longest;
    ZSTD_freeDCtx(state);
    return !out.empty();
}

// false: an unknown encoding, or nothing could be decoded
inline bool undo_content_encoding(std::string_view name, std::string_view in, std::string& out,
                                  size_t longest, bool& cut) {
    auto is = [&](std::string_view known) { return HeaderFields::same(name, known); };
    if (is("gzip") || is("x-gzip")) return inflate_all(in, out, 15 + 32, longest, cut);
    if (is("deflate"))
        return inflate_all(in, out, 15, longest, cut) || inflate_all(in, out, -15, longest, cut);
    if (is("br")) return unbrotli(in, out, longest, cut);
    if (is("zstd")) return unzstd(in, out, longest, cut);
    return false;
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
    *why = "pages that are not HTML";
    bool is_html = begins_as(type, "text/html") || begins_as(type, "application/xhtml+xml");
    if (!type.empty() && !is_html) return "";

    std::string unchunked, decoded;
    std::string_view transfer = fields.get("Transfer-Encoding");
    if (transfer.size() >= 7 && !strncasecmp(transfer.data() + transfer.size() - 7, "chunked", 7)) {
        bool cut = false;
        if (undo_chunks(body, unchunked, cut)) body = unchunked;
        else counts["pages that are not chunked as declared"]++;
        if (cut) counts["pages whose chunks are cut short"]++;
    }

    std::string_view encodings = fields.get("Content-Encoding");
    for (int rounds = 0; !encodings.empty() && rounds < 3; rounds++) {  // the last one was applied last
        size_t comma = encodings.rfind(',');
        std::string_view name =
            HeaderFields::strip(encodings.substr(comma == encodings.npos ? 0 : comma + 1));
        encodings = comma == encodings.npos ? std::string_view() : encodings.substr(0, comma);
        if (name == "identity" || name.empty()) continue;
        std::string out;
        bool cut = false;
        if (undo_content_encoding(name, body, out, longest, cut)) {
            if (cut) counts["pages whose encoded body is cut short"]++;
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
