"""What publishes a release, as far as it can be tried without the forge: the tag, the workflows,
the forms of issues, the pages of the site."""

import datetime
import itertools
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

import harness
from harness import ROOT

FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
CHOOSER = FORGE / "ISSUE_TEMPLATE" / "config.yml"
FORMS = sorted(set(CHOOSER.parent.glob("*.yml")) - {CHOOSER})
STEPS_WORKFLOW = "./.github/workflows/steps.yml"
MINUTES_MAX = 360
"""The longest that the forge lets a job run."""
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
TODAY = datetime.datetime.now(datetime.UTC).date()

PINNED = re.compile(r"[\w.-]+(/[\w.-]+)+@([0-9a-f]{40} # v\d+\.\d+\.\d+|v\d+\.\d+\.\d+)")
"""An action by its commit with the version beside it, or by its whole version."""
KINDS = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "options", "multiple", "default"},
    "checkboxes": {"label", "description", "options"},
}
"""The kinds of a form's fields, with the attributes that each may have."""


def by_name(paths):
    return pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def workflow(path):
    loaded = yaml.safe_load(path.read_text())
    # YAML takes the word `on` for a truth.
    return {"on" if key is True else key: value for key, value in loaded.items()}


def jobs():
    """The file, the name and the text of each job."""
    return [
        (path.stem, name, job)
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
    ]


# The tag.


@pytest.fixture
def clone(tmp_path):
    """A repository of these files alone, in which anything can be tagged."""
    folder = tmp_path / "clone"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = ["Cargo.toml", "CHANGELOG.md", "*Cargo.lock", "docs", "examples/clusters", "packaging"]
    found = subprocess.run([*listed, *names], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in found.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / name).chmod((ROOT / name).stat().st_mode)
    changelog = folder / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\nNew: [all](docs/serving.md), [x](#y).\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder, *words):
    done = subprocess.run(["git", *words], cwd=folder, env=alone(), check=True, capture_output=True)
    return done.stdout.decode().strip()


def alone():
    """An environment in which git has a name and nobody's settings."""
    names = itertools.product(("AUTHOR", "COMMITTER"), ("NAME", "EMAIL"))
    people = {f"GIT_{who}_{what}": "a@b.example" for who, what in names}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | people | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def commit(folder):
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "new")


def release(folder, *words):
    command = [sys.executable, folder / "packaging" / "release.py", *words]
    return subprocess.run(command, env=alone(), capture_output=True, text=True)


def refused(folder, *words):
    """The one line with which a command fails."""
    done = release(folder, *words)
    assert done.returncode == 1 and not done.stdout, done
    line = done.stderr.removesuffix("\n")
    assert line.startswith("FAILED: ") and "\n" not in line, done.stderr
    return line


def replace(path, before, after):
    text = path.read_text()
    assert before in text, path
    path.write_text(text.replace(before, after))


def raised(place):
    """The next version in one of its three places."""
    parts = [int(part) for part in VERSION.split(".")]
    return ".".join(map(str, [*parts[:place], parts[place] + 1, *[0] * (2 - place)]))


@pytest.mark.parametrize("version", [VERSION, raised(2), raised(1), raised(0)])
def test_a_version_is_written_tagged_and_passes_its_check(clone, version):
    done = release(clone, "tag", version)
    assert done.returncode == 0, done.stderr
    assert git(clone, "cat-file", "-t", f"v{version}") == "tag"
    assert git(clone, "log", "-1", "--format=%s") == f"[release] {version}"
    assert git(clone, "status", "--porcelain") == ""
    assert f'version = "{version}"' in (clone / "Cargo.toml").read_text()
    assert f"rolltape-{version}-x86_64-linux.tar.gz" in (clone / "docs/install.md").read_text()
    assert f"check v{version}`" in (clone / "docs/release.md").read_text()

    said = release(clone, "check", f"v{version}", "--links", "https://forge.example/blob/v1/")
    assert said.returncode == 0, said.stderr
    assert said.stdout == "New: [all](https://forge.example/blob/v1/docs/serving.md), [x](#y).\n"


