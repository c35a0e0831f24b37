"""Draw from distributions. Draws have no gradient: reparametrise, as in `mean + std * randn_like(mean)`."""

import math
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import Device, as_device
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.generator import Generator, default_generator
from spillgrad.ops import array_casts, inplace
from spillgrad.ops.array_casts import require_floats
from spillgrad.ops.convert import to_device
from spillgrad.ops.counting import places_among
from spillgrad.ops.creation import draw, randint
from spillgrad.ops.declaration import declare
from spillgrad.ops.placement import by_host, require_one_device
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import random as kernels
from spillgrad_kernels.device_array import is_on_device
from spillgrad_kernels.tables.random import counters_needed

__all__ = ["bernoulli", "binomial", "multinomial", "normal", "poisson", "randint_like"]


def _uniform(shape: Any, generator: Generator | None, device: Device) -> np.ndarray:
    return draw("uniform", kernels.uniform, tuple(shape), dtypes.float64, generator, device)


def _exponential(shape: Any, generator: Generator | None, device: Device) -> np.ndarray:
    """Return draws of the exponential distribution, all above 0."""
    draws: np.ndarray = np.maximum(-np.log1p(-_uniform(shape, generator, device)), np.finfo(np.float64).tiny)
    return draws


def _require_probabilities(name: str, p: np.ndarray) -> None:
    if not is_on_device(p) and not bool(((p >= 0) & (p <= 1)).all()):  # to look at a device's would wait for it
        raise ArgumentError(f"{name}: got numbers outside [0, 1]; wanted probabilities")


@declare(method=True)
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """Draw 1 or 0 for each element.

    Parameters
    ----------
    input : Tensor
        Of any shape; without `p`, of floating-point numbers: the probabilities of 1.
    p : float, optional
        One probability for all elements.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        Of the shape and dtype of `input`.

    Raises
    ------
    ArgumentError
        For probabilities outside [0, 1], unless they are on a device.
    DtypeError
        If there is no `p` and `input` does not hold floating-point numbers.
    """
    chances = input.array.astype(np.float64) if p is None else np.asarray(p, np.float64)
    if p is None:
        require_floats("bernoulli", input.dtype)
    _require_probabilities("bernoulli", chances)
    return Tensor.wrap((_uniform(input.shape, generator, input.device) < chances).astype(input.dtype))


