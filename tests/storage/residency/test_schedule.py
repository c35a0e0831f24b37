"""What is needed when: the newest first, or as in an earlier step that stored the same."""

import string
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.residency import schedule, step_plan
from spillgrad.storage.residency.belady import PREFETCH_SHARE
from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.residency.schedule import Schedule
from spillgrad.storage.store import Handle, Label


@pytest.fixture(autouse=True)
def nothing_learned_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(step_plan, "_plans", type(step_plan._plans)())
    yield


class Steps:
    """Steps of stores that come and go; arrays are known by the letter of the operation that saved them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.schedule = Schedule("ram", 0, self._rerank)
        self.entries: dict[str, Entry] = {}

    def put(self, letters: str) -> None:
        for letter in letters:
            entry = Entry(np.zeros(10), len(self.entries), Label(letter))
            self.schedule.put(entry)
            self.entries[letter] = entry

    def get(self, letters: str) -> None:
        for letter in letters:
            self.schedule.get(self.entries[letter])

    def end(self) -> None:
        for entry in self.entries.values():
            self.schedule.drop(entry)
        self.schedule.end_step()
        self.begin()

    def expected(self) -> str:
        """The arrays, what is needed next first; what was used behind what was not."""
        cursor = self.schedule.cursor
        ranks = {letter: entry.rank for letter, entry in self.entries.items()}
        assert len(set(ranks.values())) == len(ranks)
        return "".join(sorted(ranks, key=lambda x: (cursor is not None and ranks[x] >= cursor, -ranks[x])))

    def _rerank(self, ranks: Iterable[tuple[Entry, int]]) -> None:
        for entry, rank in ranks:
            entry.rank = rank


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_at_first_the_newest_is_needed_next(steps: Steps):
    steps.put("abcde")
    assert steps.expected() == "edcba"
    steps.get("ed")
    assert steps.expected() == "cbaed"


def test_a_step_that_repeats_is_expected_to_use_the_same_in_the_same_order(steps: Steps):
    steps.put("abcde")
    steps.get("caade")
    steps.end()
    steps.put("abcde")
    assert steps.expected() == "cadeb"
    steps.get("c")
    assert steps.expected() == "adebc"
    steps.get("a")
    assert steps.expected() == "adebc"  # once more
    steps.get("a")
    assert steps.expected() == "debca"


def test_what_is_put_while_arrays_are_got_has_its_turn_too(steps: Steps):
    for _ in range(2):
        steps.put("ab")
        steps.get("b")
        expected = steps.expected()
        steps.put("cd")
        steps.get("cda")
        steps.end()
    assert expected == "ab"
    steps.put("ab")
    steps.get("b")
    steps.put("cd")
    assert steps.expected() == "cdab"
    assert steps.schedule.cursor is not None  # the plan says that gets go on


@pytest.mark.parametrize("other", ["abXd", "abcde"])
def test_a_step_that_stores_something_else_is_expected_to_need_the_newest_first(steps: Steps, other: str):
    steps.put("abcd")
    steps.get("abcd")
    steps.end()
    steps.put(other)
    assert steps.expected() == other[::-1]


def test_a_step_that_uses_something_else_is_expected_to_need_the_newest_first(steps: Steps):
    steps.put("abcd")
    steps.get("abcd")
    steps.end()
    steps.put("abcd")
    steps.get("ac")
    assert steps.expected() == "badc"
    steps.get("bd")
    steps.end()
    steps.put("abcd")
    assert steps.expected() == "acbd"  # learned again


def test_two_kinds_of_steps_that_alternate_are_both_known(steps: Steps):
    for letters, uses in (("abc", "abc"), ("abxy", "xbya")) * 2:
        steps.put(letters)
        expected = steps.expected()
        steps.get(uses)
        steps.end()
        if letters == "abxy":
            seen = expected
    assert seen == "xbya"
    steps.put("abc")
    assert steps.expected() == "abc"


def test_a_step_without_uses_teaches_nothing(steps: Steps):
    steps.put("abc")
    steps.end()
    assert not step_plan._plans


def test_a_process_keeps_the_last_plans_only(steps: Steps):
    for i in range(step_plan._PLANS_MAX + 3):
        steps.put("abcdefghijklmnopqrstuvwxyz"[: i + 1])
        steps.get("a")
        steps.end()
    assert len(step_plan._plans) == step_plan._PLANS_MAX


def test_a_step_without_end_is_not_remembered(steps: Steps, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "LONGEST_STEP", 10)
    steps.put("abcdefghijklmnop")
    steps.get("pon")
    assert steps.expected() == "mlkjihgfedcbapon"
    steps.end()
    assert not step_plan._plans
    steps.put("ab")
    steps.get("ab" * 10)
    steps.end()
    assert not step_plan._plans


def test_what_is_needed_first_stays_in_ram_from_the_second_step_on(make_store: Callable[..., DiskStore]):
    def step() -> list[int]:
        store = make_store("300KiB")  # a fresh one for each step
        handles: list[Handle] = [store.put(np.full(100 << 10, i, np.uint8), label=Label(f"op{i}")) for i in range(6)]
        store.flush()
        hot = [i for i, handle in enumerate(handles) if not handle.is_below_only]  # type: ignore[attr-defined]
        for i, handle in enumerate(handles):  # not in reverse
            assert (store.get(handle) == i).all()
        for handle in handles:
            store.drop(handle)
        assert store.stats().live_bytes == 0
        return hot

    assert 0 not in step()
    assert 0 in step()


def test_a_step_that_repeats_writes_only_what_does_not_fit(make_store: Callable[..., DiskStore]):
    nbytes = 100 << 10
    store = make_store(3 * nbytes)
    for _ in range(3):
        before = store.stats()
        handles = [store.put(np.full(nbytes, i, np.uint8), label=Label(f"op{i}")) for i in range(10)]
        for i in reversed(range(10)):
            assert (store.get(handles[i]) == i).all()
            store.drop(handles[i])
        after = store.stats()
    assert after.written_bytes - before.written_bytes == 7 * nbytes
    assert after.read_bytes - before.read_bytes == 7 * nbytes


def test_a_step_that_fits_at_every_moment_writes_nothing_however_much_passes(make_store: Callable[..., DiskStore]):
    nbytes = 100 << 10
    store = make_store(4 * nbytes)
    for _ in range(2):
        before = store.stats().written_bytes
        first = store.put(np.zeros(nbytes, np.uint8), label=Label("first"))
        for i in range(20):  # as recomputation does
            passing = store.put(np.full(nbytes, i, np.uint8), label=Label("passing"))
            assert (store.get(passing) == i).all()
            store.drop(passing)
        assert (store.get(first) == 0).all()
        store.drop(first)
    assert store.stats().written_bytes == before


def test_what_a_plan_says_is_used_twice_is_read_once(make_store: Callable[..., DiskStore]):
    nbytes = 100 << 10
    store = make_store(3 * nbytes)
    for _ in range(2):
        before = store.stats()
        handles = [store.put(np.full(nbytes, i, np.uint8), label=Label(f"op{i}")) for i in range(6)]
        for i in reversed(range(6)):
            for _ in range(2):
                assert (store.get(handles[i]) == i).all()
            store.drop(handles[i])
        after = store.stats()
    assert after.read_bytes - before.read_bytes == 3 * nbytes


class LastingSteps(Steps):
    """Steps of one store that also has persistent arrays, of capital letters."""

    def put(self, letters: str) -> None:
        for letter in letters:
            entry = Entry(np.zeros(10), len(self.entries), Label(letter))
            entry.persistent = letter.isupper()
            self.schedule.put(entry)
            self.entries[letter] = entry

    def end(self) -> None:
        for letter in [letter for letter in self.entries if letter.islower()]:
            self.schedule.drop(self.entries.pop(letter))
        self.schedule.end_step()


def test_persistent_arrays_are_expected_as_the_step_before_used_them_and_then_in_the_next():
    steps = LastingSteps()
    steps.put("ABC")
    for _ in range(2):
        steps.get("AB")
        steps.put("xy")
        steps.get("CyBxA")
        steps.end()
    steps.get("A")
    assert steps.expected() == "BCA"
    steps.get("B")
    steps.put("xy")
    assert steps.expected() == "CyBxA"
    steps.get("Cy")
    assert steps.expected() == "BxACy"  # C in the next step, y never again
    steps.get("Bx")
    assert steps.expected() == "ABCyx"
    steps.get("A")
    assert steps.expected() == "ABCyx"


def test_without_a_plan_the_last_used_persistent_array_is_needed_next():
    steps = LastingSteps()
    steps.put("ABC")
    steps.get("ABC")
    assert steps.expected() == "CBA"
    steps.get("B")
    assert steps.expected() == "BCA"
    steps.put("x")
    assert steps.expected() == "xBCA"


def test_persistent_arrays_that_are_dropped_and_put_again_in_the_same_order_are_known_again():
    steps = LastingSteps()
    steps.put("A")
    for _ in range(3):
        steps.get("A")
        steps.put("GH")  # gradients
        steps.get("HG")
        for letter in "GH":
            steps.schedule.drop(steps.entries.pop(letter))
        steps.schedule.begin_step()
    steps.get("A")
    steps.put("GH")
    assert steps.expected() == "HGA"


def test_gradients_are_known_again_after_a_step_that_made_the_state():
    steps = LastingSteps()
    steps.put("AB")
    for step in range(2):
        steps.get("AB")
        steps.put("GH")
        for gradient, state in ("GS", "HT"):
            steps.get(gradient)
            if step:
                steps.get(state)
            steps.schedule.drop(steps.entries.pop(gradient))
            if not step:
                steps.put(state)
        steps.schedule.begin_step()
    steps.get("AB")
    steps.put("GH")
    assert steps.expected() == "GSHTAB"


def test_persistent_arrays_of_ever_new_places_take_no_more_than_so_many_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spillgrad.storage.residency.schedule.LONGEST_STEP", 10)
    steps = LastingSteps()
    for letter in string.ascii_uppercase:
        steps.put(letter)
        steps.schedule.drop(steps.entries.pop(letter))
    assert len(steps.schedule._origins) == 10
    assert len(steps.schedule._free_numbers) == 10


def test_with_persistent_arrays_a_step_goes_on_after_the_last_other_was_dropped():
    steps = LastingSteps()
    steps.put("AB")
    for _ in range(2):
        steps.get("A")
        steps.put("x")
        steps.get("x")
        steps.schedule.drop(steps.entries.pop("x"))
        steps.schedule.pass_last()
        steps.get("B")  # an update after backward
        steps.schedule.begin_step()
    steps.get("A")
    steps.put("x")
    assert steps.expected() == "xBA"
    steps.get("x")
    assert steps.expected() == "BAx"


def begun_again(letters: str, uses: str) -> LastingSteps:
    """Steps of persistent arrays, after two, and the first use of the third."""
    steps = LastingSteps()
    steps.put(letters)
    for _ in range(2):
        steps.get(uses)
        steps.schedule.begin_step()
    steps.get(uses[0])
    return steps


def spilled(steps: Steps, arrays: float) -> str:
    """Which cannot stay within a budget of so many arrays."""
    steps.schedule.budget_bytes = int(arrays * steps.entries["A"].nbytes)
    return "".join(name for name, entry in steps.entries.items() if steps.schedule.must_spill(entry.rank))


def test_a_plan_says_which_arrays_cannot_stay_until_they_are_needed():
    steps = begun_again("ABC", "ABCBA")
    assert spilled(steps, 3) == ""  # all fit
    assert spilled(steps, 2.5) == "C"  # used once a step
    assert spilled(steps, 1.5) == "ABC"
    steps.get("BC")
    assert spilled(steps, 1.5) == "AC"  # B is needed next
    steps.get("B")
    assert spilled(steps, 2.5) == "C"


def test_of_what_stays_room_is_left_to_read_ahead():
    steps = begun_again("ABC", "ABCBA")
    assert spilled(steps, 2) == "ABC"  # as with one
    assert spilled(steps, 2 / (1 - PREFETCH_SHARE) + 0.01) == "C"


def test_what_leaves_is_read_again_when_what_is_read_before_it_leaves_room():
    steps = begun_again("ABCD", "ABCD")
    steps.schedule.budget_bytes = steps.entries["A"].nbytes
    near = [name for name in "ABCD" if steps.schedule.is_near(steps.entries[name])]
    assert near == ["B"]  # the next, though there is room for an eighth of an array only
    steps.schedule.budget_bytes *= 17
    assert all(steps.schedule.is_near(steps.entries[name]) for name in "ABCD")


def test_saved_arrays_that_a_plan_says_stay_until_they_are_needed_are_the_newest(steps: Steps):
    for _ in range(2):
        steps.put("ABCDE")
        gone = spilled(steps, 2)
        steps.get("EDCBA")
        steps.end()
    assert gone == "ABC"


def test_without_a_plan_nobody_knows_what_cannot_stay():
    steps = LastingSteps()
    steps.put("AB")
    steps.get("AB")
    assert spilled(steps, 0) == ""


def test_a_step_does_not_begin_while_arrays_of_the_last_are_there():
    steps = LastingSteps()
    steps.put("Ax")
    steps.get("A")
    steps.schedule.begin_step()
    steps.get("x")
    steps.end()
    steps.get("A")
    steps.put("x")
    assert steps.expected() == "xA"


def test_a_step_in_which_persistent_arrays_come_and_go_without_end_is_not_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "LONGEST_STEP", 10)
    steps = LastingSteps()
    steps.put("A")
    steps.get("A")
    for _ in range(100):
        steps.put("G")
        steps.schedule.drop(steps.entries.pop("G"))
    assert len(steps.schedule._happened) < 100
    steps.end()
    assert not step_plan._plans


def test_an_array_that_turns_out_to_be_changed_is_used_once_though_it_is_read_again(
    make_store: Callable[..., DiskStore],
):
    store = make_store("1MiB")
    array = np.zeros(1000)
    handle = store.put(array, unchanged=lambda: not array.any())
    store.flush()
    array[:] = 1
    assert not store.get(handle).any()
    store.drop(handle)
    store.stats()  # sees to what was dropped, with which the step ends
    (plan,) = step_plan._plans.values()
    assert plan.used == ((0, array.nbytes),)
    assert (store.stats().cache_hits, store.stats().cache_misses) == (0, 1)


def test_a_plan_knows_the_room_that_callers_take():
    steps = LastingSteps()
    steps.put("ABC")
    schedule, entries = steps.schedule, steps.entries
    nbytes = entries["A"].nbytes
    schedule.budget_bytes = 4 * nbytes
    for _ in range(3):
        steps.get("A")
        assert schedule._plan is None or schedule.room_bytes(entries["C"]) == nbytes
        steps.get("B")
        room = schedule.begin_room(nbytes)
        assert schedule.room_bytes(entries["C"]) == 0  # not known yet, or taken
        steps.get("C")
        schedule.end_room(room)
        assert schedule.room_bytes(entries["C"]) == 0  # until the next step
        known = schedule._plan
        schedule.begin_step()
    steps.get("A")
    assert schedule.room_bytes(entries["B"]) == 0  # used before
    late = schedule.begin_room(nbytes)
    schedule.begin_step()
    steps.get("A")
    schedule.end_room(late)  # of the step before
    assert schedule.room_bytes(entries["C"]) == nbytes
    schedule.budget_bytes = 3 * nbytes // 2
    assert schedule.room_bytes(entries["C"]) == nbytes // 2  # there is room for the array, whatever callers take
    assert known is not None
    assert known._at(3 * nbytes).missed  # beside the room, two fit
    assert not known._at(4 * nbytes).missed


def test_steps_with_rooms_are_one_plan():
    steps = LastingSteps()
    steps.put("AB")
    plans = []
    steps.schedule.on_step = plans.append
    for _ in range(3):
        steps.get("A")
        steps.schedule.end_room(steps.schedule.begin_room(10))
        steps.get("B")
        steps.schedule.begin_step()
    assert plans[1] is plans[2]