def test_only_crates_of_this_repository_get_a_new_version(clone):
    assert release(clone, "tag", raised(1)).returncode == 0
    changed = git(clone, "show", "--unified=0", "--format=", "--", "*Cargo.lock").splitlines()
    lines = [line for line in changed if re.match(r"[+-][^+-]", line)]
    assert set(lines) == {f'-version = "{VERSION}"', f'+version = "{raised(1)}"'}


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1", "v0.1.0-rc1", "v01.0.0", "v0.1.0\n", "release"])
def test_a_tag_of_another_form_is_refused(clone, tag):
    assert "is not vX.Y.Z" in refused(clone, "check", tag)


def test_a_tag_that_is_not_the_version_is_refused(clone):
    assert f"Cargo.toml has version {VERSION}" in refused(clone, "check", f"v{raised(2)}")


@pytest.mark.parametrize("lock", ["Cargo.lock", "tests/fuzz/Cargo.lock"])
def test_a_lock_file_of_another_version_is_refused(clone, lock):
    wire = 'name = "wire"\nversion = "{}"'
    replace(clone / lock, wire.format(VERSION), wire.format("9.9.9"))
    assert lock in refused(clone, "check", f"v{VERSION}")


@pytest.mark.parametrize(
    ("changelog", "why"),
    [
        ("", "`## Unreleased` is on top"),
        ("## Unreleased\n\nNew.\n", "`## Unreleased` is on top"),
        ("## Unreleased\n\nNew.\n\n## {0} - 2026-01-01\n\nOld.\n", "`## Unreleased` is on top"),
        ("## {0}\n\nNew.\n", "is not `## {0} - YYYY-MM-DD`"),
        ("## {0} - soon\n\nNew.\n", "is not `## {0} - YYYY-MM-DD`"),
        ("## {0} - 2026-02-30\n\nNew.\n", "is not `## {0} - YYYY-MM-DD`"),
        ("## {0} - 2999-01-01\n\nNew.\n", "is a day to come"),
        ("## {0} - 2026-01-01\n\n## 0.0.1 - 2025-01-01\n\nOld.\n", "nothing below"),
        ("## {0}1 - 2026-01-01\n\nNew.\n", "is on top, not {0}"),
        ("## 9.9.9 - 2026-01-01\n\nNew.\n\n## {0} - 2026-01-01\n\nOld.\n", "is on top, not {0}"),
    ],
)
def test_a_changelog_without_the_version_is_refused(clone, changelog, why):
    (clone / "CHANGELOG.md").write_text("# Changelog\n\n" + changelog.format(VERSION))
    assert why.format(VERSION) in refused(clone, "check", f"v{VERSION}")


def test_a_tag_of_another_commit_is_refused(clone):
    assert release(clone, "tag", VERSION).returncode == 0
    commit(clone)
    assert "is of another commit" in refused(clone, "check", f"v{VERSION}")


def test_nothing_is_tagged_twice_or_beside_other_changes(clone):
    assert "is not X.Y.Z" in refused(clone, "tag", f"v{VERSION}")
    assert "is below" in refused(clone, "tag", "0.0.9")
    (clone / "new").touch()
    assert "not committed" in refused(clone, "tag", VERSION)
    commit(clone)

    assert release(clone, "tag", VERSION).returncode == 0
    assert "is there already" in refused(clone, "tag", VERSION)
    # Nothing new is in the changelog.
    assert "`## Unreleased`, not once" in refused(clone, "tag", raised(1))


def test_the_changelog_here_can_be_released(clone):
    (clone / "CHANGELOG.md").write_bytes((ROOT / "CHANGELOG.md").read_bytes())
    text = (ROOT / "CHANGELOG.md").read_text()
    if "\n## Unreleased\n" in text:
        commit(clone)
        assert release(clone, "tag", VERSION).returncode == 0
        assert f"\n## {VERSION} - {TODAY}\n" in (clone / "CHANGELOG.md").read_text()


# The workflows.


@by_name(WORKFLOWS)
def test_a_workflow_begins_without_any_right(path):
    loaded = workflow(path)
    assert loaded["permissions"] == {}
    assert "pull_request_target" not in path.read_text()
    assert "secrets." not in path.read_text() and "secrets:" not in path.read_text()


