"""Datasets and batches: orders without shuffling, collation, lengths, workers and errors."""

import collections
import importlib
import warnings

import numpy as np

Point = collections.namedtuple("Point", ["x", "y"])


class _Bag(dict):
    """A mapping with more than its items."""

    label = "bag"


class _Row(list):
    """A list with more than its items."""

    label = "row"


def _kinds(value):
    """Return the types of a batch, and what its tensors and texts are."""
    if hasattr(value, "detach"):
        return ["tensor", str(value.dtype).rpartition(".")[2], list(value.shape), value.tolist()]
    if isinstance(value, dict):
        return [type(value).__name__, {str(key): _kinds(part) for key, part in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_kinds(part) for part in value]]
    if isinstance(value, np.ndarray | np.generic):
        return [type(value).__name__, str(value.dtype), value.tolist()]
    return [type(value).__name__, str(value)]


def _samples(torch):
    bag, row = _Bag(x=1), _Row([1, 2.5])
    bag.label, row.label = "own", "own"
    return {
        "tensors": [torch.ones(2), torch.zeros(2)],
        "scalars": [torch.tensor(1.5), torch.tensor(2.5)],
        "arrays": [np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)],
        "float64 arrays": [np.ones(2), np.zeros(2)],
        "int arrays": [np.arange(2), np.arange(2)],
        "numpy floats": [np.float32(1.5), np.float32(2.5)],
        "numpy ints": [np.int64(1), np.int64(2)],
        "numpy bools": [np.bool_(True), np.bool_(False)],
        "ints": [1, 2, 3],
        "floats": [1.0, 2.5],
        "bools": [True, False],
        "texts": ["a", "b"],
        "bytes": [b"a", b"b"],
        "tuples": [(1, 2.0, "a"), (3, 4.0, "b")],
        "lists": [[1, "a"], [2, "b"]],
        "lists within": [[1, [2, (3, 4)]], [5, [6, (7, 8)]]],
        "dicts": [{"x": 1, "y": [1.0, 2.0]}, {"x": 2, "y": [3.0, 4.0]}],
        "dicts of other keys": [{"x": 1, 2: "a"}, {"x": 2, 2: "b", "more": 3}],
        "ordered": [collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=3, a=4)],
        "named tuples": [Point(1, "a"), Point(2, "b")],
        "a mapping with more": [bag, bag],
        "a list with more": [row, row],
        "ranges": [range(2), range(2, 4)],
        "mixed numbers": [1, 2.5],
        "empty lists": [[], []],
        "empty dicts": [{}, {}],
    }  # fmt: skip


def collation(torch, note):
    for name, samples in _samples(torch).items():
        found = torch.utils.data.default_collate(samples)
        note(name, _kinds(found), getattr(found, "label", None))
        loaded = next(iter(torch.utils.data.DataLoader(samples, batch_size=len(samples))))
        note(f"{name}, loaded", _kinds(loaded))


def conversion(torch, note):
    for name, samples in _samples(torch).items():
        found = torch.utils.data.default_convert(samples[0])
        note(name, _kinds(found), getattr(found, "label", None))
        note(f"{name}, loaded", [_kinds(sample) for sample in torch.utils.data.DataLoader(samples, batch_size=None)])
    note("texts in arrays", _kinds(torch.utils.data.default_convert(np.array(["a"]))))


def collation_that_fails(torch, note):
    collate = torch.utils.data.default_collate
    for name, samples, phrase in (
        (
            "objects",
            [object(), object()],
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or",
        ),
        ("kinds", [None, None], "found <class 'NoneType'>"),
        ("sets", [{1}, {2}], "found <class 'set'>"),
        ("complex", [1j, 2j], "found <class 'complex'>"),
        ("arrays of objects", [np.array([None, 1])] * 2, "found object"),
        ("arrays of texts", [np.array(["a"])] * 2, "found <U1"),
        ("lengths", [[1], [1, 2]], "each element in list of batch should be of equal size"),
        (
            "shapes",
            [torch.ones(2), torch.ones(3)],
            "stack expects each tensor to be equal size, but got [2] at entry 0",
        ),
        ("keys", [{"x": 1}, {"y": 1}], "x"),
        ("nothing", [], ""),
    ):
        note.error(name, lambda samples=samples: collate(samples), phrase)


def own_rules(torch, note):
    path = importlib.import_module(f"{torch.__name__}.utils.data._utils.collate")

    class Graph:
        def __init__(self, size):
            self.size = size

    def graphs(batch, *, collate_fn_map=None):
        return [sum(graph.size for graph in batch), len(collate_fn_map)]

    rules = {Graph: graphs, **path.default_collate_fn_map}
    samples = [{"g": Graph(2), "x": 1.0}, {"g": Graph(3), "x": 2.0}]
    found = path.collate(samples, collate_fn_map=rules)
    note("graphs", found["g"][0], found["g"][1] - len(rules), found["x"])
    path.default_collate_fn_map[Graph] = graphs
    try:
        note("added", torch.utils.data.default_collate(samples)["g"][0])
    finally:
        del path.default_collate_fn_map[Graph]


