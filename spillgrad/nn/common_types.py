"""PyTorch's module `torch.nn.common_types`: names for annotations of sizes and tensors."""

# mypy: disable-error-code="misc"
# These aliases have PyTorch's form, which is older than the one that mypy checks.

from typing import Any, TypeVar

from spillgrad.tensor import Tensor

T = TypeVar("T")
# One size for all dimensions, or one for each.
_scalar_or_tuple_any_t = T | tuple[T, ...]
_scalar_or_tuple_1_t = T | tuple[T]
_scalar_or_tuple_2_t = T | tuple[T, T]
_scalar_or_tuple_3_t = T | tuple[T, T, T]
_scalar_or_tuple_4_t = T | tuple[T, T, T, T]
_scalar_or_tuple_5_t = T | tuple[T, T, T, T, T]
_scalar_or_tuple_6_t = T | tuple[T, T, T, T, T, T]
_size_any_t: Any = _scalar_or_tuple_any_t[int]
_size_1_t: Any = _scalar_or_tuple_1_t[int]
_size_2_t: Any = _scalar_or_tuple_2_t[int]
_size_3_t: Any = _scalar_or_tuple_3_t[int]
_size_4_t: Any = _scalar_or_tuple_4_t[int]
_size_5_t: Any = _scalar_or_tuple_5_t[int]
_size_6_t: Any = _scalar_or_tuple_6_t[int]
_ratio_any_t: Any = _scalar_or_tuple_any_t[float]
_ratio_2_t: Any = _scalar_or_tuple_2_t[float]
_ratio_3_t: Any = _scalar_or_tuple_3_t[float]
_tensor_list_t: Any = _scalar_or_tuple_any_t[Tensor]
_maybe_indices_t: Any = Tensor | tuple[Tensor, Tensor]
