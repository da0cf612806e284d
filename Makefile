# make demo       the gallery and two real models, pictures into demo/
# make test       every test that this machine can run
# make test-fast  the same without compiling, emulating and long ones: under two minutes
# make lint       ruff
# make bench      every benchmark, results into benchmarks/results/
#
# Each makes .venv first, once. PYTHON=... chooses the interpreter; WORKERS=... how many tests run at a time.

VENV    := .venv
PYTHON  :=
WORKERS := 2
RUN     := $(VENV)/bin/python
# Workers must collect the same tests in the same order, also where a test's parameters come from a set: hence the hash seed.
PYTEST  := OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal

.PHONY: demo test test-fast lint bench setup-demo setup-test

demo: setup-demo
	$(VENV)/bin/flexfa4 demo

test: setup-test
	$(PYTEST)

test-fast: setup-test
	$(PYTEST) -m "not slow and not compile and not emulate and not gpu"

lint: setup-test
	$(RUN) -m ruff check flexfa4 mods tests benchmarks .ci

bench: setup-test
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(RUN) $$script; done

setup-demo setup-test:
	@python=$$(.ci/find_python $(PYTHON)) && $$python .ci/setup_env.py $(VENV) $(@:setup-%=%)
