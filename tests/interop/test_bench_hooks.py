"""`spillgrad bench hooks` trains in each framework, compares losses and weights, and judges what spilling costs."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")

from spillgrad_tools.bench import hooks as bench_hooks
from spillgrad_tools.cli import main

TINY = ["--model", "tiny", "--batch", "2", "--context", "16", "--steps", "2", "--threads", "1"]


def test_every_contender_trains_alike_and_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "hooks", *TINY, "--dir", str(tmp_path), "--json"]) == 0
    assert list(tmp_path.iterdir()) == []
    found = json.loads(capsys.readouterr().out)
    names = [contender.name for contenders in bench_hooks.CONTENDERS.values() for contender in contenders]
    assert list(found["results"]) == names
    for result in found["results"].values():
        assert len(result["losses"]) == 5  # one untimed, then turns of two
        assert result["seconds"] > 0
    for spilled in ("PyTorch, spilled", "Paddle, spilled"):
        result = found["results"][spilled]
        assert 0 < result["left_in_ram_bytes"] <= result["saved_bytes_per_step"]
    assert [bar["wanted"] for bar in found["bars"]] == [1.06, 0.9, 3, 1.06, 0.9]


class Trained:
    """What `check_weights` asks of a process."""

    def __init__(self, name: str, losses: list[float], digest: str) -> None:
        self.contender = bench_hooks.Contender(name)
        self.taken = [{"loss": loss} for loss in losses]
        self.digest = digest

    def weights(self) -> str:
        return self.digest


@pytest.mark.parametrize("other", [([1.0, 3.0], "a"), ([1.0, 2.0], "b")], ids=["loss", "weights"])
def test_a_difference_is_an_error(other: tuple[list[float], str]):
    first = Trained("first", [1.0, 2.0], "a")
    bench_hooks.check_weights([first, Trained("second", [1.0, 2.0], "a")], 1)  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match="step 1"):
        bench_hooks.check_weights([first, Trained("second", *other)], 1)  # type: ignore[list-item]


def test_a_framework_that_is_missing_or_unknown_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["bench", "hooks", "--framework", "jax"]) == 2
    assert capsys.readouterr().err == "spillgrad: bench hooks: got --framework jax; it takes torch or paddle\n"
    assert main(["bench", "hooks", "--framework", "torch", "--write", "."]) == 2
    assert capsys.readouterr().err == (
        "spillgrad: bench hooks: got --framework torch with --write, whose page shows all; leave one out\n"
    )
    monkeypatch.setattr(bench_hooks, "is_installed", lambda name: False)
    assert main(["bench", "hooks"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "spillgrad: bench hooks: got no package torch and no paddle; pip install torch==2.13.0 and "
        "pip install paddlepaddle\n"
    )
