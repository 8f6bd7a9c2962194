"""For all tests: what may be skipped, and how long a test may take."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from waiting import patient

pytest_plugins = ["skip_rules", *(["file_scheduling"] if find_spec("xdist") else [])]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch computes with one thread: the bits are those of roles that share a machine, and small models are faster."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The seconds of `timeout`, of the mark and of pyproject.toml, are those of a quiet machine."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getoption("timeout") or item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)
    return (yield)
