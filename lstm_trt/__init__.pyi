from lstm_judge import plots as plots
from lstm_judge.campaign import confirm as confirm, describe_runs as describe_runs, gpu_runs as gpu_runs
from lstm_judge.campaign import largest_that_meets as largest_that_meets, load_or_record as load_or_record
from lstm_judge.campaign import own_networks as own_networks, show as show
from lstm_judge.compare.compare import compare as compare
from lstm_judge.outliers.outliers import outliers as outliers
from lstm_judge.read.labels import size_of as size_of
from lstm_judge.read.runs import Runs as Runs, load as load
from lstm_judge.replay import replay as replay
from lstm_judge.report.explore import explore as explore
from lstm_judge.report.report import report as report
from lstm_judge.rerun import rerun as rerun_notebooks
from lstm_judge.scaling.scaling import scaling as scaling
from lstm_judge.summarize.summarize import summarize as summarize
from lstm_judge.verdict.verdict import verdict as verdict
from lstm_judge.versions import record_versions as versions
from lstm_judge.watch import follow as watch
from lstm_onnx.c.export import export_c as export_c
from lstm_onnx.inspect import inspect as inspect
from lstm_onnx.own_network import OnnxNetwork as OnnxNetwork
from lstm_onnx.torch_network import TorchNetwork as TorchNetwork
from lstm_trt.config.configuration import Configuration as Configuration, Options as Options, Protocol as Protocol
from lstm_trt.config.errors import LabError as LabError, UsageError as UsageError
from lstm_trt.config.shape import Grid as Grid, LstmShape as LstmShape
from lstm_trt.config.step import Step as Step
from lstm_trt.export.tensorrt.build import build_engine as build_engine
from lstm_trt.export.tensorrt.engine import EngineOptions as EngineOptions
from lstm_trt.export.to_onnx import export_onnx as export_onnx
from lstm_trt.recorder.cached import cache_contents as cache_contents, clear_cache as clear_cache
from lstm_trt.recorder.describe import describe as describe
from lstm_trt.recorder.doctor import examine as doctor
from lstm_trt.recorder.pool import record as record
from lstm_trt.recorder.soak import soak as soak
from lstm_trt.recorder.sweep import sweep as sweep
from lstm_trt.store.folders import consolidate_folder as consolidate
from lstm_trt.store.schema import Failure as Failure, Recording as Recording

__all__ = [
    "Configuration",
    "EngineOptions",
    "Failure",
    "Grid",
    "LabError",
    "LstmShape",
    "OnnxNetwork",
    "Options",
    "Protocol",
    "Recording",
    "Runs",
    "Step",
    "TorchNetwork",
    "UsageError",
    "build_engine",
    "cache_contents",
    "clear_cache",
    "compare",
    "confirm",
    "consolidate",
    "describe",
    "describe_runs",
    "doctor",
    "explore",
    "export_c",
    "export_onnx",
    "gpu_runs",
    "inspect",
    "largest_that_meets",
    "load",
    "load_or_record",
    "outliers",
    "own_networks",
    "plots",
    "record",
    "replay",
    "report",
    "rerun_notebooks",
    "scaling",
    "show",
    "size_of",
    "soak",
    "summarize",
    "sweep",
    "verdict",
    "versions",
    "watch",
]
__version__: str
