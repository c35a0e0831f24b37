"""Which layers are worth recomputing: exact small examples."""

import pytest

from spillgrad.spill.planning.choose import choices, choose
from spillgrad.spill.planning.record import Part, Unit

MB = 10**6


def layers(count: int) -> list[Unit]:
    """Return layers of 10 MB and 1 s, whose norm spares much for its time and whose product little."""
    return [
        Unit(Part(f"h.{i}", 10 * MB, 1.0), (Part(f"h.{i}.norm", 4 * MB, 0.1), Part(f"h.{i}.product", 6 * MB, 0.9)))
        for i in range(count)
    ]


def disk_bound(saved_bytes: int, rate: float, compute_s: float):
    return lambda freed_bytes, seconds: max(compute_s + seconds, (saved_bytes - freed_bytes) / rate)


def test_what_spares_most_for_its_time_goes_first_and_of_equals_the_earlier():
    paths = [sorted(choice.paths) for choice in choices(layers(2), lambda freed_bytes, seconds: 0.0)]
    assert paths[:4] == [[], ["h.0.norm"], ["h.0.norm", "h.1.norm"], ["h.0.norm", "h.0.product", "h.1.norm"]]


def test_a_whole_layer_replaces_its_parts_where_it_spares_more_than_they_do():
    unit = Unit(Part("h.0", 12 * MB, 1.5), (Part("h.0.norm", 4 * MB, 0.1), Part("h.0.product", 6 * MB, 0.9)))
    *_, parts, everything = choices([unit], lambda freed_bytes, seconds: 0.0)
    assert sorted(parts.paths) == ["h.0.norm", "h.0.product"]
    assert everything == (frozenset({"h.0"}), 12 * MB, pytest.approx(1.5), 0.0)


def test_parts_that_spare_less_for_their_time_than_the_rest_are_no_step_of_their_own():
    unit = Unit(Part("h.0", 10 * MB, 1.0), (Part("h.0.product", 1 * MB, 0.9),))
    assert [sorted(choice.paths) for choice in choices([unit], lambda freed_bytes, seconds: 0.0)] == [[], ["h.0"]]


def test_nothing_is_recomputed_where_the_disk_keeps_up():
    chosen = choose(layers(4), disk_bound(40 * MB, rate=10 * MB, compute_s=5.0))
    assert (chosen.paths, chosen.step_s) == (frozenset(), 5.0)


def test_as_much_is_recomputed_as_makes_disk_and_processor_equally_busy():
    # 400 MB at 50 MB/s are 8 s, beside 4 s of computing; of n norms they are 8 - 0.08 n and 4 + 0.1 n.
    units = layers(40)
    chosen = choose(units, disk_bound(400 * MB, rate=50 * MB, compute_s=4.0))
    assert 6.2 <= chosen.step_s <= 6.3
    assert all(path.endswith("norm") for path in chosen.paths)
    assert 4.0 + chosen.seconds == pytest.approx((400 * MB - chosen.freed_bytes) / (50 * MB), rel=0.05)


def test_all_is_recomputed_on_a_disk_that_is_too_slow_for_anything():
    chosen = choose(layers(3), disk_bound(30 * MB, rate=1 * MB, compute_s=1.0))
    assert chosen.freed_bytes == 30 * MB


def test_a_gain_within_the_noise_is_no_reason_to_recompute():
    chosen = choose(layers(3), disk_bound(30 * MB, rate=10 * MB, compute_s=2.9))
    assert chosen.paths == frozenset()


def test_what_spares_nothing_is_never_recomputed():
    unit = Unit(Part("h.0", 0, 1.0), (Part("h.0.norm", 0, 0.1),))
    assert choose([unit], disk_bound(10 * MB, rate=1.0, compute_s=1.0)).paths == frozenset()
