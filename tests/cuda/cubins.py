"""Every family of kernels through the real compilers, and what they take of a multiprocessor.

    cubins.py TOOLKIT OLDER [--update]

TOOLKIT is a folder with `bin/nvcc` and `lib/libnvrtc.so.13`, OLDER one with `libnvrtc.so.12`. Each
family is compiled by nvcc and by both NVRTCs (as a start of `rolltape` does it) for each
architecture and size of heads. ptxas says what a kernel takes; that must stay at or below
`kernels/cuda/ceilings.txt`. What the older NVRTC makes runs on drivers of CUDA 12 and 13 and is
built into the program: `kernels/cuda/cubins.bin` must hold it, byte for byte. `--update` writes
both files anew. Standard library only.
"""

import ctypes
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CUDA = ROOT / "kernels/cuda"
CEILINGS = CUDA / "ceilings.txt"
ARCHIVE = CUDA / "cubins.bin"
ARCHITECTURES = ["sm_80", "sm_90a"]
HEAD_DIMS = [64, 128, 256]
HEADER = """\
# What a kernel may take, over sm_80 and sm_90a: registers of a thread, static shared memory of a
# block in bytes, bytes that a thread spills (stores and loads, functions that it calls included).
# `tests/cuda/run.sh --update` writes this.
# kernel head_dim registers shared spilled
"""
USED = re.compile(
    r"Function properties for (?P<name>\w+)\s+\d+ bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r"(\s+ptxas info\s+: Used (?P<registers>\d+) registers(?P<rest>[^\n]*))?"
)
# A kernel in PTX; loads and stores of device memory in front of a place. `cp.async` is none of them:
# products of few rows begin to load weights before they wait.
ENTRY = re.compile(r"\.entry (\w+)\((.*?)\n}\n", re.DOTALL)
WAIT = "griddepcontrol.wait"
ACCESS = re.compile(r"\b(?:ld|st|atom|red)(?:\.\w+)*\.global\S*")
# Families without a kernel of a step.
OUTSIDE = ["weights", "arrival"]
# Kernels that read through the cache for constants: addresses of pages, which no kernel writes.
CONSTANTS = ["attention", "attention_tall", "attention_warpgroups", "rope_attention",
             "attention_fp8", "attention_tall_fp8", "rope_attention_fp8"]
# Kernels that load words of the step before they wait, by which they find what no kernel of the step
# writes. They store nothing before.
EARLY = ["rope_attention", "rope_attention_fp8"]
FAMILY = re.compile(r'family!\("(\w+)": ([^)]*)\)')


def families():
    """Each family and its files, in order, by the table that the host has, too."""
    table = (ROOT / "kernels/src/cuda/program/source.rs").read_text()
    found = {name: re.findall(r'"([^"]+)"', parts) for name, parts in FAMILY.findall(table)}
    known = {part for parts in found.values() for part in parts}
    on_disk = {str(file.relative_to(CUDA).with_suffix("")) for file in CUDA.rglob("*.cu")}
    if known != on_disk:
        raise SystemExit(f"files of no family, or not there: {sorted(known ^ on_disk)}")
    return found


def text_of(parts):
    """A family as the host puts it together."""
    return "\n".join((CUDA / f"{part}.cu").read_text() for part in parts)


def nvcc(toolkit, family, arch, head_dim):
    """What each kernel takes, as ptxas says it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, f"{family}.cu")
        source.write_text(text_of(families()[family]))
        command = [toolkit / "bin/nvcc", "-cubin", f"-arch={arch}", "-std=c++17", "-Xptxas", "-v"]
        command += [f"-DHEAD_DIM={head_dim}", "-o", Path(folder, "out.cubin"), source]
        command += ["--keep", "--keep-dir", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
        # Products of warpgroups that wait for each other are not told of as a warning.
        if done.returncode != 0 or "warning" in said or "serialized" in said:
            raise SystemExit(f"{family}, {arch}, heads of {head_dim}:\n{said}")
        if arch == "sm_90a" and family not in OUTSIDE:
            check_waits(Path(folder, f"{family}.ptx").read_text())
    return used_of(said, f"{family}, {arch}")


def check_waits(ptx):
    """Each kernel waits for the launch in front before it accesses memory, as compilers order it."""
    kernels = ENTRY.findall(ptx)
    if not kernels:
        raise SystemExit(f"no kernels in PTX:\n{ptx}")
    for kernel, body in kernels:
        before, wait, _ = body.partition(WAIT)
        if not wait:
            raise SystemExit(f"{kernel} does not wait for the launch in front")
        found = ACCESS.findall(before)
        if kernel in EARLY:
            found = [access for access in found if not access.startswith("ld.")]
        if found:
            raise SystemExit(f"{kernel} does not wait before {found}")
        if kernel in EARLY and "cp.async" not in body.rpartition(WAIT)[0]:
            raise SystemExit(f"{kernel} loads nothing before it waits")
        if kernel not in CONSTANTS and "ld.global.nc" in body:
            raise SystemExit(f"{kernel} reads through the cache for constants: a launch in front "
                             "may still write what it reads")


def used_of(said, what):
    """Registers, shared and spilled bytes of each kernel, in what ptxas said."""
    used, last = {}, ""
    for found in USED.finditer(said.replace("ptxas         .", "")):
        spilled = int(found["stores"]) + int(found["loads"])
        if found["registers"]:  # a kernel; the functions that it calls come after it
            last = found["name"]
            shared = re.search(r"(\d+) bytes smem", found["rest"])
            used[last] = (int(found["registers"]), int(shared[1]) if shared else 0, spilled)
        elif last:
            registers, shared, before = used[last]
            used[last] = (registers, shared, before + spilled)
    if not used:
        raise SystemExit(f"{what}: no kernels in what ptxas said:\n{said}")
    return used


class Nvrtc:
    """A run-time compiler, found by its file alone: no loader path is set."""

    def __init__(self, folder, major):
        # It looks for its builtins by name.
        (builtins,) = folder.glob(f"libnvrtc-builtins.so.{major}.*")
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(folder / f"libnvrtc.so.{major}"), mode=ctypes.RTLD_GLOBAL)

    def compile(self, family, options):
        """The cubin, and what was said of it."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        text = text_of(families()[family]).encode()
        none = (0, None, None)
        if self.library.nvrtcCreateProgram(ctypes.byref(program), text, b"x.cu", *none):
            raise SystemExit(f"{family}: NVRTC takes no text")
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        said = log.value.decode()
        if failed:
            raise SystemExit(f"NVRTC, {family}, {options}:\n{said}")
        self.library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetCUBIN(program, cubin)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        if size.value == 0:
            raise SystemExit(f"NVRTC, {family}, {options}: no cubin")
        return cubin.raw, said


