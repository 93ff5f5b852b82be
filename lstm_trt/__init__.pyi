from lstm_trt.config.configuration import Configuration as Configuration, Options as Options, Protocol as Protocol
from lstm_trt.config.errors import LabError as LabError, UsageError as UsageError
from lstm_trt.config.shape import Grid as Grid, LstmShape as LstmShape
from lstm_trt.config.step import Step as Step
from lstm_trt.config.workload import size_of as size_of
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

__version__: str
