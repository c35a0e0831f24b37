"""`python -m spillgrad` is the command `spillgrad`."""

import runpy

# The command line is built on this package, so that nothing here imports it.
runpy.run_module("spillgrad_tools", run_name="__main__", alter_sys=True)
