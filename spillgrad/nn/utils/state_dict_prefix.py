"""Take the prefix of a wrapper's parameters off the names of a state dict."""

from typing import Any


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Rename the entries whose names begin with `prefix`, such as "module.", in place and in their order."""
    for name in list(state_dict):
        state_dict[name.removeprefix(prefix)] = state_dict.pop(name)
