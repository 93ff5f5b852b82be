"""Other surroundings on this machine: what masked processors answer, and what `make test-elsewhere` counts."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lstm_trt.machine.linux import cpuinfo_flags
from tests import conftest
from tests.conftest import ran
from tests.support import elsewhere, failure_report, processors
from tests.support.processors import AMD, INTEL, KINDS

READER = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32))
ALL = 0xFFFFFFFF


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, Path]:
    if reason := processors.cannot_build():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("processors")
    return {name: processors.build(kind, folder / name) for name, kind in KINDS.items()}


def reader_of(library: Path, real):
    """CPUID of a kind over a processor that answers what `real(leaf, subleaf)` returns."""
    loaded = ctypes.CDLL(str(library))

    @READER
    def callback(leaf, subleaf, registers):
        for number, value in enumerate(real(leaf, subleaf)):
            registers[number] = value

    def read(leaf: int, subleaf: int = 0) -> tuple[int, ...]:
        registers = (ctypes.c_uint32 * 4)()
        loaded.answer(ctypes.c_uint32(leaf), ctypes.c_uint32(subleaf), registers, callback)
        return tuple(registers)

    return read


def letters(*registers: int) -> bytes:
    return b"".join(register.to_bytes(4, "little") for register in registers)


def everything(vendor: str):
    """A processor that has every feature, known or not."""

    def real(leaf: int, subleaf: int) -> tuple[int, ...]:
        words = [int.from_bytes(vendor[place : place + 4].encode(), "little") for place in (0, 4, 8)]
        if leaf == 0:
            return 0x24, words[0], words[2], words[1]
        if leaf == processors.EXTENDED:
            return (processors.EXTENDED + 0x21, *words)
        return ALL, ALL, ALL, ALL

    return real


#: What each kind has, from the manuals of Intel and AMD: registers EBX, ECX and EDX of leaf 7, and EAX of its
#: subleaf 1, of vector instructions alone; AVX, FMA and F16C in ECX of leaf 1; what XCR0 may hold.
AVX512_MASKS = 0xDC230020, 0x00005F42, 0x03C0010C, 0x00A00030
TRUTH = {
    "sse": ((0, 0, 0, 0), 0, 0),
    "haswell": ((0x20, 0, 0, 0), 0x30001000, 0x7),
    "skylake-server": ((0xD0030020, 0, 0, 0), 0x30001000, 0x2E7),
    "genoa": ((0xD0230020, 0x00005F42, 0, 0x20), 0x30001000, 0x2E7),
}


@pytest.mark.parametrize("vendor", [INTEL, AMD])
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_its_own_features_and_no_other(libraries, name, vendor):
    read, kind = reader_of(libraries[name], everything(vendor)), KINDS[name]
    assert processors.flags_in(read) - {"topoext"} == set(kind.flags) - {"topoext"}
    vector, leaf_1, xcr0 = TRUTH[name]
    registers = *read(7)[1:], read(7, 1)[0]
    assert tuple(value & mask for value, mask in zip(registers, AVX512_MASKS, strict=True)) == vector
    assert read(1)[2] & 0x30001000 == leaf_1 and read(1)[0] == kind.signature
    assert (read(0xD)[0], read(0xD)[3]) == (xcr0, 0)
    for component in range(2, 63):  # AVX is 2, AVX-512 5 to 7, AMX 17 and 18
        assert any(read(0xD, component)) == bool(xcr0 >> component & 1), component
    for leaf in (0x14, 0x19, 0x1D, 0x1E, 0x20, 0x24):  # tracing, keys, tiles, AVX10
        assert not any(read(leaf)) and not any(read(leaf, 1))
    assert read(7)[0] <= 1 and not any(read(7, 2))


@pytest.mark.parametrize("name", KINDS)
def test_the_names_agree_with_the_file_of_the_kernel(libraries, name):
    kind, real = KINDS[name], everything(INTEL)
    read = reader_of(libraries[name], real)
    highest, *words = read(0)
    assert letters(words[0], words[2], words[1]).decode() == kind.vendor
    brand = b"".join(letters(*read(processors.EXTENDED + number)) for number in (2, 3, 4))
    flags = [flag for flag in processors.FLAGS if flag != "osxsave"] + ["fpu", "sse4_2", "avx99_new", "hypervisor"]
    cpu = "vendor_id\t: planted\ncpu family\t: 9\nmodel\t\t: 8\nmodel name\t: planted\nstepping\t: 7\n"
    cpu += f"flags\t\t: {' '.join(flags)}\n"
    fields = dict(line.split(":", 1) for line in kind.cpuinfo(cpu * 2).splitlines()[:6])
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    assert (fields["vendor_id"], fields["model name"]) == (kind.vendor, brand.rstrip(b"\0").decode())
    assert kind.cpuinfo(cpu * 2).count(kind.model_name) == 2
    family, model = {"sse": (6, 44), "haswell": (6, 60), "skylake-server": (6, 85), "genoa": (25, 17)}[name]
    numbers = [int(fields[name]) for name in ("cpu family", "model", "stepping")]
    assert numbers == [family, model, read(1)[0] & 15]
    assert set(fields["flags"].split()) == processors.flags_in(read) - {"osxsave"} | {"fpu", "sse4_2", "hypervisor"}
    assert highest == kind.highest_leaf


def test_the_table_of_flags_is_that_of_the_kernel(libraries):
    """Each flag that the kernel shows is set where the table says."""
    loaded = ctypes.CDLL(str(libraries["genoa"]))

    def real(leaf: int, subleaf: int) -> tuple[int, ...]:
        registers = (ctypes.c_uint32 * 4)()
        loaded.real_cpuid(ctypes.c_uint32(leaf), ctypes.c_uint32(subleaf), registers)
        return tuple(registers)

    shown = cpuinfo_flags() & processors.FLAGS.keys()
    assert "rdpid" not in shown or len(shown) > 10
    assert shown <= processors.flags_in(real)


#: A program that faults as its argument says. The signal that it sends to itself looks as that of a faulted CPUID, and
#: arrives between `syscall`, which leaves 0 in EAX, and `cpuid`: so leaf 0 is asked, without a processor that faults.
FAULTS = r"""
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
void install_handler(void);
static sigjmp_buf back;
static void own(int number, siginfo_t *info, void *context) {
    (void)context;
    printf("own handler: signal %d, code %d, address %p\n", number, info->si_code, info->si_addr);
    siglongjmp(back, 1);
}
static void simple(int number) {
    printf("simple handler: signal %d\n", number);
    siglongjmp(back, 1);
}
static void vendor(void) {
    siginfo_t info = {.si_signo = SIGSEGV, .si_code = SI_KERNEL};
    unsigned words[4];
    int process = getpid(), thread = gettid(); /* a call after the next line would lose r10 */
    register siginfo_t *fourth __asm__("r10") = &info;
    __asm__ volatile("syscall\n\tcpuid" : "=a"(words[3]), "=b"(words[0]), "=c"(words[2]), "=d"(words[1])
                     : "a"(SYS_rt_tgsigqueueinfo), "D"(process), "S"(thread), "d"(SIGSEGV), "r"(fourth)
                     : "r11", "memory");
    printf("%.12s, leaves to %#x\n", (char *)words, words[3]);
}
int main(int count, char **arguments) {
    const char *case_ = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(case_, "constructor") == 0) {
        unsigned words[4];
        __asm__ volatile("cpuid" : "=a"(words[3]), "=b"(words[0]), "=c"(words[2]), "=d"(words[1]) : "a"(0), "c"(0));
        printf("%.12s, leaves to %#x\n", (char *)words, words[3]);
        return 0;
    }
    install_handler();
    vendor();
    struct sigaction action = {.sa_sigaction = own, .sa_flags = SA_SIGINFO}, before;
    if (strcmp(case_, "sigaction") == 0) {
        sigaction(SIGSEGV, &action, NULL);
        sigaction(SIGSEGV, NULL, &before);
        printf("kept: %d\n", before.sa_sigaction == own && before.sa_flags == SA_SIGINFO);
    } else if (strcmp(case_, "signal") == 0)
        printf("default before: %d\n", signal(SIGSEGV, simple) == SIG_DFL);
    else if (strcmp(case_, "ignored") == 0) {
        signal(SIGSEGV, SIG_IGN);
        raise(SIGSEGV);
        printf("ignored\n");
        return 0;
    } else if (strcmp(case_, "raise") == 0)
        raise(SIGSEGV);
    if (sigsetjmp(back, 1) == 0)
        *(volatile int *)16 = 1;
    vendor();
    return 0;
}
"""


@pytest.fixture(scope="module")
def faults(libraries, tmp_path_factory):
    """Run the program of faults as a kind."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(FAULTS)

    def run(name: str, case: str, **environment: str) -> subprocess.CompletedProcess:
        program, library = folder / name, libraries[name]
        if not program.exists():
            ran("gcc", "-w", folder / "faults.c", library, "-o", program)
        return ran(program, case, status=None, env=environment | {"LD_PRELOAD": str(library)})

    return run


