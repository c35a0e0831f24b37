"""Comparison of values in tests: what passes, what fails, and what a failure says."""

import collections
import importlib

import numpy as np


def comparisons(torch, note):
    testing = importlib.import_module(f"{torch.__name__}.testing")
    close, t = testing.assert_close, torch.tensor
    nan, inf = float("nan"), float("inf")
    x = t([1.0, 2.0, 3.0])

    def passes(name, *arguments, **options):
        note(name, close(*arguments, **options))

    passes("equal", x, x + 1e-6)
    passes("nested", {"a": [x, 1], "b": (2.0, None, True)}, {"b": (2.0, None, True), "a": [x.clone(), 1]})
    passes("arrays", np.ones(2), np.ones(2))
    passes("numbers", 1.0, 1, check_dtype=False)
    passes("nan", t(nan), t(nan), equal_nan=True)
    passes("infinities", t([inf, -inf]), t([inf, -inf]))
    passes("half", t([1.0]).half(), t([1.0009]).half())
    passes("dtypes", x, x.double(), check_dtype=False)
    passes("order", collections.OrderedDict(a=1, b=2), {"b": 2, "a": 1})
    passes("tolerances", x, x + 0.5, rtol=0, atol=0.5)
    passes("parameter", torch.nn.Parameter(x), x)
    passes("empty", t([]), t([]))
    passes("integers", t([1, 2]), t([1, 4]), rtol=0.5, atol=0)
    for name, call, phrases in (
        (
            "floats", lambda: close(t([1.0, 4.0, 5.0]), x),
            ["Tensor-likes are not close!\n\nMismatched elements: 2 / 3 (66.7%)\nGreatest absolute difference: 2.0 at "
             "index (1,) (up to 1e-05 allowed)\n",
             "Greatest relative difference: 1.0 at index (1,) (up to 1.3e-06 allowed)"],
        ),
        (
            "integers", lambda: close(t([[1, 2], [3, 4]]), t([[1, 2], [3, 6]])),
            ["Tensor-likes are not equal!", "Mismatched elements: 1 / 4 (25.0%)\nGreatest absolute difference: 2 at "
             "index (1, 1)\nGreatest relative difference: 0.3333333432674408 at index (1, 1)"],
        ),
        ("bools", lambda: close(t([True, False]), t([True, True])), ["Greatest absolute difference: 1 at index (1,)"]),
        (
            "numbers", lambda: close(1.0, 2.0),
            ["Scalars are not close!\n\nExpected 2.0 but got 1.0.\nAbsolute difference: 1.0 (up to 1e-07 allowed)\n"
             "Relative difference: 0.5 (up to 1e-07 allowed)"],
        ),
        ("whole numbers", lambda: close(1, 0), ["not equal!", "Absolute difference: 1\nRelative difference: inf"]),
        ("0-d", lambda: close(t(1.0), t(2.0)), ["Expected 2.0 but got 1.0", "Scalars are not close!", "at index ()"]),
        ("nan", lambda: close(t(nan), t(nan)), ["not close"]),
        ("number nan", lambda: close(nan, nan), ["Expected nan but got nan.\nAbsolute difference: nan (up to 1e-07"]),
        ("inf", lambda: close(t([inf]), t([1.0])), ["Greatest absolute difference: inf at index (0,)"]),
        ("types", lambda: close(1.0, 1), ["The (d)types do not match: <class 'float'> != <class 'int'>."]),
        ("shape", lambda: close(x, x[:2]), ["The values for attribute 'shape' do not match", "3", "2"]),
        ("dtype", lambda: close(x, x.double()), ["The values for attribute 'dtype' do not match", "float64"]),
        (
            "strides", lambda: close(torch.ones(2, 3), torch.ones(3, 2).T, check_stride=True),
            ["attribute 'stride()' do not match: (3, 1) != (1, 2)."],
        ),
        ("none", lambda: close(None, x), ["None mismatch: None is not"]),
        ("bool", lambda: close(True, False), ["Booleans mismatch: True is not False"]),
        ("length", lambda: close([1], [1, 2]), ["The length of the sequences mismatch: 1 != 2"]),
        (
            "keys", lambda: close({"a": 1}, {"b": 1}),
            ["keys of the mappings", "Missing keys in the actual mapping: ['b']\nAdditional keys in the actual "
             "mapping: ['a']"],
        ),
        ("item", lambda: close([{"a": x}], [{"a": x + 1}]), ["The failure occurred for item [0]"]),
        ("unrelated", lambda: close(np.ones(3), torch.ones(3)), ["No comparison pair was able to handle inputs of"]),
        ("strings", lambda: close("a", "a"), ["No comparison pair was able to handle inputs of type <class 'str'>"]),
        ("subclass", lambda: close(torch.nn.Parameter(x), x, allow_subclasses=False), ["No comparison pair"]),
        ("one tolerance", lambda: close(x, x, rtol=1), ["must be either specified or omitted, but got no atol."]),
        ("message", lambda: close(x, -x, msg="argh"), ["argh"]),
        ("function", lambda: close(x, -x, msg=lambda said: f"Header {said}"), ["Header Tensor-likes are not close!"]),
        ("complex", lambda: close(t([1j, 2]), t([1j, 5])), ["Greatest absolute difference: 3.0 at index (1,)", "0.6"]),
        ("order of failures", lambda: close([x, 1], [x + 1, 2]), ["item [0]"]),
    ):  # fmt: skip
        note.error(name, call, *phrases)
        try:
            call()
        except Exception as error:
            note(f"{name} said", [phrase in str(error) for phrase in phrases])


def made_tensors(torch, note):
    make = importlib.import_module(f"{torch.__name__}.testing").make_tensor
    for dtype in ("float32", "float64", "float16", "bfloat16", "complex64", "int64", "uint8", "int8", "bool"):
        for options in ({}, {"low": 1, "high": 2}, {"noncontiguous": True}, {"exclude_zero": True}):
            if dtype == "bool" and "low" in options:
                continue
            x = make(2, 30, dtype=getattr(torch, dtype), device="cpu", **options)
            parts = (torch.view_as_real(x) if x.is_complex() else x).double()
            low, high = options.get("low", 0 if dtype == "bool" else -9), options.get("high", 10)
            note(f"{dtype} {options}", str(x.dtype).rpartition(".")[2], list(x.shape), x.is_contiguous())
            within = dtype == "uint8" or bool((parts >= low).all())
            note(
                "within", within and bool((parts <= high).all()), bool((x != 0).all()) or "exclude_zero" not in options
            )
    note("gradient", make((3,), dtype=torch.float32, device="cpu", requires_grad=True).requires_grad)
    note("shape", [list(make(shape, dtype=torch.int32, device="cpu").shape) for shape in ((), (2, 0), [3])])
    for name, call, phrase in (
        ("integers", lambda: make(2, dtype=torch.int64, device="cpu", requires_grad=True), "requires_grad=True"),
        ("empty range", lambda: make(2, dtype=torch.int64, device="cpu", low=3, high=2), "must be less than `high`"),
        ("nan", lambda: make(2, dtype=torch.float32, device="cpu", low=float("nan")), "cannot be NaN"),
        ("outside", lambda: make(2, dtype=torch.uint8, device="cpu", low=300, high=400), "only supports"),
    ):
        note.error(name, call, phrase)
