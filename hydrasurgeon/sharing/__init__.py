"""Out into the world: the hub, ONNX, model cards with results, stock timm."""
