"""A run from its settings: folder, lock, runtime, signals, resume, and what it leaves at its end."""

from headway.launching.runtimes import RUNTIMES as RUNTIMES
from headway.launching.runtimes import build_runtime as build_runtime
from headway.runs.console_run_status import look_at as look_at
from headway.runs.console_run_status import status_of as status_of
from headway.runs.files_recording import Recording as Recording
from headway.runs.files_run_summary import statistics_rows as statistics_rows
from headway.runs.launch_background import Run as Run
from headway.runs.launch_of_functions import run as run
from headway.runs.launch_session import launch as launch
from headway.runs.sinks_metric_sinks import build_sinks as build_sinks