@pytest.mark.parametrize("name", KINDS)
def test_the_handler_answers_and_goes_on_after_the_instruction(faults, name):
    vendor = f"{KINDS[name].vendor}, leaves to {KINDS[name].highest_leaf:#x}\n"
    done = faults(name, "sigaction")
    assert (
        done.returncode == 0
        and done.stdout == f"{vendor}kept: 1\nown handler: signal 11, code 1, address 0x10\n{vendor}"
    )


@pytest.mark.parametrize(
    ("case", "status", "said"),
    [
        ("signal", 0, "default before: 1\nsimple handler: signal 11\nGenuine"),
        ("ignored", 0, "ignored\n"),
        ("raise", -11, ""),
        ("", -11, ""),
    ],
)
def test_other_faults_are_those_of_the_program(faults, case, status, said):
    done = faults("sse", case)
    assert done.returncode == status, done
    assert done.stdout.split("\n", 1)[1].startswith(said)


def test_python_prints_its_own_faults(libraries):
    library = str(libraries["sse"])
    program = f"import ctypes, faulthandler; ctypes.CDLL({library!r}).install_handler(); faulthandler.enable()\n"
    done = ran(sys.executable, "-c", program + "ctypes.string_at(16)", status=-11, env={"LD_PRELOAD": library})
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_where_cpuid_cannot_fault_the_program_says_so(faults):
    done = faults("sse", "constructor", **{processors.VARIABLE: "1"})
    if "cpuid_fault" in cpuinfo_flags():
        assert done.stdout == f"{INTEL}, leaves to 0xb\n"
    else:
        assert done.returncode == 77 and "cannot fault CPUID" in done.stderr


