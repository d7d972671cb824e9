"""timm's rotary vision transformers: DINOv3, EVA, EVA02 and their kin."""
