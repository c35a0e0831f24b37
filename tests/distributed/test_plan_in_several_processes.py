"""`spillgrad plan` in several processes measures the network between them, and plans for as many."""

import json
from pathlib import Path

import pytest

from tests.distributed.launcher import launch, needs_mpi

pytestmark = needs_mpi
COMMAND = ["plan", "--model", "tiny", "--batch", "2", "--context", "64", "--ram", "4GiB", "--json"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("more, ranks", [([], [1, 2]), (["--ranks", "8"], [1, 2, 4, 8])])
def test_the_network_is_measured_and_the_first_process_prints(more: list[str], ranks: list[int], tmp_path: Path):
    ran = launch(2, "--", *COMMAND, "--dir", tmp_path, *more)
    assert ran.status == 0, ran.errors
    told = json.loads(ran.output)
    assert 1e5 < told["link"]["bytes_per_s"] < 1e11
    assert 0 <= told["link"]["latency_s"] < 1
    assert 1e-11 < told["link"]["busy_s_per_byte"] < 1e-6
    assert [row["ranks"] for row in told["scaling"]] == ranks
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_network_that_is_given_is_not_measured(tmp_path: Path):
    ran = launch(2, "--", *COMMAND, "--dir", tmp_path, "--link", "1Gbit", "--latency", "1ms")
    assert ran.status == 0, ran.errors
    told = json.loads(ran.output)
    assert told["link"]["latency_s"] == 1e-3
    assert [row["ranks"] for row in told["scaling"]] == [1, 2]


def test_a_mistake_is_told_once(tmp_path: Path):
    ran = launch(2, "--", *COMMAND, "--dir", tmp_path, "--link", "quick")
    assert ran.status != 0
    assert "Traceback" not in ran.errors
    assert ran.errors.count("link: got 'quick'; wanted a speed such as '1Gbit'") == 1
