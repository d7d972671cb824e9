"""HTTP: requests → inputs, inputs that come together → one pass of the model, answers and counts."""
