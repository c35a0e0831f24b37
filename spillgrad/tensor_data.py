"""A tensor's memory: the storage shared with its views, and the array over the storage. Graphs are not used here."""

import itertools
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from spillgrad import data_type, dtypes
from spillgrad.autograd.core.grad_mode import inferring, state
from spillgrad.device import dlpack
from spillgrad.device.device import CPU, CUDA, Device, device_of, moved
from spillgrad.device.memory_layout import contiguous_format, lies_in, strided
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, ExportError, InferenceTensorError, OperandError
from spillgrad_kernels.device_array import address_of, is_on_device

_uids = itertools.count()


class Storage:
    """The memory that a tensor and all its views share.

    `uid` is never used twice in a process. `version` counts the in-place changes. `array` is the dense memory itself.
    `earlier_versions` counts the changes of the memory that a tensor had before this memory was assigned to its `data`,
    so that `_version` never decreases. `aliased` says that more than one tensor may use the storage. `trainable` says
    that it belongs to a leaf that requires a gradient.
    """

    # Few storages set any of these; defaults on the class make tensors cheap.
    is_inference = False  # it was made in `inference_mode`
    version = 0
    earlier_versions = 0
    aliased = False
    trainable = False
    # Whether the memory is in a store, and in RAM only while something refers to `array`; see `disk_offload`. If so,
    # `view_of` returns a description of a tensor over the memory that keeps nothing in RAM; its `tensor()` returns that
    # tensor.
    offloaded = False
    view_of: Callable[[Any], Any]
    put_away: Callable[[Any], None]  # moves a gradient of the leaf to the store
    hold: Callable[[Any], None]  # keeps an object until the running module has ended
    # The same values as a `ShardedTensor`, if each process has only a part of them, and the whole while it is used.
    in_parts: Any = None
    # The object that must copy the present values before the next change; see `allow_mutation_on_saved_tensors`.
    keeper: Callable[[], Any] | None = None  # a weak reference
    # Where the copy of this storage lies in an array that small storages share; see `small_tensors`.
    packed: Any = None

    _uid: int | None = None

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        if inferring and state.inference and type(self) is Storage:
            self.__class__ = InferenceStorage

    @property
    def uid(self) -> int:
        """The unique number of this storage, assigned on first use."""
        if self._uid is None:
            self.__dict__.setdefault("_uid", next(_uids))  # two threads may ask at once
        return self._uid  # type: ignore[return-value]

    def accumulate(self, total: Any, gradient: Any) -> bool:
        """Add `gradient` to `total`, a tensor over this storage, in a way of its own; return False if there is none."""
        return False

    def parts_now(self) -> Any:
        """Return `in_parts` with all changes."""
        return self.in_parts

    def begin_change(self) -> None:
        """Before a change, let `keeper` copy the values, and count the change, so that other threads can detect it."""
        if self.keeper is not None:
            keeper, self.keeper = self.keeper(), None
            if keeper is not None:
                keeper.keep()
        self.version += 1

    def count_change(self) -> None:
        """Count a change that has been made."""
        self.version += 1

    def lend(self) -> None:
        """Set `aliased`: code outside spillgrad gets the memory and may change it without counting the change."""
        self.aliased = True


class InferenceStorage(Storage):
    """The memory of an inference tensor. Its changes are not counted, so that backward must not rely on its values."""

    is_inference = True

    @property
    def version(self) -> int:  # type: ignore[override]
        """Raise InferenceTensorError: there is no version."""
        raise InferenceTensorError("Inference tensors do not track version counter. clone() makes an ordinary tensor")

    def begin_change(self) -> None:
        """Raise InferenceTensorError unless this thread is in inference mode."""
        if not state.inference:
            raise InferenceTensorError(
                "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get "
                "a normal tensor before doing inplace update."
            )

    count_change = begin_change


class Size(tuple[int, ...]):
    """A shape, a tuple of integers: what `Tensor.size` returns.

    Constructors such as `FloatTensor` take it for sizes, and a list for data.

    Parameters
    ----------
    iterable : iterable of int, optional
        The sizes; none, by default.
    """

    __slots__ = ()

    def numel(self) -> int:
        """Return the number of elements of a tensor of this shape.

        Returns
        -------
        int
            The product of the sizes.
        """
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other))


