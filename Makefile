# Everything a newcomer needs: `make demo` and `make test` set themselves up in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test check format bench docs screenshots lock clean

help:
	@echo "make demo    set up, drive the built-in endpoint until its goodput collapses, score it"
	@echo "make test    set up, with a browser, and run all tests"
	@echo "make check   format, lint and types"
	@echo "make bench   measure what docs/performance.md has (long; bench/all.py --quick is shorter; 10 GB of disk)"
	@echo "make docs    write the parts of the docs that the program knows best"
	@echo "make screenshots  take the pictures of pages in docs/ anew"
	@echo "make format  rewrite the code as the formatter wants it"
	@echo "make lock    pin the newest versions that pyproject.toml allows"

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("openloop needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: .venv/ready
	rm -rf demo-output
	$(BIN)/openloop demo -o demo-output
	@echo
	-$(BIN)/openloop score demo-output/stressed
	@echo
	@echo "the report: demo-output/report.html"

# Tests open pages in a real browser: Debian's Chromium where it can be installed, otherwise Playwright's own.
.venv/browser: .venv/ready
	@$(BIN)/python -c 'import sys; from openloop.report.files import find_browser; sys.exit(find_browser() is None)' \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| $(BIN)/python -m playwright install chromium
	@touch $@

test: .venv/browser
	$(BIN)/python -m pytest

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

screenshots: .venv/browser
	$(BIN)/python docs/screenshots.py

bench: .venv/ready
	$(BIN)/python bench/all.py

docs: .venv/ready
	$(BIN)/python docs/generate.py
	rm -rf docs/.drawn && $(BIN)/python examples/load_test.py docs/.drawn > /dev/null
	mv docs/.drawn/collapse.svg docs/figures/ && rm -rf docs/.drawn

site: .venv/ready
	$(BIN)/zensical build --strict
	@echo "the site: build/site/index.html"

lock:
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet -e '.[dev]'
	.venv-lock/bin/python -m pip freeze --exclude-editable --exclude openloop > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-lock demo-output build dist
