"""Measurements with their origins, the metrics by which they are judged, and the rules of teams."""
