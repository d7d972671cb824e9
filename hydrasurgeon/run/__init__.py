"""Answering without torch: numpy alone."""
