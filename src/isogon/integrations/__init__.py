"""isogon where people already look: callbacks of training loops, sinks of dashboards; each needs an extra."""
