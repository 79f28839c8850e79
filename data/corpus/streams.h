// streams.h   bytes in and out of files, plain, gzip or zstd
//   ByteReader   a file's decompressed bytes; its first bytes tell the compression (.gz may begin damaged)
//                gzip: any number of members, each read on its own; a damaged one is counted and ends where
//                the damage is found, and reading continues with the next
//   ByteWriter   compresses if the name ends in .gz or .zst; the file appears when finish() has put all of it
//                on disk
//   Neither holds a whole file: a reader keeps up to some 32 MB of it in memory, besides the decoder.
#pragma once
#include <zlib.h>
#include <zstd.h>
#include <algorithm>
#include <string>
#include "../../layers/base/file_writer.h"

enum class Packing { Plain, Gzip, Zstd };

struct ByteReader {
    MappedFile file;
    Packing packing = Packing::Plain;
    size_t at = 0;             // in the file
    bool starts_part = true;   // the next byte is the first of a member, or of the file
    long damaged = 0;          // members and frames that broke
    bool behind_damage = false;  // data were lost between the last read and the one before

    explicit ByteReader(const std::string& path) : file(path) {
        std::string_view all = file.view();
        if (gzip_at(0) || (path.ends_with(".gz") && all.find("\x1f\x8b\x08") != all.npos))
            packing = Packing::Gzip;
        else if (all.starts_with("\x28\xb5\x2f\xfd") || (all.size() > 4 && (all[0] & 0xF0) == 0x50 &&
                                                         all.substr(1, 3) == "\x2a\x4d\x18"))
            packing = Packing::Zstd;
        if (packing == Packing::Gzip && inflateInit2(&inflate_state, 15 + 16) != Z_OK)
            fail("%s: not enough memory to decompress", path.c_str());
        if (packing == Packing::Zstd && !(zstd = ZSTD_createDCtx()))
            fail("%s: not enough memory to decompress", path.c_str());
        if (zstd) ZSTD_DCtx_setParameter(zstd, ZSTD_d_windowLogMax, 31);
        if (file.data) madvise((void*)file.data, file.size, MADV_SEQUENTIAL);
    }

    ByteReader(const ByteReader&) = delete;
    ~ByteReader() {
        if (packing == Packing::Gzip) inflateEnd(&inflate_state);
        ZSTD_freeDCtx(zstd);
    }

    size_t left() const { return file.size - at; }  // bytes of the file, compressed
    // up to n bytes into out, never across the end of a member; 0 only where the file ends
    size_t read(char* out, size_t n) {
        if (at - given_back > (32 << 20)) {  // read pages count as this process's memory until released
            madvise((void*)(file.data + given_back), (at - given_back) & ~(size_t)0xFFFF, MADV_DONTNEED);
            given_back += (at - given_back) & ~(size_t)0xFFFF;
        }
        behind_damage = false;
        for (;;) {
            size_t had = at;
            if (at >= file.size) {
                if (std::exchange(inside, false)) damaged++;
                return 0;
            }
            size_t got = packing == Packing::Plain ? plain(out, n)
                : packing == Packing::Gzip ? inflate_some(out, n) : zstd_some(out, n);
            if (got) return got;
            if (at == had && !inside) at = file.size;  // nothing readable follows
        }
    }

private:
    z_stream inflate_state = {};
    ZSTD_DCtx* zstd = nullptr;
    bool inside = false;    // of a member or frame
    bool broken = false;    // since bytes were read last
    size_t given_back = 0;  // bytes of the file

    bool gzip_at(size_t i) const {
        return i + 3 <= file.size && !memcmp(file.data + i, "\x1f\x8b\x08", 3);
    }

    size_t plain(char* out, size_t n) {
        starts_part = at == 0;
        n = std::min(n, file.size - at);
        memcpy(out, file.data + at, n);
        at += n;
        return n;
    }

    // to the next member behind damage, or the end
    void find_member(size_t from) {
        broken = true;
        for (at = std::min(from, file.size); at < file.size && !gzip_at(at);) {
            const void* next = memchr(file.data + at + 1, 0x1f, file.size - at - 1);
            at = next ? (size_t)((const char*)next - file.data) : file.size;
        }
        inside = false;
    }

