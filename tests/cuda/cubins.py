"""Every family of kernels through the real compilers, and what they take of a multiprocessor.

    cubins.py TOOLKIT [--update]

TOOLKIT is a folder with `bin/nvcc` and `lib/libnvrtc.so.13`. Each family is compiled by nvcc and by
NVRTC (as a start of `rolltape` does it) for each architecture and size of heads. ptxas says what a
kernel takes; that must stay at or below `kernels/cuda/ceilings.txt`, which `--update` writes anew.
Standard library only.
"""

import ctypes
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CUDA = ROOT / "kernels/cuda"
CEILINGS = CUDA / "ceilings.txt"
ARCHITECTURES = ["sm_80", "sm_90a"]
HEAD_DIMS = [64, 128]
HEADER = """\
# What a kernel may take, over sm_80 and sm_90a: registers of a thread, static shared memory of a
# block in bytes, bytes that a thread spills (stores and loads, functions that it calls included).
# `tests/cuda/cubins.py TOOLKIT --update` writes this.
# kernel head_dim registers shared spilled
"""
USED = re.compile(
    r"Function properties for (?P<name>\w+)\s+\d+ bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r"(\s+ptxas info\s+: Used (?P<registers>\d+) registers(?P<rest>[^\n]*))?"
)
FAMILY = re.compile(r'family!\("(\w+)": ([^)]*)\)')


def families():
    """Each family and its files, in order, by the table that the host has, too."""
    table = (ROOT / "kernels/src/cuda/source.rs").read_text()
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
        done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode != 0 or "warning" in said:
        raise SystemExit(f"{family}, {arch}, heads of {head_dim}:\n{said}")
    used, last = {}, ""
    for found in USED.finditer(said):
        spilled = int(found["stores"]) + int(found["loads"])
        if found["registers"]:  # a kernel; the functions that it calls come after it
            last = found["name"]
            shared = re.search(r"(\d+) bytes smem", found["rest"])
            used[last] = (int(found["registers"]), int(shared[1]) if shared else 0, spilled)
        elif last:
            registers, shared, before = used[last]
            used[last] = (registers, shared, before + spilled)
    if not used:
        raise SystemExit(f"{family}, {arch}: no kernels in what ptxas said:\n{said}")
    return used


class Nvrtc:
    """The run-time compiler, found by its file alone: no loader path is set."""

    def __init__(self, folder):
        # It looks for its builtins by name.
        ctypes.CDLL(str(folder / "libnvrtc-builtins.so.13.0"), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(folder / "libnvrtc.so.13"), mode=ctypes.RTLD_GLOBAL)

    def compile(self, family, arch, head_dim):
        """The cubin's length; the options are those of `kernels/src/cuda/compile.rs`."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        text = text_of(families()[family]).encode()
        none = (0, None, None)
        if self.library.nvrtcCreateProgram(ctypes.byref(program), text, b"x.cu", *none):
            raise SystemExit(f"{family}: NVRTC takes no text")
        options = [f"--gpu-architecture={arch}", "--std=c++17", f"-DHEAD_DIM={head_dim}"]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        if failed:
            self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self.library.nvrtcGetProgramLog(program, log)
            raise SystemExit(f"NVRTC, {family}, {arch}:\n{log.value.decode()}")
        self.library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        if size.value == 0:
            raise SystemExit(f"NVRTC, {family}, {arch}: no cubin")
        return size.value


def sizes_of(family):
    """The sizes of heads that a family differs by; "any" where it does not."""
    own = [part for part in families()[family] if part != "base"]
    return HEAD_DIMS if "HEAD_DIM" in text_of(own) else ["any"]


def measure(toolkit):
    """(kernel, head_dim) to the most registers, shared and spilled bytes, over architectures."""
    nvrtc, most = Nvrtc(toolkit / "lib"), {}

    def one(job):
        family, arch, size = job
        head_dim = 64 if size == "any" else size
        used = nvcc(toolkit, family, arch, head_dim)
        nvrtc.compile(family, arch, head_dim)
        return size, used

    jobs = [(f, a, s) for f in families() for a in ARCHITECTURES for s in sizes_of(f)]
    with ThreadPoolExecutor(2) as pool:
        for size, used in pool.map(one, jobs):
            for kernel, numbers in used.items():
                key = (kernel, str(size))
                most[key] = tuple(map(max, numbers, most.get(key, numbers)))
    return most


def ceilings():
    """The table as committed."""
    lines = [line.split() for line in CEILINGS.read_text().splitlines() if line[:1] != "#"]
    return {(line[0], line[1]): tuple(map(int, line[2:])) for line in lines}


def main():
    """Compiles everything; exits with what is wrong."""
    most = measure(Path(sys.argv[1]))
    if sys.argv[2:] == ["--update"]:
        rows = [" ".join(map(str, key + most[key])) + "\n" for key in sorted(most)]
        CEILINGS.write_text(HEADER + "".join(rows))
    allowed = ceilings()
    wrong = []
    for key in sorted(most.keys() | allowed.keys()):
        kernel, size = key
        if key not in most or key not in allowed:
            wrong.append(f"{kernel} ({size}): {CEILINGS.name} and the kernels differ")
        elif any(found > ceiling for found, ceiling in zip(most[key], allowed[key])):
            wrong.append(f"{kernel} ({size}): {most[key]} is above {allowed[key]}, "
                         f"see {CEILINGS.name}")
    for (kernel, size), (registers, shared, spilled) in sorted(most.items()):
        print(f"{kernel:24} {size:>4} {registers:4} registers {shared:6} bytes shared "
              f"{spilled} spilled")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
