"""Several seeds and settings: one run a process, a few at once, and what they come to together.

words, sweep.yaml --> grid.py: which runs --> SweepFolder --> Scheduler --a child each--> run folders
                                                                                              |
   results.json, results.csv, report.html <-- page.py <-- results.py, aggregate.py <-- metrics.jsonl
"""
