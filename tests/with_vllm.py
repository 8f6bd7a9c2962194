"""Where vLLM is, for the tests that need it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headway.llm.engine.protocol_engine import EngineError
from headway.llm.engine.vllm_engine import PYTHON_VARIABLE, check_installed, find_python


def vllm_python() -> str:
    """The interpreter that has vLLM: named, in .vllm-venv (make vllm), or this one; empty if there is none."""
    beside = Path(__file__).parents[1] / ".vllm-venv" / "bin" / "python"
    for python in (os.environ.get(PYTHON_VARIABLE, ""), str(beside) if beside.exists() else "", sys.executable):
        try:
            if python:
                check_installed(find_python(python))
                return python
        except EngineError:
            continue
    return ""


needs_vllm = pytest.mark.skipif(not vllm_python(), reason=f"vLLM is not installed: make vllm, or set {PYTHON_VARIABLE}")
