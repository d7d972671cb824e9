"""CAHP: clusters of heads whose attention maps separate the classes alike."""
