"""The same program sees the same under spillgrad and under Paddle.

As with PyTorch, `records/paddle.json` says what Paddle does, and is compared with it where it is installed, or where
`SPILLGRAD_PADDLE_PYTHON` names a Python that has it.
"""

import pytest

import spillgrad
from tests.peers import deviations, peer, record

STORED = record.stored("paddle")
PROGRAMS = record.programs("paddle")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_sees_what_it_sees_under_paddle(name):
    found = record.differing(STORED[name], record.run(PROGRAMS[name], spillgrad))
    deliberate = deviations.PADDLE.get(name, {})
    assert found.keys() == deliberate.keys(), found


def test_the_record_is_what_paddle_does(tmp_path):
    found = peer.run("paddle", tmp_path / "record.json")
    assert found.keys() == STORED.keys()
    assert {name: d for name in STORED if (d := record.differing(STORED[name], found[name]))} == {}
