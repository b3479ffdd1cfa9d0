"""Sources and sinks, and the bases users extend for their own."""
