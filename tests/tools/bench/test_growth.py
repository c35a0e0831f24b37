"""The benchmark of growth: every series makes steps of its sizes, and rows compare each size with the one before."""

import json

import pytest

import spillgrad as sg
from spillgrad_tools.bench.growth import SERIES, GrowthRunner, measure
from spillgrad_tools.cli import main


@pytest.mark.parametrize("name", SERIES)
def test_every_series_makes_a_step_that_trains(name: str, tmp_path):
    step = SERIES[name].make(2, str(tmp_path))
    step()
    step()
    assert all(earlier < later for earlier, later in zip(SERIES[name].sizes, SERIES[name].sizes[1:], strict=False))


def test_a_chain_on_disk_spills_what_it_saves(tmp_path, monkeypatch):
    contexts = []
    make = sg.save_on_disk

    def noted(*arguments, **options):
        contexts.append(make(*arguments, **options))
        return contexts[-1]

    monkeypatch.setattr(sg, "save_on_disk", noted)
    SERIES["saved tensors on disk"].make(1000, str(tmp_path))()
    assert contexts[0].stats().written_bytes > 0


def test_a_row_says_how_much_faster_than_the_number_the_time_grows(monkeypatch):
    seconds = {10**3: 1.0, 10**4: 10.0, 10**5: 200.0}
    monkeypatch.setattr(GrowthRunner, "time", lambda self, series, size: seconds[size])

    class Here:
        def __init__(self, runner, library, threads):
            self.runner = runner(library, threads)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def ask(self, do, **request):
            return getattr(self.runner, do)(**request)

    monkeypatch.setattr("spillgrad_tools.bench.growth.Worker", Here)
    rows = list(measure([SERIES["parameters"]], largest=10**5, threads=1))
    assert [row.get("growth") for row in rows] == [None, 1.0, 2.0]


def test_the_command_measures_and_refuses(capsys, tmp_path):
    assert main(["bench", "growth", "--filter", "parameters", "--largest", "1000", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["seconds"] > 0
    assert main(["bench", "growth", "--filter", "nothing"]) == 2
    assert "saved tensors" in capsys.readouterr().err
    assert main(["bench", "growth", "--largest", "9", "--write", str(tmp_path)]) == 2
    assert "takes every size" in capsys.readouterr().err