@by_name(WORKFLOWS)
def test_actions_are_pinned(path):
    used = re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE)
    assert used
    for action in used:
        assert PINNED.fullmatch(action) or action == STEPS_WORKFLOW, action


@pytest.mark.parametrize(("file", "name", "job"), jobs())
def test_a_job_names_its_rights_and_its_time(file, name, job):
    assert job["permissions"], "rights are named"
    if job.get("uses") == STEPS_WORKFLOW:
        minutes = job.get("with", {}).get("minutes", 1)
        assert set(job["permissions"].items()) == {("contents", "read")}
    else:
        minutes = job["timeout-minutes"]
        assert job["runs-on"] == "ubuntu-24.04"
    assert minutes == "${{ inputs.minutes }}" or 0 < minutes <= MINUTES_MAX
    for step in job.get("steps", []):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # Text from outside reaches a shell as a variable only.
        assert "${{" not in step.get("run", "")


def test_only_jobs_that_publish_may_write():
    writes = {
        f"{file}:{name}": {right for right, may in job["permissions"].items() if may == "write"}
        for file, name, job in jobs()
    }
    assert {name: rights for name, rights in writes.items() if rights} == {
        "release:provenance": {"attestations", "id-token"},
        "release:wheels": {"id-token"},
        "release:image": {"attestations", "id-token", "packages"},
        "release:page": {"contents"},
        "site:publish": {"id-token", "pages"},
    }


def test_what_publishes_needs_the_checks_and_the_tag():
    release_jobs = workflow(FORGE / "workflows/release.yml")["jobs"]

    def needed(name):
        direct = release_jobs[name].get("needs", [])
        direct = {direct} if isinstance(direct, str) else set(direct)
        return direct.union(*map(needed, direct))

    for name in ("provenance", "wheels", "image", "page"):
        assert {"tag", "checks", "build"} <= needed(name), name
    assert needed("page") == set(release_jobs) - {"page"}
    assert all("if" not in job for job in release_jobs.values())


def test_a_release_is_made_of_tags_only():
    on = workflow(FORGE / "workflows/release.yml")["on"]
    assert on == {"push": {"tags": ["v*.*.*"]}}


def words_of_ci():
    """What each job gives `.ci/run`, as words."""
    for file, name, job in jobs():
        steps = job.get("with", {}).get("steps", "")
        lines = job.get("strategy", {}).get("matrix", {}).get("steps", [None])
        if job.get("uses") == STEPS_WORKFLOW:
            for line in lines:
                yield file, name, steps.replace("${{ matrix.steps }}", str(line)).split()
        for step in job.get("steps", []):
            for call in re.findall(r"\.ci/run ?(.*)$", step.get("run", ""), re.MULTILINE):
                # That of steps.yml, whose words are above.
                if call != '"${steps[@]}"':
                    yield file, name, shlex.split(call)


def steps_of_ci():
    text = (ROOT / ".ci" / "run").read_text()
    return re.search(r"^readonly STEPS=\((.*?)\)", text, re.MULTILINE | re.DOTALL)[1].split()


def test_workflows_run_steps_that_are_there():
    steps = steps_of_ci()
    assert len(steps) > 15
    given = list(words_of_ci())
    for file, name, words in given:
        tier = words[:1] in (["quick"], ["whole"])
        assert set(words[tier:]) <= set(steps), (file, name, words)

    tiers = {(file, name, *words) for file, name, words in given if len(words) < 2}
    assert tiers == {
        ("checks", "quick", "quick"),
        ("checks", "landing"),
        ("release", "checks"),
    }


def test_every_step_is_run_at_night():
    lines = [words for file, name, words in words_of_ci() if (file, name) == ("checks", "whole")]
    assert all(words[:2] == ["whole", "install"] for words in lines), lines
    assert {step for words in lines for step in words[1:]} == set(steps_of_ci())
    given = [step for words in lines for step in words[2:]]
    assert len(given) == len(set(given)), "no step twice"


