"""The short-time Fourier transform and its inverse: transforms of overlapping windows of a signal.

Source: Griffin & Lim 1984, "Signal estimation from modified short-time Fourier transform".
"""

import warnings
from typing import NamedTuple

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops import fourier
from spillgrad.ops.arithmetic import div, mul, square
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.complex_views import view_as_real
from spillgrad.ops.creation import ones
from spillgrad.ops.declaration import declare
from spillgrad.ops.join_split import narrow
from spillgrad.ops.padding import pad
from spillgrad.ops.shape import broadcast_to, reshape, squeeze, transpose, unsqueeze
from spillgrad.ops.sliding_windows import sum_windows, windows_along
from spillgrad.tensor import Tensor

__all__ = ["istft", "stft"]

_NO_WINDOW = (
    "{}: A window was not provided. A rectangular window will be applied,which is known to cause spectral leakage. "
    "Other windows such as torch.hann_window or torch.hamming_window are recommended to reduce spectral leakage. To "
    "suppress this warning and use a rectangular window, explicitly set `window=torch.ones(n_fft, device=<device>)`."
)
_LEAST_ENVELOPE = 1e-11


class _Frames(NamedTuple):
    """How windows lie: the samples of one that are transformed, of one that are weighted, and from one to the next."""

    size: int
    length: int
    hop: int

    @property
    def before(self) -> int:
        """The samples of a window before those that are weighted."""
        return (self.size - self.length) // 2

    def weights(self, window: Tensor) -> Tensor:
        """Return the weights of all samples of a window."""
        return pad(window, (self.before, self.size - self.length - self.before))


def _frames(name: str, n_fft: int, hop_length: int | None, win_length: int | None, window: Tensor | None) -> _Frames:
    found = _Frames(
        n_fft, n_fft if win_length is None else win_length, n_fft // 4 if hop_length is None else hop_length
    )
    if found.hop <= 0:
        raise ArgumentError(f"{name}: expected hop_length > 0, but got hop_length={found.hop}")
    if not 0 < found.length <= n_fft:
        raise ArgumentError(f"{name}: expected 0 < win_length <= n_fft, but got win_length={found.length}")
    if window is None:
        warnings.warn(_NO_WINDOW.format(name), stacklevel=4)
    elif window.shape != (found.length,):
        raise ShapeError(
            f"{name}: expected a 1D window tensor of size equal to win_length={found.length}, but got window with size "
            f"{tuple(window.shape)}"
        )
    return found


def _norm(normalized: bool) -> str:
    return "ortho" if normalized else "backward"


