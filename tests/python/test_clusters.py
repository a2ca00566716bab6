"""The manifests of examples/clusters: read by their own validators, and run where that can be."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import kubernetes_validate
import pytest
import yaml

import harness

FOLDER = harness.ROOT / "examples/clusters"
TRAINERS = harness.ROOT / "tests/python/trainers/.venv/bin/python"
OLDEST = "1.30"
"""The oldest Kubernetes that the manifests are held against."""


def objects():
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def one(kind, name):
    return next(
        each for each in objects() if (each["kind"], each["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field(version):
    for each in objects():
        kubernetes_validate.validate(each, version, strict=True)
    wrong = one("StatefulSet", "rolltape")
    wrong["spec"]["template"]["spec"]["gracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_a_pod_has_time_for_its_drain_and_names_every_engine():
    pod = one("StatefulSet", "rolltape")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = container["args"]
    drain = int(words[words.index("--drain-wait-s") + 1])
    assert pod["terminationGracePeriodSeconds"] > drain

    engines = one("StatefulSet", "engines")
    named = [words[at + 1] for at, word in enumerate(words) if word == "--upstream"]
    hosts = [f"engines-{at}.engines" for at in range(engines["spec"]["replicas"])]
    assert [re.match(r"http://([^:]+):8000 ", name)[1] for name in named] == hosts
    # Options that the binary takes; a wrong one is told before anything is opened.
    told = subprocess.run(
        [harness.binary(), *words, "--store", "/nowhere/a.db"],
        env=harness.environment(CONTROL_TOKEN="0123456789abcdef"), capture_output=True, text=True)
    assert "unexpected argument" not in told.stderr and "/nowhere/a.db" in told.stderr


def test_services_find_their_pods_and_ports():
    pods = {}
    for each in objects():
        if each["kind"] == "StatefulSet":
            template = each["spec"]["template"]
            assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            ports = template["spec"]["containers"][0]["ports"]
            pods[template["metadata"]["labels"]["app"]] = {port["name"] for port in ports}
    for each in objects():
        if each["kind"] == "Service":
            wanted = {port["targetPort"] for port in each["spec"]["ports"]}
            assert wanted <= pods[each["spec"]["selector"]["app"]], each["metadata"]["name"]


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Debian's slurm-client is not installed")
def test_sbatch_reads_every_directive(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text(textwrap.dedent("""\
        ClusterName=check
        SlurmctldHost=localhost
        SlurmctldPort=1
        MessageTimeout=1
        GresTypes=gpu
        NodeName=localhost CPUs=2
        PartitionName=all Nodes=ALL Default=YES
        """))

    def said(script):
        path = tmp_path / "job.sh"
        path.write_text(script)
        asked = subprocess.run(
            ["sbatch", "--test-only", path], env=os.environ | {"SLURM_CONF": str(conf)},
            capture_output=True, text=True, timeout=60)
        return asked.stderr

    script = (FOLDER / "slurm.sh").read_text()
    # It read all options, and then found no controller to ask.
    good = said(script)
    assert "allocation failure" in good.lower() or "contact" in good.lower(), good
    assert "unrecognized" in said(script.replace("--gpus-per-node=", "--gpus-per-nodes="))
    assert "nvalid" in said(script.replace("--time=08:00:00", "--time=long"))


def shell(folder, *words, **variables):
    """The job's script with this machine as its one node."""
    programs = folder / "bin"
    programs.mkdir()
    (folder / "disk-of-the-node").mkdir()
    stubs = {
        # What Slurm's own commands do here, with one node.
        "srun": """\
            while [[ $1 == --* ]]; do shift; done
            setsid "$@" & step=$!
            echo $step > step
            trap "kill -TERM -- -$step" TERM
            wait $step""",
        "scontrol": "echo 127.0.0.1",
    }
    for name, body in stubs.items():
        (programs / name).write_text(f"#!/bin/bash\n{textwrap.dedent(body)}\n")
        (programs / name).chmod(0o755)
    (programs / "rolltape").symlink_to(harness.binary())
    environment = harness.environment(
        PATH=f"{programs}:{os.environ['PATH']}", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1]",
        SLURM_SUBMIT_DIR=str(folder), TMPDIR=str(folder / "disk-of-the-node"),
        **variables)
    return subprocess.Popen(
        ["bash", FOLDER / "slurm.sh", *words], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


WORKER = """
import os, sys, time, openai
base = os.environ["ROLLTAPE_PROXY"].replace(os.uname().nodename, "127.0.0.1")
client = openai.OpenAI(base_url=f"{base}/e/job/v1", api_key="-")
client.chat.completions.create(
    model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
print("worker: called", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_slurm_job_records_and_keeps_its_store(tmp_path, seconds):
    (engine_at,) = harness.free_addresses(1)
    at = harness.text(engine_at)
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    # Ports of this machine may be taken: the script's are put elsewhere.
    data, control = harness.free_addresses(2)
    job = shell(
        tmp_path, sys.executable, worker, str(seconds), DRAIN_WAIT_S="5",
        ENGINE=f"{harness.binary()} engine --model {harness.MODEL} --listen {at}",
        ENGINE_PORT=str(engine_at[1]), PORT=str(data[1]), CONTROL_PORT=str(control[1]))
    try:
        told = ""
        while "worker: called" not in told:
            line = job.stdout.readline()
            assert line, told
            told += line
        if seconds:
            job.send_signal(signal.SIGTERM)
        rest, _ = job.communicate(timeout=40)
        assert job.returncode == (143 if seconds else 3), told + rest
    finally:
        for group in (job.pid, int((tmp_path / "step").read_text())):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    shown = subprocess.run(
        [harness.binary(), "episodes", "--store", tmp_path / "rolltape-7.db", "--json"],
        capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout.splitlines()[0])["episode_id"] == "job"


@pytest.mark.timeout(150)
def test_sessions_find_their_prefixes():
    script = harness.ROOT / "examples/fleet_cache.py"
    # The rotation of an even number of sessions between two engines may keep each on its own.
    words = ("--engines", "2", "--sessions", "7", "--turns", "6")
    told = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=True, timeout=100,
        env=harness.environment(ROLLTAPE_BIN=harness.binary())).stdout
    shares = dict(re.findall(r"^\| ([^|]+) \| [\d,]+ \| [\d,]+ \| ([\d.]+) %", told, re.MULTILINE))
    assert float(shares["rolltape"]) > 50
    if shutil.which("nginx"):
        assert float(shares["rolltape"]) > float(shares["nginx, in rotation"]) + 5


RAY = """
import json, sys, time, openai, ray
from ray_fleet import Fleet
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
fleet = Fleet(2, sys.argv[1], gpus=0, drain_wait_s=5, host="127.0.0.1")
def call(episode):
    client = openai.OpenAI(base_url=f"{fleet.data}/e/{episode}/v1", api_key="-", max_retries=5)
    client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
for number in range(4):
    call(f"a{number}")
before = dict(fleet.urls)
ray.get(fleet.engines["engine-0"].end.remote())
def up():
    return [one["name"] for one in ray.get(fleet.recorder.upstreams.remote())
            if one["state"] == "up"]
deadline = time.time() + 60
while time.time() < deadline:
    fleet.look()
    if fleet.urls != before and len(up()) == 2:
        break
    time.sleep(0.3)
for number in range(4):
    call(f"b{number}")
moved = [name for name in before if fleet.urls[name] != before[name]]
print(json.dumps({"moved": moved, "up": sorted(up()), "store": fleet.stop()}), flush=True)
"""


def wait_for_told(out, driver):
    """What the driver says in its last line, as soon as it has said it."""
    deadline = time.monotonic() + 140
    while time.monotonic() < deadline:
        has_ended = driver.poll() is not None
        for line in out.read_text().splitlines():
            if line.startswith('{"moved"'):
                return json.loads(line)
        assert not has_ended, out.read_text()[-3000:]
        time.sleep(0.2)
    raise TimeoutError(out.read_text()[-3000:])


@pytest.mark.trainers
@pytest.mark.timeout(150)
@pytest.mark.skipif(not TRAINERS.exists(), reason="trainers/install.sh has not been run")
def test_ray_starts_an_engine_again_and_rolltape_finds_it(tmp_path):
    engine = f"{harness.binary()} engine --model {harness.MODEL} --listen 127.0.0.1:{{port}}"
    out = tmp_path / "told"
    with out.open("w") as file:
        driver = subprocess.Popen(
            [TRAINERS, "-c", RAY, engine], cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True, env=harness.environment(
                ROLLTAPE_BIN=harness.binary(), PYTHONPATH=f"{FOLDER}:{harness.ROOT / 'python'}",
                HOME=str(tmp_path), RAY_USAGE_STATS_ENABLED="0"))
    try:
        told = wait_for_told(out, driver)
    finally:
        # Ray's own end may take as long as all before it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert (told["moved"], told["up"]) == (["engine-0"], ["engine-0", "engine-1"])
    shown = subprocess.run(
        [harness.binary(), "episodes", "--store", told["store"], "--json"],
        capture_output=True, text=True, check=True)
    assert len(shown.stdout.splitlines()) == 8
