# Two commands matter: `make quickstart` trains and translates, `make test` runs the tests. Both make the environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions that are tested together; CI gives others, too.
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)

.PHONY: quickstart test test-cpus test-slow test-browser lint docs conformance range space release minimum-constraints newest-constraints clean

quickstart: $(VENV)/.demo
	$(BIN)/python scripts/make_numbers_corpus.py outputs/quickstart-data
	$(BIN)/python scripts/train.py scripts/recipes/quickstart.yaml
	$(BIN)/python scripts/try_model.py outputs/quickstart
	$(BIN)/python scripts/try_model.py model_cards/multi30k_raw_en_de "A brown dog is running through the snow." \
		"A man in a red shirt is riding a bicycle down the street." "Three young men are playing soccer on a green field."

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # workers with several threads each would wait for each other

# The fast tests with the kernels of other CPUs: those with AVX2 alone, and those without it.
test-cpus: $(VENV)/.test
	OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		FBGEMM_ENABLE_INSTRUCTIONS=AVX2 $(BIN)/python -m pytest -n 2
	OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
		$(BIN)/python -m pytest -n 2

# Proofs that take long: several processes, killed runs, the wheel in a fresh environment. What a module's tests share
# is made once, so each module stays with one worker; the modules with the most tests come first.
test-slow: $(VENV)/.test
	$(PIP) --editable ".[ray]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# The explorer's page in Chromium, and exports in Node, skipped where there is none; pictures stay in
# outputs/explorer-pictures. Scripts of npm's packages would download builds for GPUs.
test-browser: $(VENV)/.test
	$(PIP) --editable ".[browser]"
	-command -v npm > /dev/null && mkdir -p outputs/node && timeout 600 npm install --silent --ignore-scripts \
		--no-audit --no-fund --prefix outputs/node @huggingface/transformers@4.3.2
	EXPLORER_PICTURES=outputs/explorer-pictures OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile \
		-m browser tests/explorer tests/export

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python scripts/check_words.py
	$(BIN)/jactionlint --no-hints --ignore unpinned-uses  # actions by their major version, as GitHub's own pages do
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/mypy

# The documentation site in outputs/site; a dead link or a page outside the navigation is an error, and so is a word of
# users that its search answers with another page.
docs: $(VENV)/.test
	$(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m pytest -m slow tests/test_site.py

# transformers' own common tests, from the source distribution of the pinned release, on our classes.
conformance: $(VENV)/.test
	$(BIN)/python tests/conformance/run.py

# The core of the package on other releases of transformers: all that are tested, or RELEASES="oldest newest".
range: $(VENV)/.test
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python tests/range/run.py $(RELEASES)

# The Space of examples/space with Gradio, which has a folder of its own.
space: $(VENV)/.test
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python tests/space/run.py

# Tag this commit, if .ci/run has passed it; see CONTRIBUTING.md.
release: $(VENV)/.demo
	$(BIN)/python scripts/release.py

# The oldest versions that pyproject.toml allows, and no versions at all, for `make test CONSTRAINTS=FILE`.
minimum-constraints: | $(VENV)/bin/python
	mkdir -p outputs
	$(BIN)/python -m pip install --quiet uv
	grep '^transformers==' constraints.txt > outputs/transformers.txt  # make range has its others
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra demo --extra test pyproject.toml \
		--constraint outputs/transformers.txt --output-file outputs/$@.txt

newest-constraints:
	mkdir -p outputs
	> outputs/$@.txt

clean:
	rm -rf $(VENV) outputs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch comes first: what is installed after it takes the build that is already there.
$(VENV)/.demo: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) --editable ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable ".[demo,test]"
	touch $@
