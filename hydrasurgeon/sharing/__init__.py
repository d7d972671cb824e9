"""Directories that other libraries load without code of ours, and graphs tried on data first."""
