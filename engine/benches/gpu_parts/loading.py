"""A start from a model folder, beside what its bytes take over PCIe and from the disk."""

import os
import time

from .engine import Engine

PCIE = 25e9
BLOCK = 64 << 20
# As much of the files as says how fast the disk is.
SAMPLE = 4 << 30


def weights_of(folder):
    """Returns the files of the weights of a folder."""
    return sorted(folder.glob("*.safetensors"))


def forget(files):
    """Has the page cache forget files, as far as it does."""
    for file in files:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rate(files):
    """Returns the bytes a second at which one thread reads files, or their beginning."""
    block, read, begun = bytearray(BLOCK), 0, time.perf_counter()
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while read < SAMPLE and (count := opened.readinto(block)):
                read += count
    return read / (time.perf_counter() - begun)


def measure(run, name, folder):
    """Starts an engine from a folder that the page cache has forgotten, and again."""
    files = weights_of(folder)
    size = sum(file.stat().st_size for file in files)
    forget(files)
    disk = rate(files)
    forget(files)
    for what, source in (("from the disk", disk), ("from the page cache", None)):
        with Engine(run, ["--model", folder]) as engine:
            ready = engine.ready
        floor = size / min(PCIE, source or PCIE)
        from_disk = f", {disk / 1e9:.1f} GB/s by one reader" if source else ""
        run.report.row(f"{name:11} start {what}: {size / 1e9:.2f} GB, ready after {ready:.2f} s, "
                       f"{size / ready / 1e9:.2f} GB/s; floor {floor:.2f} s (PCIe 25 GB/s"
                       f"{from_disk})", shape=name, what=what, ready=ready, bytes=size,
                       floor=floor)
