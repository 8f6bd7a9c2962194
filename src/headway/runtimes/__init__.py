"""Where the work runs: inline, threads, processes, virtual."""
