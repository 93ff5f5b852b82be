import shlex

from lstm_judge.read.labels import flat, labels, record_command
from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.shape import LstmShape

PLAIN = Configuration(LstmShape(2, 64, 32), "onnxruntime", "1.0", "a processor")
THREADS = Configuration(LstmShape(2, 64, 32), "onnxruntime", "1.0", "a processor", Options(precision="bf16", threads=2))


def test_labels_show_only_what_differs():
    fields = [flat(configuration) for configuration in (PLAIN, THREADS)]
    assert labels(fields) == ["fp32, threads 1", "bf16, threads 2"]
    assert labels(fields, enough=True) == ["fp32", "bf16"]
    assert labels(fields[:1]) == [""]


def test_a_field_without_value_is_left_out():
    assert labels([{"runtime": "a", "pause_ms": None}, {"runtime": "b", "pause_ms": 5.0}]) == ["a", "b, pause ms 5.0"]


def test_the_command_leaves_defaults_out():
    assert record_command(PLAIN, "out").split() == shlex.split(
        "lstm-trt record --layers 2 --hidden 64 --sequence 32 --batch 1 --runtime onnxruntime --device cpu"
        " --trials 1000 --out out"
    )
    periodic = Configuration(
        LstmShape(1, 8, 4), "onnxruntime", "1.0", "a processor", protocol=Protocol(arrival="periodic", period_us=1500)
    )
    assert "--arrival periodic --wait spin --period-us 1500" in record_command(periodic, "out")
    assert record_command(PLAIN, "out", rounds=5).endswith("--rounds 5 --out out")
