"""The report of a run: printed, and kept in files that are complete at any moment."""

import json
import os
import tarfile
import time

from . import clocks

# The archive with the output of programs.
ARCHIVE = "rest.tar.gz"


class Skipped(Exception):
    """Raised by a part that cannot run on this machine, with the reason."""


class Report:
    """The lines, checks and rows of the table, and the time that is left.

    `out` gets few files, because some machines return only a few: `report.txt` is the output;
    `report.json` is written again after every check and row; the files in `folder` go into one
    archive, packed again after every part. So a run that is cut short leaves its results so far.
    `patience` multiplies all limits but that of the whole run.
    """

    def __init__(self, out, folder, seconds, patience=1):
        out.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.folder, self.until = out, folder, time.monotonic() + seconds
        self.until_here, self.patience = self.until, patience
        self.file = open(out / "report.txt", "w", encoding="utf-8")
        self.facts, self.checks, self.rows = {}, [], []
        # The commands of engines, the parts with their seconds, and the clocks around them.
        self.commands, self.parts, self.clocks = [], [], []
        self.done = False
        self.save()

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.file, flush=True)

    def fact(self, name, value):
        """Reports a fact about the machine or the run."""
        self.say(f"{name}: {value}")
        self.facts[name] = value
        self.save()

    def keep(self, name, value):
        """Keeps a long value, in `report.json` only."""
        self.facts[name] = value
        self.save()

    def check(self, name, holds, detail):
        """Reports a check that passed, failed, or (`None`) could not be made."""
        word = {True: "ok", False: "FAILED", None: "not made"}[holds]
        self.say(f"{word:9} {name}: {detail}")
        self.checks.append({"check": name, "result": word, "detail": detail})
        self.save()

    def row(self, text, **values):
        """Reports a row of the table, with its numbers."""
        self.say(text)
        self.rows.append({"row": text, **values})
        self.save()

    def left(self):
        """Returns the seconds until the run must end."""
        return self.until - time.monotonic()

    def limit(self, most):
        """Returns a timeout: `most` seconds, at most the time left to the part, never zero."""
        return max(1.0, min(most * self.patience, self.until_here - time.monotonic()))

    def part(self, name, limits, run):
        """Runs a part for at most the second of `limits` seconds, if at least the first is left. A
        failure is reported, and the next part runs."""
        needed, most = limits
        self.say(f"\n== {name} ({self.left():.0f} s left)")
        begun = time.monotonic()
        self.until_here = min(self.until, begun + most * self.patience)
        try:
            if self.left() < needed:
                raise Skipped(f"there is no time for it: it needs about {needed} s")
            run()
        except Skipped as reason:
            self.check(name, None, str(reason))
        except Exception as error:  # noqa: BLE001: one part must not take the others along
            self.check(name, False, f"{type(error).__name__}: {error}")
        took = time.monotonic() - begun
        self.say(f"-- {name}: {took:.0f} s")
        self.parts.append({"part": name, "seconds": took, "limit": most})
        self.clock(name)
        self.pack()

    def clock(self, behind):
        """Notes the clocks, the power and the temperature behind a part."""
        found = clocks.now()
        if found:
            self.clocks.append({"behind": behind, **found})

    def having(self, result):
        return [one["check"] for one in self.checks if one["result"] == result]

    def save(self):
        whole = {"whole": self.done, **self.facts, "checks": self.checks, "table": self.rows,
                 "parts": self.parts, "clocks": self.clocks, "commands": self.commands}
        fresh = self.out / "report.json.new"
        fresh.write_text(json.dumps(whole, indent=1))
        os.replace(fresh, self.out / "report.json")

    def pack(self):
        """The archive, of all that lies in the folder now."""
        fresh = self.out / f"{ARCHIVE}.new"
        with tarfile.open(fresh, "w:gz", compresslevel=6) as archive:
            for path in sorted(self.folder.iterdir()):
                archive.add(path, arcname=f"rest/{path.name}")
        os.replace(fresh, self.out / ARCHIVE)

    def end(self):
        """The table and the verdict; 0 if all held, 1 if something failed, 2 if nothing failed
        but something could not be looked at."""
        self.done = True
        self.save()
        failed, unmade = self.having("FAILED"), self.having("not made")
        self.say("\n== table\n" + "\n".join(row["row"] for row in self.rows))
        self.say(f"\n{len(self.having('ok'))} checks held")
        for word, names in (("FAILED", failed), ("not made", unmade)):
            if names:
                self.say(f"{word}: {'; '.join(names)}")
        self.file.close()
        self.pack()
        return 1 if failed else 2 if unmade else 0
