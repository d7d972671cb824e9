"""A live transformer taken apart: its parts, its layers, the hooks and maps on them."""
