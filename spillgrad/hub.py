"""PyTorch's module `torch.hub`, which downloads models and code: refused, with what to do instead."""

from typing import Any

from spillgrad.errors import UnsupportedError

_WEIGHTS = (
    "spillgrad downloads no weights, and reads no pickles; where PyTorch is installed, write them once by "
    "safetensors.torch.save_file(state_dict, file), and use load_state_dict(sg.load(file))"
)


def load(repo_or_dir: str, model: str, *args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError: no code of a repository is downloaded and run."""
    raise UnsupportedError(
        f"hub.load: got {model!r} of {repo_or_dir!r}; no code is downloaded and run: copy the model's source, change "
        "its imports, and load its weights as safetensors"
    )


def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> Any:
    """Raise UnsupportedError: no weights are downloaded."""
    raise UnsupportedError(f"hub.load_state_dict_from_url: got {url!r}; {_WEIGHTS}")


def download_url_to_file(url: str, dst: str, *args: Any, **kwargs: Any) -> None:
    """Raise UnsupportedError: nothing is downloaded."""
    raise UnsupportedError(f"hub.download_url_to_file: got {url!r}; use urllib.request.urlretrieve(url, {dst!r})")