@pytest.mark.parametrize(("stats", "sections"), [({"passed": [1]}, 0), ({"failed": [1, 2]}, 1), ({"error": [1]}, 1)])
def test_below_failures_stands_the_machine_once(pytestconfig, stats, sections):
    printed = []
    reporter = SimpleNamespace(stats=stats, section=printed.append, write_line=printed.append)
    conftest.pytest_terminal_summary(reporter, pytestconfig)
    assert len([line for line in printed if line.startswith("processor: ")]) == sections
    assert printed == [] or f"--seed {pytestconfig.option.seed}" in printed[-2]


def test_the_report_states_the_processor_as_the_kernel_does(tmp_path):
    (tmp_path / "proc").mkdir()
    stated = "processor\t: 0\nmodel name\t: Planted CPU\nflags\t\t: fpu avx2 avx512_bf16 amx_tile erms avx_vnni\n"
    (tmp_path / "proc" / "cpuinfo").write_text(stated)
    processor, features, *_ = failure_report.lines(5, tmp_path)
    assert processor.startswith("processor: Planted CPU, ")
    assert features == "features: amx_tile avx2 avx512_bf16 avx_vnni"


@pytest.mark.skipif(processors.VARIABLE not in os.environ, reason="the processor is not masked: see test-elsewhere")
def test_a_masked_processor_is_what_libraries_see():
    from numpy._core._multiarray_umath import __cpu_features__ as numpy_features

    names = {"AVX": "avx", "AVX2": "avx2", "FMA3": "fma", "AVX512F": "avx512f", "AVX512VNNI": "avx512_vnni"}
    found = {flag for name, flag in names.items() if numpy_features[name]}
    assert found == cpuinfo_flags() & set(names.values())