def options_of(arch, head_dim):
    """Those of `kernels/src/cuda/program.rs`."""
    return [f"--gpu-architecture={arch}", "--std=c++17", f"-DHEAD_DIM={head_dim}"]


def key_of(family, options):
    """That of `kernels/src/cuda/program/built_in.rs`: FNV-1a of 128 bits over text and options."""
    total = 0x6C62272E07BB014262B821756295C58D
    for part in (text_of(families()[family]), " ".join(options)):
        data = part.encode()
        for byte in struct.pack("<Q", len(data)) + data:
            total = (total ^ byte) * ((1 << 88) + 0x13B) % (1 << 128)
    return total.to_bytes(16, "little")


def sizes_of(family):
    """The sizes of heads that a family differs by; "any" where it does not."""
    own = [part for part in families()[family] if part != "base"]
    return HEAD_DIMS if "HEAD_DIM" in text_of(own) else ["any"]


def measure(toolkit, older):
    """(kernel, head_dim) to the most registers, shared and spilled bytes, over architectures and
    compilers; and the archive of what the older NVRTC made, not packed."""
    newer, older, most, archive = Nvrtc(toolkit / "lib", 13), Nvrtc(older, 12), {}, []

    def one(job):
        family, arch, size = job
        head_dim = 64 if size == "any" else size
        used = nvcc(toolkit, family, arch, head_dim)
        options = options_of(arch, head_dim)
        newer.compile(family, options)
        cubin, said = older.compile(family, [*options, "--ptxas-options=-v"])
        entry = key_of(family, options) + struct.pack("<I", len(cubin)) + cubin
        return size, [used, used_of(said, f"{family}, {arch}, built in")], entry

    jobs = [(f, a, s) for f in families() for a in ARCHITECTURES for s in sizes_of(f)]
    with ThreadPoolExecutor(2) as pool:
        for size, all_used, entry in pool.map(one, jobs):
            archive.append(entry)
            for kernel, numbers in (pair for used in all_used for pair in used.items()):
                key = (kernel, str(size))
                most[key] = tuple(map(max, numbers, most.get(key, numbers)))
    return most, b"".join(archive)


def ceilings():
    """The table as committed."""
    lines = [line.split() for line in CEILINGS.read_text().splitlines() if line[:1] != "#"]
    return {(line[0], line[1]): tuple(map(int, line[2:])) for line in lines}


def main():
    """Compiles everything; exits with what is wrong."""
    most, archive = measure(Path(sys.argv[1]), Path(sys.argv[2]))
    if sys.argv[3:] == ["--update"]:
        rows = [" ".join(map(str, key + most[key])) + "\n" for key in sorted(most)]
        CEILINGS.write_text(HEADER + "".join(rows))
        ARCHIVE.write_bytes(zlib.compress(archive, 9))
    allowed = ceilings()
    wrong = []
    for key in sorted(most.keys() | allowed.keys()):
        kernel, size = key
        if key not in most or key not in allowed:
            wrong.append(f"{kernel} ({size}): {CEILINGS.name} and the kernels differ")
        elif any(found > ceiling for found, ceiling in zip(most[key], allowed[key])):
            wrong.append(f"{kernel} ({size}): {most[key]} is above {allowed[key]}, "
                         f"see {CEILINGS.name}")
    if not ARCHIVE.exists() or zlib.decompress(ARCHIVE.read_bytes()) != archive:
        wrong.append(f"{ARCHIVE.name} is not what the compiler makes of the kernels now: run "
                     "`tests/cuda/run.sh --update`")
    for (kernel, size), (registers, shared, spilled) in sorted(most.items()):
        print(f"{kernel:24} {size:>4} {registers:4} registers {shared:6} bytes shared "
              f"{spilled} spilled")
    print(f"{ARCHIVE.name}: {len(archive) >> 10} KiB, {ARCHIVE.stat().st_size >> 10} packed")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
