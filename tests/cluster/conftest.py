"""One cluster of three machines for all tests of a file; each test brings up what the one before has broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_driver import FAR, WORKER
from cluster_machines import why_not

pytest.importorskip("ray")
from cluster_runs import RayCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    if why_not():
        pytest.skip(why_not())
    with RayCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.add_worker(WORKER)
        cluster.add_worker(FAR, relayed=True)
        yield cluster


@pytest.fixture
def run_folder(tmp_path: Path) -> str:
    return str(tmp_path / "run")
