"""One local Ray for all tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

ray = pytest.importorskip("ray")


@pytest.fixture
def local_ray(_shut_down_at_the_end: None) -> None:
    if not ray.is_initialized():
        options = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        ray.init("local", num_cpus=2, num_gpus=1, **options)  # a GPU is a number to Ray: there need not be one


@pytest.fixture
def no_ray() -> None:
    ray.shutdown()


@pytest.fixture(scope="session")
def _shut_down_at_the_end() -> Iterator[None]:
    yield
    ray.shutdown()