class TensorData:
    """The base class of tensors: an array over a storage, with layout, device and conversions to other libraries."""

    _array: np.ndarray
    _storage: Storage

    def _set(self, array: np.ndarray, storage: Storage) -> None:
        self._array = array
        self._storage = storage

    @property
    def storage(self) -> Storage:
        """The memory shared with all views."""
        return self._storage

    @property
    def array(self) -> np.ndarray:
        """The array over the tensor's memory, for internal use; users call `numpy()`."""
        return self._array

    def host_array(self) -> np.ndarray:
        """Return the array, or, if it is on a device, a copy on the host."""
        return moved(self._array, CPU)

    def array_to_overwrite(self) -> np.ndarray:
        """Return the array for a caller that overwrites every element; its values may never have been loaded."""
        return self._array

    def _rounded_to(self, dtype: dtypes.DType) -> Any:
        """Return a tensor without graph that has the values in another dtype, if a store has one; else None."""
        return None

    def _rows_at(self, indices: np.ndarray) -> np.ndarray | None:
        """Return the rows of a table at valid indices, if a store reads them alone; else None: take the whole."""
        return None

    def _read_in_place(self, part: Any) -> bool:
        """Take the values of a `FilePart`, and read them in that file; return False if this tensor cannot do that."""
        return False

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self._array.shape

    @property
    def dtype(self) -> data_type.dtype:
        """The data type of the elements."""
        return data_type.BY_NUMPY[self._array.dtype]

    @property
    def numpy_dtype(self) -> dtypes.DType:
        """NumPy's dtype of the elements, for internal use: see `spillgrad.dtypes`."""
        return self._array.dtype

    @property
    def device(self) -> Device:
        """The device that the memory is on."""
        return device_of(self._array)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self._array.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self._array.itemsize

    @property
    def _version(self) -> int:
        return self._storage.earlier_versions + self._storage.version

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension.

        Parameters
        ----------
        dim : int, optional
            Dimension whose size is returned; all, by default.

        Returns
        -------
        Size or int
            The shape, or one size.
        """
        return Size(self.shape) if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions.

        Returns
        -------
        int
            The length of the shape.
        """
        return self.ndim

    ndimension = dim

    def numel(self) -> int:
        """Return the number of elements.

        Returns
        -------
        int
            The product of the sizes.
        """
        return self._array.size

    nelement = numel

    def element_size(self) -> int:
        """Return the size of one element.

        Returns
        -------
        int
            In bytes.
        """
        return self.itemsize

    def stride(self, dim: int | None = None) -> Any:
        """Return the step from one index to the next, in elements.

        Parameters
        ----------
        dim : int, optional
            Dimension whose step is returned; all, by default.

        Returns
        -------
        tuple of int or int
            A step for each dimension, or one step.
        """
        strides = tuple(s // self.itemsize for s in self._array.strides)
        return strides if dim is None else strides[dim]

    def storage_offset(self) -> int:
        """Return how many elements of the storage lie before the tensor's first element.

        Returns
        -------
        int
            The number of elements.
        """
        return (address_of(self._array) - address_of(self._storage.array)) // self.itemsize

    def data_ptr(self) -> int:
        """Return the address of the first element.

        Returns
        -------
        int
            On the host, or on the device that the tensor is on.
        """
        return address_of(self._array)

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Return whether elements lie in memory without gaps.

        Parameters
        ----------
        memory_format : memory_format, optional
            The order of the elements; by default, row-major. `channels_last` asks for the channels last.

        Returns
        -------
        bool
            Whether they do, in this order.
        """
        if memory_format is None or memory_format is contiguous_format:
            return self._array.flags.c_contiguous
        return lies_in(self.shape, self.stride(), memory_format)

    def is_floating_point(self) -> bool:
        """Return whether the elements are real floating-point numbers.

        Returns
        -------
        bool
            Whether the dtype is of floating-point numbers.
        """
        return dtypes.is_floating_point(self.numpy_dtype)

    def is_complex(self) -> bool:
        """Return whether the elements are complex numbers.

        Returns
        -------
        bool
            Whether the dtype is complex64 or complex128.
        """
        return dtypes.is_complex(self.numpy_dtype)

    def is_inference(self) -> bool:
        """Return whether the tensor's memory was made in `inference_mode`.

        Returns
        -------
        bool
            Whether it was.
        """
        return self._storage.is_inference

    def is_signed(self) -> bool:
        """Return whether the elements can be negative.

        Returns
        -------
        bool
            False for bool and unsigned integers.
        """
        return self.numpy_dtype.kind not in "ub"

    layout = strided
    # PyTorch's questions about kinds of tensors that do not exist here.
    is_ipu = is_maia = is_meta = is_mkldnn = is_mps = is_mtia = is_nested = is_quantized = is_sparse = False
    is_sparse_csr = is_vulkan = is_xla = is_xpu = False

    def is_pinned(self, device: Any = None) -> bool:
        """Return False: memory is not pinned for a device.

        Parameters
        ----------
        device : device or str, optional
            Not used.

        Returns
        -------
        bool
            False.
        """
        return False

    def is_shared(self) -> bool:
        """Return whether another process may use the memory.

        Returns
        -------
        bool
            True on a CUDA device, as in PyTorch.
        """
        return self.is_cuda

    @property
    def is_cuda(self) -> bool:
        """Whether the memory is on a CUDA device."""
        return self.device is CUDA

    def bump_version(self) -> None:
        """Count one in-place change of the memory."""
        self._storage.count_change()

    def mark_shared(self) -> Self:
        """Mark the memory as shared with other code, so that it is never reused; return the tensor."""
        self._storage.aliased = True
        return self

    # To Python and NumPy

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """Return a NumPy array over the same memory, also of a tensor that requires a gradient.

        Writes to the array are not tracked: change no value that backward still needs.

        Parameters
        ----------
        force : bool, default False
            Whether to copy a tensor on a device to the host.

        Returns
        -------
        ndarray
            Of the tensor's shape and dtype.

        Raises
        ------
        DeviceError
            For a tensor on a CUDA device, unless `force` is True.

        Examples
        --------
        >>> import spillgrad as sg
        >>> sg.tensor([1.0, 2.0]).numpy()
        array([1., 2.], dtype=float32)
        """
        if is_on_device(self._array):
            if force:
                return self.host_array()
            raise DeviceError(f"numpy: got a tensor on {self.device}; NumPy takes the host's memory: use cpu() first")
        self._storage.lend()
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ArgumentError(
                    f"__array__: got dtype={dtype} and copy=False; {array.dtype} can only be converted by a copy"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """Return a DLPack capsule over the same memory; writes through the capsule are not tracked.

        Raises ExportError for negative strides, which PyTorch does not accept. NumPy accepts no bfloat16 from DLPack:
        use `numpy()`.
        """
        if any(stride < 0 for stride in self._array.strides):
            raise ExportError("dlpack: got negative strides, which not every library takes; use contiguous()")
        if self.is_cuda:
            self._storage.lend()
            return dlpack.export(self._array, stream, max_version, dl_device, copy)
        return dlpack.export_from_host(
            self.numpy(), stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> Any:
        return dlpack.DEVICE if self.is_cuda else self._array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The description of device memory for other libraries. Raises AttributeError for a tensor on the host."""
        if not self.is_cuda:
            raise AttributeError("__cuda_array_interface__: the tensor is on the host")
        self._storage.lend()
        return dlpack.interface(self._array)

    def item(self) -> Any:
        """Return the only element as a Python number.

        Returns
        -------
        bool, int, float or complex
            The element.

        Raises
        ------
        ArgumentError
            Unless there is exactly one element.

        Examples
        --------
        >>> import spillgrad as sg
        >>> sg.tensor([[2.5]]).item()
        2.5
        """
        if self._array.size != 1:
            raise ArgumentError(
                f"item: a tensor of shape {self.shape} has {self._array.size} elements; only one can become a number"
            )
        value = self.host_array().reshape(())[()]
        return float(value) if self.numpy_dtype == dtypes.bfloat16 else value.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers.

        Returns
        -------
        list or number
            A number for a tensor of no dimensions.
        """
        array = self.host_array()
        return (array.astype(np.float32) if array.dtype == dtypes.bfloat16 else array).tolist()

    def __bool__(self) -> bool:
        if self._array.size != 1:
            count = "more than one value" if self._array.size else "no values"
            raise ArgumentError(
                f"bool: Boolean value of Tensor with {count} is ambiguous: got shape {self.shape}; use any(), all() or "
                "compare one element"
            )
        return bool(self.host_array().reshape(())[()])

    def __int__(self) -> int:
        return int(self._real_item())

    def __float__(self) -> float:
        return float(self._real_item())

    def _real_item(self) -> Any:
        value = self.item()
        if isinstance(value, complex):
            if value.imag:
                raise ArgumentError(f"item: value {value} cannot be converted to a real number; take its real part")
            return value.real
        return value

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if dtypes.category(self.numpy_dtype) > 1:
            raise DtypeError(
                f"index: got a tensor of {self.dtype}; only integer tensors of one element can be an index"
            )
        return int(self.item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DtypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __format__(self, specification: str) -> str:
        return object.__format__(self, specification) if self.ndim else format(self.item(), specification)

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, TensorData | bool | int | float | complex | np.generic):
            raise OperandError(f"in: got {type(value).__name__}; wanted a tensor or a number")
        return bool((self.host_array() == (value.host_array() if isinstance(value, TensorData) else value)).any())


def native(array: np.ndarray) -> np.ndarray:
    """Return a NumPy array that can be a tensor's memory: `array`, or a copy in this machine's byte order.

    Raises DtypeError for strings, objects and other dtypes that no tensor holds.
    """
    dtype = dtypes.as_dtype(array.dtype)
    return array if array.dtype.isnative else array.astype(dtype)
