# Two commands matter: `make quickstart` trains and translates, `make test` runs the tests. Both make the environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test test-slow test-browser lint conformance clean

quickstart: $(VENV)/.demo
	$(BIN)/python scripts/make_numbers_corpus.py outputs/quickstart-data
	$(BIN)/python scripts/train.py scripts/recipes/quickstart.yaml
	$(BIN)/python scripts/try_model.py outputs/quickstart
	$(BIN)/python scripts/try_model.py model_cards/multi30k_raw_en_de "A brown dog is running through the snow." \
		"A man in a red shirt is riding a bicycle down the street." "Three young men are playing soccer on a green field."

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # workers with several threads each would wait for each other

# Proofs that take long: several processes, killed runs, the wheel in a fresh environment.
test-slow: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[ray]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

# The explorer's page in Chromium, skipped where there is none; its pictures stay in outputs/explorer-pictures.
test-browser: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[browser]"
	EXPLORER_PICTURES=outputs/explorer-pictures OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/explorer

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# transformers' own common tests, from the source distribution of the pinned release, on our classes.
conformance: $(VENV)/.test
	$(BIN)/python tests/conformance/run.py

clean:
	rm -rf $(VENV) outputs

# torch comes first: what is installed after it takes the build that is already there.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo,test]"
	touch $@
