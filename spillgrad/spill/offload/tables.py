"""The tables of an offloaded model of which lookups read rows."""

from spillgrad.nn.embedding import Embedding, EmbeddingBag
from spillgrad.nn.module import Module
from spillgrad.spill.offload.pieces import PIECE_BYTES
from spillgrad.spill.offload.rows import ROWS_BYTES
from spillgrad.storage.disk.spans import digest_bytes
from spillgrad.tensor import Tensor


def tables_of(model: Module) -> list[Tensor]:
    """Return the tables that lookups alone use, and of which they read rows."""
    tables: dict[int, Tensor] = {}
    others = set()
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if _is_table(module, tensor):
                tables[id(tensor)] = tensor
            else:
                others.add(id(tensor))
    return [tensor for name, tensor in tables.items() if name not in others]


def checksum_bytes_of(model: Module) -> int:
    """Return the most bytes of the checksums of all tables' pages, which stay in RAM once rows were read.

    Each piece of a table, and each of its planes, may begin and end within a page.
    """
    return sum(
        digest_bytes(table.nbytes) + digest_bytes(0) * (1 + -(-table.nbytes // PIECE_BYTES))
        for table in tables_of(model)
    )


def _is_table(module: Module, tensor: Tensor) -> bool:
    is_lookup = isinstance(module, Embedding | EmbeddingBag) and module.max_norm is None and tensor is module.weight
    return is_lookup and tensor.ndim == 2 and tensor.nbytes > ROWS_BYTES and not tensor.is_cuda
