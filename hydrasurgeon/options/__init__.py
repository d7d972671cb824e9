"""What every command can be told: one frozen record per command, from which the command line, the
Python signature, the history and replay are made.
"""