def orders_and_lengths(torch, note):
    data = torch.utils.data
    rows = list(range(10, 20))
    for name, options in {
        "one by one": {}, "batches": {"batch_size": 4}, "no last": {"batch_size": 4, "drop_last": True},
        "samples": {"batch_size": None}, "sampler": {"sampler": [3, 1, 1], "batch_size": 2},
        "batch sampler": {"batch_sampler": [[0, 1], [5], [2, 2, 2]]}, "larger": {"batch_size": 99},
        "none": {"batch_size": 99, "drop_last": True}, "collated": {"batch_size": 3, "collate_fn": sum},
        "samples, collated": {"batch_size": None, "collate_fn": str},
        "in order": {"batch_size": 4, "sampler": data.SequentialSampler(rows)},
        "sampled": {"batch_sampler": data.BatchSampler(data.SequentialSampler(rows), 3, True)},
        "pinned": {"batch_size": 5, "pin_memory": False, "timeout": 0, "in_order": True, "shuffle": False},
    }.items():  # fmt: skip
        loader = data.DataLoader(rows, **options)
        note(name, len(loader), [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader])
        note(f"{name} options", loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch_factor)
    shuffled = data.DataLoader(rows, 3, shuffle=True)
    note("shuffled", sorted(x for batch in shuffled for x in batch.tolist()), len(shuffled))
    note("kinds", type(shuffled.sampler).__name__, type(shuffled.batch_sampler).__name__)


class _Reading:
    def __init__(self, torch, rows):
        class Numbers(torch.utils.data.IterableDataset):
            def __init__(self, rows, length=None):
                self.rows, self.length = rows, length

            def __iter__(self):
                return iter(range(self.rows))

        class Counted(Numbers):
            def __len__(self):
                return self.rows

        self.numbers, self.counted = Numbers(rows), Counted(rows)


