"""Runs the same work on Downbeat and on other systems, in turns. See README.md beside `run`.

processes.py   what is started, what it costs, how it ends
redis.py       a private Redis
session.py     one system up for one measurement: phases, ledgers, audit
systems/       Downbeat and the peers
turns.py       the rounds
report.py      ratios, Markdown, JSON
"""
