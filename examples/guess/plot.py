"""What a training did, as one picture."""

PANELS = {
    "reward": "reward",
    "success": "games won",
    "sample/staleness_mean": "staleness (versions)",
}


def draw(history, differences, path):
    """Four panels over the policy version: the trainer's log, and the logprobs computed again."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [entry for entry in history if "reward" in entry]
    figure, panels = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True, constrained_layout=True)
    for panel, (key, title) in zip(panels.flat, PANELS.items()):
        panel.plot([entry["step"] for entry in steps], [entry.get(key) for entry in steps])
        panel.set_title(title)
    panels[0, 1].axhline(0.95, linestyle=":", color="gray")
    panels[0, 1].set_ylim(0, 1)
    last = panels[1, 1]
    versions = sorted(differences)
    last.semilogy(versions, [max(differences[version], 1e-9) for version in versions], ".")
    last.set_title("|trainer logprob - recorded logprob|, largest")
    for panel in panels[1]:
        panel.set_xlabel("step, policy version")
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
