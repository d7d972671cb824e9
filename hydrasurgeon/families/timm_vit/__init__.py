"""timm's vision transformers."""
