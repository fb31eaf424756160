"""The runtime without Spark: so far the rules of barriers and of channel state, which no runtime uses yet."""
