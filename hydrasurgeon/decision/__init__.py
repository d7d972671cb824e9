"""Decision states: calibration, OOD scores, prediction sets, abstention; pure, in float64."""
