"""Names of networks in C: those that programs find elsewhere are refused, and all others compile."""

import re
import shutil
import subprocess
from dataclasses import replace
from importlib import resources

import pytest

from lstm_onnx.c.file import c_file
from lstm_onnx.c.names import SUFFIXES, checked_name, free_name, is_free
from lstm_trt.config.errors import UsageError
from tests.support.c_networks import Plan, file_of, network, runnable

TAKEN = (
    "time", "asm", "class", "math", "Math", "string", "template", "linux", "index", "features", "int", "__init",
    "_Bool", "TILE", "lstm_trt", "lstm_trt_team", "atomic", "word", "vec", "aux", "windows", "2x", "", "a-b",
)  # fmt: skip

PLAN = Plan(("LSTM",), (5,), 3, 2)

PROGRAM = """#include "{name}.h"
#include <math.h>
#include <time.h>
{string}
double now(void);
double now(void) {{ return (double)time(0) + fabs(-1.0); }}
static struct {name} net;
int main(void)
{{
    return {name}_init(&net, 0) + (int)now();
}}
"""


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_is_taken_is_refused_with_a_better_one(name):
    assert not is_free(name) and is_free(free_name(name))
    with pytest.raises(UsageError, match=f"for example {free_name(name)}$"):
        checked_name(name)


@pytest.mark.parametrize("name", ["inner", "controller", "lstm_1x8_s4_b1", "net", "h0", "Wake"])
def test_other_names_stay(name):
    assert checked_name(name) == free_name(name) == name


@pytest.mark.random(tail=0, why="fuzzing, 4 names")
@pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("g++"), reason="needs gcc and g++")
def test_names_that_are_accepted_compile(rng, tmp_path):
    """Words of the generated code, and those around names that are taken, in programs in C and C++."""
    file = file_of(PLAN, runnable()[0], 1)
    window = {"run": network(PLAN).SerializeToString()}
    threads = c_file(window, file.target, "network", include_weights=True, threads=2)
    words = re.findall(
        r"[A-Za-z]\w*", file.source + resources.files("lstm_onnx.c").joinpath("reserved.txt").read_text()
    )
    words = [word.removesuffix(f"_{suffix}") for word in sorted(set(words)) for suffix in SUFFIXES]
    names = ["inner", "h0", "net", "weights", *map(free_name, rng.choice(words, 4)), *map(free_name, TAKEN[:2])]
    for number, name in enumerate(dict.fromkeys(names)):
        replace(threads if number % 2 else file, name=name).write(tmp_path)
        for language, string in (("c", "#include <string.h>"), ("c++", "#include <string>")):
            suffix = "cpp" if language == "c++" else "c"
            (tmp_path / f"main.{suffix}").write_text(PROGRAM.format(name=name, string=string))
            for source in (f"main.{suffix}", f"{name}.c"):
                command = ["gcc", "-x", language, "-I.", "-O0", "-Wall", "-Wextra", "-Werror", *file.target.flags]
                done = subprocess.run([*command, "-fsyntax-only", source], cwd=tmp_path, capture_output=True, text=True)
                assert (done.returncode, done.stderr) == (0, ""), (name, language, source)
