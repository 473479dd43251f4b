"""The application: command line, runs, reports, planner and data. The library never imports it."""
