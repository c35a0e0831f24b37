"""PyTorch's module `torch.backends.cuda`: the precision of products, and the kernels of attention to choose from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad_kernels.cuda.precision import allow_tf32, tf32_is_allowed


class _Matmul:
    """The settings `torch.backends.cuda.matmul`."""

    # Sums of half-precision products are in float32 here, whatever is set.
    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True
    allow_fp16_accumulation = False

    @property
    def allow_tf32(self) -> bool:
        """Whether tensor cores may round float32 operands to TF32; `sg.set_float32_matmul_precision` sets it, too."""
        return tf32_is_allowed()

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        allow_tf32(bool(allowed))

    @property
    def fp32_precision(self) -> str:
        """The precision of float32 products: "ieee", or "tf32" where `allow_tf32` is true."""
        return "tf32" if tf32_is_allowed() else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        if precision not in ("ieee", "tf32", "none"):
            raise ArgumentError(f"fp32_precision: got {precision!r}; wanted 'ieee' or 'tf32'")
        allow_tf32(precision == "tf32")


matmul = _Matmul()
# The kernels of attention that may be used, by PyTorch's names. One kernel does them all here.
_enabled = {"flash": True, "math": True, "mem_efficient": True, "cudnn": True}


def is_built() -> bool:
    """Return True: the kernels for CUDA are part of the library; `sg.cuda.is_available` looks for a device."""
    return True


def flash_sdp_enabled() -> bool:
    """Return what `enable_flash_sdp` set; attention computes with one kernel here, whatever is set."""
    return _enabled["flash"]


def enable_flash_sdp(enabled: bool) -> None:
    """Keep the setting, which changes nothing: attention computes with one kernel here."""
    _enabled["flash"] = bool(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Return what `enable_mem_efficient_sdp` set; attention computes with one kernel here, whatever is set."""
    return _enabled["mem_efficient"]


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Keep the setting, which changes nothing: attention computes with one kernel here."""
    _enabled["mem_efficient"] = bool(enabled)


def math_sdp_enabled() -> bool:
    """Return what `enable_math_sdp` set; attention computes with one kernel here, whatever is set."""
    return _enabled["math"]


def enable_math_sdp(enabled: bool) -> None:
    """Keep the setting, which changes nothing: attention computes with one kernel here."""
    _enabled["math"] = bool(enabled)


def cudnn_sdp_enabled() -> bool:
    """Return what `enable_cudnn_sdp` set; attention computes with one kernel here, whatever is set."""
    return _enabled["cudnn"]


def enable_cudnn_sdp(enabled: bool) -> None:
    """Keep the setting, which changes nothing: attention computes with one kernel here."""
    _enabled["cudnn"] = bool(enabled)


def is_flash_attention_available() -> bool:
    """Return False: the package flash-attention is not used; attention here needs no matrix of scores without it."""
    return False


@contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True
) -> Iterator[Any]:
    """Set which kernels of attention may be used within the block; it changes nothing here but what reads back."""
    before = dict(_enabled)
    _enabled.update(flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn)
    try:
        yield {}
    finally:
        _enabled.update(before)