def test_the_files_of_the_surroundings_are_there():
    for name, surrounding in elsewhere.SURROUNDINGS.items():
        for file in (*surrounding.tests, *surrounding.without):
            path, _, test = file.partition("::")
            assert (elsewhere.ROOT / "tests" / path).exists(), f"{name}: {file}"
            assert not test or f"def {test}(" in (elsewhere.ROOT / "tests" / path).read_text(), f"{name}: {file}"


def impossible(folder: Path) -> elsewhere.Setting:
    raise elsewhere.CannotMake("planted reason")


@pytest.mark.parametrize(
    ("statuses", "faults", "status", "last"),
    [
        ({"sse": None, "home": 0}, False, 0, "1 of 2 surroundings passed"),
        ({"sse": None, "home": 1}, False, 1, "0 of 2 surroundings passed"),
        (dict.fromkeys(KINDS) | {"home": 0}, False, 0, "1 of 5 surroundings passed"),
        (dict.fromkeys(KINDS) | {"home": 0}, True, 1, "1 of 5 surroundings passed"),
        ({**dict.fromkeys(KINDS), "sse": 0}, True, 0, "1 of 4 surroundings passed"),
        ({"home": 0}, True, 0, "1 of 1 surroundings passed"),
    ],
)
def test_the_last_line_counts_what_ran(monkeypatch, capsys, statuses, faults, status, last):
    """With planted surroundings: None cannot be made, 0 passes, 1 fails."""

    def run(surrounding, seed, folder):
        surrounding.make(folder)
        return subprocess.CompletedProcess([], int(surrounding.tests[0]), "output of the tests\n1 done in 2 s\n")

    planted = {
        name: elsewhere.Surrounding(name, impossible if ended is None else elsewhere.terminal, (str(ended),))
        for name, ended in statuses.items()
    }
    monkeypatch.setattr(elsewhere, "SURROUNDINGS", planted)
    monkeypatch.setattr(elsewhere, "run", run)
    monkeypatch.setattr(elsewhere, "cpuinfo_flags", lambda: {elsewhere.FAULTS} if faults else set())
    assert elsewhere.run_all(list(planted), 1) == status
    printed = capsys.readouterr().out
    counted = printed.splitlines()[-1]
    assert counted.startswith(last)
    for ended, word in ((1, "failed"), (None, "skipped")):
        names = [name for name in statuses if statuses[name] == ended]
        assert (f"{len(names)} {word} ({', '.join(names)})" in counted) == bool(names)
    assert printed.count("skipped: planted reason") == list(statuses.values()).count(None)
    assert ("output of the tests" in printed) == (1 in statuses.values())


def test_a_refused_system_call_is_refused():
    try:
        setting = elsewhere.no_perf(Path())
    except elsewhere.CannotMake as reason:
        pytest.skip(str(reason))
    number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
    program = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
    program += f"print(libc.syscall({number}, 0, 0, -1, -1, 0), ctypes.get_errno())"
    done = ran(sys.executable, "-c", program, **setting.process)
    assert done.stdout == f"-1 {errno.EACCES}\n"
