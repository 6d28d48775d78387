"""What reviewed decisions teach: calibration of confidences, and patterns of failure."""
