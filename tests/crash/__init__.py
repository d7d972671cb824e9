"""Kills, power losses, failing disks and races at every call that changes a disk, over all stages and outputs."""
