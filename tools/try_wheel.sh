#!/bin/sh
# Try the wheel with one Python: sh tools/try_wheel.sh PYTHON CHECKOUT SCRATCH TEST...
# In an environment of its own in the folder SCRATCH, the wheel of CHECKOUT/dist trains, runs the README's first program,
# and passes the named tests. Nothing is imported from the checkout.
set -eu
python=$1 checkout=$(cd "$2" && pwd)
mkdir -p "$3"
scratch=$(cd "$3" && pwd)
shift 3
"$python" -m venv "$scratch/venv"
bin=$scratch/venv/bin
"$bin/python" -m pip install --quiet --disable-pip-version-check --prefer-binary --no-compile \
	--force-reinstall --no-deps "$checkout"/dist/*.whl
"$bin/python" -m pip install --quiet --disable-pip-version-check --prefer-binary --no-compile \
	"$checkout"/dist/*.whl "pytest>=8.3" "hypothesis>=6.115" "hdf5plugin>=6.0"
rm -rf "$scratch/work"
mkdir "$scratch/work"
cp -r "$checkout/tests" "$checkout/pyproject.toml" "$scratch/work"
cd "$scratch/work"
"$bin/python" -c 'import platform, spillgrad; print(platform.python_version(), platform.machine(), spillgrad.__file__)'
"$bin/spillgrad" train --model tiny --steps 2 --ram-budget 1MiB --out run
awk '/^```python/ { printing = 1; next } /^```/ && printing { exit } printing' "$checkout/README.md" >program.py
"$bin/python" -W error program.py
"$bin/python" -m pytest --quiet -p no:cacheprovider -m "not exhaustive" "$@"
