"""Options of every command: one frozen record per command, from which the command line, the Python
signature, the history and replay are derived.
"""
