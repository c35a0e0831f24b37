"""What a step's events move between RAM and disk: exact small examples."""

import pytest

from spillgrad.storage.residency.belady import PREFETCH_SHARE, PREFETCH_SHARE_OF_READS, Event, Item, of_store, run


def step(count: int, nbytes: int = 10):
    """Save so many arrays, then use each, the newest first."""
    items = [Item(nbytes)] * count
    events = [Event("put", i) for i in range(count)]
    for i in reversed(range(count)):
        events += [Event("use", i, "backward"), Event("drop", i, "backward")]
    return items, events


@pytest.mark.parametrize(("budget", "moved"), [(100, 0), (60, 40), (10, 90), (9, 100), (0, 100)])
def test_the_newest_stay_and_what_does_not_fit_is_written_once_and_read_once(budget: int, moved: int):
    traffic = run(*step(10), budget)
    assert traffic.written == {"forward": moved, "backward": 0, "update": 0}
    assert traffic.read == {"forward": 0, "backward": moved, "update": 0}
    assert traffic.disk_bytes == moved
    assert traffic.ram_bytes == max(min(budget // 10 * 10, 100), 20)  # two are in use


def test_what_is_used_again_at_once_is_still_there_but_not_what_was_used_before_something_else():
    items = [Item(10), Item(10)]
    events = [Event("put", 0), Event("put", 1), *(Event("use", i, "backward") for i in (1, 0, 0, 0, 1))]
    assert run(items, [*events, Event("drop", 0, "backward"), Event("drop", 1, "backward")], 0).read_bytes == 30


def test_a_parameter_is_read_for_each_use_that_it_does_not_wait_for_in_ram():
    items = [Item(10, persistent=True)] * 3
    events = [Event("use", i) for i in (0, 1, 2)] + [Event("use", i, "backward") for i in (2, 1, 0)]
    assert run(items, events, 30).read_bytes == 0
    assert run(items, events, 20).read == {"forward": 10, "backward": 10, "update": 0}
    # What is used last is used first on the way back, and again at the begin of the next step.
    assert run(items, events, 0).read == {"forward": 20, "backward": 20, "update": 0}
    assert run(items, events, 0).written_bytes == 0  # nobody changed them


def test_what_changes_is_written_when_it_leaves_ram_and_has_one_place_on_disk():
    items = [Item(10, persistent=True)] * 2
    events = [Event("change", i, "update") for i in (0, 1)]
    traffic = run(items, events, 0)
    assert (traffic.written_bytes, traffic.read_bytes, traffic.disk_bytes) == (20, 20, 20)
    traffic = run(items, events, 10)  # one of the two stays for good
    assert (traffic.written_bytes, traffic.read_bytes, traffic.disk_bytes) == (10, 10, 10)
    assert run(items, events, 20).written_bytes == 0


def test_halves_of_numbers_move_half_the_bytes_and_take_half_of_the_disk_but_the_whole_ram():
    items = [Item(10, persistent=True, in_halves=True), Item(10, persistent=True)]
    traffic = run(items, [Event("change", i, "update") for i in (0, 1)], 0)
    assert (traffic.written_bytes, traffic.read_bytes, traffic.ram_bytes, traffic.disk_bytes) == (20, 20, 20, 15)
    assert traffic.stored == traffic.fetched == {"forward": 0, "backward": 0, "update": 15}


def test_saved_arrays_and_parameters_share_the_budget_by_when_they_are_needed():
    items = [Item(10, persistent=True), Item(10), Item(10)]
    events = [Event("use", 0), Event("put", 1), Event("put", 2)]
    for i in (2, 1):
        events += [Event("use", i, "backward"), Event("drop", i, "backward")]
    traffic = run(items, events, 20)
    # At the turn the parameter is needed last; it comes back while nothing else is needed.
    assert (traffic.written_bytes, traffic.read_bytes) == (0, 10)


def test_what_is_dropped_without_another_use_is_not_written_for_arrays_needed_later():
    items = [Item(10, persistent=True), Item(10), Item(10, persistent=True)]
    events = [Event("put", 1), Event("use", 1), *(Event("use", i) for i in (0, 2)), Event("drop", 1)]
    traffic = run(items, events, 20)
    assert (traffic.written_bytes, traffic.read_bytes) == (0, 10)  # 2 never stays


def test_what_is_dropped_without_another_use_leaves_first_if_the_disk_has_it():
    items = [Item(10), Item(10, persistent=True), Item(10, persistent=True)]
    events = [Event("put", 0), *(Event("use", i) for i in (1, 2, 1, 2, 0)), Event("drop", 0)]
    traffic = run(items, [*events, Event("use", 1), Event("use", 2)], 20)
    assert (traffic.written_bytes, traffic.read_bytes) == (10, 10)


def test_where_persistent_arrays_come_and_go_a_store_leaves_room_to_read_ahead():
    items = [Item(10, persistent=True)] * 4
    events = [Event("use", i) for i in (0, 1, 2, 3)]
    assert of_store(items, events, 40) == (run(items, events, 40), 40)
    assert of_store(items, events, 39) == (run(items, events, 37), int(10 * PREFETCH_SHARE_OF_READS))
    assert of_store(items, events, 16) == (run(items, events, 14), int(16 * PREFETCH_SHARE))
    saved, used = step(10)
    assert of_store(saved, used, 60) == (run(saved, used, 60), 60)  # the newest stay, and go as they are used
