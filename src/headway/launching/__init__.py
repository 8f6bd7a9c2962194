"""A run from its settings: folder, lock, runtime, signals, resume, and what it leaves at its end."""

from headway.launching.background import Run as Run
from headway.launching.metric_sinks import build_sinks as build_sinks
from headway.launching.of_functions import run as run
from headway.launching.recording import Recording as Recording
from headway.launching.run_status import look_at as look_at
from headway.launching.run_status import status_of as status_of
from headway.launching.run_summary import statistics_rows as statistics_rows
from headway.launching.runtimes import RUNTIMES as RUNTIMES
from headway.launching.runtimes import build_runtime as build_runtime
from headway.launching.session import launch as launch
