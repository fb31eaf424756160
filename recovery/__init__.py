"""Find, settle, publish and clean what a crash left behind."""
