# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Data of the PostgreSQL server of `make test-postgres`; about 60 MB.
POSTGRES_DATA ?= $(CURDIR)/.postgres
# Data of the S3 server of `make test-s3`; about 50 MB.
S3_DATA ?= $(CURDIR)/.s3
export DAGSTER_HOME ?= $(CURDIR)/.dagster
export PYTHONWARNINGS ?= ignore::DeprecationWarning

.PHONY: demo test lint schema test-sglang test-s3 test-postgres test-browser test-trainers bench docs audit ui clean help

help:
	@grep -E '^## ' Makefile | sed 's/## //'

# Every version is pinned; --no-deps, so that what is installed is the lock file and nothing else.
$(VENV)/.runtime: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock requirements-postgres.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-dev.lock -r requirements-postgres.lock
	touch $@

## make demo          install, then the whole job on a small real model: prompts to trainer files, offline
demo: $(VENV)/.runtime
	$(BIN)/dflash-assets run recipes/demo.yaml

## make test          everything that needs only Python: lint, types, import contract, tests
test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not sglang and not s3 and not postgres and not browser and not trainers"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

## make test-sglang   the engine contract on a real SGLang server on the CPU (installs it once into .venv-sglang, 3.5 GB)
test-sglang: $(VENV)/.dev
	PYTHON=$(BIN)/python sh tests/sglang/setup.sh
	$(BIN)/python -m pytest -m sglang

## make test-s3       storage on a real S3 server, Ceph's gateway on loopback (apt-get installs it when missing and you are root)
test-s3: $(VENV)/.dev
	bash tests/s3/ceph.sh start $(S3_DATA)
	set -a; . $(S3_DATA)/env; set +a; $(BIN)/python -m pytest tests/s3 -m s3 -vv -n 2 --dist loadfile; \
	  code=$$?; bash tests/s3/ceph.sh stop $(S3_DATA); exit $$code

## make test-postgres Dagster's records in a real PostgreSQL server on loopback (apt-get installs it when missing and you are root)
test-postgres: $(VENV)/.dev
	bash tests/postgres/server.sh start $(POSTGRES_DATA)
	set -a; . $(POSTGRES_DATA)/env; set +a; $(BIN)/python -m pytest tests/postgres -m postgres -vv; \
	  code=$$?; bash tests/postgres/server.sh stop $(POSTGRES_DATA); exit $$code

## make test-browser  the webserver in headless Chromium (installed by apt-get when it is missing and you are root)
test-browser: $(VENV)/.dev
	sh tests/browser/chromium.sh
	$(BIN)/python -m pytest -m browser

## make test-trainers exports opened by the trainers' own code; DFLASH_SPECFORGE and six more name their source trees (docs/trainers.md)
test-trainers: $(VENV)/.dev
	PYTHON=$(BIN)/python sh tests/trainers/setup.sh
	$(BIN)/python -m pytest tests/trainers -m trainers

## make bench         all benchmarks at reduced size; FULL=1 NAME=x: one at its stated size
bench: $(VENV)/.dev
	@failed=; for script in $(if $(NAME),benchmarks/$(NAME).py,$(sort $(wildcard benchmarks/*.py))); do \
	  name=$$(basename $$script .py); echo "== $$script"; \
	  $(BIN)/python -m benchmarks.$$name $(if $(FULL),--full) || failed="$$failed $$name"; done; \
	test -z "$$failed" || { echo "did not finish:$$failed" >&2; exit 1; }

## make schema        write docs/recipe.schema.json and docs/cli.md from the code
schema: $(VENV)/.runtime
	$(BIN)/python -m dflash_assets.recipe.schema > docs/recipe.schema.json
	$(BIN)/python -m dflash_assets.cli.document > docs/cli.md
	$(BIN)/python -m dflash_assets.validation.document > docs/rules.md
	$(BIN)/python -m tests.support.licences > docs/licences.md

## make docs          pages of every module and public name, into build/api; fails on any warning
# Not on what pdoc itself can't resolve: annotations of named tuples, and of a class with a method called `list`; nor on dagster-postgres,
# which is pinned one release behind Dagster (requirements-postgres.lock).
docs: $(VENV)/.dev
	PDOC_ALLOW_EXEC=1 $(BIN)/python -W error::UserWarning -W "ignore:Error parsing type annotation:UserWarning" -W "ignore:Found version mismatch:UserWarning" \
	  -m pdoc -o build/api dflash_assets '!dflash_assets.recipes'

## make audit         known vulnerabilities of the locked packages, asked of the advisory database (needs the network)
# An environment of its own: pip-audit brings twenty packages that nothing else here needs.
audit:
	test -x $(VENV)-audit/bin/pip-audit || ($(PYTHON) -m venv $(VENV)-audit && \
	  $(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1) || \
	  { echo "make audit: pip-audit can't be installed; it needs a package index"; exit 1; }
	$(VENV)-audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.lock || \
	  { echo "make audit: vulnerabilities are listed above, or the advisory database was out of reach (the first lines say which)"; exit 1; }

clean:
	rm -rf data .dagster $(VENV) dist build