def test_ci_takes_the_words_that_workflows_give():
    """A step that is not there ends a run before its first step, after the words were read."""
    for tier in ("quick", "whole"):
        command = [ROOT / ".ci" / "run", tier, "fmt", "nothing"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.stdout == f"== {tier}: fmt nothing\n" and done.returncode == 2, done
        assert done.stderr.startswith("no step 'nothing'")


@by_name(WORKFLOWS)
def test_scripts_of_a_workflow_are_there_and_can_be_read(path):
    for name, job in workflow(path)["jobs"].items():
        for step in job.get("steps", []):
            script = step.get("run", "")
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)
            for file in re.findall(r"(?:packaging|tests|\.ci)/[\w/.]+", script):
                assert os.access(ROOT / file, os.X_OK), (name, file)


# The forms of issues.


def fields(path):
    return yaml.safe_load(path.read_text())["body"]


def test_there_is_a_form_for_what_people_report():
    assert [path.stem for path in FORMS] == ["bug", "feature", "wrong-data"]
    assert yaml.safe_load(CHOOSER.read_text()) == {"blank_issues_enabled": False}
    assert "Report a vulnerability" in (ROOT / "SECURITY.md").read_text()


@by_name(FORMS)
def test_a_form_has_what_the_forge_wants(path):
    form = yaml.safe_load(path.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))

    asked = [field for field in form["body"] if field["type"] != "markdown"]
    ids, labels = [[*found] for found in zip(*((f["id"], f["attributes"]["label"]) for f in asked))]
    assert len(ids) == len(set(ids)) and len(labels) == len(set(labels))
    assert all(re.fullmatch(r"[\w-]+", id) for id in ids)
    for field in form["body"]:
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert set(field["attributes"]) <= KINDS[field["type"]], field
        assert set(field.get("validations", {})) <= {"required"}
        if field["type"] == "markdown":
            assert field["attributes"]["value"] and "id" not in field
        if field["type"] == "dropdown":
            options = field["attributes"]["options"]
            assert len(options) == len(set(options)) and "None" not in options


@by_name(FORMS)
def test_a_form_asks_for_what_doctor_says(path):
    asked = {field.get("id"): field for field in fields(path)}
    assert "rolltape doctor --" in asked["doctor"]["attributes"]["description"]
    if path.stem != "feature":
        assert asked["doctor"]["validations"]["required"]
        assert asked["version"]["validations"]["required"]
        assert "Report a vulnerability" in path.read_text()
    if path.stem == "wrong-data":
        assert "rolltape doctor --episode ID" in asked["doctor"]["attributes"]["description"]
        assert "rolltape show ID" in asked["show"]["attributes"]["description"]


@by_name(FORMS)
def test_commands_and_files_of_a_form_are_there(path):
    text = path.read_text()
    for file in re.findall(r"`((?:docs/)?[\w-]+\.md)`", text):
        assert (ROOT / file).is_file(), file
    for command in re.findall(r"`rolltape ([a-z]+ [^`]*)`", text):
        name, *words = command.split()
        done = subprocess.run([harness.binary(), name, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, command
        for word in words:
            assert not word.startswith("--") or word in done.stdout, command


# The pages.


def test_pages_of_the_site_link_to_what_is_there(tmp_path):
    base = "https://forge.example/rolltape/blob/main"
    command = [sys.executable, ROOT / "packaging" / "book.py", "--pages", "--links", base]
    environment = os.environ | {"CARGO_TARGET_DIR": str(tmp_path)}
    subprocess.run(command, env=environment, check=True)

    folder, left = tmp_path / "packaging" / "book", 0
    pages = sorted(folder.rglob("*.md"))
    assert len(pages) > 60
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            target = link.split("#")[0]
            left += target.startswith(base)
            if target and not re.match(r"\w+:", target):
                path = (page.parent / target).resolve()
                assert path.is_relative_to(folder) and path.exists(), (page.name, link)
    assert left > 10
    assert (folder / "book.toml").is_file()


@pytest.mark.parametrize("name", ["SECURITY.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_pages_beside_the_documents_link_to_what_is_there(name):
    for link in re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", (ROOT / name).read_text()):
        assert (ROOT / link).exists(), link
