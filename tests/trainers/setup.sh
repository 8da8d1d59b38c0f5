#!/bin/sh
# Installs what the trainers' reading code imports into .venv-trainers (torch for the CPU, 1.5 GB). The trainers themselves are not
# installed: the tests run their source trees. Usage: tests/trainers/setup.sh [ENVIRONMENT_FOLDER]; PYTHON names the interpreter. Where the
# default index serves torch with CUDA, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels first. Running it again does nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
env=${1:-$here/../../.venv-trainers}
if [ ! -x "$env/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$env"
    printf '*\n' > "$env/.gitignore"
fi
if ! cmp -s "$here/requirements.lock" "$env/installed.lock"; then
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.lock"
    cp "$here/requirements.lock" "$env/installed.lock"
fi
