"""The same stores as in the tests of storage, and the same care for what they leave."""

from tests.storage.conftest import (  # noqa: F401
    a_deadlock_ends_the_run,
    arrays_go_only_where_they_may,
    directory,
    make_store,
)
