# Everything a contributor types. Each target makes the virtual environment itself if it is missing or outdated.
#
#   make demo        kill a running job twice, and count what arrived
#   make demo-kafka  the same from Kafka to Kafka, with a broker of its own
#   make test        lint, types and every test that is not slow
#   make test-fast   without Spark and servers: under three minutes
#   make test-slow   the tests that take long
#   make bench       side by side with peers (long; see bench/README.md)

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.made
JOBS   ?= 2
# By "load" every worker goes through its tests in their order, in which those that hold a Spark application come last.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist load

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-kafka test test-fast test-slow services lint format types bench docs-check clean

help:
	@sed -n '3,9p' Makefile | sed 's/^# \{0,1\}//'

venv: $(STAMP)

$(STAMP): pyproject.toml scripts/make-venv
	scripts/make-venv $(VENV)
	@touch $(STAMP)

demo: venv
	$(BIN)/headrace demo $(ARGS)

demo-kafka: venv
	$(BIN)/python -m headrace.demo.kafka_show $(ARGS)

test: lint types services
	$(PYTEST) -m "not slow" $(ARGS)

test-fast: venv
	$(PYTEST) -m "not slow and not thorough and not spark and not cluster and not service" $(ARGS)

test-slow: services
	$(PYTEST) -n 0 -m "slow" $(ARGS)

services: venv
	scripts/install-services $(VENV)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: venv
	$(BIN)/mypy

bench: venv
	$(BIN)/python -m bench run all $(ARGS)
	$(BIN)/python -m bench report

docs-check: venv
	$(PYTEST) tests/docs tests/examples $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build demo-out spark-warehouse
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
