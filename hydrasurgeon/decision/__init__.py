"""What a checkpoint makes of its own answers: calibration, OOD scores, prediction sets, abstention;
pure, in float64.
"""
