"""Decision states: calibration, OOD scores, prediction sets and abstention; pure functions in
float64.
"""
