#!/bin/sh
# Installs a real SGLang server for CPU into .venv-sglang and writes a tiny model for it (about two minutes, 3.5 GB).
# Usage: tests/sglang/setup.sh [ENVIRONMENT_FOLDER]. PYTHON names the interpreter of the development environment (`make test-sglang`
# gives it): it writes Qwen3.6's tokenizer from the packages of requirements-dev.lock, and the new environment has its version.
# Needs Linux with glibc >= 2.34. Running it again does only what is missing. Where the default index serves torch with CUDA, set
# PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels first.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
env=${1:-$root/.venv-sglang}
lock=$here/requirements.lock
python=${PYTHON:-$root/.venv/bin/python}
case $python in /*) ;; */*) python=$(pwd)/$python ;; esac

if ! command -v "$python" > /dev/null; then
    echo "tests/sglang/setup.sh: no $python; run it through \`make test-sglang\`, or name the development environment's Python in PYTHON" >&2
    exit 1
fi
if [ ! -x "$env/bin/python" ]; then
    "$python" -m venv "$env"
    printf '*\n' > "$env/.gitignore"
fi
env=$(cd "$env" && pwd)
# The lock is complete and installed without dependencies: sglang's own ask for CUDA packages.
if ! cmp -s "$lock" "$env/installed.lock"; then
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$lock"
    cp "$lock" "$env/installed.lock"
fi
# The model folder is kept while the script that wrote it is the same.
if ! cmp -s "$here/tiny_model.py" "$env/model/tiny_model.py"; then
    (cd "$root" && "$python" -m tests.support.qwen "$env/tokenizer")
    "$env/bin/python" "$here/tiny_model.py" "$env/tokenizer" "$env/model"
fi
