"""What a program is: a model, its data and its optimizer, and the function that takes one step of training."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Step = Callable[[], Any]


class Program(NamedTuple):
    """A program to time: `make` gets the library and a source of random numbers, and returns the step.

    A step trains on one batch, and returns the loss.
    """

    name: str
    describes: str
    make: Callable[[Any, np.random.Generator], Step]


def fill(torch: Any, model: Any, random: np.random.Generator) -> Any:
    """Give a model's weights random values, the same in every library, and its biases zeros; return the model.

    Weights of two and more dimensions are normal with a variance of 1 / fan-in; others keep what their layer gave them.
    Source: He et al. 2015, "Delving deep into rectifiers" (without the factor 2).
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(normal(torch, random, *parameter.shape) / math.sqrt(fan_in))
            elif "bias" in name:
                parameter.zero_()
    return model


def given(torch: Any, array: np.ndarray) -> Any:
    """Return an array of floating-point numbers as a tensor of the default dtype."""
    return torch.from_numpy(array).to(torch.get_default_dtype())


def normal(torch: Any, random: np.random.Generator, *shape: int) -> Any:
    """Return normally distributed numbers: images, or noise."""
    return given(torch, random.standard_normal(shape))


def whole_numbers(torch: Any, random: np.random.Generator, below: int, *shape: int) -> Any:
    """Return random integers from 0 to `below` - 1: classes, or tokens."""
    return torch.from_numpy(random.integers(0, below, shape))


def training(optimizer: Any, loss_of: Step) -> Step:
    """Return the usual step: clear the gradients, compute the loss, go back, update."""

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return step
