"""What nvidia-smi says: the name of the GPU, its clocks and its power; and what its specification
says of its memory."""

import shutil
import subprocess

LOOK = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
# Bits of the memory's bus, by a part of the name. Two a clock.
BUSES = (("GH200", 6144), ("H200", 6144), ("H100 NVL", 6144), ("H100", 5120), ("A100", 5120))


def ask(names):
    """Returns the values of the first GPU by their names; nothing without nvidia-smi."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return {}
    command = [smi, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    lines = done.stdout.strip().splitlines()
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return dict(zip(names, values)) if done.returncode == 0 else {}


def now():
    """Returns the clocks (MHz), the power (W) and the temperature of this moment."""
    return ask(LOOK)


def specified(name, clock):
    """Returns the bytes a second of the specification: the bus at the highest clock of the memory
    (MHz), two transfers a clock; none if the bus is not known."""
    bits = next((bits for part, bits in BUSES if part in name), None)
    return None if bits is None or clock is None else bits / 8 * 2 * clock * 1e6
