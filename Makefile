# The commands of this repository. `make help` lists them.
# Ansible wants a UTF-8 locale, and reads ansible.cfg only from folders that it trusts.
export LC_ALL = C.UTF-8
export ANSIBLE_CONFIG = $(CURDIR)/ansible.cfg
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# A Python of 3.11 or newer for the controller.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV = .venv
BIN = $(VENV)/bin
PLAYBOOK = $(BIN)/ansible-playbook
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-story test-hosts lint bench bench-verdicts lock clean stop venv dev

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

venv: $(VENV)/ready  ## the controller's environment (.venv)

$(VENV)/ready: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Plumbline needs Python 3.11 or newer on this machine (python3, python3.11 .. python3.13: none found); \
	install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Plumbline needs Python 3.11 or newer; \
	found: $(PYTHON), $$($(PYTHON) --version 2>&1); name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

dev: $(VENV)/ready-dev

$(VENV)/ready-dev: $(VENV)/ready requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

demo: venv  ## measure a real SGLang server on this machine, with and without EAGLE-3 (about 10 minutes)
	$(PLAYBOOK) playbooks/matrix.yml -e experiment=demo $(ARGS)

stop: venv  ## stop whatever Plumbline runs on this machine
	$(PLAYBOOK) playbooks/stop.yml $(ARGS)

test: dev  ## tests that need no root: unit, simulator, browser, one real engine boot
	$(BIN)/python -m pytest -m "not hosts and not story" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-story: dev  ## the stories on simulated hosts, from 94 tok/s to the bisect
	$(BIN)/python -m pytest -m story tests/scenario -n 4 --dist loadfile $(ARGS)

test-hosts: dev  ## Molecule scenarios and tests on disposable hosts (root, Debian-like)
	$(BIN)/python -m pytest -m hosts tests/host_scenarios -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: dev  ## ruff, mypy, ansible-lint, module documentation, corpus
	$(BIN)/ruff check .
	$(BIN)/mypy module_utils/plumbline
	@# Molecule's plays name groups of its own inventories.
	ANSIBLE_HOST_PATTERN_MISMATCH=ignore $(BIN)/ansible-lint --offline --profile production
	$(BIN)/ansible-doc -t module -M library $$(ls library | sed -n 's/\.py$$//p') > /dev/null
	$(BIN)/python tests/corpus_check.py tests/corpus

bench: dev  ## speed of the parts, as ratios of one run; writes benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-verdicts: dev  ## error rates and costs of the verdicts over thousands of simulated labs
	$(BIN)/python benchmarks/verdicts.py $(ARGS)

lock:  ## write the lock files of the controller's Python packages again (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url requirements.in -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url requirements-dev.in -o requirements-dev.lock

clean:  ## remove .venv and caches (results stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .ansible .cache
