"""Real inference servers on a CPU: installed, started, asked."""
