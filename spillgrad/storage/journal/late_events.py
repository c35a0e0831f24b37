"""The module `events`, imported on first use, because `import spillgrad` must not wait for msgspec."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillgrad.storage.journal.events import *  # noqa: F403


def __getattr__(name: str) -> Any:
    from spillgrad.storage.journal import events

    found = globals()[name] = getattr(events, name)  # found at once from now on
    return found
