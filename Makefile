# One command from a fresh clone: `make demo` or `make test`. Needs Python 3.11, 3.12 or 3.13 and git, nothing else.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell command -v python$(version) 2>/dev/null)) python3)
VENV := .venv
BIN := $(VENV)/bin
DEMO := instances/cost_efficiency/table_ix/batch-budget-2.0.yaml \
        instances/cost_efficiency/fig3/generative-real_time-b008.yaml \
        instances/cost_efficiency/fig3/summarization-batch-b064.yaml \
        instances/cost_efficiency/present_day/llama-3.1-70b-chat-aws.yaml

.PHONY: setup demo test test-all newest lowest quick coverage fuzz adversary check lint types docs docs-outputs study bench comparison bench-latency bench-kv answers lock dist clean
.DEFAULT_GOAL := demo

setup: $(VENV)/.installed

# The lock is complete: pip need not resolve, and cannot ask for a later release of what an extra names.
$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup  ## solve shipped instances exactly and heuristically, and compare
	$(BIN)/optmodels solve instances/cost_efficiency/present_day/llama-3.1-70b-chat-aws.yaml
	$(BIN)/optmodels compare $(DEMO)

SUITE := -m pytest -n 3 --dist loadfile --no-loadscope-reorder  # three processes for two cores, as many tests wait for others
test: setup  ## the tests, of the slow ones every tenth
	$(BIN)/python $(SUITE) --every 10

test-all: setup  ## the tests, slow ones too
	$(BIN)/python $(SUITE)

TESTS ?= --every 10
newest lowest: setup  ## the tests with the newest, or the lowest, version of every dependency that pyproject.toml allows
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --seed --clear --python $(BIN)/python $(VENV)-$@
	$(BIN)/uv pip install --quiet --python $(VENV)-$@/bin/python --resolution $(if $(filter lowest,$@),lowest-direct,highest) -e ".[dev]"
	$(VENV)-$@/bin/python $(SUITE) $(TESTS)

quick: setup  ## the tests without the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

coverage: setup  ## what the test suite reaches, in lines and branches
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term

N ?= 2000
JOBS ?= 2
fuzz: setup  ## N mutated input files, given to the verbs that read them; resumable, findings in results/fuzz
	$(BIN)/python -m tests.fuzz --count $(N) --jobs $(JOBS)

adversary: setup  ## N random instances a formulation against independent references, resumable: docs/adversary.md
	$(BIN)/python -m tests.adversary --seeds 0:$(N) --jobs $(JOBS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

check: lint types test

docs-outputs: setup  ## what commands print today, into the blocks of README and docs; SLOW=--slow: long ones, too
	$(BIN)/python docs/site/outputs.py $(SLOW)

docs: setup  ## the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

study: setup  ## the papers' tables and figures recomputed, into results/
	$(BIN)/python -m papers.llm_pilot
	$(BIN)/python -m papers.skylb
	$(BIN)/python -m papers.skylb_replay
	$(BIN)/python -m papers.maaso

bench: setup  ## timings and ratios, each benchmark's docstring says of what
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/cost_efficiency.py
	$(BIN)/python benchmarks/fleet.py
	$(BIN)/python benchmarks/reserved_capacity.py
	$(BIN)/python benchmarks/orchestration.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/sweep.py
	$(BIN)/python benchmarks/report_page.py
	$(BIN)/python benchmarks/batch_controllers.py
	$(BIN)/python -m pip install --quiet 'scikit-learn>=1.5'   # the random forest that attribution is timed against
	$(BIN)/python benchmarks/latency_models.py

comparison: setup  ## docs/comparison.md anew
	$(BIN)/python -m pip install --quiet 'pulp<4' linopy
	$(BIN)/python benchmarks/comparison.py --write

bench-latency: setup  ## fit the engines' coefficients, judge them on groups left out, write file and docs table: DATA=FOLDER [OTHERS=1] [CHOICE=1]
	$(BIN)/python benchmarks/engine_model.py $(DATA) --write
	$(BIN)/python benchmarks/maker_model.py $(DATA) --write
	$(if $(OTHERS),$(BIN)/python benchmarks/never_fitted.py $(DATA))
	$(if $(CHOICE),$(BIN)/python benchmarks/chosen_rows.py $(DATA))

bench-kv: setup  ## KV-cache capacity against engines' logs, and the page of docs: DATA=FOLDER
	$(BIN)/python benchmarks/kv_capacity.py $(DATA) --write

answers: setup  ## every shipped instance by every method, compared with what version 0.1 answered
	rm -f results/answers.csv
	$(BIN)/python benchmarks/answers.py record results/answers.csv
	$(BIN)/python benchmarks/answers.py compare results/reference/answers-0.1.csv results/answers.csv

lock: setup  ## pin every dependency with hashes, without index addresses
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --generate-hashes --universal --python-version 3.11 --no-annotate \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet --output-file requirements.lock

dist: setup  ## source archive and wheel, into dist/: docs/releasing.md
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(VENV)-newest $(VENV)-lowest site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
