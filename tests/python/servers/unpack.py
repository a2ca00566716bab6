"""A wheel's Python and programs without its compiled modules: unpack.py WHEEL SITE_PACKAGES"""

import sys
import zipfile
from pathlib import Path

wheel, site = zipfile.ZipFile(sys.argv[1]), Path(sys.argv[2])
for name in wheel.namelist():
    if not name.endswith(".so"):
        wheel.extract(name, site)
program = site / "vllm" / "vllm-rs"
if program.exists():
    program.chmod(0o755)