@declare(method=True)
@float32_in_autocast
def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return the Fourier transforms of windows of a signal.

    Parameters
    ----------
    input : Tensor
        Of shape (samples,) or (N, samples), of floating-point or complex numbers.
    n_fft : int
        Number of samples in a window.
    hop_length : int, optional
        Distance between windows, in samples; by default, n_fft // 4.
    win_length : int, optional
        Number of samples in the middle of a window that are multiplied by `window`; by default, all.
    window : Tensor, optional
        Of shape (win_length,): the weights of the samples; by default, ones.
    center : bool, default True
        Whether the signal is padded by n_fft // 2 samples at both ends, so that window t has sample t * hop_length in
        its middle.
    pad_mode : str, default "reflect"
        How it is padded: a mode of `nn.functional.pad`.
    normalized : bool, default False
        Whether to divide by the root of n_fft.
    onesided : bool, optional
        Whether the result has only n_fft // 2 + 1 frequencies; by default, True for real numbers.
    return_complex : bool, optional
        Whether the result is complex, else it is `view_as_real` of that; must be given for real signals.
    align_to_window : bool, optional
        Whether the first weighted samples begin at sample 0; only without `center`.

    Returns
    -------
    Tensor
        Of shape (frequencies, windows) or (N, frequencies, windows).

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    DtypeError
        For integers.
    ArgumentError
        If a length is out of range, or options do not fit each other.

    Warns
    -----
    UserWarning
        Without a `window`, as in PyTorch: ones blur the spectrum.
    """
    is_complex = input.is_complex() or (window is not None and window.is_complex())
    if return_complex is None and not is_complex:
        raise ArgumentError(
            "stft requires the return_complex parameter be given for real inputs, and will further require that "
            "return_complex=True in a future PyTorch release."
        )
    if center and align_to_window is not None:
        raise ArgumentError("stft align_to_window should only be set when center = false")
    if not (dtypes.is_floating_point(input.dtype) or input.is_complex()):
        raise DtypeError(f"stft: got {input.dtype}; expected a tensor of floating point or complex values")
    if input.ndim not in (1, 2):
        raise ShapeError(f"stft: got a tensor of shape {tuple(input.shape)}; expected a 1D or 2D tensor")
    signals = input if input.ndim == 2 else unsqueeze(input, 0)
    if center:
        signals = pad(signals, (n_fft // 2, n_fft // 2), pad_mode)
    if not 0 < n_fft <= signals.shape[1]:
        raise ArgumentError(f"stft: expected 0 < n_fft <= {signals.shape[1]}, but got n_fft={n_fft}")
    frames = _frames("stft", n_fft, hop_length, win_length, window)
    if align_to_window:
        signals = pad(signals, (frames.before, frames.size - frames.length - frames.before))
    windows = windows_along(signals, 1, n_fft, frames.hop, 1)
    if window is None and frames.length < n_fft:
        window = ones(frames.length, dtype=input.dtype, device=input.device)
    if window is not None:
        windows = mul(windows, frames.weights(window))
    if windows.is_complex() and onesided:
        raise ArgumentError("stft: Cannot have onesided output if window or input is complex; leave out onesided")
    half = onesided is not False and not windows.is_complex()
    found = transpose((fourier.rfft if half else fourier.fft)(windows, norm=_norm(normalized)), 1, 2)
    found = found if input.ndim == 2 else squeeze(found, 0)
    return found if return_complex is not False else view_as_real(found)


@declare(method=True)
@float32_in_autocast
def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """Return the signal whose `stft` comes closest to a given one.

    It is the sum of the windows, added with the weights of `window`. The arguments are those of the `stft`.

    Parameters
    ----------
    input : Tensor
        Of shape (frequencies, windows) or (N, frequencies, windows), of complex numbers.
    n_fft : int
        Number of samples in a window.
    hop_length : int, optional
        Distance between windows, in samples; by default, n_fft // 4.
    win_length : int, optional
        Number of weighted samples in the middle of a window; by default, all.
    window : Tensor, optional
        Of shape (win_length,): the weights of the samples; by default, ones.
    center : bool, default True
        Whether the signal was padded, so that n_fft // 2 samples at both ends are left out.
    normalized : bool, default False
        Whether the transform was divided by the root of n_fft.
    onesided : bool, optional
        Whether the transform has only n_fft // 2 + 1 frequencies; by default, its size tells.
    length : int, optional
        Number of samples in the result; by default, those that the windows hold.
    return_complex : bool, default False
        Whether the signal is complex, from a transform with all frequencies.

    Returns
    -------
    Tensor
        Of shape (samples,) or (N, samples).

    Raises
    ------
    ShapeError
        For other numbers of dimensions.
    DtypeError
        If `input` is not complex.
    ArgumentError
        If the windows leave a sample without weight, or a length is out of range.

    Warns
    -----
    UserWarning
        Without a `window`, and if the windows hold less than `length` samples: zeros are added.
    """
    if not input.is_complex():
        raise DtypeError(
            "istft requires a complex-valued input tensor matching the output from stft with return_complex=True."
        )
    if not input.numel():
        raise ShapeError("istft: input tensor cannot be empty.")
    if input.ndim not in (2, 3):
        raise ShapeError(f"istft: expected a tensor with 2 or 3 dimensions, but got {input.ndim}")
    frames = _frames("istft", n_fft, hop_length, win_length, window)
    if frames.hop > frames.length:
        raise ArgumentError(f"istft: expected 0 < hop_length <= win_length, but got hop_length={frames.hop}")
    if window is None:
        window = ones(frames.length, dtype=dtypes.real_part(input.numpy_dtype), device=input.device)
    weights = frames.weights(window)
    spectra = input if input.ndim == 3 else unsqueeze(input, 0)
    windows = mul(_inverse(transpose(spectra, 1, 2), n_fft, weights, normalized, onesided, return_complex), weights)
    count = windows.shape[1]
    samples = n_fft + frames.hop * (count - 1)
    start = n_fft // 2 if center else 0
    stop = start + length if length is not None else samples - start
    signal = sum_windows(windows, 1, n_fft, frames.hop, 1, samples)
    envelope = sum_windows(broadcast_to(square(weights), (1, count, n_fft)), 1, n_fft, frames.hop, 1, samples)
    kept = max(min(stop, samples) - start, 0)
    signal, envelope = narrow(signal, 1, start, kept), narrow(envelope, 1, start, kept)
    if kept and float(envelope.detach().abs().min()) < _LEAST_ENVELOPE:
        raise ArgumentError(
            f"istft: got a window and hop_length={frames.hop} for which the window overlap add min is 0: a sample has "
            "no weight; take a shorter hop_length"
        )
    signal = div(signal, envelope)
    if stop > samples:
        warnings.warn(
            "The length of signal is shorter than the length parameter. Result is being padded with zeros in the tail. "
            "Please check your center and hop_length settings.",
            stacklevel=3,
        )
        signal = pad(signal, (0, stop - samples))
    return signal if input.ndim == 3 else reshape(signal, signal.shape[1:])


def _inverse(
    spectra: Tensor, n_fft: int, weights: Tensor, normalized: bool, onesided: bool | None, return_complex: bool
) -> Tensor:
    """Return the windows that spectra are transforms of."""
    frequencies = spectra.shape[-1]
    onesided = frequencies != n_fft if onesided is None else onesided
    wanted, named = (n_fft // 2 + 1, "n_fft / 2 + 1") if onesided else (n_fft, "n_fft")
    if frequencies != wanted:
        raise ShapeError(
            "istft: expected the frequency dimension (3rd to the last) of the input tensor to match "
            f"{named} when onesided={onesided}, but got {frequencies}"
        )
    if return_complex:
        if onesided:
            raise ArgumentError("istft: Cannot have onesided output if window or input is complex")
        return fourier.ifft(spectra, norm=_norm(normalized))
    if weights.is_complex():
        raise ArgumentError("istft: Complex windows are incompatible with return_complex=False")
    return fourier.irfft(spectra, n_fft, norm=_norm(normalized))
