# make demo       the gallery and two real models, pictures into demo/
# make test       every test that this machine can run
# make test-fast  the same without compiling, emulating and long ones: under two minutes on two cores
# make lint       ruff
# make bench      every benchmark of this machine (those of a GPU say so where there is none), results into benchmarks/results/
# make bench-emulator   the emulator's campaigns on flash-attn-4's kernels: hours
#
# Each makes .venv first, once. PYTHON=... chooses the interpreter; WORKERS=... how many tests run at a time.

VENV    := .venv
PYTHON  :=
WORKERS := 2
RUN     := $(VENV)/bin/python
# Workers must collect the same tests in the same order, also where a test's parameters come from a set: hence the hash seed. They
# get a few at a time, the long ones first: a worker that had many of those queued could not give away its last two.
PYTEST  := OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(RUN) -m pytest -q -n $(WORKERS) --dist load --maxschedchunk 4

.PHONY: demo test test-fast lint bench bench-emulator setup-demo setup-test

demo: setup-demo
	$(VENV)/bin/flexfa4 demo

test: setup-test
	$(PYTEST)

test-fast: setup-test
	$(PYTEST) -m "not slow and not compile and not emulate and not gpu"

lint: setup-test
	$(RUN) -m ruff check flexfa4 mods tests benchmarks .ci

BENCHMARKS := trace_time call_overhead masks tightness schedule cpu_engine first_call gallery_sass lookup_sass sm90_sass sm100_sass \
              sm100_pairs sm100_turns halves forward documents packing masks_gpu fixed_masks sm90_choices sm90_mods \
              size_changes
bench: setup-test
	set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(RUN) benchmarks/$$name.py; done

bench-emulator: setup-test
	set -e; for arch in sm_90a sm_100a; do $(RUN) benchmarks/emulator_speed.py $$arch; $(RUN) benchmarks/emulator_fa4.py $$arch; done
	set -e; for kernel in sm_90a-forward sm_100a-forward sm_100a-backward; do $(RUN) benchmarks/emulator_sensitivity.py $$kernel 7200; done
	$(RUN) benchmarks/kernel_grid.py sm100
	$(RUN) benchmarks/kernel_grid.py sm90

setup-demo setup-test:
	@python=$$(.ci/find_python $(PYTHON)) && $$python .ci/setup_env.py $(VENV) $(@:setup-%=%)