    size_t inflate_some(char* out, size_t n) {
        if (!inside) {
            if (!gzip_at(at)) {
                size_t zeros = at;  // some writers pad with zeros
                while (zeros < file.size && !file.data[zeros]) zeros++;
                if (zeros < file.size) damaged++;
                find_member(at);
                if (at >= file.size) return 0;
            }
            inflateReset(&inflate_state);
            inside = starts_part = true;
        } else starts_part = false;

        behind_damage |= std::exchange(broken, false);
        inflate_state.next_in = (Bytef*)file.data + at;
        inflate_state.avail_in = (uInt)std::min(file.size - at, (size_t)1 << 30);
        inflate_state.next_out = (Bytef*)out;
        inflate_state.avail_out = (uInt)std::min(n, (size_t)1 << 30);

        int result = inflate(&inflate_state, Z_NO_FLUSH);
        size_t used = (size_t)((const char*)inflate_state.next_in - file.data) - at;
        size_t got = (size_t)((char*)inflate_state.next_out - out);

        at += used;
        if (result == Z_STREAM_END) inside = false;
        else if (result != Z_OK && result != Z_BUF_ERROR) {
            damaged++;
            find_member(at + 1);
        } else if (!used && !got) at = file.size;  // needs more than is left
        return got;
    }

    // to the next frame behind damage, or the end
    void find_frame(size_t from) {
        std::string_view left((const char*)file.data, file.size);
        at = std::min(left.find("\x28\xb5\x2f\xfd", from), file.size);
        broken = true;
        inside = false;
        ZSTD_DCtx_reset(zstd, ZSTD_reset_session_only);
    }

    size_t zstd_some(char* out, size_t n) {
        starts_part = !inside;
        ZSTD_inBuffer in = {file.data, file.size, at};
        ZSTD_outBuffer to = {out, n, 0};
        size_t left = ZSTD_decompressStream(zstd, &to, &in);
        if (ZSTD_isError(left)) {
            damaged++;
            find_frame(std::max(in.pos, at + 1));
            return to.pos;
        }
        if (to.pos) behind_damage |= std::exchange(broken, false);

        bool moved = in.pos != at || to.pos;
        at = in.pos;
        inside = left != 0;
        if (!moved) at = file.size;
        return to.pos;
    }
};

struct ByteWriter {
    FileWriter file;
    Packing packing;

    explicit ByteWriter(const std::string& path) : file(path) {
        packing = path.ends_with(".gz") ? Packing::Gzip : path.ends_with(".zst") ? Packing::Zstd
            : Packing::Plain;
        if (packing == Packing::Gzip && deflateInit2(&deflate_state, 6, Z_DEFLATED, 15 + 16, 8,
                                                     Z_DEFAULT_STRATEGY) != Z_OK)
            fail("%s: not enough memory to compress", path.c_str());
        if (packing == Packing::Zstd) {
            zstd = ZSTD_createCCtx();
            if (!zstd) fail("%s: not enough memory to compress", path.c_str());
            ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, 3);
            ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, 1);
        }
        pending.reserve(piece);
    }

    ByteWriter(const ByteWriter&) = delete;
    ~ByteWriter() {
        if (packing == Packing::Gzip) deflateEnd(&deflate_state);
        ZSTD_freeCCtx(zstd);
    }

    void write(std::string_view s) {
        while (!s.empty()) {
            size_t n = std::min(s.size(), piece - pending.size());
            pending.append(s.substr(0, n));
            s.remove_prefix(n);
            if (pending.size() == piece) flush(false);
        }
    }

    void finish() {
        flush(true);
        file.finish();
    }

private:
    static constexpr size_t piece = 256 << 10;
    std::string pending;
    z_stream deflate_state = {};
    ZSTD_CCtx* zstd = nullptr;
    char out[64 << 10];

    void flush(bool last) {
        if (packing == Packing::Plain) file.write(pending);
        else if (packing == Packing::Gzip) {
            deflate_state.next_in = (Bytef*)pending.data();
            deflate_state.avail_in = (uInt)pending.size();
            do {
                deflate_state.next_out = (Bytef*)out;
                deflate_state.avail_out = sizeof out;
                deflate(&deflate_state, last ? Z_FINISH : Z_NO_FLUSH);
                file.write(out, sizeof out - deflate_state.avail_out);
            } while (deflate_state.avail_out == 0);
        } else {
            ZSTD_inBuffer in = {pending.data(), pending.size(), 0};
            size_t left = 0;
            do {
                ZSTD_outBuffer to = {out, sizeof out, 0};
                left = ZSTD_compressStream2(zstd, &to, &in, last ? ZSTD_e_end : ZSTD_e_continue);
                if (ZSTD_isError(left)) fail("%s: %s", file.path.c_str(), ZSTD_getErrorName(left));
                file.write(out, to.pos);
            } while (last ? left != 0 : in.pos < in.size);
        }
        pending.clear();
    }
};
