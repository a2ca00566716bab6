#!/usr/bin/env python3
"""Checks licences, bans and sources of all dependencies against deny.toml.

The rules are those of `cargo deny check licenses bans sources`, which takes minutes to build.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cargo(*arguments):
    command = ["cargo", *arguments, "--locked", "--all-features"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def used_on(target):
    """The names and versions of what is built for a target; `cargo metadata` lists more."""
    tree = cargo("tree", "--workspace", "--target", target, "--prefix", "none", "--format", "{p}")
    lines = [line.split() for line in tree.splitlines() if line]
    return {(name, version.removeprefix("v")) for name, version, *_ in lines}


def packages(targets):
    """The packages that the workspace is built from on any of the targets."""
    used = set().union(*map(used_on, targets))
    metadata = json.loads(cargo("metadata", "--format-version", "1"))
    return [
        package
        for package in metadata["packages"]
        if (package["name"], package["version"]) in used
    ]


def is_allowed(expression, allowed):
    """Whether an SPDX expression can be met by licences that are allowed."""
    tokens = re.findall(r"[()]|[\w.+-]+|/", expression)
    tokens = ["OR" if token == "/" else token for token in tokens]

    def either():
        met = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            met = both() or met
        return met

    def both():
        met = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            met = one() and met
        return met

    def one():
        name = tokens.pop(0)
        if name == "(":
            met = either()
            tokens.pop(0)
            return met
        if tokens and tokens[0] == "WITH":
            name = f"{name} WITH {tokens[1]}"
            del tokens[:2]
        return name in allowed

    return either()


def faults(package, rules):
    """What a package breaks, as sentences."""
    name = f"{package['name']} {package['version']}"
    licence, source = package["license"], package["source"]
    if not licence:
        yield f"{name} names no licence"
    elif not is_allowed(licence, set(rules["licenses"]["allow"])):
        yield f"{name} is under `{licence}`, which deny.toml does not allow"

    for banned in rules["bans"]["deny"]:
        if banned["crate"] == package["name"]:
            yield f"{name} is banned: {banned['reason']}"
    if source is None:
        yield from wildcards(package)

    registries = {f"registry+{registry}" for registry in rules["sources"]["allow-registry"]}
    if source is not None and source not in registries:
        yield f"{name} comes from `{source}`, which deny.toml does not allow"


def wildcards(package):
    """Dependencies of ours on any version; our own crates are named by path."""
    for dependency in package["dependencies"]:
        if dependency["req"] == "*" and "path" not in dependency:
            yield f"{package['name']} takes any version of {dependency['name']}"


def main():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    used = packages(rules["graph"]["targets"])
    found = sorted({fault for package in used for fault in faults(package, rules)})
    print("\n".join(found) or f"{len(used)} packages keep to deny.toml")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
