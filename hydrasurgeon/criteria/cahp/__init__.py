"""CAHP: clusters of heads by what their attention maps tell classes apart by."""
