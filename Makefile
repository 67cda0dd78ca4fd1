.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev

# The demo has a database of its own and nothing but its own settings: no .env, no variable of the shell.
SETTINGS := DATABASE_URL VAULT_PATH RAG_VAULT_ENCODING RAG_INGEST_CHUNKS $(foreach n,PROVIDER MODEL DIM DEVICE CACHE_DIR BASE_URL API_KEY,EMBEDDING_$(n)) \
	$(foreach n,PROVIDER BASE_URL MODEL API_KEY TIMEOUT_SECONDS MAX_TOKENS,LLM_$(n)) \
	$(foreach n,TOP_K MIN_SIMILARITY MIN_CONFIDENCE RETRIEVAL CONTEXT_TOKEN_BUDGET FALLBACK_ENABLED REQUIRE_QUOTES LOG_FORMAT,RAG_$(n))
CLEAN_ENV := env $(foreach n,$(SETTINGS),-u $(n))
DEMO_HOME := $(CURDIR)/.pyrag/demo
DEMO := $(CLEAN_ENV) PYRAG_HOME="$(DEMO_HOME)" $(BIN)/rag --env-file /dev/null

.PHONY: help demo install test lint format bench clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(STAMP) ## Embedded Postgres, sample vault, questions answered with citations
	@$(DEMO) db init
	@$(DEMO) ingest samples/acme-vault
	@echo
	@$(DEMO) eval --answers
	@echo
	@echo 'Ask it yourself:'
	@echo '  PYRAG_HOME=.pyrag/demo $(BIN)/rag --env-file /dev/null ask "What is a critical replication lag in Postgres?"'

install: $(STAMP) ## Set up .venv with the command rag

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "pyrag needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing pyrag into $(VENV) (once) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(DEV_STAMP): $(STAMP)
	@echo "Installing test and lint tools into $(VENV) (once) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e ".[test,lint]"
	@touch $@

test: $(DEV_STAMP) ## Run all tests on an embedded Postgres of their own
	@$(BIN)/python -m pytest

lint: $(DEV_STAMP) ## Style, types, layers, SQL
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sqlfluff lint db
	@if ls db/migrations/*.sql >/dev/null 2>&1; then $(BIN)/squawk db/migrations/*.sql; fi

format: $(DEV_STAMP) ## Format the Python files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Rate of ingestion and time of a search (VAULT=folder of notes)
	$(BIN)/python eval/bench/ingest_rate.py $(VAULT)

clean: ## Stop the embedded server and remove .venv, caches and .pyrag
	-@test ! -x $(BIN)/rag || $(DEMO) db stop
	-@test ! -x $(BIN)/rag || $(CLEAN_ENV) PYRAG_HOME="$(CURDIR)/.pyrag" $(BIN)/rag --env-file /dev/null db stop
	rm -rf $(VENV) .pyrag .cache .mypy_cache .ruff_cache .pytest_cache