def iterable_datasets(torch, note):
    data, reading = torch.utils.data, _Reading(torch, 7)
    for name, options in {
        "one by one": {}, "batches": {"batch_size": 3}, "no last": {"batch_size": 3, "drop_last": True},
        "samples": {"batch_size": None},
    }.items():  # fmt: skip
        loader = data.DataLoader(reading.numbers, **options)
        note(name, [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader])
        note.error(f"{name} length", lambda loader=loader: len(loader))
        note(f"{name} counted", len(data.DataLoader(reading.counted, **options)))
    both = data.ChainDataset([reading.numbers, reading.counted])
    note("chain", list(both), len(data.ChainDataset([reading.counted] * 2)))
    note("added", list(reading.numbers + reading.counted), type(reading.numbers + reading.counted).__name__)
    for option in ({"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}):
        note.error(
            str(option), lambda option=option: data.DataLoader(reading.numbers, **option),
            f"DataLoader with IterableDataset: expected unspecified {next(iter(option))} option, but got",
        )  # fmt: skip
    note.error("a chain of lists", lambda: list(data.ChainDataset([[1, 2]])), "ChainDataset only supports Iterable")


def datasets(torch, note):
    data = torch.utils.data
    x, y = torch.arange(6), torch.arange(6) * 10
    pairs = data.TensorDataset(x, y)
    note("tensors", len(pairs), [part.tolist() for part in pairs[2]], [part.tolist() for part in pairs[1:3]])
    note("concatenated", [c if isinstance(c, int) else list(c) for c in (len(pairs + pairs), (pairs + pairs)[-1])])
    concatenated = data.ConcatDataset([range(3), range(10, 12), []])
    note("of three", len(concatenated), [concatenated[i] for i in (0, 2, 3, 4, -1, -5)], concatenated.cumulative_sizes)
    note.error("before", lambda: concatenated[-6], "absolute value of index should not exceed dataset length")
    note.error("beyond", lambda: concatenated[5])
    stacked, named = data.StackDataset(range(3), "abc"), data.StackDataset(x=range(3), y="abc")
    note("stacked", len(stacked), stacked[1], named[2])
    note("stacked at once", stacked.__getitems__([2, 0]), named.__getitems__([0, 1]))
    note("stacked and loaded", _kinds(next(iter(data.DataLoader(named, 2)))))
    subset = data.Subset(list(range(10, 20)), [3, 1, 4])
    note("subset", len(subset), [subset[i] for i in range(3)], subset.__getitems__([0, 2]))
    note("subset of tensors", [part.tolist() for part in data.Subset(pairs, [5, 0])[[0, 1]]])
    for lengths in ([3, 3], [0.5, 0.5], [0.4, 0.4, 0.2], [1 / 3, 1 / 3, 1 / 3], [6], [1.0], [2, 0, 4]):
        parts = data.random_split(range(6), lengths)
        note(f"split {lengths}", [len(part) for part in parts], sorted(i for part in parts for i in part.indices))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data.random_split(range(2), [0.7, 0.1, 0.2])
    note("warned", [[w.category.__name__, str(w.message)] for w in caught])

    class Doubled(data.Subset):
        def __getitem__(self, index):
            return 2 * super().__getitem__(index)

    class Own(data.Dataset[int]):
        pass

    for name, call, phrase in (
        ("sum", lambda: data.random_split(range(6), [3, 2]), "Sum of input lengths does not equal the length of the"),
        ("fraction", lambda: data.random_split(range(6), [1.5, -0.5]), "Fraction at index 0 is not between 0 and 1"),
        ("none concatenated", lambda: data.ConcatDataset([]), "datasets should not be an empty iterable"),
        ("sizes", lambda: data.TensorDataset(x, y[:2]), "Size mismatch between tensors"),
        ("sizes stacked", lambda: data.StackDataset([1], [1, 2]), "Size mismatch between datasets"),
        ("none stacked", lambda: data.StackDataset(), "At least one dataset should be passed"),
        ("both stacked", lambda: data.StackDataset([1], x=[1]), "but both types are given"),
        ("subset", lambda: Doubled([1], [0]), "overrides __getitem__ but not __getitems__"),
        ("own", lambda: Own()[0], "Subclasses of Dataset should implement __getitem__"),
    ):
        note.error(name, call, phrase)


def samplers(torch, note):
    data = torch.utils.data
    rows = range(5)
    note("sequential", list(data.SequentialSampler(rows)), len(data.SequentialSampler(rows)))
    note("random", sorted(data.RandomSampler(rows)), len(data.RandomSampler(rows, num_samples=12)))
    note("more than all", len(list(data.RandomSampler(rows, num_samples=12))))
    note("subset", sorted(data.SubsetRandomSampler([7, 3, 5])), len(data.SubsetRandomSampler([7, 3, 5])))
    note("weighted", sorted(data.WeightedRandomSampler([0.0, 1.0, 2.0], 2, replacement=False)))
    for drop_last in (False, True):
        batches = data.BatchSampler(data.SequentialSampler(rows), 2, drop_last)
        note(f"batches {drop_last}", list(batches), len(batches))
    for size, replicas in ((5, 2), (2, 5), (6, 3), (7, 3)):
        for drop_last in (False, True):
            each = [
                data.DistributedSampler(range(size), replicas, rank, shuffle=False, drop_last=drop_last)
                for rank in range(replicas)
            ]
            note(f"distributed {size} {replicas} {drop_last}", [list(one) for one in each], [len(one) for one in each])
    shuffled = [data.DistributedSampler(range(6), 2, rank, seed=3) for rank in range(2)]
    for one in shuffled:
        one.set_epoch(4)
    note("shuffled", sorted(index for one in shuffled for index in one))
    for name, call, phrase in (
        (
            "replacement",
            lambda: data.RandomSampler(rows, replacement=1),
            "replacement should be a boolean value, but got",
        ),
        ("no samples", lambda: data.RandomSampler(rows, num_samples=0), "should be a positive integer value, but got"),
        ("half a sample", lambda: data.RandomSampler(rows, num_samples=1.5), "got num_samples=1.5"),
        ("of nothing", lambda: data.RandomSampler([]), "got num_samples=0"),
        ("shuffled nothing", lambda: data.DataLoader([], shuffle=True), "got num_samples=0"),
        ("weights", lambda: data.WeightedRandomSampler([[0.1]], 2), "weights should be a 1d sequence but given"),
        ("weighted", lambda: data.WeightedRandomSampler([0.1], -1), "should be a positive integer value"),
        ("weighted replacement", lambda: data.WeightedRandomSampler([0.1], 1, 1), "replacement should be a boolean"),
        ("batch size", lambda: data.BatchSampler(rows, 0, False), "batch_size should be a positive integer value"),
        ("drop_last", lambda: data.BatchSampler(rows, 1, 1), "drop_last should be a boolean value"),
        ("rank", lambda: data.DistributedSampler(rows, 2, 2), "Invalid rank 2, rank should be in the interval [0, 1]"),
    ):
        note.error(name, call, phrase)
    note("nothing", list(data.DataLoader([])), len(data.DataLoader([])))


def options_that_exclude_each_other(torch, note):
    loader = torch.utils.data.DataLoader
    for options, phrase in (
        ({"shuffle": True, "sampler": [0]}, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option is mutually exclusive with batch_size"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching"),
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "prefetch_factor option could only be specified in multiprocessing"),
        ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
        ({"batch_size": 0}, ""),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context can only be used with multi-process loading"),
        ({"multiprocessing_context": "x", "num_workers": 1}, "should specify a valid start method in"),
    ):
        note.error(str(options), lambda options=options: loader([1, 2], **options), phrase)
    made = loader([1, 2])
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        note.error(
            f"set {name}", lambda name=name: setattr(made, name, None), f"{name} attribute should not be set after"
        )
    made.timeout = 0


class _Failing:
    def __init__(self, error, rows=4):
        self.error, self.rows = error, rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index == 2:
            raise self.error
        return index


class _Pair(ValueError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def errors_in_workers(torch, note):
    loader = torch.utils.data.DataLoader

    class Local(LookupError):
        pass

    for name, error, phrases in (
        ("value", ValueError("a bad row"), ["Caught ValueError in DataLoader worker process", "ValueError: a bad row"]),
        ("key", KeyError("name"), ["Caught KeyError in DataLoader worker process 0.\nOriginal Traceback", "'name'"]),
        ("index", IndexError("row"), ["Caught IndexError", "in __getitem__"]),
        ("two arguments", _Pair(1, 2), ["Caught _Pair in DataLoader worker process", "1 and 2"]),
        ("no such file", FileNotFoundError(2, "none", "/x"), ["Caught FileNotFoundError", "/x"]),
        ("type", TypeError("kind"), ["Caught TypeError"]),
        ("unicode", UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), ["Caught UnicodeDecodeError", "bad"]),
    ):
        data = _Failing(error)
        note.error(name, lambda data=data: list(loader(data, 2, num_workers=2)), phrases[0], *phrases[1:])
        note.error(f"{name}, here", lambda data=data: list(loader(data, 2)))

    def refuse(number):
        raise OSError(f"no device for {number}")

    note.error(
        "init", lambda: list(loader([1, 2], num_workers=1, worker_init_fn=refuse)), "Caught OSError in DataLoader",
        "no device for 0", "in refuse",
    )  # fmt: skip
    note.error(
        "collation",
        lambda: list(loader([{1}, {2}], 2, num_workers=1)),
        "in DataLoader worker process 0",
        "<class 'set'>",
    )


class _Told:
    def __init__(self, torch):
        self.data = torch.utils.data

    def __len__(self):
        return 6

    def __getitem__(self, index):
        info = self.data.get_worker_info()
        return [index, info.id, info.num_workers, info.dataset is self]


def workers(torch, note):
    data = torch.utils.data
    note("outside", data.get_worker_info())
    for options in ({}, {"persistent_workers": True}, {"prefetch_factor": 1}):
        loader = data.DataLoader(_Told(torch), 2, num_workers=2, **options)
        for number in range(2):
            note(f"{options} {number}", [[part.tolist() for part in batch] for batch in loader])
    named = [{"x": np.full((2,), row, np.float32), "name": str(row)} for row in range(3)]
    note("structures", [_kinds(batch) for batch in data.DataLoader(named, 2, num_workers=1)])
    reading = _Reading(torch, 3)
    note("each reads all", [b.tolist() for b in data.DataLoader(reading.numbers, 2, num_workers=2)])


def modules(torch, note):
    for path, names in {
        "dataloader": ["DataLoader", "default_collate", "get_worker_info"],
        "dataset": ["Dataset", "IterableDataset", "TensorDataset", "Subset", "random_split", "ConcatDataset"],
        "sampler": ["Sampler", "BatchSampler", "RandomSampler", "SequentialSampler", "WeightedRandomSampler"],
        "distributed": ["DistributedSampler"],
        "_utils.collate": ["default_collate", "default_convert", "collate"],
    }.items():  # fmt: skip
        module = importlib.import_module(f"{torch.__name__}.utils.data.{path}")
        top = torch.utils.data
        note(path, [getattr(module, name) is getattr(top, name, getattr(module, name)) for name in names])
    note("as attributes", torch.utils.data.dataset.Dataset is torch.utils.data.Dataset)


def lengths_of_iterable_datasets_that_are_too_short(torch, note):
    class Longer(torch.utils.data.IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(range(5))

        def __repr__(self):
            return "Longer"

    for batch_size in (None, 1, 2):
        loader = torch.utils.data.DataLoader(Longer(), batch_size)
        for asked in (False, True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if asked:
                    note("length", len(loader))
                note("batches", len(list(loader)))
            said = [w for w in caught if "Longer was reported to be 2(when" in str(w.message).replace("2 (", "2(")]
            note(f"{batch_size}, asked {asked}", [w.category.__name__ for w in said])
            note("how many", [n for n in range(3, 6) for w in said if f"but {n} samples" in str(w.message)])
            note("where", [w.filename.endswith("data.py") for w in said])
