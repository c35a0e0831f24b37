"""The same stores as in the tests of storage, and the same care for what they leave."""

from tests.storage.conftest import a_deadlock_ends_the_run, directory, make_store  # noqa: F401
