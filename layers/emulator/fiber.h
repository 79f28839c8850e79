// fiber.h   fibers, which run cuda_on_cpu.h's threads: each has its own stack; switching needs no system call
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <memory>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

struct Context {
    void* sp = nullptr;  // where the callee-saved registers are while it is not running
#if !defined(__x86_64__) && !defined(__aarch64__)
    ucontext_t machine;
#endif
    const void* stack = nullptr;  // for AddressSanitizer: lowest address and size
    size_t size = 0;
    void* fake = nullptr;
};

#if defined(__x86_64__)
asm(R"(
.text
.weak emulated_switch
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, .-emulated_switch
)");
// the frame that the first switch to a fiber pops: index of the return address (its entry), size in words
constexpr int return_word = 6, frame_words = 8;
#elif defined(__aarch64__)
asm(R"(
.text
.weak emulated_switch
.type emulated_switch, %function
emulated_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulated_switch, .-emulated_switch
)");
constexpr int return_word = 11, frame_words = 20;
#endif
extern "C" void emulated_switch(void** save, void* load);

inline void switch_context(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake, to.stack, to.size);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    emulated_switch(&from.sp, to.sp);
#else
    swapcontext(&from.machine, &to.machine);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

constexpr size_t stack_bytes = 128 << 10;

struct Fiber : Context {
    std::unique_ptr<char[]> memory{new char[stack_bytes]};
    // number: this fiber's. Stacks are whole pages: their tops would all share a few cache sets, and every
    // switch would miss the cache. So each stack begins a few cache lines lower than the one before
    Fiber(void (*entry)(), size_t number) {
        stack = memory.get();
        size = stack_bytes - number % 64 * 256;
#if defined(__x86_64__) || defined(__aarch64__)
        void** top = (void**)((uintptr_t)(memory.get() + size) & ~(uintptr_t)15);
        void** frame = top - frame_words;
        memset(frame, 0, frame_words * sizeof(void*));
        frame[return_word] = (void*)entry;
        sp = frame;
#else
        getcontext(&machine);
        machine.uc_stack.ss_sp = memory.get();
        machine.uc_stack.ss_size = size;
        makecontext(&machine, entry, 0);
#endif
    }
};

}  // namespace emulated
