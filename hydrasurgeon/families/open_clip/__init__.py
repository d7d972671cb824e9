"""OpenCLIP's pairs of towers."""
