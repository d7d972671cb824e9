"""Kills, power losses and failing disks at every call that changes a disk, over stages and outputs."""
