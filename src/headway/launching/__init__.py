"""A run from its settings: folder, lock, runtime, signals, resume, and what it leaves at its end."""

from headway.launching.session import RUNTIMES as RUNTIMES
from headway.launching.session import build_runtime as build_runtime
from headway.launching.session import build_sinks as build_sinks
from headway.launching.session import launch as launch
from headway.launching.session import look_at as look_at
from headway.launching.session import run as run
from headway.launching.session import statistics_rows as statistics_rows
from headway.launching.session import status_of as status_of
