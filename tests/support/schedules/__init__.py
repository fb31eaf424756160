"""Random schedules of real coordinators, tasks and zombies."""
