# The steps are in .ci/run, so that no check exists only in CI. `just check` runs all of them.

# what the examples run: `cargo build --release -p cli` makes it
binary := env("ROLLTAPE_BIN", justfile_directory() / "target/release/rolltape")

# what landing needs, as CI runs it
check:
    .ci/run

# what a change needs, in minutes
quick:
    .ci/run quick

# every check
whole:
    .ci/run whole

# what the checks need: C and C++ compilers, git, python3-venv, strace, debootstrap
install:
    .ci/run install

# formatting
fmt:
    .ci/run fmt

# clippy, warnings are errors
lint:
    .ci/run lint

# rustdoc, warnings are errors
doc:
    .ci/run doc

# licences, duplicates and sources of dependencies
deny:
    .ci/run deny

# all Rust tests but those on an emulated GPU
test:
    .ci/run test

# 200 times `kill -9` at random moments
kills:
    .ci/run kills

# lines that break, kills and a full disk, by a plan: `just chaos 200`; `ROLLTAPE_CHAOS_SEED=N`
# replays one seed
chaos runs="20":
    ROLLTAPE_CHAOS_RUNS={{runs}} cargo test -p tests --test it chaos -- --nocapture

# kernels through the real compilers
kernels:
    .ci/run kernels

# host code and kernels on an emulated GPU
cuda:
    .ci/run cuda

# each fuzz target of `wire`, `proxy` and `control`, on the same inputs every time
fuzz:
    .ci/run fuzz

# the release binary
build:
    .ci/run build

# the README's first command, into a temporary folder
demo:
    .ci/run demo

# the Python tests against the release binary
python:
    .ci/run python

# real trainers
trainers:
    .ci/run trainers

# the attacks of a hostile agent or upstream
attacks:
    .ci/run attacks

# some of them, in the environment that `just attacks` makes: `just attack -k key`
attack *options:
    ROLLTAPE_BIN={{binary}} tests/python/.venv/bin/python -m pytest -q tests/attacks {{options}}

# an hour of agents with a `kill -9` a minute, as a table: `just soak --minutes 10 --out table.md`
soak *options:
    ROLLTAPE_BIN={{binary}} python3 tests/soak.py {{options}}

# an hour of readers under a ceiling of memory, beside agents that write the largest episodes
soak-readers *options:
    ROLLTAPE_BIN={{binary}} tests/python/.venv/bin/python tests/attacks/soak.py {{options}}

# tests of other servers against the engine
suites:
    .ci/run suites

# some of them, or otherwise: `just suite vllm sdk`, `just suite --through proxy`,
# `just suite --write`
suite *options:
    tests/python/suites/install.sh
    ROLLTAPE_BIN={{binary}} tests/python/suites/.suites/venv/bin/python tests/python/suites/run.py {{options}}

# real llama.cpp and vLLM on a CPU, directly and through the release binary
servers:
    .ci/run servers

# Python clients and agents, each through the release binary and directly
clients:
    .ci/run clients

# what fails with the newest release of a client or a trainer: `just newest trainers`
newest *groups:
    ROLLTAPE_BIN={{binary}} python3 tests/newest.py {{groups}}

# Node clients and agents, each through the release binary and directly
node:
    .ci/run node

# the recipes and the operations of the documents, block by block
recipes:
    .ci/run recipes

# the Python package as a wheel, from the release binary, installed in a bare Debian
wheel:
    .ci/run wheel

# a release into dist/: wheels, static archives, checksums; then tries them where nothing else is
package:
    packaging/build.sh
    packaging/check.sh

# the page's files are what its sources build; then Chromium looks at a recording with it
page:
    .ci/run page

# the commit and the tag of a release; `git push` publishes it: docs/release.md
release version:
    packaging/release.py tag {{version}}

# the documents as a book in target/book, by the mdBook that it compiles once
book *options:
    packaging/book.py {{options}}

# TRL trains the tiny model on what its agents do, in the environment of docs/training.md:
# `just train-demo --seed 1`
train-demo *options:
    .venv/bin/python examples/guess/train.py {{options}}

# the same with GRPOTrainer's rollout_func
train-sync-demo *options:
    .venv/bin/python examples/guess/train_sync.py {{options}}

# Aider processes side by side
aider-demo *options:
    ROLLTAPE_BIN={{binary}} tests/python/.venv/bin/python examples/aider/run.py --aider {{justfile_directory()}}/tests/python/clients/.venvs/aider/bin/aider {{options}}

# 500 sessions on 8 scripted engines, one of which dies again and again
fleet:
    ROLLTAPE_FLEET=1 cargo test -p tests --test it fleet_storm -- --nocapture

# the share of prompts that engines find among their prefixes: through rolltape, and in rotation
fleet-cache *options:
    ROLLTAPE_BIN={{binary}} python3 examples/fleet_cache.py {{options}}

# agents on their own against agents that wait for each other
async-bench *options:
    ROLLTAPE_BIN={{binary}} python3 examples/async_bench.py {{options}}

# what recording costs beside plain proxies: `just bench --shapes small --rounds 3`
bench *options:
    cargo build --release -p benches
    ROLLTAPE_BIN={{binary}} target/release/benches {{options}}

# what `--continue exact` costs beside a call without it: `just bench-continued --tokens 20000`
bench-continued *options:
    ROLLTAPE_BIN={{binary}} python3 benches/continued.py {{options}}

# Ray, Spark, Delta Lake and Iceberg on segments and exports
lake:
    .ci/run lake

# what costs more because the store is old: `just growth --sizes 4000,40000`
growth *options:
    ROLLTAPE_BIN={{binary}} python3 benches/growth.py {{options}}

# a recorder after a month of a million calls a day: `just month --days 30`
month *options:
    ROLLTAPE_BIN={{binary}} python3 benches/month.py {{options}}

# how the code reads, in numbers
measure *ARGS:
    tests/measure.py {{ARGS}}
