"""The commands: each parses, calls one stage, renders. Heavy imports wait until a command runs."""
