# make test: lint, types and tests (those of the page need Chromium, which is installed where that can be done).
# Three workers, since some tests wait for other processes. make demo: explains scenes with every family of the zoo.
# Both build the environment first, if it isn't there: see scripts/environment.py.
PYTHON ?= python3
RUN = PYTHONPATH=$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH} $$($(PYTHON) scripts/environment.py)

.PHONY: test test-slow test-libraries demo figures notebooks format benchmark verify coverage fuzz lock audit-deps sbom docs release-check

test:
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	@$(PYTHON) scripts/chromium.py
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n 3 --dist worksteal

# Audits one model of each kind of every library: about half an hour on two cores.
test-slow:
	$(RUN) -m pytest -m slow

# Model libraries that hilrp knows and doesn't need (requirements/libraries.in), in an environment of their own: one model
# of each of their families, and what else needs them.
test-libraries:
	PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 $$($(PYTHON) scripts/environment.py libraries) -m pytest -n 2 tests/libraries

# Random programs and torch's samples of operations, beyond those of `make test`: make fuzz SECONDS=3600 SEED=1000000
SECONDS ?= 600
SEED ?= 100000
fuzz:
	OMP_NUM_THREADS=1 $(RUN) scripts/fuzz.py --seconds $(SECONDS) --seed $(SEED)

verify:
	$(RUN) -m hilrp verify

coverage:
	$(RUN) -m hilrp coverage

# The documents as a site, in site/: broken links and missing names of the API are errors (mkdocs.yml).
docs:
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

demo:
	$(RUN) -m hilrp demo -o out/demo

figures:
	$(RUN) scripts/engine_figures.py
	$(RUN) scripts/figures.py
	$(RUN) scripts/passes_figure.py
	OMP_NUM_THREADS=1 $(RUN) scripts/methods_figure.py
	$(RUN) scripts/truth_figures.py

# Runs the notebooks of the documents, and keeps what they put out.
notebooks:
	$(RUN) scripts/notebooks.py

format:
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

benchmark:
	$(RUN) benchmarks/overhead.py

# Pins what pyproject.toml asks for, with hashes: make lock LOCK_OPTIONS=--upgrade for the newest of everything.
lock:
	$(PYTHON) scripts/lock.py $(LOCK_OPTIONS)

# Licences, and known vulnerabilities. The script ends with 1 if something was found, with 3 if the advisories can't be
# had; make says "Error 1" or "Error 3".
audit-deps:
	@$(RUN) scripts/audit_dependencies.py

# What a release is made of, as CycloneDX: dist/hilrp-VERSION.cdx.json.
sbom:
	@$(RUN) scripts/sbom.py

# What a release is made of, in dist/: versions, changelog and citation that agree, a wheel and an sdist that are sound.
release-check:
	$(PYTHON) scripts/release.py
	$(RUN) -m build
	$(RUN) -m twine check --strict dist/*.whl dist/*.tar.gz
