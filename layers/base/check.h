// check.h   how the program reports errors: one Error that says what it has, what is expected, what to do
//   fail(format, …)   throws Error; main() prints it in one write and exits with 1
//   Messages read "have: expected, do", as in: 7 heads do not divide 96 channels: choose --heads 6 or 8
#pragma once
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Damaged : Error {  // a file is too short, or its checksum differs: reading it again would not help
    using Error::Error;
};

__attribute__((format(printf, 1, 0))) inline std::string vtext(const char* format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    std::string out((size_t)vsnprintf(nullptr, 0, format, again) + 1, '\0');
    va_end(again);
    vsnprintf(out.data(), out.size(), format, arguments);
    out.pop_back();
    return out;
}

// printf into a string
__attribute__((format(printf, 1, 2))) inline std::string text(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string out = vtext(format, arguments);
    va_end(arguments);
    return out;
}

// "1 rank", "8 ranks"
inline std::string counted(long n, const char* what) { return text("%ld %s%s", n, what, n == 1 ? "" : "s"); }

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string out = vtext(format, arguments);
    va_end(arguments);
    throw Error(out);
}

inline double seconds() {  // since an arbitrary moment, the same for all processes of this machine
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
