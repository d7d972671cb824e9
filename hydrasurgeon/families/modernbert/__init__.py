"""ModernBERT: rotary positions, local and global layers, gated MLPs."""
