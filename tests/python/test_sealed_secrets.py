"""Secrets in sealed episodes: `scan`, `redact` and `publish` read segments as they read stores."""

import json

import pytest

import harness
from harness import done
from test_redact import redact
from test_scan import KEY, TOKEN, recorded, scan  # noqa: F401

SECRETS = (KEY, TOKEN, "hunter22")
SEALED = ("said", "called", "beside")


@pytest.fixture(scope="module")
def sealed(recorded, tmp_path_factory):  # noqa: F811
    """What `scan` found in a store, that store with sealed episodes, and their segments."""
    folder = tmp_path_factory.mktemp("sealed")
    store, segments = folder / "rolltape.db", folder / "segments"
    done("backup", "--store", recorded, "--to", store, folder=folder)
    before = scan(store)
    for name in SEALED:
        done("close", name, "--store", store, folder=folder)
    words = ("seal", "--json", "--segments", segments, "--finished-for", "0s", "--store", store)
    assert json.loads(done(*words, folder=folder))["episodes"] == len(SEALED)
    return before, store, segments


def test_sealed_secrets_are_found(sealed):
    before, store, segments = sealed
    assert scan(store) == before
    assert scan(segments) == before, "the episode without a secret is not in a segment"
    _, found = scan(segments, "--tokenizer", harness.MODEL)
    assert found["said"]["places"] == ["message", "body", "ids"]


@pytest.mark.parametrize("of_segments", [False, True])
def test_a_copy_of_sealed_episodes_has_no_secrets(sealed, tmp_path, of_segments):
    _, store, segments = sealed
    source = segments if of_segments else store
    to = tmp_path / "clean.db"
    ended = redact(source, to, "--tokenizer", harness.MODEL)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["changed_episodes"] == len(SEALED) == sum(report["secrets"].values())
    assert scan(to, "--tokenizer", harness.MODEL) == (0, {})
    listed = done("episodes", "--json", "--store", to, folder=tmp_path).splitlines()
    assert len(listed) == len(SEALED) + (not of_segments)


@pytest.mark.parametrize("of_segments", [False, True])
def test_sealed_episodes_are_published_without_secrets(sealed, tmp_path, of_segments):
    _, store, segments = sealed
    source = segments if of_segments else store
    words = ("publish", "--json", "--store", source, "--out", tmp_path / "agents")
    report = json.loads(done(*words, "--tokenizer", harness.MODEL, folder=tmp_path))
    assert report["changed_episodes"] == len(SEALED)
    texts = [path.read_bytes() for path in (tmp_path / "agents").rglob("*") if path.is_file()]
    assert len(texts) > len(SEALED)
    assert not any(secret.encode() in text for text in texts for secret in SECRETS)


def test_a_secret_leaves_the_segments_with_its_episode(sealed, tmp_path):
    _, store, segments = sealed
    copy = tmp_path / "segments"
    done("redact", "--store", segments, "--episode", "said", "--to", tmp_path / "clean.db",
         "--tokenizer", harness.MODEL, folder=tmp_path)
    for path in [segments, *segments.rglob("*")]:
        to = copy / path.relative_to(segments)
        to.mkdir() if path.is_dir() else to.write_bytes(path.read_bytes())
    done("prune", "--episode", "said", "--store", copy, folder=tmp_path)
    _, found = scan(copy)
    assert set(found) == {"called", "beside"}
    assert len(list(copy.glob("*.db"))) == 1
