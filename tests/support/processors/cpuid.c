/* Answers CPUID as another processor would: preloaded into a process, it lets the kernel fault the instruction.
 *
 * kind.h, which `tests.support.processors` writes, says what the processor has: features that are
 * not listed there are cleared; none is added that the real one lacks. XGETBV cannot be faulted, so programs must look at CPUID too, as they should.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "kind.h"

#define ARCH_SET_CPUID 0x1012
#define EXTENDED 0x80000000u
#define BRAND_LEAF 0x80000002u
#define INTEL_CACHES 4u
#define AMD_CACHES 0x8000001du
#define SKIPPED 77 /* the exit status of what cannot run here */

typedef void reader(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]);

enum { EAX, EBX, ECX, EDX };

static int is_amd(const uint32_t vendor[4]) {
    return memcmp(&vendor[EBX], "Auth", 4) == 0;
}

/* What the processor of this kind answers; `real` reads the one that is there. */
void answer(uint32_t leaf, uint32_t subleaf, uint32_t registers[4], reader *real) {
    uint32_t basic[4], extended[4];
    real(0, 0, basic);
    real(EXTENDED, 0, extended);
    int amd_here = is_amd(basic);
    memset(registers, 0, 4 * sizeof *registers);
    if (leaf == 0) {
        registers[EAX] = HIGHEST_LEAF < basic[EAX] ? HIGHEST_LEAF : basic[EAX];
        memcpy(&registers[EBX], VENDOR, 4);
        memcpy(&registers[EDX], VENDOR + 4, 4);
        memcpy(&registers[ECX], VENDOR + 8, 4);
        return;
    }
    if (leaf == EXTENDED) {
        registers[EAX] = HIGHEST_EXTENDED_LEAF;
        return;
    }
    if (leaf >= BRAND_LEAF && leaf < BRAND_LEAF + 3) {
        static const char brand[48] = BRAND;
        memcpy(registers, brand + 16 * (leaf - BRAND_LEAF), 16);
        return;
    }
    /* Both vendors describe caches alike, in different leaves; Intel counts cores in bits 26 to 31. */
    if (leaf == (IS_AMD ? AMD_CACHES : INTEL_CACHES)) {
        real(amd_here ? AMD_CACHES : INTEL_CACHES, subleaf, registers);
        registers[EAX] &= 0x03ffffff;
        return;
    }
    if (leaf == (IS_AMD ? INTEL_CACHES : AMD_CACHES))
        return;
    /* Beyond its last leaf, Intel repeats the last one. The leaves of hypervisors are the hypervisor's. */
    if (leaf < 0x40000000u && (leaf > HIGHEST_LEAF || leaf > basic[EAX]))
        return;
    if (leaf >= EXTENDED && (leaf > HIGHEST_EXTENDED_LEAF || leaf > extended[EAX]))
        return;
    real(leaf, subleaf, registers);
    if (leaf == 1)
        registers[EAX] = SIGNATURE;
    if (leaf == 7 && subleaf == 0 && registers[EAX] > 1) /* its highest subleaf */
        registers[EAX] = 1;
    if ((leaf == 7 && subleaf > 1) || (leaf == 0xd && subleaf > 1 && (subleaf > 31 || !(XSTATE >> subleaf & 1))))
        memset(registers, 0, 4 * sizeof *registers);
    for (unsigned i = 0; i < sizeof MASKS / sizeof *MASKS; i++)
        if (MASKS[i].leaf == leaf && MASKS[i].subleaf == subleaf)
            for (int name = EAX; name <= EDX; name++)
                registers[name] &= MASKS[i].kept[name];
    if (leaf == EXTENDED + 1 && IS_AMD) /* else nobody reads AMD's leaf of caches */
        registers[ECX] |= 1u << 22;
}

static void fault_cpuid(int faults) {
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, (unsigned long)!faults);
}

void real_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]) {
    __asm__ volatile("cpuid"
                     : "=a"(registers[EAX]), "=b"(registers[EBX]), "=c"(registers[ECX]), "=d"(registers[EDX])
                     : "a"(leaf), "c"(subleaf));
}

/* The handler that the program believes to have installed. */
static struct sigaction user;

typedef int sigaction_type(int, const struct sigaction *, struct sigaction *);
typedef sighandler_t signal_type(int, sighandler_t);

static int real_sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    static sigaction_type *next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "sigaction");
    return next(number, new, old);
}

static int installed;

int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    if (number != SIGSEGV || !installed)
        return real_sigaction(number, new, old);
    struct sigaction before = user;
    if (new)
        user = *new;
    if (old)
        *old = before;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    static signal_type *next;
    if (number == SIGSEGV && installed) {
        struct sigaction before = user;
        user = (struct sigaction){.sa_handler = handler, .sa_flags = SA_RESTART};
        return before.sa_handler;
    }
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "signal");
    return next(number, handler);
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    int error = errno;
    if (info->si_code == SI_KERNEL && code && code[0] == 0x0f && code[1] == 0xa2) {
        uint32_t answered[4];
        fault_cpuid(0);
        answer(registers[REG_RAX], registers[REG_RCX], answered, real_cpuid);
        fault_cpuid(1);
        registers[REG_RAX] = answered[EAX];
        registers[REG_RBX] = answered[EBX];
        registers[REG_RCX] = answered[ECX];
        registers[REG_RDX] = answered[EDX];
        registers[REG_RIP] += 2;
        errno = error;
        return;
    }
    int sent = info->si_code <= 0; /* by kill() and the like, so that returning does not repeat it */
    if (user.sa_handler == SIG_IGN && sent)
        return;
    if (user.sa_handler != SIG_DFL && user.sa_handler != SIG_IGN) {
        struct sigaction called = user;
        if (called.sa_flags & (int)SA_RESETHAND)
            user = (struct sigaction){.sa_handler = SIG_DFL};
        if (called.sa_flags & SA_SIGINFO)
            called.sa_sigaction(number, info, context);
        else
            called.sa_handler(number);
        return;
    }
    real_sigaction(SIGSEGV, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    if (sent)
        syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGSEGV);
}

void install_handler(void) {
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    real_sigaction(SIGSEGV, &ours, &user);
    installed = 1;
}

/* The kernel ends the faulting at exec, so each program that is started comes here again. */
__attribute__((constructor)) static void start(void) {
    if (!getenv("LSTM_TRT_FAULT_CPUID"))
        return;
    install_handler();
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0UL)) {
        perror("this processor or kernel cannot fault CPUID");
        _exit(SKIPPED);
    }
}
