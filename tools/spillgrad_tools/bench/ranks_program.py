"""What each process of `spillgrad bench ranks` runs: it predicts steps and trains some, in turns, and prints JSON."""

import dataclasses
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.distributed.process_group import member
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.ranks import Ranks
from spillgrad_tools.train.training import Training

_TEXT_BYTES = 1 << 20
# Enough that nothing is spilled: the network is what is compared.
_RAM = "64GiB"
_WARM_STEPS = 2
# Steps of one round: the first after a prediction finds cold caches.
_STEPS = 4


def compare(model: str, batch: int, context: int, rounds: int, directory: Path) -> list[dict[str, Any]]:
    """Predict the time of a step of all processes, and train some, in each round; return both times of each round."""
    ranks = Ranks()
    settings = TrainSettings(
        model=model, batch=batch, context=context, accumulate=ranks.size, steps=_WARM_STEPS + rounds * _STEPS
    )
    training = Training(settings, np.random.default_rng(0).bytes(_TEXT_BYTES), ranks=ranks)
    steps = training.steps()
    list(itertools.islice(steps, _WARM_STEPS))
    machine = sg.planning.measure(directory, seconds=0.5)
    rows = []
    for _ in range(rounds):
        link = sg.planning.measure_link(member())
        plan = sg.planning.plan(
            model, batch, context, _RAM, directory, offload=False, machine=machine, ranks=ranks.size, link=link,
            accumulate=ranks.size,
        )  # fmt: skip
        found = plan.scaling[-1]
        measured_s = statistics.median(record.duration_s for record in list(itertools.islice(steps, _STEPS))[1:])
        # The slowest process is the one that all wait for.
        predicted_s = max(ranks.everyones(found.step_s))
        rows.append({
            "predicted_s": predicted_s, "measured_s": measured_s, "network_s": found.network_s,
            "exposed_s": found.exposed_s, "sent_bytes": found.sent_bytes, "link": dataclasses.asdict(link),
        })  # fmt: skip
    return rows if ranks.is_first else []


def main() -> None:
    """Read the model, batch, context, rounds and folder from the command line, and print what was found."""
    model, batch, context, rounds, directory = sys.argv[1:]
    if rows := compare(model, int(batch), int(context), int(rounds), Path(directory)):
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