@by_host
def binomial(count: Tensor, prob: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Draw numbers of successes in several trials.

    Parameters
    ----------
    count : Tensor
        Numbers of trials, as floating-point numbers.
    prob : Tensor
        Probabilities of success in a trial; broadcasts with `count`.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        Of the broadcast shape, and of the dtype of `count`.

    Raises
    ------
    ArgumentError
        For a negative count, or a probability outside [0, 1].
    DtypeError
        If `count` does not hold floating-point numbers.
    """
    require_floats("binomial", count.dtype)
    counts, chances = (x.array.astype(np.float64) for x in (count, prob))
    _require_probabilities("binomial", chances)
    if not bool((counts >= 0).all()):
        raise ArgumentError("binomial: got a negative count; wanted numbers from 0 on")
    shape = np.broadcast_shapes(counts.shape, chances.shape)
    drawn = numpy_generator(4 * max(math.prod(shape), 1), generator).binomial(counts.astype(np.int64), chances)
    return Tensor.wrap(np.asarray(drawn).astype(count.dtype))


@declare(method=True)
def bernoulli_(tensor: Tensor, p: float | Tensor = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Overwrite each element with 1 or 0, drawn at random; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.
    p : float or Tensor, default 0.5
        Probability of 1: one number, or a tensor that broadcasts.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    ArgumentError
        For probabilities outside [0, 1], unless they are on a device.
    """
    chances = (to_device(p, tensor.device).array if isinstance(p, Tensor) else np.asarray(p)).astype(np.float64)
    _require_probabilities("bernoulli_", chances)
    drawn = (_uniform(tensor.shape, generator, tensor.device) < chances).astype(tensor.dtype)
    return inplace.copy_(tensor, Tensor.wrap(drawn))


@declare(method=True)
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Draw indices with probabilities proportional to weights.

    Parameters
    ----------
    input : Tensor
        Of shape (n,) or (m, n), of floating-point numbers from 0 on: the weights.
    num_samples : int
        Number of indices that are drawn from each row.
    replacement : bool, default False
        Whether an index may be drawn several times.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        Of shape (num_samples,) or (m, num_samples), of int64.

    Raises
    ------
    ArgumentError
        For more samples without replacement than there are indices, and, on the host, for weights that are negative,
        not finite or all 0 (on a device, this check would wait for the device).
    ShapeError
        For other numbers of dimensions.
    DtypeError
        For integers and complex numbers.
    """
    require_floats("multinomial", input.dtype)
    if input.ndim not in (1, 2):
        raise ShapeError(f"multinomial: got a tensor of shape {input.shape}; wanted (n,) or (m, n)")
    rows, looks = input.shape[0] if input.ndim == 2 else 1, not input.is_cuda
    weights = input.array.astype(np.float64).reshape(rows, input.shape[-1])
    if looks and not bool((np.isfinite(weights) & (weights >= 0)).all() and (weights.sum(1) > 0).all()):
        raise ArgumentError(
            "multinomial: probability tensor contains either inf, nan or an element < 0, or a row of zeros; wanted "
            "weights from 0 on"
        )
    if num_samples < 1:
        raise ArgumentError(f"multinomial: cannot sample num_samples={num_samples}; wanted at least 1")
    if replacement:
        sums = np.cumsum(weights, 1)
        places = _uniform((rows, num_samples), generator, input.device) * sums[:, -1:]
        found = places_among(sums, places, True)
        last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, 1)
        found = np.minimum(found, last[:, None])  # a place rounded up to the whole sum
    else:
        most = int((weights > 0).sum(1).min(initial=weights.shape[1])) if looks else weights.shape[1]
        if num_samples > most:
            raise ArgumentError(
                f"multinomial: cannot sample {num_samples} indices without replacement; a row has only {most} of a "
                "weight above 0"
            )
        # The first of exponential clocks that run at these rates (Efraimidis & Spirakis 2006).
        with np.errstate(divide="ignore"):
            times = _exponential(weights.shape, generator, input.device) / weights
        found = np.argsort(times, 1, kind="stable")[:, :num_samples]
    indices = found.astype(np.int64)
    return Tensor.wrap(indices if input.ndim == 2 else indices[0])


def normal(
    mean: Tensor | float = 0.0, std: Tensor | float = 1.0, size: Any = None, *, generator: Generator | None = None,
    dtype: Any = None, shape: Any = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """Draw numbers from normal distributions.

    Parameters
    ----------
    mean : Tensor or float, default 0.0
        Means of the distributions.
    std : Tensor or float, default 1.0
        Their standard deviations, from 0 on; broadcasts with `mean`.
    size : int or sequence of int, optional
        Shape of the result, if neither `mean` nor `std` is a tensor.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.
    dtype : dtype, optional
        Data type of the result; by default, that of the tensors, else the default dtype.
    shape : sequence of int, optional
        Another name of `size`.
    device : device or str, optional
        Where the result is, if neither is a tensor; by default, the default device.

    Returns
    -------
    Tensor
        A number for each element of `mean` and `std`, or of shape `size`.

    Raises
    ------
    ArgumentError
        For two numbers without a size, a tensor with a size, and a negative `std`, unless `std` is on a device.
    """
    size = shape if size is None else size
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    require_one_device("normal", tensors)
    place = tensors[0].device if tensors else as_device(device)
    spread = std.array if isinstance(std, Tensor) else np.asarray(std)
    if not is_on_device(spread) and bool((spread < 0).any()):
        raise ArgumentError("normal: got a negative std; wanted numbers from 0 on")
    if size is None and not tensors:
        raise ArgumentError("normal: got two numbers and no size; give the shape of the result")
    if size is not None and tensors:
        raise ArgumentError("normal: got a size and a tensor; the result has the tensors' shape")
    wanted = dtypes.as_dtype(dtype) if dtype is not None else (
        tensors[0].numpy_dtype if tensors else dtypes.get_default_dtype()
    )  # fmt: skip
    drawn_shape = shape_arguments((size,)) if size is not None else np.broadcast_shapes(*(x.shape for x in tensors))
    draws = draw("normal", kernels.normal, drawn_shape, wanted, generator, place).astype(np.float64)
    means, stds = (x.array.astype(np.float64) if isinstance(x, Tensor) else x for x in (mean, std))
    return Tensor.wrap(array_casts.cast(array_casts.as_own(draws * stds + means), wanted))


def numpy_generator(count: int, generator: Generator | None = None) -> "np.random.Generator":
    """Return NumPy's generator, seeded by this one's next numbers; the next `count` numbers are taken for its draws."""
    seed, offset = (generator or default_generator).take(counters_needed(count))
    return np.random.default_rng(kernels.words64((2,), seed, offset))


@by_host
def poisson(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Draw counts from Poisson distributions.

    Parameters
    ----------
    input : Tensor
        Of any shape, of floating-point numbers from 0 on: the rates.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        Of the shape and dtype of `input`.

    Raises
    ------
    ArgumentError
        For a negative rate.
    DtypeError
        For integers and complex numbers.
    """
    require_floats("poisson", input.dtype)
    rates = input.array.astype(np.float64)
    if not bool((rates >= 0).all()):
        raise ArgumentError("poisson: got a negative rate; wanted numbers from 0 on")
    drawn = numpy_generator(4 * max(input.numel(), 1), generator).poisson(rates)
    return Tensor.wrap(np.asarray(drawn).astype(input.dtype))


@declare(method=True)
def exponential_(tensor: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite the tensor with draws from an exponential distribution; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of any shape, of floating-point numbers.
    lambd : float, default 1.0
        Rate of the distribution; positive.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    ArgumentError
        If `lambd` is not positive.
    DtypeError
        For integers and complex numbers.
    """
    if not lambd > 0:
        raise ArgumentError(f"exponential_: got lambd={lambd}; wanted a positive number")
    return _filled("exponential_", tensor, _exponential(tensor.shape, generator, tensor.device) / lambd)


@declare(method=True)
def geometric_(tensor: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Overwrite each element with a number of trials up to the first success; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.
    p : float
        Probability of success in a trial, between 0 and 1.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    ArgumentError
        If `p` is not between 0 and 1.
    """
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_: got p={p}; wanted a number between 0 and 1")
    draws = _uniform(tensor.shape, generator, tensor.device)
    tries = np.maximum(np.ceil(np.log1p(-draws) / math.log1p(-p)), 1)
    return inplace.copy_(tensor, Tensor.wrap(tries))


@declare(method=True)
def log_normal_(tensor: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite the tensor with exp(x) of draws x from N(mean, std²); return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of any shape, of floating-point numbers.
    mean : float, default 1.0
        Mean of x.
    std : float, default 2.0
        Standard deviation of x.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    DtypeError
        For integers and complex numbers.
    """
    draws = draw("log_normal_", kernels.normal, tensor.shape, dtypes.float64, generator, tensor.device)
    return _filled("log_normal_", tensor, np.exp(draws * std + mean))


@declare(method=True)
def cauchy_(tensor: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite the tensor with draws from a Cauchy distribution; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of any shape, of floating-point numbers.
    median : float, default 0.0
        Median of the distribution.
    sigma : float, default 1.0
        Half of the distance between its quartiles.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    DtypeError
        For integers and complex numbers.
    """
    draws = _uniform(tensor.shape, generator, tensor.device)
    return _filled("cauchy_", tensor, median + sigma * np.tan(np.pi * (draws - 0.5)))


def _filled(name: str, tensor: Tensor, draws: np.ndarray) -> Tensor:
    require_floats(name, tensor.dtype)
    return inplace.copy_(tensor, Tensor.wrap(draws))


@declare(method=True)
def random_(tensor: Tensor, *bounds: int, generator: Generator | None = None) -> Tensor:
    """Overwrite the tensor with whole numbers, drawn uniformly; return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.
    *bounds : int
        The bound that is never drawn, or the smallest number and this bound. By default, the range begins at 0 and
        holds the whole numbers that the dtype holds exactly.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself.

    Raises
    ------
    ArgumentError
        For more than two bounds.
    """
    if len(bounds) > 2:
        raise ArgumentError(f"random_: got {len(bounds)} bounds; give none, (to) or (from, to)")
    if not bounds:
        if dtypes.is_floating_point(tensor.dtype):
            exact = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[str(tensor.dtype)]
            bounds = (2**exact + 1,)
        else:
            bounds = (2,) if tensor.dtype == dtypes.bool_ else (dtypes.iinfo(tensor.dtype).max,)
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return inplace.copy_(tensor, randint(low, high, tensor.shape, generator=generator, device=tensor.device))


def randint_like(input: Tensor, low: int = 0, high: int | None = None, *, dtype: Any = None) -> Tensor:
    """Draw integers uniformly, in the shape of a tensor.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    low : int, default 0
        Smallest number; the bound `high` if it is given alone.
    high : int, optional
        Bound, which is never drawn.
    dtype : dtype, optional
        Data type of the result; by default, that of the input.

    Returns
    -------
    Tensor
        Of the shape of `input`, on its device.

    Raises
    ------
    DtypeError
        For a tensor of bool, unless `dtype` is given.
    """
    if high is None:
        low, high = 0, low
    if input.dtype == dtypes.bool_ and dtype is None:
        raise DtypeError("randint_like: got bool; give a dtype")
    return randint(low, high, size=input.shape, dtype=input.dtype if dtype is None else dtype, device=input.device)
