"""What a model is like inside: curvature under noise (paper B.1), and how far its heads tell foreign data (B.2)."""
