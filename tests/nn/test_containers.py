"""Lists, chains and dictionaries of modules and parameters."""

import copy

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, DimensionError, OperandError


def layers(count):
    return [nn.Linear(i + 1, i + 2) for i in range(count)]


@pytest.fixture(params=[nn.ModuleList, lambda modules: nn.Sequential(*modules)], ids=["ModuleList", "Sequential"])
def make(request):
    return request.param


def names(modules):
    return list(dict(modules.named_children()))


def test_a_sequence_has_the_methods_of_a_list(make):
    a, b, c, d = layers(4)
    modules = make([a, b])
    assert modules.append(c) is modules
    modules.insert(1, d)
    assert [*modules] == [a, d, b, c]
    assert modules.pop(-1) is c
    assert [*modules] == [a, d, b]
    del modules[0]
    assert [*modules] == [d, b]
    assert names(modules) == ["0", "1"]
    modules[1] = a
    assert modules[-1] is a
    modules.extend([b, c])
    assert len(modules) == 4
    assert type(modules[1:3]) is type(modules)
    assert [*modules[1:3]] == [a, b]
    del modules[::2]
    assert [*modules] == [a, c]
    assert [*modules.pop(slice(0, 1))] == [a]
    assert [*modules] == [c]
    modules.insert(-1, b)
    assert [*modules] == [b, c]
    modules.extend(modules)
    assert [*modules] == [b, c, b, c]


def test_parameters_follow_a_sequence_that_changes(make):
    modules = make(layers(3))
    del modules[1]
    assert list(modules.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert "0" not in dir(modules)


def test_sequences_add_up():
    a, b, c = layers(3)
    modules = nn.ModuleList([a]) + nn.ModuleList([b])
    modules += [c]
    assert [*modules] == [a, b, c]
    chain = nn.Sequential(a) + nn.Sequential(b)
    chain += nn.Sequential(c)
    assert [*chain] == [a, b, c]
    assert [*(nn.Sequential(a, b) * 2)] == [*(2 * nn.Sequential(a, b))] == [a, b, a, b]
    chain *= 1
    assert len(chain) == 3
    assert nn.Sequential(*layers(2))(sg.zeros(1, 1)).shape == (1, 3)
    with pytest.raises(ArgumentError, match="only objects of Sequential class"):
        chain.__add__([a])
    with pytest.raises(ArgumentError, match="Non-positive multiplication factor 0"):
        chain * 0
    with pytest.raises(TypeError, match="unsupported operand"):
        chain * 1.5


def test_a_named_chain_keeps_names_until_modules_move():
    chain = nn.Sequential({"up": nn.Linear(1, 2), "act": nn.ReLU(), "down": nn.Linear(2, 1)})
    assert names(chain[:2]) == ["up", "act"]
    chain[1] = nn.Tanh()
    assert names(chain) == ["up", "act", "down"]
    del chain[0]
    assert names(chain) == ["0", "1"]


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_out_of_range_is_refused(make, index):
    modules = make(layers(2))
    for access in (lambda: modules[index], lambda: modules.pop(index)):
        with pytest.raises(DimensionError, match=f"index {index} is out of range"):
            access()
    with pytest.raises(IndexError):
        modules[index] = nn.ReLU()
    with pytest.raises(DimensionError, match="Index out of range: 3"):
        modules.insert(3, nn.ReLU())
    with pytest.raises(TypeError, match="wanted a Module"):
        modules.insert(0, "relu")
    assert len(modules) == 2


def test_sequences_of_none_and_of_nothing_are_empty():
    assert len(nn.ModuleList(None)) == len(nn.Sequential()) == len(nn.ModuleDict()) == 0


def test_a_dictionary_of_modules_has_its_methods():
    a, b, c = layers(3)
    modules = nn.ModuleDict({"a": a})
    modules.update([("b", b)])
    modules.update(nn.ModuleDict({"c": c}))
    assert list(modules.items()) == [("a", a), ("b", b), ("c", c)]
    assert list(reversed(modules)) == ["c", "b", "a"]
    assert modules.pop("b") is b
    with pytest.raises(KeyError):
        modules.pop("b")
    del modules["a"]
    assert list(modules) == ["c"]
    modules.clear()
    assert not modules.keys()


def test_a_dictionary_of_parameters_has_its_methods():
    one, two = sg.ones(1), nn.Parameter(sg.zeros(2))
    values = nn.ParameterDict({"b": one, "a": two})
    assert list(values) == ["b", "a"]
    assert values.get("a") is two
    assert values.get("z", 3) == 3
    assert values.setdefault("a", one) is two
    assert values.setdefault("c", one).requires_grad
    duplicate = values.copy()
    assert duplicate is not values
    assert duplicate["a"] is two
    assert values.popitem()[0] == "c"
    assert list(values) == ["b", "a"]
    merged = values | nn.ParameterDict({"d": one})
    assert list(merged) == ["b", "a", "d"]
    assert list({"z": one} | values) == ["z", "b", "a"]
    values |= nn.ParameterDict({"b": two})
    assert values["b"] is two
    shared = nn.ParameterDict.fromkeys(["x", "y"], one)
    assert shared["x"] is shared["y"]
    values.clear()
    with pytest.raises(KeyError):
        values.popitem()


def test_a_list_of_parameters_takes_itself_and_no_tensor():
    values = nn.ParameterList([sg.ones(1), sg.ones(2)])
    values += values
    assert len(values) == 4
    with pytest.raises(OperandError, match=r"ParameterList\.extend should be called with an iterable"):
        values.extend(sg.ones(2))
    assert copy.deepcopy(values)[3].shape == (2,)


def test_an_entry_of_a_parameter_container_takes_no_name_of_a_method():
    for value in (sg.ones(1), 3):
        with pytest.raises(KeyError, match="already exists"):
            nn.ParameterDict({"items": value})
