import importlib.util
import shutil

import pytest
from distributed import Client, LocalCluster

import engine_checks
from paths import ROOT

LAST = "check_a_task_that_kills_its_worker_is_an_error_with_a_remedy"
"""It leaves a cluster whose workers start again."""


@pytest.fixture(scope="module")
def engine():
    spec = importlib.util.spec_from_file_location("convert_on_dask", ROOT / "examples/convert_on_dask.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        yield example.DaskEngine(client)


@pytest.mark.parametrize("name", sorted(engine_checks.CHECKS, key=lambda name: (name == LAST, name)))
@pytest.mark.filterwarnings("default")  # of Dask, about its own sockets
def test_what_holds_for_every_engine_holds_on_a_dask_cluster(engine, name, table, tmp_path):
    shutil.copy(table, tmp_path)
    engine_checks.CHECKS[name](engine, tmp_path)
